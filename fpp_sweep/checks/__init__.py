"""Checks of the machines that a sweep runs on: `probes` reads facts, `checks` judges them."""
