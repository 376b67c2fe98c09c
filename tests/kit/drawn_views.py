"""Random pictures, drawn by torch on a device and by Pillow, whose bytes are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner
from fpp_sweep.core.images import augmix, views
from fpp_sweep.core.images.device_views import PlannedImage, render
from fpp_sweep.core.images.distorting import apply_chains
from fpp_sweep.core.images.resampling import Crops, pack, resize, unpack
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig
from tests.kit.views import make_views

SIDES = (1, 2, 3, 7, 33, 60, 200, 333, 500)  # widths and heights of small images
LARGE = ((4000, 3000), (3000, 1), (1, 3000), (2500, 40), (1200, 1600))
SIZES = (1, 8, 33, 48, 96, 224, 336)  # sizes of views
AT_ONCE = 64  # views that are compared in one batch
WORDS_BEFORE = 5  # words in front of an image
NAMES = tuple(operation.__name__.strip("_") for operation in augmix.OPERATIONS)


@dataclass(slots=True)
class Count:
    """The number of tried cases, and the number of cases in which some byte differs."""

    cases: int = 0
    differ: int = 0

    def add(self, drawn: Tensor, expected: NDArray[Any]) -> None:
        same = (drawn.cpu() == torch.from_numpy(expected)).flatten(1).all(1)
        self.cases += len(same)
        self.differ += int((~same).sum())


def subjects(rng: np.random.Generator) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield images of every shape with sizes of views: first large images, then endlessly many small ones."""
    for width, height in LARGE:
        yield picture(rng, width, height), int(rng.choice((48, 224)))
    while True:
        yield picture(rng, *rng.choice(SIDES, 2).tolist()), int(rng.choice(SIZES))


def picture(rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Return a random picture: noise, black and white, or smooth shades of some contrast."""
    kind = rng.integers(0, 4)
    if kind == 0:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        return (rng.integers(0, 2, (height, width, 3)) * rng.integers(1, 256)).astype(np.uint8)
    small = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return (smooth * rng.uniform(0.2, 1)).astype(np.uint8)


def resizes(
    rng: np.random.Generator,
    pixels: NDArray[np.uint8],
    size: int,
    boxes: int,
    device: torch.device,
    runner: Runner,
    count: Count,
) -> None:
    """Compare random boxes of an image: the whole image, single pixels, and sizes between them."""
    height, width, _ = pixels.shape
    left, right = random_interval(rng, width, boxes)
    top, bottom = random_interval(rng, height, boxes)
    corners = np.stack([left, top, right + 1, bottom + 1], axis=1)
    corners[0] = 0, 0, width, height
    mirrored = rng.random(boxes) < 0.5
    image = Image.fromarray(pixels)
    pairs = zip(corners.tolist(), mirrored.tolist(), strict=True)
    expected = np.stack([views.render_crop(image, box, size, mirror) for box, mirror in pairs])
    before = torch.full((WORDS_BEFORE,), 99, dtype=torch.int32)  # the image does not begin at the first word
    words = torch.cat([before, pack(torch.from_numpy(pixels)).flatten()])
    crops = Crops(origins=np.full(boxes, WORDS_BEFORE), strides=np.full(boxes, width), boxes=corners, mirrored=mirrored)
    drawn = resize(words.to(device), crops, size, runner)
    count.add(unpack(drawn), expected)


def random_interval(rng: np.random.Generator, side: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first and the last pixel of random intervals of a side."""
    ends = np.stack([rng.integers(0, side, count), rng.integers(0, side, count)])
    first, last = np.sort(ends, axis=0)
    return first, last


def operations(
    rng: np.random.Generator, size: int, device: torch.device, runner: Runner, counts: dict[str, Count]
) -> None:
    """Compare all nine operations on the same pictures at random levels."""
    pictures = np.stack([picture(rng, size, size) for _ in range(AT_ONCE)])
    words = pack(torch.from_numpy(pictures)).to(device)
    for number, (name, count) in enumerate(counts.items()):
        level = rng.uniform(0.01, 0.1, AT_ONCE) * rng.choice((-1, 1), AT_ONCE)
        levels = np.zeros((AT_ONCE, 3, 3))
        levels[:, 0, 0] = level
        operations_of_chains = np.full((AT_ONCE, 3, 3), augmix.NO_OPERATION)
        operations_of_chains[:, 0, 0] = number
        mixing = augmix.MixingPlan(np.ones((AT_ONCE, 4), np.float32), operations_of_chains, levels)
        apply = augmix.OPERATIONS[number]
        assert apply.__name__.strip("_") == name
        expected = np.stack([apply(*pair) for pair in zip(pictures, level.tolist(), strict=True)])
        count.add(unpack(apply_chains(words, mixing, runner)[:, 0]), expected)


def whole_views(
    rng: np.random.Generator, device: torch.device, runner: Runner, count: Count, size: int = 0, longest: int = 600
) -> None:
    """Compare the normalised numbers of views of several images of different sizes to the last bit."""
    preprocess = Preprocess(size=size or int(rng.choice(SIZES[2:6])))
    config = ViewConfig(count=int(rng.choice((1, 2, 8))))
    images = [Image.fromarray(picture(rng, *rng.integers(1, longest, 2).tolist())) for _ in range(rng.integers(1, 4))]
    mix, seed = bool(rng.random() < 0.7), int(rng.integers(1 << 30))
    expected, planned = [], []
    for image in images:
        first, again = (views.sample_rng(seed, "any", "test", f"{image.size}") for _ in range(2))
        expected.append(make_views(image, config, preprocess, augmix=mix, flip=True, rng=first))
        chosen = views.plan_views(image.size, config, augmix=mix, flip=True, rng=again)
        planned.append(sent(PlannedImage.of(image, chosen, preprocess.size), device))
    drawn = render(planned, preprocess, runner).flatten(0, 1)
    count.add(drawn.view(torch.int32), torch.cat(expected).view(torch.int32).numpy())


def sent(planned: PlannedImage, device: torch.device) -> PlannedImage:
    return replace(planned, data=planned.data.to(device))
