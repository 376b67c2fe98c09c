"""The queue of points that run before sampled points."""

from dataclasses import replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.steering import Queue
from tests.kit.records import sweep_info, trial
from tests.kit.spaces import small_space

START, END = ("code", {"fpp.gamma1": 1.0}), ("paper", {"fpp.gamma1": 2.0})
ADDED = {"fpp.gamma1": 3.0}


def test_an_added_point_moves_later_points_of_the_space_back_by_one():
    queue = Queue(points=[START, END], added={1: ADDED})
    assert [queue.at(number) for number in range(4)] == [START, ("added", ADDED), END, None]
    assert len(queue) == 3


def test_points_added_after_the_queue_move_no_other_point():
    queue = Queue(points=[START, END], added={2: ADDED, 5: ADDED})
    assert [queue.at(number) for number in (0, 1, 2, 3, 5)] == [START, END, ("added", ADDED), None, ("added", ADDED)]


def test_a_trial_whose_command_is_lost_stays_an_added_one_and_no_point_of_the_space_is_lost(tmp_path):
    space = small_space("points=[{fpp.gamma1: 1}, {fpp.gamma1: 2}]", "search.include_published=false")
    folder = SweepFolder(tmp_path)
    folder.write_info(replace(sweep_info(), space=space.plain(), objectives=space.objectives))
    folder.write_trial(trial(1, params=ADDED, origin="added"))
    queue = Queue.of(folder, folder.info())
    points = [queue.at(number) for number in range(4)]
    assert points == [("point", {"fpp.gamma1": 1}), ("added", ADDED), ("point", {"fpp.gamma1": 2}), None]
