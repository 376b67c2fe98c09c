"""The command that is printed after an interrupt or a failure: it begins the sweep, or continues it by its name."""

import shutil

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep import launch as launching
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.folders import sweep_folder
from fpp_sweep.sweep.launch import announce, launch
from fpp_sweep.sweep.resume_command import print_next_command
from tests.kit.records import sweep_info
from tests.kit.spaces import small_space


def test_the_end_of_a_run_prints_the_command_that_goes_on(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "mine")
    print_next_command(folder, "tune", ["--space", "x.yaml"], "interrupted")
    folder.write_info(sweep_info(name="mine"))
    print_next_command(folder, "tune", ["--space", "x.yaml"], "stopped")
    assert capsys.readouterr().err.splitlines() == [
        "interrupted before the sweep began; to begin:",
        f"    {runnable('fpp-sweep tune --space x.yaml')}",
        "stopped; to continue:",
        f"    {runnable(f'fpp-sweep tune --resume {folder.path}')}",
    ]


def test_a_resumed_sweep_is_announced_with_the_budget_in_force(tmp_path, capsys):
    folder = SweepFolder(tmp_path / "mine")
    folder.write_info(sweep_info(name="mine", state="interrupted", space=small_space("search.trials=4").plain()))
    folder.send_command("budget", {"trials": 9})
    folder.send_command("add", {"fpp.gamma1": 3.0})
    announce(small_space("search.trials=4"), Options(root=tmp_path, name="mine", resume=True), folder)
    assert "budget    10 trials" in capsys.readouterr().err.splitlines()


def test_sweeps_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    names = []
    for _ in range(4):
        folder = sweep_folder(small_space(), Options(root=tmp_path / "sweeps"))
        names.append(folder.path.name)
    assert names == sorted(set(names))


def test_a_sweep_that_is_refused_after_its_folder_was_locked_leaves_no_folder(tmp_path, monkeypatch):
    def refuse(space, options):
        with sweep_folder(space, options).locked():
            shutil.rmtree(tmp_path / "new/sweeps" / options.name)  # as `undo_if_refused` does
            raise InputError("a prompt does not fit")

    monkeypatch.setattr(launching, "run_on_ray", refuse)
    options = Options(root=tmp_path / "new" / "sweeps")
    with pytest.raises(InputError, match="a prompt does not fit"):
        launch(small_space(), options, command="tune", words=[])
    assert list(tmp_path.iterdir()) == []


def test_a_time_limit_of_tasks_is_refused_where_nothing_can_end_a_task(tmp_path):
    grid = parse_space("grid: [{method: [tpt]}]\nwork: {baselines: [], task_timeout: 5}", "mine.yaml")
    with pytest.raises(InputError, match=r"work\.task_timeout: needs workers on Ray; give --workers"):
        launch(grid, Options(root=tmp_path / "new"), command="evaluate", words=[], in_process=True)


def test_a_sweep_that_is_refused_leaves_no_folder(tmp_path):
    options = Options(root=tmp_path / "new" / "sweeps")
    with pytest.raises(InputError, match="sampler gp needs workers on Ray"):
        launch(small_space(), options, command="evaluate", words=[], in_process=True)
    assert list(tmp_path.iterdir()) == []
