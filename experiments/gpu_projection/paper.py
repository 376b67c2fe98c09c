"""Costs of one trial on the paper's ten datasets: `python -m experiments.gpu_projection.paper --device cuda`.

The command runs the engine alone, on ViT-B-16's text tower, with the ten datasets' numbers of classes and test images.
It times a part of pretraining, of setting up the method and of adapting to the images, and scales each time to the
whole; the results are therefore projections. Image features count as cached, as they are after a sweep's first trial.

The share of the GEMM limit is the number of floating-point operations per second that the work reaches, divided by the
number that a large matrix product of the same precision reaches on the same device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.adapt import MOST_IMAGES, TOKENS_AT_ONCE, build_jacobian, start_state
from benchmarks.harness import Spent, Spread, check_equal, finish, measure, now, parse
from benchmarks.peak import peak_bytes
from benchmarks.pretrain import engine_step
from benchmarks.world import PAPER_CLASSES, SMALL, VIT_B_16, World, build
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.compute.compiling import EAGER_CALLS
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import DATASETS
from fpp_sweep.core.methods.gradients import ByPullback, FirstGradient, jacobian_pays
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.spec.config import AdaptConfig, FppConfig
from fpp_sweep.spec.specs import Precision
from fpp_sweep.spec.tasks import BATCH

QUICK = ("dtd", "eurosat")
SIDE = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices whose product gives the limit


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds and floating-point operations of one unit of work."""

    spent: Spread
    flops: float

    def share(self, limit: float) -> float:
        return self.flops / self.spent.median / limit


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("experiments.gpu_projection.paper", __doc__ or "", _options, argv)
    names = args.datasets
    if not names:
        names = QUICK if args.quick else list(PAPER_CLASSES)
    rows = []
    with computing(args.precision, torch.device(args.device)):
        limit = gemm_limit(args)
        raw: dict[str, Any] = {"limit": limit}
        for name in names:
            raw[name] = measure_dataset(args, name)
            rows.append(row(name, raw[name], limit))
    total = sum(project_seconds(raw[name]) for name in names)
    notes = [
        f"The limit: {limit / 1e12:.2f} TFLOP/s in {args.precision}. Seconds are projections from a part.",
        f"One trial of TPT with pretraining over {len(names)} datasets: {total:.0f} s, image features not counted.",
        f"Peak memory of the process: {peak_bytes() / 2**30:.2f} GiB",
    ]
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    options.add_argument(
        "--datasets", nargs="+", choices=sorted(PAPER_CLASSES), metavar="NAME", help="default: all ten"
    )
    options.add_argument(
        "--precision", choices=get_args(Precision), default="float32", help="precision of all matrix products"
    )
    options.add_argument("--steps", type=int, default=8, metavar="N", help="steps of pretraining that are timed")
    options.add_argument("--compile", action="store_true", help="run through torch.compile")


def gemm_limit(args: Any) -> float:
    """Return the floating-point operations per second that a large matrix product reaches."""
    side = SIDE[torch.device(args.device).type]
    if args.quick:
        side = 256
    matrix = torch.randn(side, side, device=args.device)
    if args.precision == "fp16":
        matrix = matrix.half()
    matrix @ matrix  # the first product is slower and is not measured
    seconds = [measure(lambda: matrix @ matrix, device=args.device).wall for _ in range(7)]
    return float(2 * side**3 / statistics.median(seconds))


