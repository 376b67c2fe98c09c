"""Settings and fixtures of all tests.

Property tests have no time limit, because a slow machine is no error. Commands keep the user's files in a temporary
folder, so that tests neither read nor change those of the developer.
"""

import locale
import os
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_home = tempfile.TemporaryDirectory(prefix="fpp-config-")
os.environ["XDG_CONFIG_HOME"] = _home.name
os.environ.pop("MLFLOW_TRACKING_URI", None)


@pytest.fixture(scope="session")
def make_worker(tmp_path_factory):
    """Return a function that makes real workers, which share a model and a cache."""
    from tests.kit.workers import worker_factory  # imports torch, which most tests of commands do not need

    with worker_factory(tmp_path_factory.mktemp("cache")) as make:
        yield make


@pytest.fixture
def ascii_locale():
    """Set a locale in which a text file is ASCII, unless the code that opens it names another encoding."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.fixture
def no_plugins_left():
    """Unload all plugins after the test."""
    yield
    _unload_plugins()


@pytest.fixture(scope="module", autouse=True)
def no_plugins_left_by_file():
    """Unload all plugins after each file of tests: files run in another order on another machine."""
    yield
    _unload_plugins()


def _unload_plugins():
    plugins = sys.modules.get("fpp_sweep.spec.plugins")  # most tests do not import it
    if plugins is not None:
        for file in plugins.loaded():
            plugins.unload(file)
