"""A run in one process: the points of its space become trials, each once."""

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.sweep.local_run import _write_listed_trials
from tests.kit.spaces import small_space


def test_the_points_of_a_space_become_numbered_trials_that_are_written_once(tmp_path):
    space = small_space("points=[{fpp.gamma1: 2}, {fpp.gamma1: 3}]")
    folder = SweepFolder(tmp_path)
    names = _write_listed_trials(space, folder)
    records = [folder.trial(name) for name in names]
    assert [record.number for record in records] == list(range(len(records)))
    assert len(records) >= 2
    assert [record.params for record in records] == [values for _, values in space.queue()]
    stamps = [folder.trial_file(name).stat().st_mtime_ns for name in names]
    assert _write_listed_trials(space, folder) == names
    assert [folder.trial_file(name).stat().st_mtime_ns for name in names] == stamps
