"""The state of a sweep, from its record and from the lock that a living driver holds."""

import os
import time
from dataclasses import replace

import pytest

from fpp_sweep.records.state import WRITTEN, is_abandoned, last_change, resume_command, state_text
from tests.kit.records import build_sweep

COMMAND = "python -m fpp_sweep.tune --space small.yaml"


@pytest.fixture
def folder(tmp_path):
    folder = build_sweep(tmp_path / "small-1", trials=1, failed_trials=(), state="running")
    folder.write_info(replace(folder.info(), command=COMMAND))
    return folder


def test_a_sweep_runs_as_long_as_its_driver_holds_the_lock(folder):
    with folder.locked():
        assert state_text(folder, folder.info()) == "running"
        assert resume_command(folder, folder.info()) == ""


def test_a_sweep_whose_driver_was_killed_has_stopped_without_notice(folder):
    for subfolder, pattern in WRITTEN.items():
        for path in (folder.path / subfolder).glob(pattern):
            os.utime(path, (time.time() - 62, time.time() - 62))
    assert time.time() - last_change(folder) > 61
    assert state_text(folder, folder.info()).startswith("stopped without notice 1:0")
    assert resume_command(folder, folder.info()) == f"{COMMAND} --name small-1 --resume"


def test_a_sweep_that_ends_during_the_check_is_not_called_abandoned(folder):
    info = folder.info()
    folder.write_info(replace(info, state="finished"))
    assert not is_abandoned(folder, info)


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
    assert resume_command(folder, replace(folder.info(), **changes)) == command


def test_checking_the_lock_does_not_take_it(folder):
    assert not folder.is_locked()
    with folder.locked():
        assert folder.is_locked()
    assert not folder.is_locked()
