"""The command that resumes a sweep with really damaged files: its notes and its results."""

import json
import os
import shutil
import subprocess
from dataclasses import replace

import pytest

from fpp_sweep.records.folder import SweepFolder
from tests.kit.names import ZERO_SHOT
from tests.kit.processes import SMALL_SPACE, environment, error_lines, tune_command
from tests.test_tune import study_states

SPACE = SMALL_SPACE.replace("concurrency: 1", "concurrency: 1, sampler: random")


def tune(folder, *words):
    return subprocess.run(
        tune_command(folder, "--name", "one", *words, space=SPACE),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def finished_sweep(tmp_path_factory):
    """A finished sweep of four trials without any fault."""
    folder = tmp_path_factory.mktemp("finished")
    done = tune(folder)
    assert done.returncode == 0, done.stderr
    return folder


def notes(done):
    return [line for line in done.stderr.splitlines() if line.startswith("note: ")]


def numbers(sweep):
    return {record.name: (record.params, record.values, record.results.keys()) for record in sweep.trials()}


@pytest.mark.nightly
@pytest.mark.slow  # runs three drivers one after the other
def test_damaged_files_are_restored_and_the_sweep_ends_with_the_same_results(finished_sweep):
    """First nearly all files are damaged at once, then only records whose values the study still has."""
    sweep = SweepFolder(finished_sweep / "sweeps/one")
    wanted, info = numbers(sweep), sweep.info()
    os.truncate(sweep.study_file, 30)
    os.truncate(sweep.info_file, 100)
    os.truncate(sweep.trial_file("trial-0001"), 200)
    for name in ("trial-0002", f"baseline-{ZERO_SHOT}"):
        sweep.trial_file(name).unlink()
    done = tune(finished_sweep, "--resume")
    assert done.returncode == 0, done.stderr
    output = "\n".join(notes(done))
    assert "sweep.json: not readable" in output
    assert "made again from its copy" in output
    assert "trial-0001.json: not readable" in output
    assert "trial-0001 has no usable record; it is run again, with values drawn anew" in output
    assert f"baseline-{ZERO_SHOT} has no usable record; it is run again" in output
    assert "Traceback" not in done.stderr
    assert len(list(sweep.path.rglob("*.damaged-*"))) == 2
    assert numbers(sweep) == wanted
    assert study_states(sweep) == ["COMPLETE"] * 4
    assert sweep.info().command == info.command
    assert sweep.info().work.tasks == info.work.tasks  # no task is run again
    assert sweep.info().created == info.created
    assert {sweep.trial(name).attempt for name in wanted} == {1}

    record = json.loads(sweep.trial_file("trial-0002").read_text())
    sweep.trial_file("trial-0002").write_text(json.dumps({**record, "results": [1, 2]}))
    sweep.trial_file("trial-0003").unlink()
    sweep.write_trial(replace(sweep.trial("trial-0000"), started=4e9, finished=4.1e9))  # as if the clock had been ahead
    done = tune(finished_sweep, "--resume")
    assert done.returncode == 0, done.stderr
    assert "results: must be a mapping" in notes(done)[0]
    again = "has no usable record; it is run again, with the study's values"
    assert notes(done)[1:3] == [f"note: trial-0002 {again}", f"note: trial-0003 {again}"]
    assert numbers(sweep) == wanted
    assert study_states(sweep) == ["COMPLETE"] * 4


@pytest.mark.nightly
@pytest.mark.slow  # runs a sweep
def test_damage_that_cannot_be_repaired_is_refused_in_one_line_before_the_start(finished_sweep, tmp_path):
    shutil.copytree(finished_sweep / "sweeps", tmp_path / "sweeps")
    sweep = SweepFolder(tmp_path / "sweeps/one")
    for file in (sweep.info_file, sweep.info_copy):
        os.truncate(file, 100)
    done = tune(tmp_path, "--resume")
    assert done.returncode == 2
    (line,) = error_lines(done.stderr)
    assert "sweep.json: not readable as a record of a sweep" in line
    assert f"begin another with --name; {sweep.tasks}, moved to its folder, saves computing again" in line
    shutil.copytree(sweep.tasks, tmp_path / "sweeps/two/tasks")
    done = subprocess.run(
        tune_command(tmp_path, "--name", "two", space=SPACE),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"work        0 tasks run" in done.stdout
