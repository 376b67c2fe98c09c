"""The thread that keeps MLflow up to date during a sweep: it follows the folder, retries, and delays no sweep."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.tracking import BackgroundSync, sync_folder
from fpp_sweep.tracking.folder_sync import FolderSync, SweepRuns
from fpp_sweep.tracking.sync import Backoff
from fpp_sweep.tracking.uri import connect
from tests.kit.records import build_sweep, trial
from tests.kit.stores import free_port, rows
from tests.kit.waiting import LONG, wait_for


def statuses(database):
    return dict(rows(database, "select name, status from runs where lifecycle_stage = 'active'"))


def fail_first_call(monkeypatch, name, error):
    """Make the first call of a method of SweepRuns raise this error."""
    method, calls = getattr(SweepRuns, name), []

    def call(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise error
        return method(*arguments, **options)

    monkeypatch.setattr(SweepRuns, name, call)


def test_the_thread_follows_the_folder_and_ends_with_all_runs_written(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2, running_trials=(0, 1), state="running", report=False)
    sync = BackgroundSync(folder, uri)
    sync.start()
    wait_for(lambda: sync.status().updated == 6)
    for number in (0, 1):
        folder.write_trial(trial(number))
        sync.nudge()
    folder.write_info(replace(folder.info(), state="finished", finished=folder.info().created + 100))
    assert sync.close(LONG) == 0
    assert set(statuses(database).values()) == {"FINISHED"}


def test_only_one_process_writes_a_sweep(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    sync = BackgroundSync(folder, uri)
    sync.start()
    wait_for(lambda: sync.status().updated == 5)
    with pytest.raises(InputError, match=f"by process {os.getpid()};"):
        sync_folder(SweepFolder(folder.path), uri)
    assert sync.close(LONG) == 0
    assert sync_folder(folder, uri).updated == 0


def test_a_run_that_a_user_deleted_stays_deleted(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync_folder(folder, uri)
    name = "0001 54/10.8 gamma2=0.17 class_var=0.002"
    ((run,),) = rows(database, "select run_uuid from runs where name = ?", name)
    connect(uri).delete_run(run)
    folder.write_trial(replace(trial(1), origin="point"))
    sync = BackgroundSync(folder, uri)
    sync.start()
    assert sync.close(LONG) == 0
    assert rows(database, "select lifecycle_stage from runs where run_uuid = ?", run) == [("deleted",)]
    assert len(statuses(database)) == 5
    assert sync.status().error is None


@pytest.mark.parametrize("name", ["perturb-1", "0001 54/10.8 gamma2=0.17 class_var=0.002"])
def test_a_run_that_a_user_deletes_during_the_sweep_stays_deleted(tmp_path, database, uri, name):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync = FolderSync(folder, uri, restore=False)

    def make_pass():
        return sync.make_pass(thorough=False, stop=lambda: False, on_update=lambda _: None)

    assert make_pass() == []
    ((run,),) = rows(database, "select run_uuid from runs where name = ?", name)
    connect(uri).delete_run(run)
    for attempt in (2, 3):
        for number in (0, 1):
            folder.write_trial(replace(folder.trial(f"trial-{number:04d}"), attempt=attempt))
        folder.write_info(replace(folder.info(), end_reason=f"reason {attempt}"))
        assert make_pass() == []
    sync.disconnect()
    assert rows(database, "select lifecycle_stage from runs where run_uuid = ?", run) == [("deleted",)]
    assert len(statuses(database)) == 5


@pytest.mark.parametrize("restored", ["during the sweep", "before its resume"])
@pytest.mark.parametrize("deleted", ["trial", "experiment"])
def test_a_run_that_a_user_deletes_and_restores_gets_what_it_lacks(tmp_path, database, uri, deleted, restored):
    folder = build_sweep(tmp_path / "perturb-1", trials=2, running_trials=(0, 1), state="running", report=False)
    client = connect(uri)
    sync = FolderSync(folder, uri, restore=False)

    def make_pass(thorough):
        return sync.make_pass(thorough=thorough, stop=lambda: False, on_update=lambda _: None)

    assert make_pass(thorough=True) == []
    ((run, experiment),) = rows(database, "select run_uuid, experiment_id from runs where name like '0001%'")
    delete, restore, item = {
        "trial": (client.delete_run, client.restore_run, run),
        "experiment": (client.delete_experiment, client.restore_experiment, str(experiment)),
    }[deleted]
    delete(item)
    folder.write_trial(trial(1))
    assert make_pass(thorough=False) == []
    assert make_pass(thorough=True) == []  # as at the end of a sweep, with the run still deleted
    if restored == "before its resume":
        sync.disconnect()
        sync = FolderSync(folder, uri, restore=False)
    restore(item)
    assert make_pass(thorough=True) == []
    sync.disconnect()
    assert rows(database, "select status from runs where run_uuid = ?", run) == [("FINISHED",)]
    assert rows(database, "select count(*) from latest_metrics where run_uuid = ?", run) != [(0,)]


def test_a_text_that_cannot_be_written_is_a_failure(tmp_path, uri, monkeypatch):
    def fail(*_):
        raise FileNotFoundError("no folder for temporary files")

    monkeypatch.setattr(SweepRuns, "write_text", fail)
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    failures = FolderSync(folder, uri, restore=False).make_pass(
        thorough=True, stop=lambda: False, on_update=lambda _: None
    )
    assert {failure.cause for failure in failures} == {"no folder for temporary files"}


@pytest.mark.parametrize("is_deleted", [False, True], ids=["kept", "deleted"])
def test_a_run_in_progress_is_read_again_only_if_a_user_deleted_it(tmp_path, database, uri, is_deleted, monkeypatch):
    from mlflow import MlflowClient

    read_runs = []
    get_run = MlflowClient.get_run
    monkeypatch.setattr(MlflowClient, "get_run", lambda self, run: read_runs.append(run) or get_run(self, run))
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    folder.write_trial(replace(trial(0), state="running", finished=None))
    sync = FolderSync(folder, uri, restore=False)

    def make_pass():
        return sync.make_pass(thorough=False, stop=lambda: False, on_update=lambda _: None)

    assert make_pass() == []
    ((run,),) = rows(database, "select run_uuid from runs where name like '0000%'")
    if is_deleted:
        connect(uri).delete_run(run)
    read_runs.clear()
    folder.write_trial(trial(0))
    assert make_pass() == []
    sync.disconnect()
    ((status, stage),) = rows(database, "select status, lifecycle_stage from runs where run_uuid = ?", run)
    assert (run in read_runs, stage) == (is_deleted, "deleted" if is_deleted else "active")
    assert (status == "FINISHED") == (not is_deleted)


def test_a_refused_run_is_tried_again_after_the_next_change(tmp_path, database, uri, monkeypatch):
    from mlflow.exceptions import MlflowException

    monkeypatch.setattr("fpp_sweep.tracking.sync.rest_after", lambda _: 0.0)
    fail_first_call(monkeypatch, "write", MlflowException.invalid_parameter_value("no such luck"))
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    sync = BackgroundSync(folder, uri)
    sync.start()
    wait_for(lambda: sync.status().error)
    assert sync.status().error == "trial-0000: no such luck"
    assert sync.status().updated == 2
    sync.nudge()
    wait_for(lambda: not sync.status().error)
    assert sync.status().updated == 3
    assert "0000 53/11.5 code gamma2=0.1 class_var=0.001" in statuses(database)
    assert sync.close(LONG) == 0


def test_after_a_pass_the_thread_rests_in_proportion_to_its_duration(tmp_path, uri, monkeypatch):
    durations = []
    monkeypatch.setattr("fpp_sweep.tracking.sync.rest_after", lambda seconds: durations.append(seconds) or 0.0)
    began = time.monotonic()
    sync = BackgroundSync(build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False), uri)
    sync.start()
    wait_for(lambda: durations)
    assert 0 < durations[0] <= time.monotonic() - began
    assert sync.close(LONG) == 0


@pytest.mark.parametrize("answers", [True, False])
def test_a_failed_request_is_repeated_without_a_change(tmp_path, uri, monkeypatch, quick_retries, answers):
    monkeypatch.setattr(SweepRuns, "answers", lambda self: answers)
    fail_first_call(monkeypatch, "write", OSError("no such luck"))
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    sync = BackgroundSync(folder, uri)
    sync.start()
    wait_for(lambda: sync.status().updated == 3)
    assert sync.close(LONG) == 0


def test_a_pass_that_a_disk_error_ends_is_repeated_without_a_change(tmp_path, uri, monkeypatch, quick_retries):
    make_pass, calls = FolderSync.make_pass, []

    def fails_once(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("no such luck")
        return make_pass(*arguments, **options)

    monkeypatch.setattr(FolderSync, "make_pass", fails_once)
    sync = BackgroundSync(build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False), uri)
    sync.start()
    wait_for(lambda: sync.status().updated == 3)
    assert sync.close(LONG) == 0


def test_a_store_that_hangs_delays_neither_a_nudge_nor_the_end(tmp_path, uri, monkeypatch):
    asked, answer, waited = threading.Event(), threading.Event(), []

    def wait_for_answer(*_):
        asked.set()
        waited.append(answer.wait(LONG))
        raise OSError("no such luck")

    monkeypatch.setattr("fpp_sweep.tracking.folder_sync.SweepRuns", wait_for_answer)
    sync = BackgroundSync(build_sweep(tmp_path / "perturb-1", trials=2), uri)
    sync.start()
    assert asked.wait(LONG)
    for _ in range(100):
        sync.nudge()
    assert sync.close(0.0) == 6
    assert not waited  # the store still hangs
    answer.set()
    sync.close(LONG)


HANGING_PROGRAM = """
import sys, threading
from pathlib import Path
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.tracking import BackgroundSync, folder_sync
asked = threading.Event()
def hang(*_):
    asked.set()
    threading.Event().wait()
folder_sync.SweepRuns = hang
sync = BackgroundSync(SweepFolder(Path(sys.argv[1])), sys.argv[2])
sync.start()
asked.wait()
print(sync.close(0.0))
"""


def test_a_store_that_hangs_does_not_keep_the_process_alive(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    command = [sys.executable, "-c", HANGING_PROGRAM, folder.path, uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr


def test_an_unreachable_server_is_reported_with_the_number_of_missing_runs(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync = BackgroundSync(folder, f"http://127.0.0.1:{free_port()}")
    sync.start()
    wait_for(lambda: sync.status().error)
    status = sync.status()
    assert (status.error, status.updated) == ("connection refused", 0)
    assert sync.close(0.0) == 6


def test_pauses_double_up_to_a_limit_and_start_again_after_progress():
    backoff = Backoff()
    assert [backoff.pause() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.reset()
    assert backoff.pause() == 1
