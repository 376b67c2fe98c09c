"""A run in one process: the points of its space become trials, each once."""

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep.local_run import _write_listed_trials
from tests.kit.names import named
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


def test_a_point_that_leaves_out_what_a_grid_searches_does_not_run_one_config_twice(tmp_path):
    text = "points: [{method: tpt}]\ngrid: [{method: [tpt, otpt], fpp.gamma2: [0.15, 15]}]\nbase: {fpp.gamma2: 15}"
    space = parse_space(named(f"{text}\nsearch: {{include_published: false}}"), "space.yaml")
    folder = SweepFolder(tmp_path)
    configs = [folder.trial(name).config for name in _write_listed_trials(space, folder)]
    points = [(config["method"], config["fpp.gamma2"]) for config in configs]
    assert points == [("tpt", 15), ("tpt", 0.15), ("otpt", 0.15), ("otpt", 15)]
