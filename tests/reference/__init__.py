"""Plain, slow implementations of the package's computations; they import nothing from the package."""
