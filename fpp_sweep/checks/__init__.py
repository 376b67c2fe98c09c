"""Checks of a machine and a sweep before it starts: probes read facts, checks judge them."""