def measure_dataset(args: Any, name: str) -> dict[str, Any]:
    images = DATASETS[name].test_size
    assert images is not None
    world, batch = world_and_batch(args, PAPER_CLASSES[name])
    print(f"{name}: K = {len(world.texts)}, {len(world.texts.packing)} tokens, {batch} images at once", flush=True)
    once, form, first = first_gradient(world, images, args.device)
    views = world.views[:batch]
    if args.quick and args.precision == "float32":
        with torch.no_grad():
            pullback = ByPullback(world.texts, world.context)
        probabilities, expected = adapt(world, first, views).softmax(-1), adapt(world, pullback, views).softmax(-1)
        check_equal(probabilities, expected, f"{name}, {form} and pullback", predictions=True)
    # the difference of two steps and one step, because the first step has additional work
    one_step = count_flops(partial(engine_step, world, args.device, 1))
    two_steps = count_flops(partial(engine_step, world, args.device, 2))
    image_flops = count_flops(partial(adapt, world, first, views)) / batch
    timed = world
    if args.compile:
        timed = world.compiled()
        if isinstance(first, ByPullback):
            with torch.no_grad():
                first = ByPullback(timed.texts, timed.context)

    def measure_step() -> Spent:
        return engine_step(timed, args.device, args.steps)[1]

    def measure_image() -> Spent:
        return measure(partial(adapt, timed, first, views), units=batch, device=args.device)

    return {
        "images": images,
        "form": form,
        "once": once,
        "step": Rate(measure_spread(args, measure_step), two_steps - one_step),
        "image": Rate(measure_spread(args, measure_image), image_flops),
    }


def world_and_batch(args: Any, classes: int) -> tuple[World, int]:
    """Return a tower with its classes, and the number of images to adapt to at once: on a GPU as many as in a trial."""
    on_gpu = torch.device(args.device).type == "cuda"
    largest = BATCH if on_gpu else MOST_IMAGES
    world = build(SMALL if args.quick else VIT_B_16, classes, samples=largest, device=args.device)
    if args.quick:
        return world, 4
    if on_gpu:
        return world, largest
    return world, max(1, min(largest, TOKENS_AT_ONCE // len(world.texts.packing)))


def adapt(world: World, first: FirstGradient, views: Tensor) -> Tensor:
    """Return the logits of images after TPT with a first gradient."""
    method = Tpt(adapt=AdaptConfig())
    return method.predict(world.model, start_state(method, world, first), views)[0]


def first_gradient(world: World, images: int, device: str) -> tuple[Spent, str, FirstGradient]:
    """Return the cost, the name and the result of the way in which the engine computes the first gradient."""
    with torch.no_grad():
        if jacobian_pays(world.texts, world.context, images):
            # on a CPU, building all of J takes minutes; the time of a part of its rows is scaled instead
            whole = device != "cpu" or len(world.texts.tower.projection[0]) < 64
            once, first = build_jacobian(world, whole, device)
            return once, "J", first
        began = now(device)
        pullback = ByPullback(world.texts, world.context)
        return now(device) - began, "pullback", pullback


def measure_spread(args: Any, work: Callable[[], Spent]) -> Spread:
    """Return the spread of the seconds of some work after its warm-up calls."""
    for _ in range(EAGER_CALLS + 1 if args.compile else 1):
        work()
    return Spread.of([work().wall for _ in range(args.repeats)])


def count_flops(work: Callable[[], object]) -> float:
    """Return the floating-point operations of all matrix products and attention."""
    with counter() as counted:
        work()
    return float(counted.get_total_flops())


def counter() -> FlopCounterMode:
    """Return a counter that includes in-place products, which torch's counter leaves out."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _addmm_flops})


def _addmm_flops(states: Any, rows: Any, weight: Any, **_: Any) -> int:
    return int(2 * rows[0] * rows[1] * weight[1])


def project_seconds(timings: dict[str, Any]) -> float:
    """Return the projected seconds of a trial on a dataset."""
    pretraining = FppConfig().steps * timings["step"].spent.median
    return float(pretraining + timings["once"].wall + timings["images"] * timings["image"].spent.median)


def row(name: str, timings: dict[str, Any], limit: float) -> dict[str, object]:
    step, image = timings["step"], timings["image"]
    return {
        "dataset": name,
        "K": PAPER_CLASSES[name],
        "images": timings["images"],
        "form": timings["form"],
        "pretraining, s": f"{FppConfig().steps * step.spent.median:.0f}",
        "set-up, s": f"{timings['once'].wall:.1f}",
        "adaptation, s": f"{timings['images'] * image.spent.median:.0f}",
        "% of the limit: pretraining": f"{100 * step.share(limit):.0f}",
        "adaptation": f"{100 * image.share(limit):.0f}",
        "trial, s": f"{project_seconds(timings):.0f}",
    }


if __name__ == "__main__":
    run(main)
