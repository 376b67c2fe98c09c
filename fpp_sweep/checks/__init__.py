"""Checks of the machines that a sweep runs on: `probes` takes readings, `checks` judges them."""
