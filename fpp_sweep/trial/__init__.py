"""One trial: its tasks, the workers that compute them, and the results."""
