"""Helpers for computing with torch: compilation, memory, precision and random streams."""
