"""The points that are tried before others are sampled."""

from fpp_sweep.records.steering import Queue

START, END = ("code", {"fpp.gamma1": 1.0}), ("paper", {"fpp.gamma1": 2.0})
ADDED = {"fpp.gamma1": 3.0}


def test_a_point_that_is_added_moves_later_points_of_the_space_back_by_one():
    queue = Queue(points=[START, END], added={1: ADDED})
    assert [queue.at(number) for number in range(4)] == [START, ("added", ADDED), END, None]
    assert len(queue) == 3


def test_points_that_are_added_behind_the_queue_move_nothing():
    queue = Queue(points=[START, END], added={2: ADDED, 5: ADDED})
    assert [queue.at(number) for number in (0, 1, 2, 3, 5)] == [START, END, ("added", ADDED), None, ("added", ADDED)]
