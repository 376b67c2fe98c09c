"""Faults of the machine during a real sweep: killed processes, a dead Ray, a full disk."""

import os
import signal
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from fpp_sweep.space.reading import load_space
from fpp_sweep.sweep.api import RESUMES_LEFT
from tests.kit.disks import mounted
from tests.kit.processes import (
    assert_same_as_in_one_process,
    complete_records,
    descendants,
    environment,
    killed_at_end,
    only_sweep,
    start_tune,
    tune_command,
)
from tests.kit.waiting import LONG, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # each starts Ray, two workers and MLflow

SCHEDULER, TRIAL, WORKER = "ray::SchedulerActor", "ray::TrialRunner", "ray::WorkerActor"


def child_pids(driver, name):
    return [pid for pid, line in descendants(driver.pid).items() if name in line]


def kill_child(driver, name):
    (victim, *_) = wait_for(lambda: child_pids(driver, name))
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: victim not in child_pids(driver, name))
    return victim


def resume(folder, *words):
    done = subprocess.run(
        tune_command(folder, *words, "--resume"), cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def is_gone(pid):
    """Return True if a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def count_runs(folder):
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        return dict(store.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall())


def assert_reported(driver, out, err, complaint):
    """Check that the driver ended with one line about the fault and printed no output of Ray."""
    assert driver.returncode == 1, out + err
    assert not out
    assert "Traceback" not in err
    error, title, command = err.splitlines()[-3:]
    assert error.startswith("error: ")
    assert complaint in error
    assert title == "stopped; to continue:"
    assert "--resume" in command
    assert err.count("error: ") == 1


RAYLET, GCS = "/raylet ", "/gcs_server "


@pytest.mark.parametrize("victims", [(SCHEDULER, TRIAL), (RAYLET, WORKER), (GCS,)], ids=["scheduler", "raylet", "gcs"])
def test_a_sweep_resumes_itself_after_a_lost_session_and_loses_no_result(tmp_path, victims):
    count = 6
    with killed_at_end(start_tune(tmp_path, "--trials", str(count))) as driver:
        wait_for(lambda: complete_records(tmp_path))
        before = {path.name: path.read_text() for path in complete_records(tmp_path)}
        processes = descendants(driver.pid)
        for victim in victims:
            os.kill(next(pid for pid, line in processes.items() if victim in line), signal.SIGKILL)
        out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, out + err
    assert err.count("; the sweep resumes itself") == 1
    assert "Traceback" not in err
    assert "(raylet)" not in out
    sweep = only_sweep(tmp_path)
    assert [record.state for record in sweep.trials()] == ["complete"] * (1 + count)
    assert {record.attempt for record in sweep.trials()} <= {1, 2}
    for name, text in before.items():
        assert sweep.trial(name.removesuffix(".json")).attempt == 1
        assert (sweep.path / "trials" / name).read_text() == text
    assert_same_as_in_one_process(sweep, load_space(tmp_path / "small.yaml"), tmp_path / "cache")
    assert count_runs(tmp_path) == {"FINISHED": 2 + count}
    wait_for(lambda: all(is_gone(pid) for pid in processes))


@pytest.fixture
def short_folder():
    """Yield a folder for temporary files whose short name leaves room for socket names."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_session_that_is_lost_a_fourth_time_interrupts_the_sweep(tmp_path, monkeypatch, short_folder):
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))
    monkeypatch.setenv(RESUMES_LEFT, "0")
    with killed_at_end(start_tune(tmp_path, "--trials", "1000")) as driver:
        wait_for(lambda: complete_records(tmp_path))
        kill_child(driver, SCHEDULER)
        out, err = driver.communicate(timeout=LONG)
    assert_reported(driver, out, err, "the scheduler died")
    assert list(short_folder.iterdir()) == []
    sweep = only_sweep(tmp_path)
    before = {record.name: record for record in sweep.trials()}
    assert sweep.info().state == "interrupted"
    assert {record.state for record in before.values()} <= {"complete", "interrupted", "waiting"}
    assert count_runs(tmp_path)["KILLED"] >= 1
    assert "RUNNING" not in count_runs(tmp_path)


def fill_disk(disk):
    with (disk / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def test_a_full_disk_interrupts_the_sweep_which_can_be_resumed_with_free_space(tmp_path):
    with mounted(tmp_path / "sweeps", "size=8m") as disk:
        with killed_at_end(start_tune(tmp_path, "--trials", "1000")) as driver:
            wait_for(lambda: complete_records(tmp_path))
            fill_disk(disk)
            out, err = driver.communicate(timeout=LONG)
        assert_reported(driver, out, err, "; make room, then go on with --resume")
        assert f"error: {disk}/" in err
        sweep = only_sweep(tmp_path)
        before = {record.name: record for record in sweep.trials()}
        assert {record.state for record in before.values()} <= {"complete", "running", "interrupted", "waiting"}
        for record in before.values():  # every complete trial has all its files
            if record.state == "complete":
                assert (sweep.artifacts(record.name) / "val/reliability.png").is_file()
        (disk / "filler").unlink()
        count = sum(record.kind == "trial" for record in before.values()) + 1
        resume(tmp_path, "--trials", str(count))
        assert sweep.info().state == "finished"
        assert [record.state for record in sweep.trials()] == ["complete"] * (1 + count)
        assert_same_as_in_one_process(sweep, load_space(tmp_path / "small.yaml"), tmp_path / "cache")
