"""Helpers for computing with torch: compilation, memory, precision, random streams."""
