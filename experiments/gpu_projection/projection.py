"""Projected time of a trial on a GPU from counted work: `python -m experiments.gpu_projection.projection`.

No GPU is used. The command counts the floating-point operations of matrix products, the bytes that operations read
and write, and the kernels that are launched. It counts each kind of work in a trial at ViT-B-16's sizes: one view in
the image tower, drawing an image's 64 views, one step of pretraining, and adapting to one image. Every eager operation
that touches contents counts as one kernel.

The projected seconds are the longest of three times: the operations at a share of a device's peak, the bytes at a share
of its bandwidth, and the launches one after the other. Peaks are the vendors' figures without sparsity; the shares are
assumptions that options can change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.adapt import MOST_IMAGES, StandInJacobian, start_state
from benchmarks.device_views import Operations, picture
from benchmarks.features import vit_b_16
from benchmarks.harness import check_equal, finish, parse, require_open_clip, table
from benchmarks.pretrain import engine_step
from benchmarks.world import PAPER_CLASSES, SMALL, VIT_B_16, Shape, build
from experiments.gpu_projection.paper import counter
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.compute.compiling import P, T, eagerly
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import DATASETS
from fpp_sweep.core.images import views
from fpp_sweep.core.images.device_views import PlannedImage, render
from fpp_sweep.core.images.features import images_per_batch
from fpp_sweep.core.methods.gradients import jacobian_bytes
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.core.models.image_tower import shorten_last_block
from fpp_sweep.core.text.tower import TextTower
from fpp_sweep.spec.config import AdaptConfig, FppConfig, ViewConfig

GPU_ROWS = 65536  # rows that a GPU computes at once; counting with the same number gives the same number of launches
TOKENS = 16384  # tokens of a batch of images that are adapted to
PHOTO = 500, 400  # width and height in pixels
VIEWS = 64
TRIALS = 200  # number of trials of the projected sweep
SWEEP_DEVICES = ("H100 (SXM)", "A100 (80 GB)", "L4")
SWEEP_GPUS = (1, 8, 64)
TOWER, DRAWN, FUSED = "64 views through the tower", "64 views drawn, eager", "64 views drawn, fused"
WHOLE = f"{TOWER}, last block whole"


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of a GPU for dense matrices: TFLOP/s by precision, and bandwidth in TB/s."""

    float32: float
    tf32: float
    fp16: float
    bandwidth: float


DEVICES = {
    "H100 (SXM)": Device(67, 495, 990, 3.35),
    "A100 (80 GB)": Device(19.5, 156, 312, 2.0),
    "A10": Device(31.2, 62.5, 125, 0.6),
    "L4": Device(30.3, 60, 121, 0.3),
}
PRECISIONS = ("float32", "tf32", "fp16")


