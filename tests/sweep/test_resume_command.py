"""The command that resumes a sweep: the recorded one, for the folder that the sweep lies in now."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.sweep.resume_command import command_that_continues
from tests.kit.records import build_sweep

COMMAND = "python -m fpp_sweep.tune --space small.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(Path("sweeps/small-1"), trials=1, failed_trials=(), state="running")
    folder.write_info(replace(folder.info(), command=COMMAND))
    return folder


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({"state": "interrupted"}, f"{COMMAND} --name small-1 --resume"),
        ({"state": "interrupted", "command": f"{COMMAND} --name small-1"}, f"{COMMAND} --name small-1 --resume"),
        ({"state": "interrupted", "command": f"{COMMAND} --name a --name=b"}, f"{COMMAND} --name small-1 --resume"),
        (
            {"state": "interrupted", "command": f"{COMMAND} --set search.notify=*** --trials 3"},
            f"{COMMAND} --trials 3 --name small-1 --resume",
        ),
        ({"state": "interrupted", "command": f"{COMMAND} --resume"}, f"{COMMAND} --resume --name small-1"),
        ({"state": "interrupted", "command": ""}, ""),  # a sweep that was started from Python has no command
        ({"state": "finished"}, ""),
        ({"state": "failed"}, ""),
    ],
)
def test_an_interrupted_sweep_has_a_command_that_continues_it(folder, changes, command):
    assert command_that_continues(folder, replace(folder.info(), **changes)) == command


def test_a_sweep_whose_driver_was_killed_is_continued_and_one_that_runs_is_not(folder):
    assert command_that_continues(folder, folder.info()) == f"{COMMAND} --name small-1 --resume"
    with folder.locked():
        assert command_that_continues(folder, folder.info()) == ""


@pytest.mark.parametrize("name", ["--name small-1", "--name=small-1"])
@pytest.mark.parametrize("out", ["", " --out sweeps", " --out=sweeps"])
def test_a_copied_sweep_is_continued_and_not_the_original(folder, name, out):
    folder.write_info(replace(folder.info(), state="interrupted", command=f"{COMMAND} {name}{out} --resume"))
    for copy_name, flag in (("copy", "--name copy"), ("a copy", "--name 'a copy'"), ("-copy", "--name=-copy")):
        copy = SweepFolder(folder.path.parent / copy_name)
        shutil.copytree(folder.path, copy.path)
        assert command_that_continues(copy, copy.info()) == f"{COMMAND}{out} --resume {flag}"


def test_a_sweep_in_another_folder_of_sweeps_is_continued_there(folder):
    moved = SweepFolder(folder.path.parents[1] / "archive" / "small-1")
    shutil.copytree(folder.path, moved.path)
    expected = f"{COMMAND} --name small-1 --out {moved.path.parent} --resume"
    for out in ("", " --out sweeps", " --out=sweeps", " --out archive --out=sweeps"):
        info = replace(moved.info(), state="interrupted", command=f"{COMMAND}{out} --name small-1")
        assert command_that_continues(moved, info) == expected
    info = replace(info, command=f"{COMMAND} --out sweeps --out archive --name small-1")  # the last value counts
    assert command_that_continues(moved, info) == f"{info.command} --resume"


def test_a_copied_reproduction_is_continued_by_its_own_command(folder):
    """A table of a reproduction is a sweep in the folder of the reproduction."""
    command = "fpp-sweep reproduce --table tiny --name r1"
    for name in ("r1", "copy"):
        table = SweepFolder(Path("reproductions") / name / "tiny")
        shutil.copytree(folder.path, table.path)
        (table.path.parent / "reproduction.json").touch()
        info = replace(table.info(), state="interrupted", group="tiny@1.0", command=command)
        assert command_that_continues(table, info) == command.replace("r1", name)


def test_a_table_without_its_reproduction_has_no_command(folder):
    info = replace(folder.info(), state="interrupted", group="tiny@1.0", command="fpp-sweep reproduce --table tiny")
    assert command_that_continues(folder, info) == ""


def test_the_name_of_a_sweep_is_that_of_its_folder_also_from_inside(folder, monkeypatch):
    monkeypatch.chdir(folder.path / "trials")
    inside = SweepFolder(Path(".."))
    command = f"{COMMAND} --name small-1 --out {folder.path.parent} --resume"
    assert command_that_continues(inside, inside.info()) == command
