"""The command that resumes a sweep names its folder; the folder has the rest."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.command_line import space_of_sweep
from fpp_sweep.sweep.summary import command_that_continues
from fpp_sweep.tune import parse
from tests.kit.records import build_sweep
from tests.kit.spaces import small_space


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return build_sweep(Path("sweeps/small-1"), trials=1, failed_trials=(), state="running")


def continuation(folder, **changes):
    return command_that_continues(folder, replace(folder.info(), **changes))


def test_only_a_sweep_that_was_interrupted_or_killed_has_a_command_that_continues_it(folder):
    command = runnable("fpp-sweep tune --resume small-1")
    assert continuation(folder) == continuation(folder, state="interrupted") == command
    assert continuation(folder, state="finished") == continuation(folder, state="failed") == ""
    with folder.locked():
        assert continuation(folder) == ""


def test_the_command_names_what_the_folder_must_not_choose_and_cannot_know(folder):
    command = continuation(folder, plugin_files={"mine": "/my code/mine.py"}, address="auto")
    assert command == runnable("fpp-sweep tune --resume small-1 --plugin '/my code/mine.py' --address auto")


def test_a_copied_or_moved_sweep_is_continued_and_not_the_original(folder):
    for path in (Path("sweeps/a copy"), Path("archive/small-1")):
        copy = SweepFolder(shutil.copytree(folder.path, path))
        args = parse(shlex.split(continuation(copy))[shlex.split(continuation(copy)).index("tune") + 1 :])
        assert args.resume == (path.name if path.parent.name == "sweeps" else str(copy.path))


def test_a_run_of_evaluate_and_a_table_are_continued_by_their_own_commands(folder):
    evaluated = {**folder.info().space, "search": {"evaluate_only": True}}
    assert continuation(folder, space=evaluated) == runnable("fpp-sweep evaluate --resume small-1")
    recorded = "fpp-sweep reproduce --table tiny --name r1"
    assert continuation(folder, group="tiny@1.0", command=recorded) == runnable(recorded)


def test_a_folder_gives_the_space_that_it_was_begun_with(folder):
    space = small_space("work.data_root=/data", "search.trials=7")
    folder.write_info(replace(folder.info(), space=space.plain()))
    assert space_of_sweep(folder, []) == space
    assert space_of_sweep(folder, ["search.trials=9"]).search.trials == 9
