"""The embedded default: a small but real CLIP, and procedurally drawn datasets of the kind that it was trained on.

Nothing is downloaded: `world` draws the evaluation datasets and `model` loads the shipped weights. The script that
trained them is `tools/train_tiny`. Importing this package loads neither of the two modules.
"""
