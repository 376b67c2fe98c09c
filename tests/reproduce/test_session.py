"""The end of a reproduction: its result for the exit status."""

from types import SimpleNamespace

import pytest

from fpp_sweep.reproduce import session
from fpp_sweep.reproduce.selection import Selection
from fpp_sweep.sweep.api import Options


@pytest.mark.parametrize(
    ("failed", "succeeded"), [((), True), ((False, False), True), ((False, True), False), ((True, True), False)]
)
def test_a_reproduction_fails_if_a_row_of_one_table_failed(tmp_path, monkeypatch, failed, succeeded):
    tables = {str(number): SimpleNamespace(failed=has_failed) for number, has_failed in enumerate(failed)}
    monkeypatch.setattr(session, "run_tables", lambda *_: tables)
    monkeypatch.setattr(session, "write_and_deliver", lambda *_: None)
    assert session.run_selection(Selection(), tmp_path / "main", Options()) is succeeded
