"""What a trial computes: torch, numpy and pillow. Knows nothing of clusters, searchers or trackers."""
