"""The augmented views of a test image, as the published protocol makes them.

View 0 is the plain centre crop. The others are random crops, mirrored half of the time and, with AugMix, mixed with
distortions of themselves. Every view consumes the same number of uniform draws, whether it needs them or not. So view
k is the same for any number of views, and its crop is the same with mirror images or AugMix on and off.

`plan_views` makes all random decisions; `render_with_pillow` carries a plan out.

AugMix at severity 1 mixes an image with three chains of small distortions of itself.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig

Matrix = tuple[float, float, float, float, float, float]  # pixel (x, y) comes from (ax+by+c, dx+ey+f)

CHAINS = 3  # mixed with the image
MAX_DEPTH = 3  # operations in a chain
SEVERITY = 0.1  # AugMix's severity 1 on its scale of 10; a level is this times a draw from U(0.1, 1)
NO_OPERATION = -1  # where a chain has ended

_STEP_DRAWS = 3  # operation, level and sign of an operation in a chain
_CHAIN_DRAWS = 1 + _STEP_DRAWS * MAX_DEPTH  # depth, then the operations
N_DRAWS = 1 + CHAINS + CHAINS * _CHAIN_DRAWS  # uniform draws of a view: share, weights, chains


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


def mix_views(views: Iterable[Image.Image], plan: MixingPlan) -> Iterator[NDArray[np.float32]]:
    """Yield m x0 + (1 - m) sum_i w_i x_i over three chains, for each view.

    The weights add up to one and normalisation is affine. So mixing before normalising equals mixing normalised
    images, apart from rounding.
    """
    chains_of_views = zip(plan.operations.tolist(), plan.levels.tolist(), strict=True)
    for view, weights, (operations, levels) in zip(views, plan.weights, chains_of_views, strict=True):
        mixed = np.asarray(view) * weights[0]
        for index in range(CHAINS):
            mixed += np.asarray(apply_chain(view, operations[index], levels[index])) * weights[1 + index]
        yield mixed


def apply_chain(image: Image.Image, operations: Iterable[int], levels: Iterable[float]) -> Image.Image:
    """Apply the operations of one chain."""
    for operation, level in zip(operations, levels, strict=True):
        if operation != NO_OPERATION:
            image = OPERATIONS[operation](image, level)
    return image


def _autocontrast(image: Image.Image, _level: float) -> Image.Image:
    return ImageOps.autocontrast(image)


def _equalize(image: Image.Image, _level: float) -> Image.Image:
    return ImageOps.equalize(image)


def _posterize(image: Image.Image, _level: float) -> Image.Image:
    return ImageOps.posterize(image, 4)  # bits at severity 1, whatever the level


def _solarize(image: Image.Image, level: float) -> Image.Image:
    return ImageOps.solarize(image, 256 - int(256 * abs(level)))


def _rotate(image: Image.Image, level: float) -> Image.Image:
    return image.rotate(int(30 * level), Image.Resampling.BILINEAR)


def _shear_x(image: Image.Image, level: float) -> Image.Image:
    return _affine(image, (1, 0.3 * level, 0, 0, 1, 0), Image.Resampling.BILINEAR)


def _shear_y(image: Image.Image, level: float) -> Image.Image:
    return _affine(image, (1, 0, 0, 0.3 * level, 1, 0), Image.Resampling.BILINEAR)


def _translate_x(image: Image.Image, level: float) -> Image.Image:
    return _affine(image, (1, 0, _shift(image, level), 0, 1, 0), Image.Resampling.NEAREST)


def _translate_y(image: Image.Image, level: float) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, _shift(image, level)), Image.Resampling.NEAREST)


def _shift(image: Image.Image, level: float) -> int:
    """Return a translation in whole pixels, up to a thirtieth of the size: 7 pixels of 224, 1 of 48."""
    return int(image.width / 3 * level)


def _affine(image: Image.Image, matrix: Matrix, resample: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample)


Operation = Callable[[Image.Image, float], Image.Image]  # image, level

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

Box = tuple[int, int, int, int]  # left, top, right, bottom

ASPECT_RATIOS = (3 / 4, 4 / 3)  # limits of a crop's width over its height, as in torchvision
CROP_TRIES = 10  # as in torchvision

_CROP_DRAWS = 2 * CROP_TRIES + 2
_VIEW_DRAWS = _CROP_DRAWS + 1 + N_DRAWS  # crop, mirror, AugMix


def sample_rng(seed: int, dataset: str, split: str, sample_id: str) -> np.random.Generator:
    """Return the random stream of a sample; it depends on names alone, not on batch, order or worker.

    >>> first = sample_rng(0, "dtd", "test", "a.jpg")
    >>> again = sample_rng(0, "dtd", "test", "a.jpg")
    >>> first.random() == again.random()
    True
    """
    names = json.dumps([seed, dataset, split, sample_id])  # JSON: different names never give the same text
    digest = hashlib.sha256(names.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


@dataclass(frozen=True, slots=True, eq=False)
class ViewPlan:
    """All random decisions for the V random views of an image."""

    boxes: NDArray[np.int64]  # (V, 4): left, top, right, bottom
    mirrored: NDArray[np.bool_]  # (V,)
    mixing: MixingPlan | None  # None: no AugMix


def plan_views(
    image_size: tuple[int, int], config: ViewConfig, *, augmix: bool, flip: bool, rng: np.random.Generator
) -> ViewPlan:
    """Plan the random views of an image of this width and height; view 0 consumes nothing from `rng`."""
    draws = rng.random((config.count - 1, _VIEW_DRAWS))
    crop_draws, mirror_draws, augmix_draws = np.split(draws, [_CROP_DRAWS, _CROP_DRAWS + 1], axis=1)
    areas = config.min_area, config.max_area
    boxes = [random_box(image_size, areas, row) for row in crop_draws.tolist()]
    mixing = None
    if augmix:
        mixing = plan_mixing(augmix_draws)
    return ViewPlan(
        boxes=np.array(boxes, np.int64).reshape(-1, 4),  # also where there are no random views
        mirrored=(mirror_draws[:, 0] < 0.5) & flip,
        mixing=mixing,
    )


def render_with_pillow(image: Image.Image, plan: ViewPlan, preprocess: Preprocess) -> NDArray[Any]:
    """Return (1 + V, 3, size, size) views: bytes, or with AugMix float32 from 0 to 255."""
    size = preprocess.size
    crops = _render_crops(image, plan, size)
    random_views: Iterable[Any] = crops
    dtype: type[np.generic] = np.uint8
    if plan.mixing is not None:
        random_views = mix_views(crops, plan.mixing)
        dtype = np.float32
    views = np.empty((1 + len(plan.boxes), 3, size, size), dtype)
    for index, view in enumerate(chain([plain_view(image, preprocess)], random_views)):
        views[index] = np.asarray(view).transpose(2, 0, 1)
    return views


def _render_crops(image: Image.Image, plan: ViewPlan, size: int) -> Iterator[Image.Image]:
    for box, mirrored in zip(plan.boxes.tolist(), plan.mirrored.tolist(), strict=True):
        # cut out first: the antialiasing of resize(..., box) would look at pixels outside the box
        crop = resize(image.crop(box), (size, size), Image.Resampling.BILINEAR)
        if mirrored:
            crop = ImageOps.mirror(crop)
        yield crop


def normalize(views: Tensor, preprocess: Preprocess) -> Tensor:
    """Return normalised float32 of (..., 3, size, size) bytes or float32; float32 input is overwritten.

    Divisors are tensors on the views' device, because a GPU multiplies by the reciprocal of a plain number.
    """
    constants = torch.tensor([(255.0,) * 3, preprocess.mean, preprocess.std])[..., None, None]
    white, mean, std = constants.to(views.device, non_blocking=True)  # one transfer of three (3, 1, 1)
    return views.float().div_(white).sub_(mean).div_(std)


def as_tower_input(views: Tensor, preprocess: Preprocess) -> Tensor:
    """Normalise views that are bytes; float32 views, which AugMix has mixed, are normalised already."""
    if views.dtype == torch.uint8:
        return normalize(views, preprocess)
    return views


def plain_view(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    """Return the whole image resized to a square, or its middle: the shorter side is resized, then cut."""
    size, resample = preprocess.size, Image.Resampling[preprocess.interpolation.upper()]
    if preprocess.resize_mode == "squash":
        return resize(image, (size, size), resample)
    return centre_crop(image, size, resample)


def centre_crop(image: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    """Resize the shorter side to `size`, and cut out the square in the middle."""
    width, height = image.size
    shorter = min(width, height)
    new_width, new_height = int(size * width / shorter), int(size * height / shorter)
    left, top = round((new_width - size) / 2), round((new_height - size) / 2)
    resized = resize(image, (new_width, new_height), resample)
    return resized.crop((left, top, left + size, top + size))


def resize(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """Resize like `image.resize`, one side after the other, which gives the same bytes with any Pillow.

    Pixels are rounded to bytes after the first side, so that the order of the sides matters. Pillow 11 takes the width
    first, Pillow 12 sometimes the height. Pillow 13 takes the height first where it shrinks much more, as here.
    """
    width, height = image.size
    new_width, new_height = size
    if height - new_height > 2 * max(width - new_width, 0):
        return image.resize((width, new_height), resample).resize(size, resample)
    return image.resize((new_width, height), resample).resize(size, resample)


def random_box(image_size: tuple[int, int], areas: tuple[float, float], draws: Sequence[float]) -> Box:
    """Return torchvision's random crop: ten tries of a random area and ratio of sides, else a central crop.

    `areas` are the limits of the crop's share of the image. `draws` are uniform: two for each try, then two for the
    position. The central crop is the largest with a permitted ratio of its sides.
    """
    width, height = image_size
    min_area, max_area = areas
    min_log_ratio, max_log_ratio = math.log(ASPECT_RATIOS[0]), math.log(ASPECT_RATIOS[1])
    top_draw, left_draw = draws[2 * CROP_TRIES :]
    for attempt in range(CROP_TRIES):
        area_draw, ratio_draw = draws[2 * attempt : 2 * attempt + 2]
        area = width * height * (min_area + (max_area - min_area) * area_draw)
        ratio = math.exp(min_log_ratio + (max_log_ratio - min_log_ratio) * ratio_draw)
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(top_draw * (height - crop_height + 1))
            left = int(left_draw * (width - crop_width + 1))
            return left, top, left + crop_width, top + crop_height
    return _central_box(width, height)


def _central_box(width: int, height: int) -> Box:
    crop_width, crop_height = width, height
    if width / height < ASPECT_RATIOS[0]:
        crop_height = round(width / ASPECT_RATIOS[0])
    elif width / height > ASPECT_RATIOS[1]:
        crop_width = round(height * ASPECT_RATIOS[1])
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return left, top, left + crop_width, top + crop_height
