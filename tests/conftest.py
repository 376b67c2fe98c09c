"""Property tests on any machine: what is slow is not wrong. What a command keeps for its user is kept elsewhere."""

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_home = tempfile.TemporaryDirectory(prefix="fpp-config-")
os.environ["XDG_CONFIG_HOME"] = _home.name


@pytest.fixture(scope="session")
def make_worker(tmp_path_factory):
    """Make real workers that share a model and a cache."""
    from tests.kit.workers import worker_factory  # imports torch, which most tests of commands do without

    with worker_factory(tmp_path_factory.mktemp("cache")) as make:
        yield make