@dataclass(frozen=True, slots=True)
class Counted:
    """Operations, bytes and kernels of some work."""

    flops: float
    launches: float
    bytes: float

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.flops + other.flops, self.launches + other.launches, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Counted:
        return Counted(self.flops * times, self.launches * times, self.bytes * times)

    def seconds(self, device: Device, precision: str, args: Any) -> float:
        arithmetic = self.flops / (getattr(device, precision) * 1e12 * args.of_peak)
        traffic = self.bytes / (device.bandwidth * 1e12 * args.of_bandwidth)
        return max(arithmetic, traffic, self.launches * args.launch * 1e-6)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, bytes and kernels of a unit of work, by precision.

    Work that was counted only in float32 has the bytes of float32 in every precision.
    """

    counted: Mapping[str, Counted]
    unit: str

    def seconds(self, device: Device, precision: str, args: Any) -> float:
        return self.counted.get(precision, self.counted["float32"]).seconds(device, precision, args)


class Traffic(Operations):
    """Operations that also count the bytes read, and operations that return several tensors."""

    VIEW_OPERATIONS = (*Operations.VIEW_OPERATIONS, "transpose", "detach", "as_strided", "empty", "split", "chunk")

    def touches_contents(self, name: str, out: object) -> bool:
        return name != "t" and not any(operation in name for operation in self.VIEW_OPERATIONS)

    def bytes_moved(self, given: object, out: object) -> int:
        return bytes_stored(given) + bytes_stored(out)


def bytes_stored(values: object) -> int:
    """Return the bytes of all tensors among the values; a tensor that repeats its storage counts once."""
    total = 0
    for value in tree_leaves(values):
        if isinstance(value, Tensor):
            total += min(value.nbytes, value.untyped_storage().nbytes())
    return total


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("experiments.gpu_projection.projection", __doc__ or "", _options, argv)
    require_open_clip()
    counts: dict[str, Work] = image_side(args)
    for classes in [10] if args.quick else args.classes:
        counts |= text_side(args, classes)
    print("\n" + table([*project_work(args, counts), ten_sets(args, counts)]) + "\n")
    if not args.quick:
        print(table(whole_sweep(args, counts)) + "\n")
    rows = []
    for name, work in counts.items():
        for precision, counted in work.counted.items():
            rows.append(counted_row(name, precision, counted, work))
    notes = [
        f"Assumed: {args.of_peak:.0%} of peak, {args.of_bandwidth:.0%} of bandwidth, {args.launch:g} us a launch.",
        f"A sweep: {TRIALS} trials on all images of the ten test sets, one seed, 1,000 steps of pretraining; features "
        "once; work divided evenly. Not counted: building J, reading images, start, final stage, baselines.",
        *(f"{name}: {device}" for name, device in DEVICES.items()),
    ]
    finish(args, rows, {name: asdict(work) for name, work in counts.items()}, notes)


def _options(options: Parser) -> None:
    options.add_argument("--classes", type=int, nargs="+", default=[10, 101, 1000], metavar="K", help="10 ... 1000")
    options.add_argument(
        "--of-peak", type=float, default=0.4, metavar="SHARE", help="share of the peak that matrix products reach"
    )
    options.add_argument(
        "--of-bandwidth",
        type=float,
        default=0.6,
        metavar="SHARE",
        help="share of the bandwidth that other kernels reach",
    )
    options.add_argument(
        "--launch",
        type=float,
        default=30.0,
        metavar="US",
        help="microseconds for launching an eager kernel from Python; measured on an H100's machine",
    )


def count_work(work: Callable[[], object]) -> Counted:
    with counter() as flops, Traffic() as traffic:
        work()
    return Counted(flops.get_total_flops(), traffic.calls, traffic.bytes)


# --- images


def image_side(args: Any) -> dict[str, Work]:
    """Return the work for an image of 64 views: the whole tower, the shortened tower, and drawing."""
    eager, fused = count_drawing(args)
    whole = count_tower(vit_b_16())
    counted = torch.tensor([whole["float32"].flops, whole["fp16"].flops], dtype=torch.float64)
    by_formula = torch.full_like(counted, VIEWS * flops_of_view())
    check_equal(counted, by_formula, "operations counted and by formula", 0.5)
    return {
        WHOLE: Work(whole, "image"),
        TOWER: Work(count_tower(shorten_last_block(vit_b_16())), "image"),
        DRAWN: Work({"float32": eager}, "image"),
        FUSED: Work({"float32": fused}, "image"),
    }


def count_tower(visual: nn.Module) -> dict[str, Counted]:
    """Return the counts of an image in a group of 256 views by precision, computed from two views and three."""
    group = VIEWS * images_per_batch(VIEWS)
    counts = {}
    # the fast path is one operation with many kernels that cannot be counted
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for precision in ("float32", "fp16"):
            with torch.no_grad(), computing(precision, torch.device("cpu")):
                two_views = count_work(partial(visual, torch.zeros(2, 3, 224, 224)))
                three_views = count_work(partial(visual, torch.zeros(3, 3, 224, 224)))
            one_view = three_views + two_views * -1
            counts[precision] = (two_views + one_view * (group - 2)) * (VIEWS / group)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    return counts


def flops_of_view(width: int = 768, tokens: int = 197, blocks: int = 12, out: int = 512) -> float:
    """Return the operations of a view in ViT-B-16 by formula: patches, blocks (with attention), projection."""
    block = 12 * tokens * width**2 + 2 * tokens**2 * width
    return 2.0 * ((tokens - 1) * width**2 + blocks * block + width * out)


class FusingRunner:
    """Counts a compiled function as one kernel that reads its arguments and writes its results, and runs it eagerly."""

    def __init__(self) -> None:
        self.inside, self.kernels = Counted(0, 0, 0), Counted(0, 0, 0)

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        results: list[T] = []
        self.inside += count_work(lambda: results.append(function(*arguments, **named)))
        self.kernels += Counted(0, 1, bytes_stored((arguments, named, results)))
        return results[0]


def count_drawing(args: Any) -> tuple[Counted, Counted]:
    """Return the counts of drawing an image's views, eager and fused.

    A group of images needs as many kernels as one image, so an image has its share of them. The fused counts are the
    eager operations outside compiled functions, and one kernel for each compiled function.
    """
    count, size = (8, 48) if args.quick else (VIEWS, 224)
    image = Image.fromarray(picture(np.random.default_rng(0), *PHOTO))
    stream = views.sample_rng(0, "any", "test", "0")
    plan = views.plan_views(image.size, ViewConfig(count=count), augmix=True, flip=True, rng=stream)
    planned, preprocess, fusing = [PlannedImage.of(image, plan, size)], Preprocess(size=size), FusingRunner()
    eager = count_work(lambda: render(planned, preprocess, eagerly))
    fused = count_work(lambda: render(planned, preprocess, fusing)) + fusing.inside * -1 + fusing.kernels
    group = images_per_batch(VIEWS)
    return replace(eager, launches=eager.launches / group), replace(fused, launches=fused.launches / group)


# --- texts


def text_side(args: Any, classes: int) -> dict[str, Work]:
    """Return the work of pretraining, and of adapting to an image with a prepared J.

    Towers with two and three blocks are counted; their difference is the work of each further block.
    """
    shape = SMALL if args.quick else VIT_B_16
    with patch.object(TextTower, "positions_per_batch", lambda tower: GPU_ROWS):
        step_of_two, adapted_of_two, batch = text_counts(replace(shape, layers=2), classes)
        step_of_three, adapted_of_three, _ = text_counts(replace(shape, layers=3), classes)
    further_blocks, steps = shape.layers - 2, FppConfig().steps
    step = step_of_two + (step_of_three + step_of_two * -1) * further_blocks
    adapted = adapted_of_two + (adapted_of_three + adapted_of_two * -1) * further_blocks
    return {
        f"pretraining, K = {classes}, {steps} steps": Work({"float32": step * steps}, "prompt"),
        f"adaptation, K = {classes}": Work({"float32": adapted * (1 / batch)}, f"image, of {batch} at once"),
    }


def text_counts(shape: Shape, classes: int) -> tuple[Counted, Counted, int]:
    """Return the counts of a step of pretraining and of adapting to a batch of images, and the size of the batch."""
    world = build(shape, classes, samples=MOST_IMAGES, device="cpu")
    tokens = len(world.texts.packing)
    batch = max(1, min(MOST_IMAGES, TOKENS // tokens))
    size = jacobian_bytes(world.texts, world.context) / 2**20
    print(f"K = {classes}: {tokens} tokens, J of {size:.0f} MiB in float32, {shape.layers} blocks", flush=True)
    # the difference of two steps and one step, because the first step has additional work
    one_step = count_work(partial(engine_step, world, "cpu", 1))
    two_steps = count_work(partial(engine_step, world, "cpu", 2))
    with torch.no_grad():
        features = world.texts.features(world.context)
    empty = features.new_empty(features.numel(), world.context.numel())  # never written, so it takes no memory
    first = StandInJacobian(features, empty, world.context.shape)
    method = Tpt(adapt=AdaptConfig())
    adapted = count_work(lambda: method.predict(world.model, start_state(method, world, first), world.views[:batch]))
    return two_steps + one_step * -1, adapted, batch


# --- tables


def counted_row(name: str, precision: str, counted: Counted, work: Work) -> dict[str, object]:
    return {
        "work": name,
        "in": precision,
        "for each": work.unit,
        "GFLOP": f"{counted.flops / 1e9:.3g}",
        "kernels": f"{counted.launches:.3g}",
        "GB read and written": f"{counted.bytes / 1e9:.3g}",
    }


def project_work(args: Any, counts: Mapping[str, Work]) -> list[dict[str, object]]:
    """Return rows with the projected seconds per prompt, or images per second, on each device."""
    rows = []
    for name, work in counts.items():
        cells: dict[str, object] = {"work": name, "unit": "images/s"}
        if work.unit == "prompt":
            cells["unit"] = "s"
        for title, device in DEVICES.items():
            values = [work.seconds(device, precision, args) for precision in PRECISIONS]
            if work.unit != "prompt":
                values = [1 / seconds for seconds in values]
            cells[title] = format_values(values)
        rows.append(cells)
    return rows


def ten_sets(args: Any, counts: Mapping[str, Work]) -> dict[str, object]:
    """Return a row with the minutes for the features of the paper's ten test sets on one device.

    Views are drawn first and encoded afterwards; the two times add up.
    """
    images = sum(DATASETS[name].test_size or 0 for name in PAPER_CLASSES)
    cells: dict[str, object] = {"work": f"features of {images} images", "unit": "min"}
    for title, device in DEVICES.items():
        minutes = []
        for precision in PRECISIONS:
            minutes.append(images * feature_seconds(args, counts, device, precision) / 60)
        cells[title] = format_values(minutes)
    return cells


def feature_seconds(args: Any, counts: Mapping[str, Work], device: Device, precision: str) -> float:
    """Return the seconds for an image's views: drawn by compiled kernels, then encoded."""
    drawing = counts[FUSED].seconds(device, precision, args)
    return drawing + counts[TOWER].seconds(device, precision, args)


