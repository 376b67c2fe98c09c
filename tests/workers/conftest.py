"""Run test functions that are coroutines, and give each test its own scheduler."""

import asyncio
import inspect

import pytest

from fpp_sweep.spec import tasks
from fpp_sweep.workers import scheduler as scheduler_module
from tests.kit.rows import RUNNING_MEAN, registered
from tests.kit.scheduler import HANGS_AFTER, Harness
from tests.kit.tasks import evaluation


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine, with a time limit; tasks that still run are cancelled at its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def limited():
        async with asyncio.timeout(HANGS_AFTER):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(limited())
    return True


@pytest.fixture(autouse=True)
def _start_workers_quickly(monkeypatch):
    monkeypatch.setattr(scheduler_module, "START_INTERVAL", 0.005)
    monkeypatch.setattr(scheduler_module, "FAILED_START_DELAY", 0.005)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a scheduler whose workers have the given behaviour."""
    return lambda behaviour=None, **options: Harness(behaviour=behaviour, **options).begin(tmp_path)


@pytest.fixture
def chain(monkeypatch):
    """Return the ten shards of a stateful method's stream."""
    monkeypatch.setattr(tasks, "SHARD", 64)
    with registered(RUNNING_MEAN):
        yield evaluation(stop=640, method="running_mean", prompt="fpp").shards()
