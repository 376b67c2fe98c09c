"""Helpers for computing with torch: memory, precision and random streams."""
