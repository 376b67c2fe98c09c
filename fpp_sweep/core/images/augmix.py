"""AugMix at severity 1: an image mixed with three chains of small distortions of itself.

All randomness is passed in as uniform draws: the caller decides which random stream they come from. Images are
(height, width, 3) arrays of bytes; only operations that interpolate go through Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (height, width, 3)

CHAINS = 3  # mixed with the image
MAX_DEPTH = 3  # operations in a chain
SEVERITY = 0.1  # AugMix's severity 1 on its scale of 10; a level is this times a draw from U(0.1, 1)

_CHAIN_DRAWS = 1 + 3 * MAX_DEPTH
DRAWS = 1 + CHAINS + CHAINS * _CHAIN_DRAWS  # of `mix`: share, weights, chains

_LEVELS = np.arange(256)
_CHANNEL_OFFSETS = np.array([0, 256, 512], np.uint16)


def mix(pixels: Pixels, draws: Sequence[float]) -> NDArray[np.float32]:
    """m x0 + (1 - m) sum_i w_i x_i over three chains; m ~ Beta(1, 1), w ~ Dirichlet(1, 1, 1).

    The weights add up to one and normalisation is affine: mixing before normalising equals mixing normalised images,
    but for rounding.
    """
    share, *draws = draws
    exponentials = [-math.log(1 - draw) for draw in draws[:CHAINS]]  # over their sum: Dirichlet(1, 1, 1)
    total = sum(exponentials)
    mixed = pixels * np.float32(share)
    for chain in range(CHAINS):
        start = CHAINS + chain * _CHAIN_DRAWS
        distorted = distort(pixels, draws[start : start + _CHAIN_DRAWS])
        mixed += distorted * np.float32((1 - share) * exponentials[chain] / total)
    return mixed


def distort(pixels: Pixels, draws: Sequence[float]) -> Pixels:
    """One chain: one to three operations, each drawn from all with its level and sign."""
    depth = 1 + int(draws[0] * MAX_DEPTH)
    for operation, level, sign in zip(*(draws[start : 1 + 3 * depth : 3] for start in (1, 2, 3)), strict=True):
        apply = OPERATIONS[int(operation * len(OPERATIONS))]
        pixels = apply(pixels, SEVERITY * (0.1 + 0.9 * level), sign < 0.5)
    return pixels


def _autocontrast(pixels: Pixels, _level: float, _negative: bool) -> Pixels:
    low, high = (values.astype(np.float64)[:, None] for values in _extremes(pixels))
    scale = np.where(low < high, 255 / np.maximum(high - low, 1), 1)
    offset = np.where(low < high, -low * scale, 0)
    return _look_up(pixels, np.clip(_LEVELS * scale + offset, 0, 255))


def _equalize(pixels: Pixels, _level: float, _negative: bool) -> Pixels:
    histograms = np.array(Image.fromarray(pixels).histogram()).reshape(3, 256)
    brightest = histograms[range(3), _extremes(pixels)[1]]
    step = ((pixels.shape[0] * pixels.shape[1] - brightest) // 255)[:, None]
    darker = np.cumsum(histograms, axis=1) - histograms
    levels = np.minimum((step // 2 + darker) // np.maximum(step, 1), 255)
    return _look_up(pixels, np.where(step > 0, levels, _LEVELS))


def _posterize(pixels: Pixels, _level: float, _negative: bool) -> Pixels:
    return pixels & np.uint8(0b11110000)  # 4 bits at severity 1, whatever the level


def _solarize(pixels: Pixels, level: float, _negative: bool) -> Pixels:
    bright = pixels >= 256 - int(256 * level)
    return pixels ^ (bright * np.uint8(255))  # 255 - value is its bits inverted


def _rotate(pixels: Pixels, level: float, negative: bool) -> Pixels:
    degrees = int(30 * level)
    if not degrees:
        return pixels
    angle = -degrees if negative else degrees
    return np.asarray(Image.fromarray(pixels).rotate(angle, Image.Resampling.BILINEAR))


def _shear_x(pixels: Pixels, level: float, negative: bool) -> Pixels:
    shear = -0.3 * level if negative else 0.3 * level
    return _affine(pixels, (1, shear, 0, 0, 1, 0))


def _shear_y(pixels: Pixels, level: float, negative: bool) -> Pixels:
    shear = -0.3 * level if negative else 0.3 * level
    return _affine(pixels, (1, 0, 0, shear, 1, 0))


def _translate_x(pixels: Pixels, level: float, negative: bool) -> Pixels:
    return _translate_y(pixels.swapaxes(0, 1), level, negative).swapaxes(0, 1)


def _translate_y(pixels: Pixels, level: float, negative: bool) -> Pixels:
    """Up to a thirtieth of the size: 7 pixels of 224, 1 of 48."""
    shift = int(len(pixels) / 3 * level)
    if not shift:
        return pixels
    moved = np.zeros_like(pixels)
    if negative:
        moved[shift:] = pixels[:-shift]
    else:
        moved[:-shift] = pixels[shift:]
    return moved


Operation = Callable[[Pixels, float, bool], Pixels]  # pixels, level in [0.01, 0.1), whether its sign is negative

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


def _affine(pixels: Pixels, matrix: tuple[float, ...]) -> Pixels:
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