def whole_sweep(args: Any, counts: Mapping[str, Work]) -> list[dict[str, object]]:
    """Return the hours of a sweep on 1, 8 and 64 GPUs, by device and precision."""
    rows = []
    for title in SWEEP_DEVICES:
        for precision in PRECISIONS:
            hours = sweep_seconds(args, counts, DEVICES[title], precision) / 3600
            cells: dict[str, object] = {f"{TRIALS} trials, ten datasets": title, "in": precision}
            for gpus in SWEEP_GPUS:
                cells[f"on {gpus}"] = f"{hours / gpus:.2g} h"
            rows.append(cells)
    return rows


def sweep_seconds(args: Any, counts: Mapping[str, Work], device: Device, precision: str) -> float:
    """Return the seconds of a sweep on one GPU; costs between the counted numbers of classes are interpolated."""
    sizes = sorted(args.classes)
    pretraining = [counts[f"pretraining, K = {size}, 1000 steps"].seconds(device, precision, args) for size in sizes]
    adaptation = [counts[f"adaptation, K = {size}"].seconds(device, precision, args) for size in sizes]
    features = feature_seconds(args, counts, device, precision)
    total = 0.0
    for name, classes in PAPER_CLASSES.items():
        images = DATASETS[name].test_size or 0
        trial = np.interp(classes, sizes, pretraining) + images * np.interp(classes, sizes, adaptation)
        total += images * features + TRIALS * float(trial)
    return total


def format_values(values: Sequence[float]) -> str:
    """Return the numbers with three digits, or a single number if all are equal."""
    texts = [f"{value:.3g}" for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    return " / ".join(texts)


if __name__ == "__main__":
    run(main)
