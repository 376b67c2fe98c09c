"""A space of two datasets and its worker, shared by the tests of costs and times."""

import pytest

from fpp_sweep.space.reading import parse_space
from tests.kit.spaces import TWO_DATASETS


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    return parse_space(TWO_DATASETS, "space.yaml", [f"work.cache={tmp_path_factory.mktemp('cache')}"])


@pytest.fixture(scope="module")
def worker(space):
    from fpp_sweep.sweep.worker_pool import (
        worker_spec,
    )  # imported here because it loads torch, which most tests of this folder do not need
    from fpp_sweep.trial.worker import Worker

    return Worker(worker_spec(space, gpus=0.0))
