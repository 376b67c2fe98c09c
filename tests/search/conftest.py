"""Fixtures of the tests of studies and searchers."""

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fpp_sweep.search import searcher


@pytest.fixture(scope="module", autouse=True)
def quick_disk():
    """Not to wait for the disk: power does not fail here."""

    @event.listens_for(Engine, "connect")
    def relax(connection, _):
        connection.execute("PRAGMA synchronous=OFF")

    yield
    event.remove(Engine, "connect", relax)


@pytest.fixture(autouse=True)
def _processes_start_at_once(monkeypatch):
    monkeypatch.setattr(searcher, "START_SECONDS", 0.0)
