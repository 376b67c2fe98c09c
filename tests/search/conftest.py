"""Fixtures for the tests of studies and searchers."""

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fpp_sweep.search import searcher


@pytest.fixture(scope="module", autouse=True)
def quick_disk():
    """Let SQLite skip its waits for the disk: they protect against power failures only."""

    @event.listens_for(Engine, "connect")
    def relax(connection, _):
        connection.execute("PRAGMA synchronous=OFF")

    yield
    event.remove(Engine, "connect", relax)


@pytest.fixture(autouse=True)
def _no_wait_for_process_starts(monkeypatch):
    monkeypatch.setattr(searcher, "START_SECONDS", 0.0)
