"""Plain, slow implementations of what the package computes fast; they import nothing from it."""
