"""The Pareto front of up to three objectives, its hypervolume and its knee, exactly.

One sweep serves every number of objectives: fewer than three are padded with constants. Points are negated where more
is better, sorted, and compared with the staircase of the last two coordinates of the points before them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpp_sweep.spec.errors import InputError

if TYPE_CHECKING:
    from fpp_sweep.spec.catalogue import Goal

Point = tuple[float, ...]
OBJECTIVES = 3  # at most


def front(points: Sequence[Sequence[float]], goals: Sequence[Goal]) -> list[int]:
    """Indices, ascending, of the points that no other dominates; equal points are all on the front or none is.

    >>> front([(70.0, 4.0), (71.0, 5.0), (69.0, 4.5), (70.0, 4.0)], ["max", "min"])
    [0, 1, 3]
    """
    minimized = [_minimized(point, goals) for point in points]
    stairs = _Stairs()
    kept: list[int] = []
    for index in sorted(range(len(minimized)), key=minimized.__getitem__):
        duplicate = bool(kept) and minimized[kept[-1]] == minimized[index]
        if duplicate or stairs.add(*minimized[index][1:]):
            kept.append(index)
    return sorted(kept)


def hypervolume(points: Sequence[Sequence[float]], goals: Sequence[Goal], reference: Sequence[float]) -> float:
    """The volume that the points dominate, up to the reference; 0 if no point is better than it.

    >>> hypervolume([(70.0, 4.0), (71.0, 5.0)], ["max", "min"], (60.0, 10.0))
    65.0
    """
    corner = _minimized(reference, goals, rest=1.0)  # a constant coordinate then multiplies by one
    minimized = (_minimized(point, goals) for point in points)
    inside = sorted(point for point in minimized if all(a < b for a, b in zip(point, corner, strict=True)))
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
    """The hypervolume after each point; a point that is dominated costs a comparison with the front only.

    >>> hypervolume_over_time([(70.0, 4.0), (69.0, 4.0), (71.0, 5.0)], ["max", "min"], (60.0, 10.0))
    [60.0, 60.0, 65.0]
    """
    values: list[float] = []
    best: list[Sequence[float]] = []
    for point in points:
        new = _minimized(point, goals)
        if any(all(a <= b for a, b in zip(_minimized(old, goals), new, strict=True)) for old in best):
            values.append(values[-1])
            continue
        best.append(point)
        best = [best[index] for index in front(best, goals)]
        values.append(hypervolume(best, goals, reference))
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
    minimized = {index: _minimized(points[index], goals) for index in members}
    columns = list(zip(*minimized.values(), strict=True))
    lows = [min(column) for column in columns]
    spans = [max(column) - low or 1.0 for column, low in zip(columns, lows, strict=True)]

    def distance(index: int) -> tuple[float, float]:
        steps = ((value - low) / span for value, low, span in zip(minimized[index], lows, spans, strict=True))
        return math.hypot(*steps), minimized[index][0]

    return min(members, key=distance)


def _minimized(point: Sequence[float], goals: Sequence[Goal], rest: float = 0.0) -> Point:
    """The point with every coordinate to be minimized, padded with a constant to three."""
    if not 1 <= len(goals) <= OBJECTIVES:
        raise InputError(f"one to {OBJECTIVES} objectives can be compared, got {len(goals)}")
    if len(point) != len(goals) or not all(map(math.isfinite, point)):
        raise InputError(f"a point of {len(goals)} objectives needs as many finite values, got {list(point)}")
    signed = (-value if goal == "max" else value for value, goal in zip(point, goals, strict=True))
    return (*signed, *[rest] * (OBJECTIVES - len(goals)))


class _Stairs:
    """The corners in the plane that no other corner dominates, by rising y and falling z."""

    def __init__(self) -> None:
        self.ys: list[float] = []
        self.zs: list[float] = []

    def add(self, y: float, z: float) -> bool:
        """Add a corner and drop those it dominates; whether none was at least as good."""
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
        """The area that the corners dominate, up to (y, z)."""
        ends = [*self.ys[1:], y]
        return math.fsum((end - y) * (z - height) for y, end, height in zip(self.ys, ends, self.zs, strict=True))
