"""The process that writes the page of a running sweep."""

import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import psutil
import pytest

from fpp_sweep.report.writing import write_report
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import plugins
from fpp_sweep.sweep.page_process import PageProcess
from tests.kit.records import all_baselines, searched_trials, sweep_info, write_sweep
from tests.kit.waiting import LONG, wait_for

SLEEPER = "import time; from fpp_sweep.sweep.child_process import end_with_parent; end_with_parent(); {}"
METRIC_PLUGIN = """
from fpp_sweep.spec.plugins import metric

@metric(name="mine", goal="min", decimals=4)
def mine(predictions):
    return 3.25
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEPER.format("print(1, flush=True); time.sleep(10**6)")!r}])
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path / "sweep", sweep_info(), [*all_baselines(), *searched_trials(5)])


def test_the_page_and_the_statistics_are_those_of_this_process(folder):
    statistics = PageProcess(folder).write()
    page = (folder.report / "sweep.html").read_text()
    expected = write_report(folder, pages=True)
    assert (folder.report / "sweep.html").read_text() == page
    assert pickle.dumps(statistics) == pickle.dumps(pickle.loads(pickle.dumps(expected.for_tables())))


def test_the_process_imports_nothing_from_the_current_folder(folder, tmp_path, monkeypatch):
    hostile = tmp_path / "received"
    hostile.mkdir()
    (hostile / "numpy.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    monkeypatch.chdir(hostile)
    assert PageProcess(folder).write() is not None
    assert not (hostile / "ran").exists()


def test_a_page_that_cannot_be_written_gives_the_last_line_of_the_error(folder):
    folder.info_file.write_text("no JSON")
    with pytest.raises(ChildProcessError, match=r"^status 1: fpp_sweep.spec.errors.InputError: .*sweep.json"):
        PageProcess(folder).write()


@pytest.mark.usefixtures("no_plugins_left")
def test_the_page_of_a_sweep_that_is_judged_by_a_plugins_metric_is_written(folder, tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(METRIC_PLUGIN)
    plugins.load(plugins.read([plugin]))
    folder.write_info(replace(folder.info(), objectives=(Objective(metric="mine", goal="min"),), reference=None))
    for record in folder.trials():
        results = {}
        for split, result in record.results.items():
            results[split] = replace(result, average={**result.average, "mine": 3.25})
        folder.write_trial(replace(record, results=results, values=[3.25]))
    PageProcess(folder).write()
    assert "3.2500" in (folder.report / "sweep.html").read_text()


def test_a_page_can_be_stopped(folder):
    process = PageProcess(folder)
    results = []
    thread = threading.Thread(target=lambda: results.append(process.write()))
    thread.start()
    wait_for(lambda: process._process is not None)
    process.stop()
    thread.join(LONG)
    assert results == [None]
    assert process._process.poll() is not None
    assert process.write() is None


def test_a_child_ends_when_its_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "1\n"  # the child is ready
        parent.kill()
    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
