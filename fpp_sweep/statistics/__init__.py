"""Resampling and comparison of results: per-block statistics, bootstrap, tests, support. NumPy only."""
