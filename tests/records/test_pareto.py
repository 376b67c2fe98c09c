"""The Pareto front and its hypervolume equal Optuna's, moocore's and those by definition."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpp_sweep.records.pareto import front, hypervolume, hypervolume_over_time, knee_order, layers
from fpp_sweep.space.objectives import without_rounding_error
from fpp_sweep.spec.errors import InputError

COARSE = st.integers(-4, 4).map(float)  # few values, so that ties and equal points are frequent


@st.composite
def problems(draw):
    count = draw(st.integers(1, 3))
    goals = draw(st.lists(st.sampled_from(["max", "min"]), min_size=count, max_size=count))
    number = COARSE | st.floats(-1e6, 1e6).map(without_rounding_error)
    return draw(st.lists(st.tuples(*[number] * count), max_size=25)), goals


def dominates(first, second, goals):
    leads = []
    for a, b, goal in zip(first, second, goals, strict=True):
        leads.append(a - b if goal == "max" else b - a)
    return min(leads) >= 0 and max(leads) > 0


def random_set(number):
    """Return random points with ties, their goals and a reference that some points do not reach.

    Even numbers give sets with 2 objectives, and odd numbers sets with 3.
    """
    draw = random.Random(number)
    size = draw.randint(0, 60)
    values = [draw.choice([float(draw.randint(0, 9)), draw.uniform(0, 10)]) for _ in range(20)]
    goals = [draw.choice(["max", "min"]) for _ in range(2 + number % 2)]
    points = [tuple(draw.choice(values) for _ in goals) for _ in range(size)]
    points += draw.choices(points, k=size // 5)
    return points, goals, [2.0 if goal == "max" else 8.0 for goal in goals]


@given(problems())
def test_exactly_the_members_are_undominated(problem):
    points, goals = problem
    members = set(front(points, goals))
    for index, point in enumerate(points):
        assert any(dominates(other, point, goals) for other in points) == (index not in members)


@given(problems())
def test_each_layer_is_the_front_of_what_the_layers_before_it_leave(problem):
    points, goals = problem
    remaining = list(range(len(points)))
    expected = []
    while remaining:
        members = front([points[index] for index in remaining], goals)
        expected.append([remaining[member] for member in members])
        remaining = [index for index in remaining if index not in expected[-1]]
    assert layers(points, goals) == expected


def test_rounding_errors_make_no_member():
    """Accuracies of as many right answers: the mean over two datasets of 60 images and two seeds."""
    points = [(72.91666666666667, 15.2), (72.91666666666666, 14.6)]
    assert front(points, ["max", "min"]) == [1]
    assert hypervolume_over_time(points[::-1], ["max", "min"], (60.0, 20.0))[1] == pytest.approx(12.9166667 * 5.4)


@pytest.mark.parametrize("number", range(200))
def test_front_and_hypervolume_equal_moocores(number):
    moocore = pytest.importorskip("moocore")
    points, goals, reference = random_set(number)
    upwards = [goal == "max" for goal in goals]
    if not points:
        assert (front(points, goals), hypervolume(points, goals, reference)) == ([], 0.0)
        return
    expected = moocore.is_nondominated(points, maximise=upwards, keep_weakly=True)
    assert front(points, goals) == [index for index, is_member in enumerate(expected) if is_member]
    volume = moocore.hypervolume(points, ref=reference, maximise=upwards)
    assert hypervolume(points, goals, reference) == pytest.approx(volume, rel=1e-12)


@given(problems())
def test_hypervolume_over_time_is_the_hypervolume_of_the_first_points(problem):
    points, goals = problem
    reference = [-5.0 if goal == "max" else 5.0 for goal in goals]
    volumes = [hypervolume(points[: end + 1], goals, reference) for end in range(len(points))]
    assert hypervolume_over_time(points, goals, reference) == pytest.approx(volumes, rel=1e-9)


@pytest.mark.parametrize(
    ("points", "corner", "order"),
    [
        # the compromise comes before the ends of the front
        ([(72.0, 9.0), (71.5, 4.5), (60.0, 4.0)], (66.0, 13.0), [1, 0, 2]),
        # two members: the larger rectangle up to the corner
        ([(70.0, 9.0), (69.0, 5.0)], (60.0, 10.0), [1, 0]),
        ([(70.0, 5.5), (61.0, 5.0)], (60.0, 10.0), [0, 1]),
        # a collapsed trial cannot make accuracy cheap
        ([(70.0, 9.0), (19.7, 1.0)], (65.0, 10.0), [0, 1]),
        # no point reaches the corner: the smaller loss comes first
        ([(60.0, 9.0), (62.0, 9.5)], (65.0, 8.0), [1, 0]),
        ([(5.0, 5.0)], (5.0, 5.0), [0]),
        ([], (5.0, 5.0), []),
    ],
)
def test_the_knee_is_measured_from_the_corner(points, corner, order):
    assert knee_order(points, ["max", "min"], corner) == order


def test_a_front_without_points_has_no_members():
    assert front([], ["max"]) == []
    assert hypervolume_over_time([], ["max"], [0.0]) == []


@pytest.mark.parametrize("point", [(1.0,), (1.0, float("nan")), (1.0, float("inf"))])
def test_a_point_that_cannot_be_compared_is_refused(point):
    with pytest.raises(InputError, match="finite values"):
        front([point], ["max", "min"])


def test_four_objectives_are_refused():
    with pytest.raises(InputError, match="one to 3 objectives"):
        front([(1.0,) * 4], ["max"] * 4)
