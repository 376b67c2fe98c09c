"""The record of how a sweep ended, also in a folder that was damaged meanwhile."""

import pytest

from fpp_sweep.records.folder import SweepRecord
from fpp_sweep.sweep.api import InterruptedSweep
from fpp_sweep.sweep.sweep_record import SweepRecorder, errors_for_command, recording_end
from tests.kit.records import build_sweep


def recorder_of(folder):
    return SweepRecorder(SweepRecord(folder, folder.info()))


def test_an_interrupt_is_recorded_although_a_record_is_damaged(tmp_path):
    folder = build_sweep(tmp_path / "sweep", trials=3, running_trials=(2,), state="running", report=False)
    folder.trial_file("trial-0001").write_text("{")
    with pytest.raises(InterruptedSweep), errors_for_command(folder), recording_end(recorder_of(folder)):
        raise KeyboardInterrupt
    assert folder.info().state == "interrupted"
    assert folder.trial("trial-0002").state == "interrupted"


def test_a_sweep_without_a_trial_that_succeeded_has_failed_although_a_baseline_was_imported(tmp_path):
    folder = build_sweep(tmp_path / "sweep", trials=2, failed_trials=(0, 1), state="running", report=False)
    assert any(record.state == "complete" for record in folder.trials())  # the baseline
    with recording_end(recorder_of(folder)):
        pass
    assert folder.info().state == "failed"
