"""The choice of the next trial, and the trials that Ray Tune runs."""
