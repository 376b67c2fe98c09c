"""The state of a sweep, from its record and from the lock that a living driver holds."""

import os
import time
from dataclasses import replace

import pytest

from fpp_sweep.records.state import WRITTEN, is_abandoned, last_change, state_text
from tests.kit.records import build_sweep


@pytest.fixture
def folder(tmp_path):
    return build_sweep(tmp_path / "small-1", trials=1, failed_trials=(), state="running")


def test_a_sweep_runs_as_long_as_its_driver_holds_the_lock(folder):
    with folder.locked():
        assert state_text(folder, folder.info()) == "running"


def test_a_sweep_whose_driver_was_killed_has_stopped_without_notice(folder):
    for subfolder, pattern in WRITTEN.items():
        for path in (folder.path / subfolder).glob(pattern):
            os.utime(path, (time.time() - 62, time.time() - 62))
    assert time.time() - last_change(folder) > 61
    assert state_text(folder, folder.info()).startswith("stopped without notice 1:0")


def test_a_sweep_that_ends_during_the_check_is_not_called_abandoned(folder):
    info = folder.info()
    folder.write_info(replace(info, state="finished"))
    assert not is_abandoned(folder, info)
