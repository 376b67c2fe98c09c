"""The thread that keeps the report of a running sweep up to date."""

from types import SimpleNamespace

import pytest

from fpp_sweep.sweep.reporter import Reporter
from tests.kit.records import all_baselines, searched_trials, sweep_info, write_sweep
from tests.kit.waiting import wait_for


class Store:
    """A thread for MLflow that counts how often it is woken."""

    def __init__(self):
        self.nudges = 0

    def nudge(self, statistics):
        self.nudges += 1


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path / "sweep", sweep_info(), [*all_baselines(), *searched_trials(3)])


def test_a_change_writes_the_tables_and_the_end_writes_the_page(folder):
    store = Store()
    reporter = Reporter(folder, store)
    reporter.start()
    reporter.on_change(SimpleNamespace())
    wait_for(lambda: store.nudges == 1)
    assert (folder.report / "front.csv").is_file()
    assert not (folder.report / "sweep.html").exists()
    reporter.close()
    assert (folder.report / "sweep.html").is_file()
    assert store.nudges == 2


def test_a_report_that_cannot_be_written_is_said_in_one_line_and_ends_nothing(folder, capsys):
    folder.info_file.write_text("no JSON")
    store = Store()
    Reporter(folder, store).close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the report could not be written: InputError: ")
    assert store.nudges == 1
