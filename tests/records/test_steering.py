"""The queue of points that run before sampled points."""

from fpp_sweep.records.steering import Queue

START, END = ("code", {"fpp.gamma1": 1.0}), ("paper", {"fpp.gamma1": 2.0})
ADDED = {"fpp.gamma1": 3.0}


def test_an_added_point_moves_later_points_of_the_space_back_by_one():
    queue = Queue(points=[START, END], added={1: ADDED})
    assert [queue.at(number) for number in range(4)] == [START, ("added", ADDED), END, None]
    assert len(queue) == 3


def test_points_added_after_the_queue_move_no_other_point():
    queue = Queue(points=[START, END], added={2: ADDED, 5: ADDED})
    assert [queue.at(number) for number in (0, 1, 2, 3, 5)] == [START, END, ("added", ADDED), None, ("added", ADDED)]
