"""Training of the embedded CLIP: `python -m tools.train_tiny`."""
