"""AugMix at severity 1: an image mixed with three chains of small distortions of itself.

Randomness comes in as uniform draws, which `plan_mixing` turns into a plan: the caller decides which random stream
they come from. Images are (height, width, 3) arrays of bytes; only operations that interpolate go through Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (height, width, 3)
Matrix = tuple[float, float, float, float, float, float]  # pixel (x, y) comes from (ax+by+c, dx+ey+f)

CHAINS = 3  # mixed with the image
MAX_DEPTH = 3  # operations in a chain
SEVERITY = 0.1  # AugMix's severity 1 on its scale of 10; a level is this times a draw from U(0.1, 1)
NO_OPERATION = -1  # where a chain has ended

_STEP_DRAWS = 3  # operation, level and sign of an operation in a chain
_CHAIN_DRAWS = 1 + _STEP_DRAWS * MAX_DEPTH  # depth, then the operations
N_DRAWS = 1 + CHAINS + CHAINS * _CHAIN_DRAWS  # uniform draws of a view: share, weights, chains

_BYTE_VALUES = np.arange(256)
_CHANNEL_OFFSETS = np.array([0, 256, 512], np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class MixingPlan:
    """All random decisions of AugMix for V views."""

    weights: NDArray[np.float32]  # (V, 4), of the view (m) and of its chains ((1 - m) w)
    operations: NDArray[np.int64]  # (V, 3, 3), indices into OPERATIONS, of each chain
    levels: NDArray[np.float64]  # (V, 3, 3), from 0.01 to 0.1, with a sign


def plan_mixing(draws: NDArray[np.float64]) -> MixingPlan:
    """Turn (V, N_DRAWS) draws into m ~ Beta(1, 1), w ~ Dirichlet(1, 1, 1), and chains of one to three operations.

    Beta(1, 1) is uniform. Exponential draws over their sum are Dirichlet(1, 1, 1).
    """
    share = draws[:, :1]  # m
    exponentials = -_log(1 - draws[:, 1 : 1 + CHAINS])
    chain_weights = (1 - share) * exponentials / exponentials.sum(axis=1, keepdims=True)  # (1 - m) w
    weights = np.hstack([share, chain_weights])

    chains = draws[:, 1 + CHAINS :].reshape(-1, CHAINS, _CHAIN_DRAWS)
    depth_draws = chains[..., :1]  # (V, CHAINS, 1)
    steps = chains[..., 1:].reshape(-1, CHAINS, MAX_DEPTH, _STEP_DRAWS)
    operation_draws, level_draws, sign_draws = np.moveaxis(steps, -1, 0)  # (V, CHAINS, MAX_DEPTH) each
    depth = 1 + (depth_draws * MAX_DEPTH).astype(np.int64)
    operations = (operation_draws * len(OPERATIONS)).astype(np.int64)
    operations = np.where(np.arange(MAX_DEPTH) < depth, operations, NO_OPERATION)
    levels = SEVERITY * (0.1 + 0.9 * level_draws)
    levels = np.where(sign_draws < 0.5, -levels, levels)
    return MixingPlan(weights=weights.astype(np.float32), operations=operations, levels=levels)


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Python's logarithms; NumPy's may differ in the last bit from one machine to the next."""
    logarithms = [math.log(value) for value in values.ravel().tolist()]
    return np.array(logarithms).reshape(values.shape)


def mix_views(views: Iterable[Pixels], plan: MixingPlan) -> Iterator[NDArray[np.float32]]:
    """Yield m x0 + (1 - m) sum_i w_i x_i over three chains, for each view.

    The weights add up to one and normalisation is affine. So mixing before normalising equals mixing normalised
    images, apart from rounding.
    """
    chains_of_views = zip(plan.operations.tolist(), plan.levels.tolist(), strict=True)
    for pixels, weights, (operations, levels) in zip(views, plan.weights, chains_of_views, strict=True):
        mixed = pixels * weights[0]
        for chain in range(CHAINS):
            mixed += apply_chain(pixels, operations[chain], levels[chain]) * weights[1 + chain]
        yield mixed


def apply_chain(pixels: Pixels, operations: Iterable[int], levels: Iterable[float]) -> Pixels:
    """Apply the operations of one chain."""
    for operation, level in zip(operations, levels, strict=True):
        if operation != NO_OPERATION:
            pixels = OPERATIONS[operation](pixels, level)
    return pixels


def _autocontrast(pixels: Pixels, _level: float) -> Pixels:
    lowest, highest = _channel_extremes(pixels)
    low = lowest.astype(np.float64)[:, None]
    high = highest.astype(np.float64)[:, None]
    scale = np.where(low < high, 255 / np.maximum(high - low, 1), 1)
    offset = np.where(low < high, -low * scale, 0)
    return _apply_tables(pixels, np.clip(_BYTE_VALUES * scale + offset, 0, 255))


