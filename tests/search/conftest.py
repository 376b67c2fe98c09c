"""A fixture for the tests of studies and searchers."""

import pytest

from fpp_sweep.search import searcher


@pytest.fixture(autouse=True)
def _no_wait_for_process_starts(monkeypatch):
    monkeypatch.setattr(searcher, "START_SECONDS", 0.0)
