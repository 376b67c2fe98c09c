"""Break random lines of the package, and list the breaks that no test notices: `python -m tools.mutate`."""
