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
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert complaint in last
    assert "--resume" in last
    assert err.count("error: ") == 1


def test_killed_processes_of_scheduler_and_trials_cost_time_and_no_result(tmp_path):
    count = 12
    with killed_at_end(start_tune(tmp_path, "--trials", str(count))) as driver:
        wait_for(lambda: complete_records(tmp_path))
        for name in (SCHEDULER, TRIAL, SCHEDULER):
            before, workers = len(complete_records(tmp_path)), child_pids(driver, WORKER)
            kill_child(driver, name)
            if name == SCHEDULER:
                wait_for(
                    lambda workers=workers: all(is_gone(pid) for pid in workers)
                )  # workers that live on would occupy a device
            wait_for(lambda before=before: len(complete_records(tmp_path)) > before)
        out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 0, out + err
    assert err.count("note: the scheduler died and was restarted") == 2
    assert "Traceback" not in err
    assert "(raylet)" not in out
    sweep = only_sweep(tmp_path)
    assert [record.state for record in sweep.trials()] == ["complete"] * (1 + count)
    assert {record.attempt for record in sweep.trials()} <= {1, 2}
    assert sweep.info().work.model_loads == 3
    assert sweep.info().work.tasks > count  # the sum over all schedulers
    assert_same_as_in_one_process(sweep, load_space(tmp_path / "small.yaml"), tmp_path / "cache")


@pytest.fixture
def short_folder():
    """Yield a folder for temporary files whose short name leaves room for socket names."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("victim", ["raylet", "gcs_server", SCHEDULER])
def test_the_death_of_an_irreplaceable_process_interrupts_the_sweep(tmp_path, victim, monkeypatch, short_folder):
    monkeypatch.setenv("TMPDIR", str(short_folder))
    with killed_at_end(start_tune(tmp_path, "--trials", "1000")) as driver:
        wait_for(lambda: complete_records(tmp_path))
        processes = descendants(driver.pid)
        if victim == SCHEDULER:
            for _ in range(3):
                kill_child(driver, victim)
                wait_for(lambda: child_pids(driver, victim))
                processes |= descendants(driver.pid)
        kill_child(driver, victim if victim == SCHEDULER else f"/{victim} ")
        out, err = driver.communicate(timeout=LONG)
    assert_reported(driver, out, err, "scheduler" if victim == SCHEDULER else f"Ray's {victim} ")
    wait_for(lambda: all(is_gone(pid) for pid in processes))
    assert not [*short_folder.glob("ray-*"), *short_folder.glob("fpp_sweep-*")]
    sweep = only_sweep(tmp_path)
    before = {record.name: record for record in sweep.trials()}
    assert sweep.info().state == "interrupted"
    assert {record.state for record in before.values()} <= {"complete", "interrupted", "waiting"}
    assert count_runs(tmp_path)["KILLED"] >= 1
    assert "RUNNING" not in count_runs(tmp_path)
    count = sum(record.kind == "trial" for record in before.values()) + 1
    resume(tmp_path, "--trials", str(count))
    after = {record.name: record for record in sweep.trials()}
    assert [record.state for record in after.values()] == ["complete"] * (1 + count)
    assert all(after[name].values == record.values for name, record in before.items() if record.state == "complete")
    assert count_runs(tmp_path) == {"FINISHED": 2 + count}


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
