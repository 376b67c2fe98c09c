"""A sweep from its space to its front."""
