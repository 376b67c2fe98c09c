"""The Pareto front of up to three objectives, its hypervolume and its knee, computed exactly.

One algorithm serves every number of objectives: points are negated where more is better, padded with constants to three
coordinates, sorted by the first, and compared with the staircase that the last two coordinates of earlier points form.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fpp_sweep.space.objectives import MAX_OBJECTIVES, without_rounding_error
from fpp_sweep.spec.errors import InputError

if TYPE_CHECKING:
    from fpp_sweep.spec.catalogue import Goal

Values = Sequence[float]  # values of one point, by objective
Minimized = tuple[float, float, float]


def front(points: Sequence[Values], goals: Sequence[Goal]) -> list[int]:
    """Return the indices, ascending, of the points that no other dominates; equal points share their fate.

    >>> front([(70.0, 4.0), (71.0, 5.0), (69.0, 4.5), (70.0, 4.0)], ["max", "min"])
    [0, 1, 3]
    """
    if not points:
        return []
    return layers(points, goals)[0]


def layers(points: Sequence[Values], goals: Sequence[Goal]) -> list[list[int]]:
    """Return the indices of the front's points, then of the front of all other points, and so on.

    >>> layers([(70.0, 4.0), (71.0, 5.0), (69.0, 4.5), (70.0, 4.0)], ["max", "min"])
    [[0, 1, 3], [2]]
    """
    minimized = [_comparable(point, goals) for point in points]
    staircases: list[_Staircase] = []  # one for each layer, with its points so far
    members: list[list[int]] = []
    previous = None
    layer = 0
    for index in sorted(range(len(minimized)), key=minimized.__getitem__):
        if minimized[index] != previous:  # else the point before is equal, and has the same layer
            previous = minimized[index]
            _, y, z = previous
            # a point that dominates this one is itself dominated in all layers before its own
            layer = bisect_left(staircases, True, key=lambda stairs: not stairs.covers(y, z))
            if layer == len(staircases):
                staircases.append(_Staircase())
                members.append([])
            staircases[layer].add(y, z)
        members[layer].append(index)
    return [sorted(indices) for indices in members]


def hypervolume(points: Sequence[Values], goals: Sequence[Goal], reference: Values) -> float:
    """Return the volume that the points dominate, up to the reference; 0 if no point is better than the reference.

    >>> hypervolume([(70.0, 4.0), (71.0, 5.0)], ["max", "min"], (60.0, 10.0))
    65.0
    """
    corner = _minimize(reference, goals, padding=1.0)  # a constant coordinate then multiplies by one
    inside = []
    for point in points:
        candidate = _minimize(point, goals)
        if all(value < limit for value, limit in zip(candidate, corner, strict=True)):
            inside.append(candidate)
    inside.sort()
    stairs = _Staircase()
    area = 0.0
    slices = []
    for index, (x, y, z) in enumerate(inside):
        if stairs.add(y, z):
            area = stairs.area(corner[1], corner[2])
        next_x = corner[0]
        if index + 1 < len(inside):
            next_x = inside[index + 1][0]
        slices.append(area * (next_x - x))
    return math.fsum(slices)


def hypervolume_over_time(points: Sequence[Values], goals: Sequence[Goal], reference: Values) -> list[float]:
    """Return the hypervolume after each point; a dominated point costs a comparison with the front only.

    >>> hypervolume_over_time([(70.0, 4.0), (69.0, 4.0), (71.0, 5.0)], ["max", "min"], (60.0, 10.0))
    [60.0, 60.0, 65.0]
    """
    volumes: list[float] = []
    members: list[Values] = []
    volume = 0.0
    for point in points:
        candidates = [*members, point]
        indices = front(candidates, goals)
        if len(members) in indices:
            members = [candidates[index] for index in indices]
            volume = hypervolume(members, goals, reference)
        volumes.append(volume)
    return volumes


def knee_order(points: Sequence[Values], goals: Sequence[Goal], corner: Values) -> list[int]:
    """Return the indices of the points by their trade-off, the best one (the knee) first.

    Each objective is measured from the corner (0) to the best of the points (1). The trade-off is the volume between
    corner and point: a point that is worse than the corner in an objective has volume 0 and follows in the order of its
    summed gains. Of equal points the better in the first objective comes first.

    >>> knee_order([(72.0, 9.0), (71.5, 4.5), (20.0, 1.0)], ["max", "min"], corner=(66.0, 13.0))
    [1, 0, 2]
    """
    if not points:  # where no trial has finished there is no corner either
        return []
    minimized = [_minimize(point, goals) for point in points]
    limits = _minimize(corner, goals)
    objectives = range(len(goals))
    scales = []
    for objective in objectives:
        best = min(point[objective] for point in minimized)
        scales.append(max(limits[objective] - best, 1e-12))

    def rank(index: int) -> tuple[float, float, float]:
        gains = [(limits[objective] - minimized[index][objective]) / scales[objective] for objective in objectives]
        volume = math.prod(max(gain, 0.0) for gain in gains)
        return -volume, -math.fsum(gains), minimized[index][0]

    return sorted(range(len(points)), key=rank)


def worst(points: Sequence[Values], goals: Sequence[Goal]) -> list[float]:
    """Return the worst value of each objective.

    >>> worst([(70.0, 4.0), (71.0, 5.0)], ["max", "min"])
    [70.0, 5.0]
    """
    corner = []
    for objective, goal in enumerate(goals):
        column = [point[objective] for point in points]
        if goal == "max":
            corner.append(min(column))
        else:
            corner.append(max(column))
    return corner


def _minimize(point: Values, goals: Sequence[Goal], padding: float = 0.0) -> Minimized:
    """Return the point with every coordinate to be minimized, padded to three coordinates."""
    if not 1 <= len(goals) <= MAX_OBJECTIVES:
        raise InputError(f"one to {MAX_OBJECTIVES} objectives can be compared, got {len(goals)}")
    if len(point) != len(goals) or not all(math.isfinite(value) for value in point):
        raise InputError(f"a point of {len(goals)} objectives needs as many finite values, got {list(point)}")
    coordinates = [padding] * MAX_OBJECTIVES
    for objective, (value, goal) in enumerate(zip(point, goals, strict=True)):
        if goal == "max":
            coordinates[objective] = -value
        else:
            coordinates[objective] = value
    first, second, third = coordinates
    return first, second, third


def _comparable(point: Values, goals: Sequence[Goal]) -> Minimized:
    """Return the point to be minimized; rounding errors must not decide which of two points is better."""
    first, second, third = _minimize(point, goals)
    return without_rounding_error(first), without_rounding_error(second), without_rounding_error(third)


class _Staircase:
    """Corners in the plane that no other corner dominates, by rising y and falling z."""

    def __init__(self) -> None:
        self.ys: list[float] = []
        self.zs: list[float] = []

    def covers(self, y: float, z: float) -> bool:
        """Return True if a corner is at least as good."""
        index = bisect_right(self.ys, y)
        return index > 0 and self.zs[index - 1] <= z

    def add(self, y: float, z: float) -> bool:
        """Add a corner and drop those it dominates; return False if a corner is at least as good."""
        if self.covers(y, z):
            return False
        first = bisect_left(self.ys, y)
        last = first
        while last < len(self.ys) and self.zs[last] >= z:
            last += 1
        self.ys[first:last] = [y]
        self.zs[first:last] = [z]
        return True

    def area(self, y: float, z: float) -> float:
        """Return the area that the corners dominate, up to (y, z)."""
        ends = [*self.ys[1:], y]
        strips = []
        for start, end, height in zip(self.ys, ends, self.zs, strict=True):
            strips.append((end - start) * (z - height))
        return math.fsum(strips)
