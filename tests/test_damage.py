"""Files of a sweep that are really damaged, and the command that goes on with it: what it says, what comes of it."""

import json
import os
import shutil
import subprocess
from dataclasses import replace

import pytest

from fpp_sweep.records.folder import SweepFolder
from tests.kit.names import PLAIN
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
def finished(tmp_path_factory):
    """A sweep of four trials that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    done = tune(folder)
    assert done.returncode == 0, done.stderr
    return folder


def notes(done):
    return [line for line in done.stderr.splitlines() if line.startswith("note: ")]


def numbers(sweep):
    return {record.name: (record.params, record.values, record.results.keys()) for record in sweep.trials()}


@pytest.mark.nightly
@pytest.mark.slow  # three drivers, one after the other
def test_what_is_damaged_is_made_again_and_the_sweep_ends_as_if_nothing_had_been(finished):
    """Nearly everything at once; then a record alone, whose values the study has."""
    sweep = SweepFolder(finished / "sweeps/one")
    wanted, info = numbers(sweep), sweep.info()
    os.truncate(sweep.study_file, 50_000)
    os.truncate(sweep.info_file, 100)
    os.truncate(sweep.trial_file("trial-0001"), 200)
    for name in ("trial-0002", f"baseline-{PLAIN}"):
        sweep.trial_file(name).unlink()
    done = tune(finished, "--resume")
    assert done.returncode == 0, done.stderr
    output = "\n".join(notes(done))
    assert "sweep.json: not readable" in output
    assert "made again from its copy" in output
    assert "trial-0001.json: not readable" in output
    assert "trial-0001 has no usable record; it is run again, with values drawn anew" in output
    assert f"baseline-{PLAIN} has no usable record; it is run again" in output
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
    sweep.write_trial(replace(sweep.trial("trial-0000"), started=4e9, finished=4.1e9))  # a clock that was ahead
    done = tune(finished, "--resume")
    assert done.returncode == 0, done.stderr
    assert "results: must be a mapping" in notes(done)[0]
    again = "has no usable record; it is run again, with the study's values"
    assert notes(done)[1:3] == [f"note: trial-0002 {again}", f"note: trial-0003 {again}"]
    assert numbers(sweep) == wanted
    assert study_states(sweep) == ["COMPLETE"] * 4


@pytest.mark.nightly
@pytest.mark.slow  # it needs a sweep
def test_what_cannot_be_made_again_is_reported_in_a_line_before_anything_is_started(finished, tmp_path):
    shutil.copytree(finished / "sweeps", tmp_path / "sweeps")
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
