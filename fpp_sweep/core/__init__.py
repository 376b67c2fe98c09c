"""The mathematics of a trial: torch, numpy and pillow. Nothing here knows clusters, searchers or trackers."""
