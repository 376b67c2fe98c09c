"""AugMix at severity 1: an image mixed with three chains of small distortions of itself.

All randomness is passed in as uniform draws, which become a plan: the caller decides which random stream they come
from. Images are (height, width, 3) arrays of bytes; only operations that interpolate go through Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (height, width, 3)
Matrix = tuple[float, float, float, float, float, float]  # from a pixel's place to the place that it is taken from

CHAINS = 3  # mixed with the image
MAX_DEPTH = 3  # operations in a chain
SEVERITY = 0.1  # AugMix's severity 1 on its scale of 10; a level is this times a draw from U(0.1, 1)
NOTHING = -1  # in place of an operation, where a chain has ended

_CHAIN_DRAWS = 1 + 3 * MAX_DEPTH
DRAWS = 1 + CHAINS + CHAINS * _CHAIN_DRAWS  # of a view: share, weights, chains

_LEVELS = np.arange(256)
_CHANNEL_OFFSETS = np.array([0, 256, 512], np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class Mixing:
    """What AugMix does to V views."""

    weights: NDArray[np.float32]  # (V, 4), of the view and of its chains
    operations: NDArray[np.int64]  # (V, 3, 3), by their place in OPERATIONS, of each chain
    levels: NDArray[np.float64]  # (V, 3, 3), from 0.01 to 0.1, with a sign


def plan(draws: NDArray[np.float64]) -> Mixing:
    """(V, DRAWS) draws to shares, weights and chains: m ~ Beta(1, 1), w ~ Dirichlet(1, 1, 1), one to three operations.

    Logarithms are Python's: NumPy's may differ in the last bit from one machine to the next.
    """
    share = draws[:, :1]
    exponentials = [[-math.log(1 - draw) for draw in row] for row in draws[:, 1 : 1 + CHAINS].tolist()]
    total = np.array([[sum(row)] for row in exponentials]).reshape(-1, 1)  # over it: Dirichlet(1, 1, 1)
    weights = np.hstack([share, (1 - share) * np.array(exponentials).reshape(-1, CHAINS) / total])
    chains = draws[:, 1 + CHAINS :].reshape(-1, CHAINS, _CHAIN_DRAWS)
    operations, levels, signs = (chains[..., first::3] for first in (1, 2, 3))
    depth = 1 + (chains[..., :1] * MAX_DEPTH).astype(np.int64)
    chosen = np.where(np.arange(MAX_DEPTH) < depth, (operations * len(OPERATIONS)).astype(np.int64), NOTHING)
    levels = SEVERITY * (0.1 + 0.9 * levels)
    return Mixing(weights.astype(np.float32), chosen, np.where(signs < 0.5, -levels, levels))


def mix(views: Iterable[Pixels], mixing: Mixing) -> Iterable[NDArray[np.float32]]:
    """m x0 + (1 - m) sum_i w_i x_i over three chains, of each view.

    The weights add up to one and normalisation is affine: mixing before normalising equals mixing normalised images,
    but for rounding.
    """
    plans = zip(mixing.operations.tolist(), mixing.levels.tolist(), strict=True)
    for pixels, weights, chains in zip(views, mixing.weights, plans, strict=True):
        mixed = pixels * weights[0]
        for weight, *chain in zip(weights[1:], *chains, strict=True):
            mixed += distort(pixels, *chain) * weight
        yield mixed


def distort(pixels: Pixels, operations: Iterable[int], levels: Iterable[float]) -> Pixels:
    """One chain."""
    for operation, level in zip(operations, levels, strict=True):
        if operation != NOTHING:
            pixels = OPERATIONS[operation](pixels, level)
    return pixels


def _autocontrast(pixels: Pixels, _level: float) -> Pixels:
    low, high = (values.astype(np.float64)[:, None] for values in _extremes(pixels))
    scale = np.where(low < high, 255 / np.maximum(high - low, 1), 1)
    offset = np.where(low < high, -low * scale, 0)
    return _look_up(pixels, np.clip(_LEVELS * scale + offset, 0, 255))


def _equalize(pixels: Pixels, _level: float) -> Pixels:
    histograms = np.array(Image.fromarray(pixels).histogram()).reshape(3, 256)
    brightest = histograms[range(3), _extremes(pixels)[1]]
    step = ((pixels.shape[0] * pixels.shape[1] - brightest) // 255)[:, None]
    darker = np.cumsum(histograms, axis=1) - histograms
    levels = np.minimum((step // 2 + darker) // np.maximum(step, 1), 255)
    return _look_up(pixels, np.where(step > 0, levels, _LEVELS))


def _posterize(pixels: Pixels, _level: float) -> Pixels:
    return pixels & np.uint8(0b11110000)  # 4 bits at severity 1, whatever the level


def _solarize(pixels: Pixels, level: float) -> Pixels:
    return pixels ^ ((pixels >= solarized_from(level)) * np.uint8(255))  # 255 - value is its bits inverted


def _rotate(pixels: Pixels, level: float) -> Pixels:
    return _moved(pixels, matrix(ROTATE, level, len(pixels)))


def _shear_x(pixels: Pixels, level: float) -> Pixels:
    return _moved(pixels, matrix(SHEAR_X, level, len(pixels)))


def _shear_y(pixels: Pixels, level: float) -> Pixels:
    return _moved(pixels, matrix(SHEAR_Y, level, len(pixels)))


def _translate_x(pixels: Pixels, level: float) -> Pixels:
    return _translate_y(pixels.swapaxes(0, 1), level).swapaxes(0, 1)


def _translate_y(pixels: Pixels, level: float) -> Pixels:
    shift = shifted_by(level, len(pixels))
    if not shift:
        return pixels
    moved = np.zeros_like(pixels)
    if shift < 0:
        moved[-shift:] = pixels[:shift]
    else:
        moved[:-shift] = pixels[shift:]
    return moved


Operation = Callable[[Pixels, float], Pixels]  # pixels, level

OPERATIONS: tuple[Operation, ...] = (
    _autocontrast,
    _equalize,
    _posterize,
    _rotate,
    _solarize,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)
AUTOCONTRAST, EQUALIZE, POSTERIZE, ROTATE, SOLARIZE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = range(9)


def solarized_from(level: float) -> int:
    """The least value that is inverted."""
    return 256 - int(256 * abs(level))


def shifted_by(level: float, size: int) -> int:
    """Up to a thirtieth of the size: 7 pixels of 224, 1 of 48."""
    return int(size / 3 * level)


def matrix(operation: int, level: float, size: int) -> Matrix | None:
    """The map of an operation that moves the pixels of a square; none, if that moves nothing.

    >>> matrix(TRANSLATE_X, 0.1, 48), matrix(ROTATE, 0.03, 48)
    ((1, 0, 1, 0, 1, 0), None)
    """
    if operation == ROTATE:
        return _rotation(int(30 * level), size)
    by = 0.3 * level if operation in (SHEAR_X, SHEAR_Y) else shifted_by(level, size)
    maps: dict[int, Matrix] = {
        SHEAR_X: (1, by, 0, 0, 1, 0),
        SHEAR_Y: (1, 0, 0, by, 1, 0),
        TRANSLATE_X: (1, 0, by, 0, 1, 0),
        TRANSLATE_Y: (1, 0, 0, 0, 1, by),
    }
    return maps[operation] if by else None


@lru_cache
def _rotation(degrees: int, size: int) -> Matrix | None:
    """Pillow's arithmetic around the middle, to the last bit."""
    if not degrees:
        return None
    angle = -math.radians(degrees % 360.0)
    cos, sin, minus_sin = (round(value, 15) for value in (math.cos(angle), math.sin(angle), -math.sin(angle)))
    half = size / 2
    x, y = (a * -half + b * -half + 0.0 + half for a, b in ((cos, sin), (minus_sin, cos)))
    return cos, sin, x, minus_sin, cos, y


def _moved(pixels: Pixels, matrix: Matrix | None) -> Pixels:
    if matrix is None:
        return pixels
    image = Image.fromarray(pixels)
    return np.asarray(image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR))


def _extremes(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """The least and greatest value of each channel; one axis at a time, which is ten times as fast."""
    return pixels.min(axis=0).min(axis=0), pixels.max(axis=0).max(axis=0)


def _look_up(pixels: Pixels, tables: NDArray[Any]) -> Pixels:
    """Each channel's values replaced from its table of 256; Pillow's `point` is slower."""
    table = tables.astype(np.uint8).ravel()
    offsets = np.tile(
        _CHANNEL_OFFSETS, pixels.shape[1]
    )  # for a whole row of pixels: numpy is slow on an inner axis of 3
    return table.take(pixels.reshape(len(pixels), -1) + offsets).reshape(pixels.shape)
