"""Thirteen two-colour patterns: functions of rotated coordinates and a frequency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.tiny.rendering import CANVAS, Mask, X, Y, smooth_noise

TAU = 2 * np.pi


class Grid(NamedTuple):
    """The rotated, shifted coordinates of each pixel, and the frequency of the pattern."""

    u: Mask
    v: Mask
    frequency: float
    rng: np.random.Generator


def triangle_wave(phase: Mask) -> Mask:
    return np.asarray(2 * np.abs(phase - np.floor(phase + 0.5)))


def cells(grid: Grid) -> tuple[Mask, Mask]:
    """Return the position within the unit cell, each coordinate in 0..1."""
    return (grid.u * grid.frequency) % 1, (grid.v * grid.frequency) % 1


def checkered(grid: Grid) -> NDArray[np.bool_]:
    parity = np.floor(grid.u * grid.frequency) + np.floor(grid.v * grid.frequency)
    return np.asarray(parity % 2 == 0)


def striped(grid: Grid) -> NDArray[Any]:
    across, _ = cells(grid)
    return np.asarray(across < grid.rng.uniform(0.4, 0.6))


def dotted(grid: Grid) -> NDArray[Any]:
    across, down = cells(grid)
    return np.asarray(np.hypot(across - 0.5, down - 0.5) > grid.rng.uniform(0.24, 0.36))


def zigzagged(grid: Grid) -> NDArray[Any]:
    bend = grid.frequency / 8 * triangle_wave(grid.u * grid.frequency * 0.7)
    return np.asarray((grid.v * grid.frequency + bend) % 1 < 0.5)


def wavy(grid: Grid) -> NDArray[Any]:
    bend = 0.35 * np.sin(TAU * grid.u * grid.frequency * 0.5)
    return np.asarray((grid.v * grid.frequency + bend) % 1 < 0.5)


def gridded(grid: Grid) -> NDArray[Any]:
    across, down = cells(grid)
    line = grid.rng.uniform(0.15, 0.25)
    return (across > line) & (down > line)


def speckled(grid: Grid) -> NDArray[Any]:
    return smooth_noise(int(grid.frequency * 4), grid.rng) < 0.68


def bricked(grid: Grid) -> NDArray[Any]:
    row = np.floor(grid.v * grid.frequency)
    along = (grid.u * grid.frequency * 0.5 + 0.5 * (row % 2)) % 1
    return np.asarray(((grid.v * grid.frequency) % 1 > 0.18) & (along > 0.1))


def swirly(grid: Grid) -> NDArray[Any]:
    x, y = X - grid.rng.uniform(0.3, 0.7), Y - grid.rng.uniform(0.3, 0.7)
    turn = np.arctan2(y, x) / TAU
    if grid.rng.random() >= 0.5:
        turn = -turn
    return np.asarray((np.hypot(x, y) * grid.frequency * 1.2 + turn) % 1 < 0.5)


def marbled(grid: Grid) -> NDArray[Any]:
    veins = grid.u * grid.frequency * 0.5 + 1.6 * smooth_noise(6, grid.rng)
    return np.asarray(0.5 + 0.5 * np.sin(TAU * veins))


def cracked(grid: Grid) -> NDArray[Any]:
    """Return the borders between the regions nearest to some random points."""
    x, y = grid.rng.random((2, int(grid.frequency * 2.5), 1, 1)).astype(np.float32)
    distance = np.sort(np.hypot(X - x, Y - y), axis=0)
    return np.asarray(distance[1] - distance[0] > 0.035)


def woven(grid: Grid) -> NDArray[Any]:
    across = np.cos(2 * TAU * grid.u * grid.frequency)
    down = np.cos(2 * TAU * grid.v * grid.frequency)
    return np.asarray(0.5 + 0.5 * np.where(checkered(grid), across, down))


def scaly(grid: Grid) -> NDArray[Any]:
    row = np.floor(grid.v * grid.frequency)
    across = (grid.u * grid.frequency + 0.5 * (row % 2)) % 1 - 0.5
    return np.asarray(np.abs(np.hypot(across, (grid.v * grid.frequency) % 1) - 0.6) > 0.12)


PATTERNS = (
    striped, dotted, checkered, zigzagged, wavy, gridded, speckled, bricked, swirly, marbled, cracked, woven, scaly
)  # fmt: skip
TEXTURES: dict[str, Callable[[Grid], NDArray[Any]]] = {pattern.__name__: pattern for pattern in PATTERNS}
PLAIN = "plain"  # no texture at all


def texture_mask(name: str, rng: np.random.Generator) -> Mask:
    """Return 1 in the first colour of the texture and 0 in the second, at a random scale and angle."""
    if name == PLAIN:
        return np.ones((CANVAS, CANVAS), np.float32)
    angle = rng.uniform(0, np.pi)
    cosine, sine = np.cos(angle), np.sin(angle)
    grid = Grid(
        u=X * cosine + Y * sine + rng.random(),
        v=Y * cosine - X * sine + rng.random(),
        frequency=rng.uniform(3.5, 8),
        rng=rng,
    )
    return np.asarray(TEXTURES[name](grid), np.float32)
