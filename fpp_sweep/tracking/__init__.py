"""MLflow's copy of a sweep, always made from the sweep's folder.

`runs.py` computes the runs that MLflow should show, `delivery.py` writes those that differ, and `stores.py` finds,
checks and opens stores.
"""
