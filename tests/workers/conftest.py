"""Tests that are coroutines, and a keeper for each."""

import asyncio
import inspect

import pytest

from fpp_sweep.spec import tasks
from fpp_sweep.workers import scheduler as module
from tests.toys import RUNNING_MEAN, registered
from tests.trial.made import evaluation
from tests.workers.crew import SOON, Crew


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine, which must not hang; whatever it leaves running is cancelled with its loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def limited():
        async with asyncio.timeout(SOON):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(limited())
    return True


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "HIRE_EVERY", 0.005)


@pytest.fixture
def keep(tmp_path):
    """Begins a keeper's work, with a crew that does as it is told."""
    return lambda does=None, **options: Crew(does=does, **options).begin(tmp_path)


@pytest.fixture
def chain(monkeypatch):
    """The shards of a stateful method's stream."""
    monkeypatch.setattr(tasks, "SHARD", 64)
    with registered(RUNNING_MEAN):
        yield evaluation(stop=640, method="running_mean", prompt="fpp").shards()
