"""The text tower, and the texts of a dataset's classes around a context."""
