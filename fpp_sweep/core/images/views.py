"""The augmented views of a test image, as the published protocol draws them.

View 0 is the plain centre crop. The others are random crops, mirrored half of the time and, with AugMix, mixed with
distortions of themselves. Every view takes the same number of uniform draws, whether it needs them or not: view k is
the same for any number of views, and its crop is the same with mirror images or AugMix on and off.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fpp_sweep.core.images import augmix as augmentation
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig

Box = tuple[int, int, int, int]  # left, top, right, bottom

RATIOS = (3 / 4, 4 / 3)  # of a crop's width to its height; torchvision's, as are the tries
TRIES = 10
LONGEST = 32  # times the size of a view: of an image that would become longer only the middle is resized

_CROP_DRAWS = 2 * TRIES + 2
_DRAWS = _CROP_DRAWS + 1 + augmentation.DRAWS  # of a view: crop, mirror, AugMix


def sample_rng(seed: int, dataset: str, split: str, sample_id: str) -> np.random.Generator:
    """The random stream of one sample, from names alone: no batch, order or worker can change it.

    >>> first, again = (sample_rng(0, "dtd", "test", "a.jpg") for _ in range(2))
    >>> first.random() == again.random()
    True
    """
    names = json.dumps([seed, dataset, split, sample_id])  # JSON: different names never give the same text
    digest = hashlib.sha256(names.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All that is drawn for the V random views of an image: what is done to its pixels, and nothing of them."""

    boxes: NDArray[np.int64]  # (V, 4): left, top, right, bottom
    mirrored: NDArray[np.bool_]  # (V,)
    mixing: augmentation.Mixing | None


def plan(
    image_size: tuple[int, int], config: ViewConfig, *, augmix: bool, flip: bool, rng: np.random.Generator
) -> Plan:
    """The random views of an image of this width and height; view 0 takes nothing from `rng`."""
    draws = rng.random((config.count - 1, _DRAWS))
    areas = config.min_area, config.max_area
    boxes = [random_box(image_size, areas, row) for row in draws[:, :_CROP_DRAWS].tolist()]
    return Plan(
        boxes=np.array(boxes, np.int64).reshape(-1, 4),
        mirrored=(draws[:, _CROP_DRAWS] < 0.5) & flip,
        mixing=augmentation.plan(draws[:, _CROP_DRAWS + 1 :]) if augmix else None,
    )


def make_views(
    image: Image.Image,
    config: ViewConfig,
    preprocess: Preprocess,
    *,
    augmix: bool,
    flip: bool,
    rng: np.random.Generator,
) -> Tensor:
    """(count, 3, size, size) normalised float32 views of an RGB image."""
    chosen = plan(image.size, config, augmix=augmix, flip=flip, rng=rng)
    return normalised(torch.from_numpy(draw(image, chosen, preprocess.size)), preprocess)


def draw(image: Image.Image, chosen: Plan, size: int) -> NDArray[Any]:
    """(1 + V, 3, size, size) views by Pillow: bytes, or with AugMix float32 from 0 to 255."""
    views = np.empty((1 + len(chosen.boxes), 3, size, size), np.float32 if chosen.mixing else np.uint8)
    crops = (
        _crop(image, box, size, mirror)
        for box, mirror in zip(chosen.boxes.tolist(), chosen.mirrored.tolist(), strict=True)
    )
    others: Iterable[NDArray[Any]] = augmentation.mix(crops, chosen.mixing) if chosen.mixing else crops
    views[0] = np.asarray(centre_crop(image, size)).transpose(2, 0, 1)
    for view, pixels in enumerate(others, start=1):
        views[view] = pixels.transpose(2, 0, 1)
    return views


def _crop(image: Image.Image, box: Sequence[int], size: int, mirror: bool) -> augmentation.Pixels:
    # not resize(..., box), whose antialiasing would look at pixels outside the box
    left, top, right, bottom = box
    pixels = np.asarray(resize(image.crop((left, top, right, bottom)), (size, size), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(pixels[:, ::-1]) if mirror else pixels  # what follows is slow on negative strides


def normalised(views: Tensor, preprocess: Preprocess) -> Tensor:
    """Normalised float32, of (..., 3, size, size) bytes or of float32, which is overwritten.

    Divisors are tensors on the views' device: a GPU multiplies by the reciprocal of a plain number.
    """
    constants = torch.tensor([(255.0,) * 3, preprocess.mean, preprocess.std])[..., None, None]
    full, mean, std = constants.to(views.device, non_blocking=True)
    return views.float().div_(full).sub_(mean).div_(std)


def ready(views: Tensor, preprocess: Preprocess) -> Tensor:
    """Views for the tower; those that AugMix has mixed come normalised."""
    return normalised(views, preprocess) if views.dtype == torch.uint8 else views


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """The shorter side resized to `size`, bicubic, and the square in the middle."""
    width, height = image.size
    short = min(width, height)
    wide, high = int(size * width / short), int(size * height / short)
    left, top = round((wide - size) / 2), round((high - size) / 2)
    if max(wide, high) > LONGEST * size:  # resizing all of a very long, thin image would take gigabytes
        x, y = left * width / wide, top * height / high
        box = (x, y, x + size * width / wide, y + size * height / high)
        return resize(image, (size, size), Image.Resampling.BICUBIC, box)
    resized = resize(image, (wide, high), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + size, top + size))


def resize(
    image: Image.Image,
    size: tuple[int, int],
    resample: Image.Resampling,
    box: tuple[float, float, float, float] | None = None,
) -> Image.Image:
    """`image.resize`, one side after the other, which gives the same bytes with any Pillow.

    Pixels are rounded to bytes after the first side, so that the order of the sides matters. Pillow 11 takes the width
    first, 12 sometimes the height, and 13 the height where that shrinks much more, as is done here.
    """
    left, top, right, bottom = box or (0, 0, *image.size)
    wide, high = size
    if image.height - high > 2 * max(image.width - wide, 0):
        image = image.resize((image.width, high), resample, (0, top, image.width, bottom))
        return image.resize(size, resample, (left, 0, right, high))
    image = image.resize((wide, image.height), resample, (left, 0, right, image.height))
    return image.resize(size, resample, (0, top, wide, bottom))


def random_box(image_size: tuple[int, int], areas: tuple[float, float], draws: Sequence[float]) -> Box:
    """torchvision's random crop: ten tries to draw an area and a shape that fit, else a central crop.

    `draws` are uniform: two for each try, then two for the position. The central crop is the largest with a permitted
    ratio of its sides.
    """
    width, height = image_size
    low, high = math.log(RATIOS[0]), math.log(RATIOS[1])
    for attempt in range(TRIES):
        area = width * height * (areas[0] + (areas[1] - areas[0]) * draws[2 * attempt])
        ratio = math.exp(low + (high - low) * draws[2 * attempt + 1])
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(draws[2 * TRIES] * (height - h + 1))
            left = int(draws[2 * TRIES + 1] * (width - w + 1))
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < RATIOS[0]:
        h = round(width / RATIOS[0])
    elif width / height > RATIOS[1]:
        w = round(height * RATIOS[1])
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
