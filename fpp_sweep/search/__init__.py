"""What is tried next, and the trials that Ray Tune runs."""
