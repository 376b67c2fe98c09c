"""One trial: its tasks, the worker that computes them, and what they give."""
