"""Checks of the machines and datasets that a sweep uses, for `doctor`, and the entries of the cache."""
