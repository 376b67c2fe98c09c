"""Tasks handed out on paper."""

import random

import pytest

from fpp_sweep.sweep.schedule import Piece, Schedule


def chain(name, draw):
    return [Piece(name, draw.random()), *(Piece(f"{name}-{k}", draw.random(), (name,)) for k in range(9))]


def test_work_is_never_faster_than_its_sum_or_its_longest_chain():
    draw = random.Random(0)
    for _ in range(200):
        trials = [chain(str(number), draw) for number in range(draw.randint(1, 9))]
        pieces = [piece for trial in trials for piece in trial]
        total = sum(piece.seconds for piece in pieces)
        longest = max(trial[0].seconds + max(piece.seconds for piece in trial[1:]) for trial in trials)
        for workers in (1, 2, 7):
            seconds = Schedule(workers).run(trials, at_once=3)
            assert seconds >= max(total / workers, longest) - 1e-9
            if workers == 1:
                assert seconds == pytest.approx(total)


def test_what_trials_share_is_done_once_and_waited_for():
    trials = [[Piece("prompt", 5.0), Piece(f"shard {number}", 1.0, ("prompt",))] for number in range(4)]
    assert Schedule(workers=4).run(trials, at_once=4) == 6.0
    assert Schedule(workers=1).run(trials, at_once=4) == 9.0


def test_no_more_trials_are_begun_than_run_at_once():
    trials = [[Piece(f"{number}", 1.0)] for number in range(6)]
    assert [Schedule(workers=6).run(trials, at_once) for at_once in (1, 2, 6)] == [6.0, 3.0, 1.0]


def test_a_second_phase_knows_what_the_first_has_done():
    schedule = Schedule(workers=1)
    assert schedule.run([[Piece("prompt", 5.0), Piece("val", 1.0, ("prompt",))]], at_once=2) == 6.0
    assert schedule.run([[Piece("prompt", 5.0), Piece("test", 2.0, ("prompt",))]], at_once=2) == 8.0
    assert schedule.run([[Piece("test", 2.0)]], at_once=2) == 8.0


def test_of_a_trial_the_longest_goes_first_and_the_oldest_trial_before_it():
    old = [Piece("a", 1.0), Piece("b", 3.0), Piece("c", 2.0)]
    young = [Piece("d", 9.0)]
    assert Schedule(workers=2).run([old, young], at_once=2) == 3.0 + 9.0  # b beside c and a, then d
