"""Runs of a command line: what is refused, and the command that begins or continues a sweep."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import load_space, parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.api import Options, sweep_folder
from fpp_sweep.sweep.command_line import announce, run_command, space_of_sweep
from fpp_sweep.sweep.summary import command_that_continues, print_next_command
from fpp_sweep.tune import parse
from tests.kit.records import build_sweep, sweep_info
from tests.kit.spaces import small_space


def test_the_end_of_a_run_prints_the_command_that_goes_on(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "mine")
    print_next_command(folder, "fpp-sweep tune --space x.yaml", "interrupted")
    folder.write_info(sweep_info(name="mine"))
    print_next_command(folder, "fpp-sweep tune --space x.yaml", "stopped")
    assert capsys.readouterr().err.splitlines() == [
        "interrupted before the sweep began; to begin:",
        f"    {runnable('fpp-sweep tune --space x.yaml')}",
        "stopped; to continue:",
        f"    {runnable(f'fpp-sweep tune --resume {folder.path}')}",
    ]


def test_a_resumed_sweep_is_announced_with_the_commands_that_wait(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "mine")
    space = small_space("search.trials=4")
    folder.write_info(sweep_info(name="mine", state="interrupted", space=space.plain(), engine=ENGINE_NAME))
    folder.send_command("set", ["search.trials=9"])
    folder.send_command("add", ["fpp.gamma1=3"])
    announce(space, Options(root=tmp_path, name="mine", resume=True), folder)
    assert "budget    10 trials" in capsys.readouterr().err.splitlines()


def test_sweeps_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    names = []
    for _ in range(4):
        folder = sweep_folder(small_space(), Options(root=tmp_path / "sweeps"))
        names.append(folder.path.name)
    assert names == sorted(set(names))


def test_a_time_limit_of_tasks_is_refused_where_nothing_can_end_a_task(tmp_path):
    grid = parse_space("grid: [{method: [tpt]}]\nwork: {baselines: [], task_timeout: 5}", "mine.yaml")
    with pytest.raises(InputError, match=r"work\.task_timeout: needs workers on Ray; give --workers"):
        run_command(grid, Options(root=tmp_path / "new"), in_process=True)


def test_a_sweep_that_is_refused_leaves_no_folder(tmp_path):
    options = Options(root=tmp_path / "new" / "sweeps")
    with pytest.raises(InputError, match="sampler gp needs workers on Ray"):
        run_command(small_space(), options, in_process=True)
    assert list(tmp_path.iterdir()) == []


def test_a_resume_on_other_data_is_refused_with_the_key_and_both_values(tmp_path):
    folder = SweepFolder(tmp_path / "mine")
    folder.write_info(sweep_info(name="mine", state="interrupted", space=small_space().plain(), engine=ENGINE_NAME))
    with pytest.raises(InputError, match=r"^mine cannot be resumed: .* \(work\.datasets: .*tiny.*\); keep it, or"):
        announce(load_space("perturb"), Options(root=tmp_path, name="mine", resume=True), folder)


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
