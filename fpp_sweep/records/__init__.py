"""Records of a sweep: its folder, and the front of its trials."""
