"""The views of several images drawn at once on the model's device, from decoded bytes and plans.

The pixels are those of `views.make_views` to the last bit, on every device: what is computed here and what Pillow
computes may stand beside each other in one file of features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly
from fpp_sweep.core.compute.memory import run_in_batches
from fpp_sweep.core.images.augmix import Mixing
from fpp_sweep.core.images.distorting import chains, mixed
from fpp_sweep.core.images.fused_kernels import fused
from fpp_sweep.core.images.resampling import pack, resize, unpack
from fpp_sweep.core.images.views import Plan, centre_crop, normalised, ready
from fpp_sweep.core.models.clip import Preprocess

EAGER_IMAGES = 512  # drawn by a process before it compiles, which takes a minute


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A decoded image, its plain view, and the plan of the others: what travels to the device that draws them."""

    data: Tensor  # (n, 3) bytes: the image's pixels, then those of the plain view
    width: int
    plan: Plan

    @classmethod
    def of(cls, image: Image.Image, plan: Plan, size: int) -> Planned:
        parts = [np.asarray(each).reshape(-1, 3) for each in (image, centre_crop(image, size))]
        return cls(torch.from_numpy(np.concatenate(parts)), image.width, plan)

    def pin_memory(self) -> Planned:
        """Itself in memory that a GPU can fetch from; torch's loader asks for it."""
        return replace(self, data=self.data.pin_memory())


class Drawer:
    """Brings what readers give to the model's device as normalised views."""

    def __init__(self, preprocess: Preprocess, device: torch.device) -> None:
        self.preprocess = preprocess
        self.device = device
        self._left = EAGER_IMAGES
        self._run: Runner = eagerly
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    def fill(self, pixels: Tensor, group: Mapping[int, Tensor | Planned]) -> None:
        """Write some rows of (images, views, 3, size, size) on the device."""
        planned = {row: each for row, each in group.items() if isinstance(each, Planned)}
        if planned:
            self._count(len(planned))
            sent = [replace(each, data=self._sent(each.data)) for each in planned.values()]
            drawn = run_in_batches(lambda part: draw(part, self.preprocess, self._run), sent, len(sent))
            for row, views in zip(planned, drawn, strict=True):  # a list of rows would have to wait for the device
                pixels[row] = views
        for row, each in group.items():
            if isinstance(each, Tensor):
                pixels[row] = ready(self._sent(each), self.preprocess)

    def _count(self, images: int) -> None:
        """Compile once that pays; where it cannot be had, all stays as it was."""
        if self._beside and self._left > 0 >= self._left - images:
            self._run = fused(self.device)
        self._left -= images

    def _sent(self, data: Tensor) -> Tensor:
        """On a GPU, copied while that still computes on what came before."""
        if self._beside is None:
            return data
        here = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._beside):
            sent = data.to(self.device, non_blocking=True)
        here.wait_stream(self._beside)
        sent.record_stream(here)
        return sent


def draw(images: Sequence[Planned], preprocess: Preprocess, run: Runner = eagerly) -> Tensor:
    """(images, 1 + V, 3, size, size) normalised float32 views, where the images' data are."""
    size, plans = preprocess.size, [each.plan for each in images]
    count = len(plans[0].boxes)
    words = pack(torch.cat([each.data for each in images]))
    ends = np.cumsum([len(each.data) for each in images])
    plain = torch.stack([words[end - size * size : end] for end in ends.tolist()])
    origins = np.repeat(np.concatenate([[0], ends[:-1]]), count)
    strides = np.repeat([each.width for each in images], count)
    boxes, mirrored = (np.concatenate([getattr(each, name) for each in plans]) for name in ("boxes", "mirrored"))
    crops = resize(words, origins, strides, boxes, mirrored, size, run)
    views = torch.empty(len(images), 1 + count, 3, size, size, device=words.device)
    views[:, 0] = _planes(plain).view(len(images), 3, size, size)
    views[:, 1:] = _finished(crops, plans, run).view(len(images), count, 3, size, size)
    return normalised(views, preprocess)


def _finished(crops: Tensor, plans: Sequence[Plan], run: Runner) -> Tensor:
    """(V, 3, S, S) mixed with distortions of themselves, where the plans say so."""
    mixings = [each.mixing for each in plans if each.mixing]
    if not mixings:
        return _planes(crops)
    parts = zip(*((each.weights, each.operations, each.levels) for each in mixings), strict=True)
    mixing = Mixing(*map(np.concatenate, parts))
    shares = torch.from_numpy(mixing.weights).to(crops.device, non_blocking=True)
    return run(mixed, crops, chains(crops, mixing, run), shares)


def _planes(words: Tensor) -> Tensor:
    """(V, ...) words to (V, 3, ...) bytes."""
    return unpack(words).movedim(-1, 1)
