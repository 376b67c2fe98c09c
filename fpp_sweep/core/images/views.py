"""The augmented views of a test image, as the published protocol makes them.

View 0 is the plain centre crop. The others are random crops, mirrored half of the time and, with AugMix, mixed with
distortions of themselves. Every view consumes the same number of uniform draws, whether it needs them or not. So view
k is the same for any number of views, and its crop is the same with mirror images or AugMix on and off.

`plan_views` makes all random decisions; `render_with_pillow` carries a plan out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fpp_sweep.core.images.augmix import N_DRAWS as AUGMIX_DRAWS
from fpp_sweep.core.images.augmix import MixingPlan, Pixels, mix_views, plan_mixing
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig

Box = tuple[int, int, int, int]  # left, top, right, bottom

ASPECT_RATIOS = (3 / 4, 4 / 3)  # limits of a crop's width over its height, as in torchvision
CROP_TRIES = 10  # as in torchvision
MAX_RESIZED_SIDE = 32  # in sizes of a view: of an image that would become longer only the middle is resized

_CROP_DRAWS = 2 * CROP_TRIES + 2
_VIEW_DRAWS = _CROP_DRAWS + 1 + AUGMIX_DRAWS  # crop, mirror, AugMix


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
    random_views: Iterable[NDArray[Any]] = crops
    dtype: type[np.generic] = np.uint8
    if plan.mixing is not None:
        random_views = mix_views(crops, plan.mixing)
        dtype = np.float32
    views = np.empty((1 + len(plan.boxes), 3, size, size), dtype)
    views[0] = np.asarray(plain_view(image, preprocess)).transpose(2, 0, 1)
    for index, pixels in enumerate(random_views, start=1):
        views[index] = pixels.transpose(2, 0, 1)
    return views


def _render_crops(image: Image.Image, plan: ViewPlan, size: int) -> Iterator[Pixels]:
    for box, mirrored in zip(plan.boxes.tolist(), plan.mirrored.tolist(), strict=True):
        yield render_crop(image, box, size, mirrored)


def render_crop(image: Image.Image, box: Sequence[int], size: int, mirrored: bool) -> Pixels:
    """Return (size, size, 3) bytes of a box of the image."""
    # cut out first: the antialiasing of resize(..., box) would look at pixels outside the box
    left, top, right, bottom = box
    crop = resize(image.crop((left, top, right, bottom)), (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(crop)
    if mirrored:
        return np.ascontiguousarray(pixels[:, ::-1])  # AugMix is slow on negative strides
    return pixels


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
    if max(new_width, new_height) > MAX_RESIZED_SIDE * size:
        return _centre_crop_of_middle(image, size, resample, (new_width, new_height), (left, top))
    resized = resize(image, (new_width, new_height), resample)
    return resized.crop((left, top, left + size, top + size))


def _centre_crop_of_middle(
    image: Image.Image, size: int, resample: Image.Resampling, whole_size: tuple[int, int], corner: tuple[int, int]
) -> Image.Image:
    """Return the centre crop of a long, thin image, all of which would take gigabytes at `whole_size`.

    `corner` is the upper left corner of the crop in the image of `whole_size`.
    """
    width, height = image.size
    new_width, new_height = whole_size
    x = corner[0] * width / new_width  # the crop in pixels of the image, which are not whole
    y = corner[1] * height / new_height
    crop_width = size * width / new_width
    crop_height = size * height / new_height
    reach = 2 + math.ceil(2 * min(width, height) / size)  # pixels beside the crop that bicubic filtering looks at
    left, top = max(0, int(x) - reach), max(0, int(y) - reach)
    right = min(width, math.ceil(x + crop_width) + reach)
    bottom = min(height, math.ceil(y + crop_height) + reach)
    middle = image.crop((left, top, right, bottom))
    box = (x - left, y - top, x - left + crop_width, y - top + crop_height)
    return resize_box(middle, (size, size), resample, box, is_height_first(image.size, whole_size))


def resize(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """Resize like `image.resize`, one side after the other, which gives the same bytes with any Pillow."""
    whole = (0, 0, *image.size)
    return resize_box(image, size, resample, whole, is_height_first(image.size, size))


def is_height_first(size: tuple[int, int], new_size: tuple[int, int]) -> bool:
    """Return whether an image is resized along its height first.

    Pixels are rounded to bytes after the first side, so that the order of the sides matters. Pillow 11 takes the width
    first, Pillow 12 sometimes the height. Pillow 13 takes the height first where it shrinks much more, as here.
    """
    width, height = size
    new_width, new_height = new_size
    return height - new_height > 2 * max(width - new_width, 0)


def resize_box(
    image: Image.Image,
    size: tuple[int, int],
    resample: Image.Resampling,
    box: tuple[float, float, float, float],
    height_first: bool,
) -> Image.Image:
    """Resize a box of an image, one side after the other."""
    left, top, right, bottom = box
    new_width, new_height = size
    if height_first:
        image = image.resize((image.width, new_height), resample, (0, top, image.width, bottom))
        return image.resize(size, resample, (left, 0, right, new_height))
    image = image.resize((new_width, image.height), resample, (left, 0, right, image.height))
    return image.resize(size, resample, (0, top, new_width, bottom))


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
