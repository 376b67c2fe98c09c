"""Thirteen two-colour patterns. Each is a function of rotated coordinates and a frequency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.tiny.drawing import CANVAS, Mask, X, Y, smooth_noise

TAU = 2 * np.pi


class Sheet(NamedTuple):
    """The rotated, shifted coordinates a pattern is drawn in, and how many periods fit."""

    u: Mask
    v: Mask
    frequency: float
    rng: np.random.Generator


def triangle_wave(phase: Mask) -> Mask:
    return np.asarray(2 * np.abs(phase - np.floor(phase + 0.5)))


def cells(sheet: Sheet) -> tuple[Mask, Mask]:
    """Position within the unit cell, each coordinate in 0..1."""
    return (sheet.u * sheet.frequency) % 1, (sheet.v * sheet.frequency) % 1


def checkers(sheet: Sheet) -> NDArray[np.bool_]:
    parity = np.floor(sheet.u * sheet.frequency) + np.floor(sheet.v * sheet.frequency)
    return np.asarray(parity % 2 == 0)


def striped(sheet: Sheet) -> NDArray[Any]:
    across, _ = cells(sheet)
    return np.asarray(across < sheet.rng.uniform(0.4, 0.6))


def dotted(sheet: Sheet) -> NDArray[Any]:
    across, down = cells(sheet)
    return np.asarray(np.hypot(across - 0.5, down - 0.5) > sheet.rng.uniform(0.24, 0.36))


def checkered(sheet: Sheet) -> NDArray[Any]:
    return checkers(sheet)


def zigzagged(sheet: Sheet) -> NDArray[Any]:
    bend = sheet.frequency / 8 * triangle_wave(sheet.u * sheet.frequency * 0.7)
    return np.asarray((sheet.v * sheet.frequency + bend) % 1 < 0.5)


def wavy(sheet: Sheet) -> NDArray[Any]:
    bend = 0.35 * np.sin(TAU * sheet.u * sheet.frequency * 0.5)
    return np.asarray((sheet.v * sheet.frequency + bend) % 1 < 0.5)


def gridded(sheet: Sheet) -> NDArray[Any]:
    across, down = cells(sheet)
    line = sheet.rng.uniform(0.15, 0.25)
    return (across > line) & (down > line)


def speckled(sheet: Sheet) -> NDArray[Any]:
    return smooth_noise(int(sheet.frequency * 4), sheet.rng) < 0.68


def bricked(sheet: Sheet) -> NDArray[Any]:
    row = np.floor(sheet.v * sheet.frequency)
    along = (sheet.u * sheet.frequency * 0.5 + 0.5 * (row % 2)) % 1
    return np.asarray(((sheet.v * sheet.frequency) % 1 > 0.18) & (along > 0.1))


def swirly(sheet: Sheet) -> NDArray[Any]:
    x, y = X - sheet.rng.uniform(0.3, 0.7), Y - sheet.rng.uniform(0.3, 0.7)
    turn = np.arctan2(y, x) / TAU * (1 if sheet.rng.random() < 0.5 else -1)
    return np.asarray((np.hypot(x, y) * sheet.frequency * 1.2 + turn) % 1 < 0.5)


def marbled(sheet: Sheet) -> NDArray[Any]:
    veins = sheet.u * sheet.frequency * 0.5 + 1.6 * smooth_noise(6, sheet.rng)
    return np.asarray(0.5 + 0.5 * np.sin(TAU * veins))


def cracked(sheet: Sheet) -> NDArray[Any]:
    """The borders between the regions nearest to some random points."""
    x, y = sheet.rng.random((2, int(sheet.frequency * 2.5), 1, 1)).astype(np.float32)
    distance = np.sort(np.hypot(X - x, Y - y), axis=0)
    return np.asarray(distance[1] - distance[0] > 0.035)


def woven(sheet: Sheet) -> NDArray[Any]:
    across = np.cos(2 * TAU * sheet.u * sheet.frequency)
    down = np.cos(2 * TAU * sheet.v * sheet.frequency)
    return np.asarray(0.5 + 0.5 * np.where(checkers(sheet), across, down))


def scaly(sheet: Sheet) -> NDArray[Any]:
    row = np.floor(sheet.v * sheet.frequency)
    across = (sheet.u * sheet.frequency + 0.5 * (row % 2)) % 1 - 0.5
    return np.asarray(np.abs(np.hypot(across, (sheet.v * sheet.frequency) % 1) - 0.6) > 0.12)


TEXTURES: dict[str, Callable[[Sheet], NDArray[Any]]] = {
    "striped": striped,
    "dotted": dotted,
    "checkered": checkered,
    "zigzagged": zigzagged,
    "wavy": wavy,
    "gridded": gridded,
    "speckled": speckled,
    "bricked": bricked,
    "swirly": swirly,
    "marbled": marbled,
    "cracked": cracked,
    "woven": woven,
    "scaly": scaly,
}
PLAIN = "plain"  # no texture at all


def texture_mask(name: str, rng: np.random.Generator) -> Mask:
    """1 in the first colour of the texture, 0 in the second, at a random scale and angle."""
    if name == PLAIN:
        return np.ones((CANVAS, CANVAS), np.float32)
    angle = rng.uniform(0, np.pi)
    cosine, sine = np.cos(angle), np.sin(angle)
    sheet = Sheet(
        u=X * cosine + Y * sine + rng.random(),
        v=Y * cosine - X * sine + rng.random(),
        frequency=rng.uniform(3.5, 8),
        rng=rng,
    )
    return np.asarray(TEXTURES[name](sheet), np.float32)
