"""Views of images, and their features on disk."""
