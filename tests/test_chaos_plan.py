"""The plan of faults of a chaos run, which depends on its seed only."""

from collections import Counter

from benchmarks.chaos_plan import EVENTS, deck, plan_of
from benchmarks.faults import AT_REST, RUNNING

ALL = {"running": list(RUNNING), "rest": list(AT_REST)}


def plans(seed, count=40):
    return [plan_of(seed, number, trials=20, most=8, **ALL) for number in range(1, count + 1)]


def test_a_seed_gives_the_same_faults_and_moments_again():
    assert plans(3) == plans(3)
    assert plans(3)[7] == plan_of(3, 8, trials=20, most=8, **ALL)
    assert plans(3) != plans(4)
    plan = plans(3)[0]
    assert plan.stream(3, "kind").random() == plan.stream(3, "kind").random() != plan.stream(3, "other").random()


def test_all_kinds_of_faults_are_about_equally_frequent_and_at_most_three_at_once():
    kinds, sizes, events = Counter(), Counter(), Counter()
    for plan in plans(0):
        for moment in plan.moments:
            kinds.update(moment.kinds)
            sizes[len(moment.kinds)] += 1
            events[moment.event] += 1
            assert len(set(moment.kinds)) == len(moment.kinds)
    assert set(kinds) == set(RUNNING)
    assert max(kinds.values()) - min(kinds.values()) <= 3
    assert set(sizes) == {1, 2, 3}
    assert set(events) == set(EVENTS)
    assert {"link to MLflow cut", "clock moved"} <= {*RUNNING, *AT_REST}


def test_a_deck_of_faults_continues_after_the_last_sweep():
    assert deck(0, ["a", "b", "c"], 0, 5) + deck(0, ["a", "b", "c"], 5, 4) == deck(0, ["a", "b", "c"], 0, 9)
    assert sorted(deck(0, ["a", "b", "c"], 3, 3)) == ["a", "b", "c"]