def _equalize(pixels: Pixels, _level: float) -> Pixels:
    histograms = np.array(Image.fromarray(pixels).histogram()).reshape(3, 256)
    _, high = _channel_extremes(pixels)
    brightest_pixels = histograms[range(3), high]  # numbers of pixels (3,)
    step = ((pixels.shape[0] * pixels.shape[1] - brightest_pixels) // 255)[:, None]  # pixels for a step of one value
    darker_pixels = np.cumsum(histograms, axis=1) - histograms  # (3, 256)
    levels = np.minimum((step // 2 + darker_pixels) // np.maximum(step, 1), 255)
    return _apply_tables(pixels, np.where(step > 0, levels, _BYTE_VALUES))


def _posterize(pixels: Pixels, _level: float) -> Pixels:
    return pixels & np.uint8(0b11110000)  # 4 bits at severity 1, whatever the level


def _solarize(pixels: Pixels, level: float) -> Pixels:
    return pixels ^ ((pixels >= solarize_threshold(level)) * np.uint8(255))  # 255 - value inverts all bits


def _rotate(pixels: Pixels, level: float) -> Pixels:
    return _transform(pixels, affine_matrix(ROTATE, level, len(pixels)))


def _shear_x(pixels: Pixels, level: float) -> Pixels:
    return _transform(pixels, affine_matrix(SHEAR_X, level, len(pixels)))


def _shear_y(pixels: Pixels, level: float) -> Pixels:
    return _transform(pixels, affine_matrix(SHEAR_Y, level, len(pixels)))


def _translate_x(pixels: Pixels, level: float) -> Pixels:
    return _translate_y(pixels.swapaxes(0, 1), level).swapaxes(0, 1)


def _translate_y(pixels: Pixels, level: float) -> Pixels:
    shift = shift_pixels(level, len(pixels))
    if not shift:
        return pixels
    shifted = np.zeros_like(pixels)
    if shift < 0:
        shifted[-shift:] = pixels[:shift]
    else:
        shifted[:-shift] = pixels[shift:]
    return shifted


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


def solarize_threshold(level: float) -> int:
    """Return the smallest value that is inverted."""
    return 256 - int(256 * abs(level))


def shift_pixels(level: float, size: int) -> int:
    """Return a translation in pixels, up to a thirtieth of the size: 7 pixels of 224, 1 of 48."""
    return int(size / 3 * level)


def affine_matrix(operation: int, level: float, size: int) -> Matrix | None:
    """Return the matrix of a rotation, shear or translation of a square; None if no pixel moves.

    >>> affine_matrix(TRANSLATE_X, 0.1, 48), affine_matrix(ROTATE, 0.03, 48)
    ((1, 0, 1, 0, 1, 0), None)
    """
    if operation == ROTATE:
        return _rotation(int(30 * level), size)
    amount: float = shift_pixels(level, size)
    if operation in (SHEAR_X, SHEAR_Y):
        amount = 0.3 * level
    if not amount:
        return None
    matrices: dict[int, Matrix] = {
        SHEAR_X: (1, amount, 0, 0, 1, 0),
        SHEAR_Y: (1, 0, 0, amount, 1, 0),
        TRANSLATE_X: (1, 0, amount, 0, 1, 0),
        TRANSLATE_Y: (1, 0, 0, 0, 1, amount),
    }
    return matrices[operation]


@lru_cache
def _rotation(degrees: int, size: int) -> Matrix | None:
    """Return the matrix of a rotation around the middle, with Pillow's arithmetic to the last bit."""
    if not degrees:
        return None
    angle = -math.radians(degrees % 360.0)
    cos, sin, minus_sin = round(math.cos(angle), 15), round(math.sin(angle), 15), round(-math.sin(angle), 15)
    half = size / 2
    x = cos * -half + sin * -half + 0.0 + half
    y = minus_sin * -half + cos * -half + 0.0 + half
    return cos, sin, x, minus_sin, cos, y


def _transform(pixels: Pixels, matrix: Matrix | None) -> Pixels:
    if matrix is None:
        return pixels
    image = Image.fromarray(pixels)
    return np.asarray(image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR))


def _channel_extremes(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """Return the smallest and greatest value of each channel; one axis at a time is ten times as fast as both."""
    return pixels.min(axis=0).min(axis=0), pixels.max(axis=0).max(axis=0)


def _apply_tables(pixels: Pixels, tables: NDArray[Any]) -> Pixels:
    """Replace the values of each channel from its table of 256 entries; Pillow's `point` is slower."""
    table = tables.astype(np.uint8).ravel()
    offsets = np.tile(_CHANNEL_OFFSETS, pixels.shape[1])  # whole rows: numpy is slow on an inner axis of 3
    return table.take(pixels.reshape(len(pixels), -1) + offsets).reshape(pixels.shape)
