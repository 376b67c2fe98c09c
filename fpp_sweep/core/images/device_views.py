"""The views of several images rendered at once on the model's device, from decoded bytes and plans.

The pixels are those of `views.render_with_pillow` to the last bit. A GPU renders views only after its proof has shown
that (trial/proof_checks.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fpp_sweep.core.compute.compiling import Runner, eagerly
from fpp_sweep.core.compute.memory import is_out_of_memory, run_in_batches
from fpp_sweep.core.images.augmix import MixingPlan
from fpp_sweep.core.images.distorting import apply_chains, mix
from fpp_sweep.core.images.fused_kernels import FusedRunner, fused_runner
from fpp_sweep.core.images.resampling import Crops, pack, resize, unpack
from fpp_sweep.core.images.views import ViewPlan, as_tower_input, centre_crop, normalize, render_with_pillow
from fpp_sweep.core.models.clip import Preprocess

EAGER_IMAGES = 512  # rendered by a process before it compiles the kernels, which takes a minute


@dataclass(frozen=True, slots=True, eq=False)
class PlannedImage:
    """A decoded image, its plain view, and the plan of its other views: the input of a renderer on a device."""

    data: Tensor  # (n, 3) bytes: the image's pixels, then those of the plain view
    width: int
    plan: ViewPlan

    @classmethod
    def of(cls, image: Image.Image, plan: ViewPlan, size: int) -> PlannedImage:
        pixels = np.asarray(image).reshape(-1, 3)
        plain_view = np.asarray(centre_crop(image, size)).reshape(-1, 3)
        return cls(torch.from_numpy(np.concatenate([pixels, plain_view])), image.width, plan)

    def pin_memory(self) -> PlannedImage:
        """Return the image in memory that a GPU can fetch from; torch's loader calls this method."""
        return replace(self, data=self.data.pin_memory())

    def by_pillow(self, preprocess: Preprocess) -> Tensor:
        """Return the normalised views (1 + V, 3, size, size) as Pillow renders them."""
        plain_pixels = preprocess.size**2
        pixels = self.data[:-plain_pixels].view(-1, self.width, 3)
        views = render_with_pillow(Image.fromarray(pixels.numpy()), self.plan, preprocess.size)
        return normalize(torch.from_numpy(views), preprocess)


class ViewRenderer:
    """A renderer that turns what readers give into normalised views on the model's device.

    Compiled kernels are used only where `compiles` says that their bytes are proven to be Pillow's on this device.
    """

    def __init__(self, preprocess: Preprocess, device: torch.device, *, compiles: bool = False) -> None:
        self.preprocess = preprocess
        self.device = device
        self._compiles = compiles
        self._rendered = 0
        self._run: Runner = eagerly
        self._copy_stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._copy_stream = torch.cuda.Stream(device)

    def fill(self, pixels: Tensor, group: Mapping[int, Tensor | PlannedImage]) -> None:
        """Write some rows of (images, views, 3, size, size) on the device."""
        planned_rows: list[int] = []
        planned_images: list[PlannedImage] = []
        for row, views in group.items():
            if isinstance(views, PlannedImage):
                planned_rows.append(row)
                planned_images.append(replace(views, data=self._to_device(views.data)))
            else:
                pixels[row] = as_tower_input(self._to_device(views), self.preprocess)
        if planned_images:
            self._render(pixels, planned_rows, planned_images)

    def fill_in_any_memory(self, pixels: Tensor, group: Mapping[int, Tensor | PlannedImage]) -> None:
        """Write the same rows as `fill`; let Pillow render them if the device lacks the memory to render one image."""
        try:
            self.fill(pixels, group)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        by_pillow: dict[int, Tensor | PlannedImage] = {}
        for row, views in group.items():
            by_pillow[row] = views
            if isinstance(views, PlannedImage):
                by_pillow[row] = views.by_pillow(self.preprocess)
        self.fill(pixels, by_pillow)

    def _render(self, pixels: Tensor, rows: Sequence[int], images: Sequence[PlannedImage]) -> None:
        self._compile_once_it_pays(len(images))

        def render_part(part: Sequence[PlannedImage]) -> Tensor:
            return render(part, self.preprocess, self._run)

        rendered = run_in_batches(render_part, images, len(images))
        for row, views in zip(rows, rendered, strict=True):  # indexing by a list of rows would wait for the device
            pixels[row] = views

    def _compile_once_it_pays(self, images: int) -> None:
        before = self._rendered
        self._rendered += images
        if self._compiles and before < EAGER_IMAGES <= self._rendered:
            self._run = fused_runner(self.device)

    @property
    def failure(self) -> str:
        """Return why compiled kernels are no longer used; an empty text if none has failed."""
        if isinstance(self._run, FusedRunner):
            return self._run.failure
        return ""

    def _to_device(self, data: Tensor) -> Tensor:
        """Copy to a GPU while it still computes the group before; on a CPU return the data."""
        if self._copy_stream is None:
            return data
        compute_stream = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._copy_stream):
            copy = data.to(self.device, non_blocking=True)
        compute_stream.wait_stream(self._copy_stream)
        copy.record_stream(compute_stream)
        return copy


def render(images: Sequence[PlannedImage], preprocess: Preprocess, run: Runner = eagerly) -> Tensor:
    """Return (images, 1 + V, 3, size, size) normalised float32 views, on the device of the images' data."""
    size = preprocess.size
    plans = [image.plan for image in images]
    count = len(plans[0].boxes)
    words = pack(torch.cat([image.data for image in images]))
    ends = np.cumsum([len(image.data) for image in images])
    beginnings = np.concatenate([[0], ends[:-1]])
    crops = Crops(
        origins=np.repeat(beginnings, count),
        strides=np.repeat([image.width for image in images], count),
        boxes=np.concatenate([plan.boxes for plan in plans]),
        mirrored=np.concatenate([plan.mirrored for plan in plans]),
    )
    plain_views = torch.stack([words[end - size * size : end] for end in ends.tolist()])
    random_views = _mix(resize(words, crops, size, run), plans, run)
    views = torch.empty(len(images), 1 + count, 3, size, size, device=words.device)
    views[:, 0] = _planes(plain_views).view(len(images), 3, size, size)
    views[:, 1:] = random_views.view(len(images), count, 3, size, size)
    return normalize(views, preprocess)


def _mix(crops: Tensor, plans: Sequence[ViewPlan], run: Runner) -> Tensor:
    """Return (V, 3, S, S) crops, mixed with distortions of themselves if the plans, all or none, have AugMix."""
    mixings = [plan.mixing for plan in plans if plan.mixing is not None]
    if not mixings:
        return _planes(crops)
    mixing = _joined(mixings)
    weights = torch.from_numpy(mixing.weights).to(crops.device, non_blocking=True)
    return run(mix, crops, apply_chains(crops, mixing, run), weights)


def _joined(mixings: Sequence[MixingPlan]) -> MixingPlan:
    """Return the mixing of the views of several images, one image after another."""
    return MixingPlan(
        weights=np.concatenate([mixing.weights for mixing in mixings]),
        operations=np.concatenate([mixing.operations for mixing in mixings]),
        levels=np.concatenate([mixing.levels for mixing in mixings]),
    )


def _planes(words: Tensor) -> Tensor:
    """Return (V, ...) words as (V, 3, ...) bytes."""
    return unpack(words).movedim(-1, 1)
