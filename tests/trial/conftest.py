"""Workers that the tests of this folder share."""

import pytest


@pytest.fixture(scope="session")
def worker(make_worker):
    """A worker with enough images for three shards: more than two batches."""
    return make_worker(limit=150)


@pytest.fixture(scope="session")
def small(make_worker):
    """A worker with a few images."""
    return make_worker(limit=20)
