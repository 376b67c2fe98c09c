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
        ({"state": "interrupted", "command": f"{COMMAND} --resume"}, f"{COMMAND} --resume --name small-1"),
        ({"state": "interrupted", "group": "tiny@1.0"}, COMMAND),  # the same command continues a reproduction
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
    renamed = SweepFolder(folder.path.parent / "copy")
    shutil.copytree(folder.path, renamed.path)
    command = f"{COMMAND} {name}{out} --resume".replace("small-1", "copy")
    assert command_that_continues(renamed, renamed.info()) == command


def test_a_sweep_in_another_folder_of_sweeps_is_continued_there(folder):
    moved = SweepFolder(folder.path.parents[1] / "archive" / "small-1")
    shutil.copytree(folder.path, moved.path)
    root = moved.path.parent
    for out in ("", " --out sweeps", " --out=sweeps"):
        moved.write_info(replace(moved.info(), state="interrupted", command=f"{COMMAND}{out} --name small-1"))
        words = command_that_continues(moved, moved.info()).replace(f"--out={root}", f"--out {root}").split()
        assert words[words.index("--out") + 1] == str(root)
        assert "--resume" in words
    relative = replace(moved.info(), command=f"{COMMAND} --out archive --name small-1")
    assert command_that_continues(moved, relative) == f"{COMMAND} --out archive --name small-1 --resume"
