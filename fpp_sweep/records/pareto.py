"""The Pareto front of up to three objectives, its hypervolume and its knee, exactly.

Every set is swept in the same way: fewer than three objectives are three of which some are constant. Points are turned
so that less is better, taken in lexicographic order, and held against the staircase that the last two coordinates of
the points before them form.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpp_sweep.errors import InputError

if TYPE_CHECKING:
    from fpp_sweep.catalogue import Goal

Point = tuple[float, ...]
OBJECTIVES = 3  # at most


def front(points: Sequence[Sequence[float]], goals: Sequence[Goal]) -> list[int]:
    """Where the points stand that no other point dominates: in order, equal points all or none.

    >>> front([(70.0, 4.0), (71.0, 5.0), (69.0, 4.5), (70.0, 4.0)], ["max", "min"])
    [0, 1, 3]
    """
    turned = [_turned(point, goals) for point in points]
    stairs = _Stairs()
    kept: list[int] = []
    for index in sorted(range(len(turned)), key=turned.__getitem__):
        twin = bool(kept) and turned[kept[-1]] == turned[index]
        if twin or stairs.add(*turned[index][1:]):
            kept.append(index)
    return sorted(kept)


def hypervolume(points: Sequence[Sequence[float]], goals: Sequence[Goal], reference: Sequence[float]) -> float:
    """How much of the space between the points and a reference is dominated; 0 without a point better than it.

    >>> hypervolume([(70.0, 4.0), (71.0, 5.0)], ["max", "min"], (60.0, 10.0))
    65.0
    """
    corner = _turned(reference, goals, rest=1.0)  # a constant coordinate then multiplies by one
    turned = (_turned(point, goals) for point in points)
    inside = sorted(point for point in turned if all(a < b for a, b in zip(point, corner, strict=True)))
    stairs = _Stairs()
    area = 0.0
    slices = []
    for index, point in enumerate(inside, 1):
        if stairs.add(*point[1:]):
            area = stairs.area(*corner[1:])
        end = inside[index][0] if index < len(inside) else corner[0]
        slices.append(area * (end - point[0]))
    return math.fsum(slices)


def hypervolume_over_time(
    points: Sequence[Sequence[float]], goals: Sequence[Goal], reference: Sequence[float]
) -> list[float]:
    """The hypervolume after each point; only what joins the front costs anything to speak of.

    >>> hypervolume_over_time([(70.0, 4.0), (69.0, 4.0), (71.0, 5.0)], ["max", "min"], (60.0, 10.0))
    [60.0, 60.0, 65.0]
    """
    values: list[float] = []
    best: list[Sequence[float]] = []
    for point in points:
        new = _turned(point, goals)
        weaker = any(all(a <= b for a, b in zip(_turned(old, goals), new, strict=True)) for old in best)
        if not weaker:
            best = [*best, point]
            best = [best[index] for index in front(best, goals)]
            values.append(hypervolume(best, goals, reference))
        else:
            values.append(values[-1])
    return values


def knee(points: Sequence[Sequence[float]], goals: Sequence[Goal]) -> int:
    """The member of the front nearest to the best of every objective at once, each measured from 0 (the front's best)
    to 1 (its worst); of equally near ones the better at the first objective.

    >>> knee([(72.0, 9.0), (71.5, 4.5), (60.0, 4.0)], ["max", "min"])
    1
    """
    members = front(points, goals)
    if not members:
        raise InputError("a front without members has no knee")
    turned = {index: _turned(points[index], goals) for index in members}
    lows = [min(column) for column in zip(*turned.values(), strict=True)]
    spans = [max(column) - low or 1.0 for column, low in zip(zip(*turned.values(), strict=True), lows, strict=True)]

    def distance(index: int) -> tuple[float, float]:
        steps = ((value - low) / span for value, low, span in zip(turned[index], lows, spans, strict=True))
        return math.hypot(*steps), turned[index][0]

    return min(members, key=distance)


def _turned(point: Sequence[float], goals: Sequence[Goal], rest: float = 0.0) -> Point:
    """A point whose less is better, with constants for the objectives that there are not."""
    if not 1 <= len(goals) <= OBJECTIVES:
        raise InputError(f"one to {OBJECTIVES} objectives can be compared, got {len(goals)}")
    if len(point) != len(goals) or not all(map(math.isfinite, point)):
        raise InputError(f"a point of {len(goals)} objectives needs as many finite values, got {list(point)}")
    signed = (-value if goal == "max" else value for value, goal in zip(point, goals, strict=True))
    return (*signed, *[rest] * (OBJECTIVES - len(goals)))


class _Stairs:
    """The corners in the plane that no other corner dominates: y rises, z falls."""

    def __init__(self) -> None:
        self.ys: list[float] = []
        self.zs: list[float] = []

    def add(self, y: float, z: float) -> bool:
        """Take a corner in, unless there is one at least as good."""
        index = bisect_right(self.ys, y)
        if index and self.zs[index - 1] <= z:
            return False
        first = bisect_left(self.ys, y)
        last = first
        while last < len(self.ys) and self.zs[last] >= z:
            last += 1
        self.ys[first:last] = [y]
        self.zs[first:last] = [z]
        return True

    def area(self, y: float, z: float) -> float:
        """What the corners dominate, up to (y, z)."""
        ends = [*self.ys[1:], y]
        return math.fsum((end - y) * (z - height) for y, end, height in zip(self.ys, ends, self.zs, strict=True))
