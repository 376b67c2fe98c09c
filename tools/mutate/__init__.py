"""Break the package at random places, and list the breaks that no test notices: `python -m tools.mutate`."""
