"""The folder of a sweep, its records, its front and its answer."""
