"""The sweep over processes and machines: workers that hold models, their keeper, trials, the search."""
