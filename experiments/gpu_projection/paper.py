"""Costs of one trial on the paper's ten datasets: `python -m experiments.gpu_projection.paper --device cuda`.

The engine alone, on ViT-B-16's text tower, with the ten datasets' numbers of classes and of test images: pretraining,
setting the method up, adapting to every image. A part of each is timed and scaled to the whole, so it is a projection;
image features are taken as cached, as they are after a sweep's first trial.

The share of the GEMM limit is that of the floating-point operations that are really done, per second, in those of a
large matrix product of the same precision on the same device.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.adapt import MOST_IMAGES, TOKENS_AT_ONCE, build_jacobian, started
from benchmarks.harness import Spent, Spread, equal, finish, measure, parse
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
SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices whose product is the limit


@dataclass(frozen=True, slots=True)
class Rate:
    """One unit of work: seconds, and floating-point operations."""

    spent: Spread
    flops: float

    def share(self, limit: float) -> float:
        return self.flops / self.spent.median / limit


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("experiments.gpu_projection.paper", __doc__ or "", _options, argv)
    names = QUICK if args.quick and not args.datasets else args.datasets or list(PAPER_CLASSES)
    rows = []
    with computing(args.precision, torch.device(args.device)):
        limit = gemm_limit(args)
        raw: dict[str, Any] = {"limit": limit}
        for name in names:
            raw[name] = measured(args, name)
            rows.append(row(name, raw[name], limit))
    total = sum(projected(raw[name]) for name in names)
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
        "--precision", choices=get_args(Precision), default="float32", help="of matrices, in all of it"
    )
    options.add_argument("--steps", type=int, default=8, metavar="N", help="of pretraining that are timed")
    options.add_argument("--compile", action="store_true", help="through torch.compile")


def gemm_limit(args: Any) -> float:
    """Floating-point operations in a second, of a large matrix product."""
    kind = torch.device(args.device).type
    side = 256 if args.quick else SIDE[kind]
    one = torch.randn(side, side, device=args.device, dtype=torch.float16 if args.precision == "fp16" else None)
    one @ one
    return float(2 * side**3 / statistics.median(measure(lambda: one @ one, device=args.device).wall for _ in range(7)))


def measured(args: Any, name: str) -> dict[str, Any]:
    classes, images = PAPER_CLASSES[name], DATASETS[name].test_size
    assert images is not None
    on_gpu = torch.device(args.device).type == "cuda"
    most = BATCH if on_gpu else MOST_IMAGES
    world = build(SMALL if args.quick else VIT_B_16, classes, samples=most, device=args.device)
    fitting = most if on_gpu else max(1, min(most, TOKENS_AT_ONCE // len(world.texts.packing)))
    batch = 4 if args.quick else fitting  # a GPU takes as many as in a trial
    print(f"{name}: K = {classes}, {len(world.texts.packing)} tokens, {batch} images at once", flush=True)
    config = AdaptConfig()
    once, form, first = first_gradient(world, images, args.device)
    method = Tpt(adapt=config)
    views = world.views[:batch]

    def adapt(world: World = world, first: FirstGradient = first) -> Tensor:
        return method.predict(world.model, started(method, world, first), views)[0]

    if args.quick and args.precision == "float32":
        with torch.no_grad():
            other = ByPullback(world.texts, world.context)
        equal(adapt().softmax(-1), adapt(first=other).softmax(-1), f"{name}, {form} and pullback", predictions=True)
    # of two steps without what one takes: a first step has more to do
    step_flops = flops(lambda: engine_step(world, args.device, 2)) - flops(lambda: engine_step(world, args.device, 1))
    image_flops = flops(adapt) / batch
    timed = world.compiled() if args.compile else world
    if args.compile and isinstance(first, ByPullback):
        with torch.no_grad():
            first = ByPullback(timed.texts, timed.context)
    return {
        "images": images,
        "form": form,
        "once": once,
        "step": Rate(spread(args, lambda: engine_step(timed, args.device, args.steps)[1]), step_flops),
        "image": Rate(
            spread(args, lambda: measure(lambda: adapt(timed, first), units=batch, device=args.device)), image_flops
        ),
    }


def first_gradient(world: World, images: int, device: str) -> tuple[Spent, str, FirstGradient]:
    """Return the cost of the engine's choice for the first gradient, its name, and the gradient."""
    with torch.no_grad():
        if jacobian_pays(world.texts, world.context, images):
            # on a CPU building all of J takes minutes; a part of its rows says as much
            whole = device != "cpu" or len(world.texts.tower.projection[0]) < 64
            once, first = build_jacobian(world, whole, device)
            return once, "J", first
        made: list[FirstGradient] = []
        once = measure(lambda: made.append(ByPullback(world.texts, world.context)), device=device)
        return once, "pullback", made[0]


def spread(args: Any, work: Callable[[], Spent]) -> Spread:
    """Seconds, once everything is warm."""
    for _ in range(EAGER_CALLS + 1 if args.compile else 1):
        work()
    return Spread.of([work().wall for _ in range(args.repeats)])


def flops(work: Callable[[], object]) -> float:
    """Floating-point operations of all matrix products and attention."""
    with counter() as counted:
        work()
    return float(counted.get_total_flops())


def counter() -> FlopCounterMode:
    """Return a counter that includes in-place products, which torch's own leaves out."""
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _added})


def _added(states: Any, rows: Any, weight: Any, **_: Any) -> int:
    return int(2 * rows[0] * rows[1] * weight[1])


def projected(timings: dict[str, Any]) -> float:
    """Seconds of a trial on a dataset."""
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
        "of the limit, %: pretraining": f"{100 * step.share(limit):.0f}",
        "adaptation": f"{100 * image.share(limit):.0f}",
        "trial, s": f"{projected(timings):.0f}",
    }


if __name__ == "__main__":
    run(main)
