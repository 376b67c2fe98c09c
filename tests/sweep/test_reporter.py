"""The thread that keeps the report of a running sweep up to date."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import plugins
from fpp_sweep.sweep import reporter as reporter_module
from fpp_sweep.sweep.reporter import Reporter
from tests.kit.records import all_baselines, searched_trials, sweep_info, write_sweep
from tests.kit.waiting import wait_for

METRIC_PLUGIN = """
from fpp_sweep.spec.catalogue import register_metric as metric

@metric(name="mine", goal="min", decimals=4)
def mine(predictions):
    return 3.25
"""


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


@pytest.mark.usefixtures("no_plugins_left")
def test_another_process_writes_a_due_page_with_the_plugins_and_without_the_current_folder(
    folder, tmp_path, monkeypatch, capsys
):
    (tmp_path / "numpy.py").write_text("raise SystemExit('a module of the current folder')")
    plugin = tmp_path / "mine.py"
    plugin.write_text(METRIC_PLUGIN)
    plugins.load(plugins.read([plugin]))
    objectives = (Objective(metric="mine", goal="min"),)
    files = {"mine": str(plugin)}
    folder.write_info(replace(folder.info(), objectives=objectives, reference=None, plugin_files=files))
    for record in folder.trials():
        results = {}
        for split, result in record.results.items():
            results[split] = replace(result, average={**result.average, "mine": 3.25})
        folder.write_trial(replace(record, results=results, values=[3.25]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reporter_module, "PAGE_INTERVAL", 0.0)
    store = Store()
    reporter = Reporter(folder, store)
    reporter.start()
    reporter.on_change(SimpleNamespace())
    wait_for(lambda: store.nudges == 1)
    assert "3.2500" in (folder.report / "sweep.html").read_text()
    reporter.close()
    assert capsys.readouterr().err == ""


def test_a_report_that_cannot_be_written_is_said_in_one_line_and_ends_nothing(folder, capsys):
    folder.info_file.write_text("no JSON")
    store = Store()
    Reporter(folder, store).close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the report could not be written: InputError: ")
    assert store.nudges == 1
