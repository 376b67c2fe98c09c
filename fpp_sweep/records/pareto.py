"""The Pareto front of up to three objectives, its hypervolume and its knee, computed exactly."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from itertools import pairwise
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
    return layers(points, goals)[0] if points else []


def layers(points: Sequence[Values], goals: Sequence[Goal]) -> list[list[int]]:
    """Return the indices of the front's points, then of the front of all other points, and so on.

    >>> layers([(70.0, 4.0), (71.0, 5.0), (69.0, 4.5), (70.0, 4.0)], ["max", "min"])
    [[0, 1, 3], [2]]
    """
    # rounding errors must not decide which of two points is better
    minimized = [tuple(without_rounding_error(value) for value in _minimize(point, goals)) for point in points]
    found: list[list[int]] = []
    remaining = sorted(range(len(points)), key=minimized.__getitem__)
    while remaining:
        members: list[int] = []
        dominated: list[int] = []
        for index in remaining:
            _, y, z = point = minimized[index]
            rivals = (minimized[member] for member in members)  # no later point is better in the first coordinate
            is_dominated = any(rival[1] <= y and rival[2] <= z and rival != point for rival in rivals)
            (dominated if is_dominated else members).append(index)
        found.append(sorted(members))
        remaining = dominated
    return found


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
    plane: list[tuple[float, float]] = []  # the other coordinates of the points so far, in order
    slices = []
    for (x, y, z), (end, _, _) in pairwise([*inside, corner]):
        insort(plane, (y, z))
        slices.append(_area(plane, corner[1], corner[2]) * (end - x))
    return math.fsum(slices)


def _area(plane: Sequence[tuple[float, float]], y_limit: float, z_limit: float) -> float:
    """Return the area that points of a plane dominate, up to a corner; the points are in order."""
    strips = []
    for y, z in plane:
        if z < z_limit:
            strips.append((y_limit - y) * (z_limit - z))
            z_limit = z
    return math.fsum(strips)


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
    worse = {"max": min, "min": max}
    return [worse[goal](column) for goal, column in zip(goals, zip(*points, strict=True), strict=True)]


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
