"""The embedded default: a small but genuine CLIP and the procedurally drawn world it knows.

Nothing is downloaded: `world` draws the evaluation datasets, `model` loads the shipped weights, and `making.train` is
the script that made them. Importing this package loads none of the three.
"""
