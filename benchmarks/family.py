"""Costs of the methods of docs/family.md per image, compared with TPT: `python -m benchmarks.family`.

All methods start from given image features of 64 views and adapt one batch of images. The first gradient of TPT and its
relatives comes from the tower's backward pass, or, for `tpt with J`, from a random J of the right size.

Targets: a method without a gradient through the text tower takes at most a fifth of TPT's CPU seconds; `atpt`, `soc`
and `rtpt` take at most 1.3 times those of `ctpt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.adapt import StandInJacobian, start_state
from benchmarks.harness import Ratio, Spread, finish, parse, rounds
from benchmarks.world import SMALL, STAND_IN, TEST_SETS, VIT_B_16, World, build
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.spec.config import AdaptConfig

FEATURE_METHODS = ("zero", "zero_mean", "mta", "tda", "boostadapter", "tps")  # need no gradient through the text tower
PROMPT_METHODS = ("tpt", "ctpt", "atpt", "soc", "rtpt")
WITH_J = "tpt with J"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.family", __doc__ or "", _options, argv)
    shape, samples = VIT_B_16, args.images
    if args.quick:
        shape, samples = SMALL, 4
    world = build(shape, args.classes, samples=samples, device=args.device)
    works: dict[str, tuple[Callable[[], object], float]] = {}
    for name in (*FEATURE_METHODS, *PROMPT_METHODS):
        works[name] = (prediction_of(world, name), samples)
    works[WITH_J] = (prediction_with_jacobian(world), samples)
    for predict, _ in works.values():
        predict()  # the first call allocates memory and is not measured
    spent = rounds(works, args.repeats, args.device)
    rows = []
    for name in works:
        seconds = Spread.of([round_costs.cpu for round_costs in spent[name]])
        rows.append(
            {
                "method": name,
                "CPU ms per image": f"{1000 * seconds.median:.2f}",
                "/ tpt": f"{Ratio.of(spent[name], spent['tpt']).cpu.median:.4f}",
                "/ tpt with J": f"{Ratio.of(spent[name], spent[WITH_J]).cpu.median:.4f}",
                "/ ctpt": f"{Ratio.of(spent[name], spent['ctpt']).cpu.median:.4f}",
            }
        )
    finish(args, rows, spent, [STAND_IN, f"K = {args.classes}, {samples} images of {world.views.shape[1]} views."])


def _options(options: Parser) -> None:
    options.add_argument("--classes", type=int, default=47, choices=sorted(TEST_SETS), metavar="K", help="10 ... 1000")
    options.add_argument("--images", type=int, default=8, metavar="N", help="images in a batch")


def prediction_of(world: World, name: str) -> Callable[[], object]:
    """Return a function that predicts all images by a method whose state is already built."""
    method: Any = build_method(name, AdaptConfig(), "fine_grained")
    state = method.start(world.model, world.context, len(world.views))
    return lambda: method.predict(world.model, state, world.views)


def prediction_with_jacobian(world: World) -> Callable[[], object]:
    """Return a function that predicts all images by TPT with a random J."""
    method = Tpt(adapt=AdaptConfig())
    with torch.no_grad():
        start = start_state(method, world, StandInJacobian.of(world))
    return lambda: method.predict(world.model, start, world.views)


if __name__ == "__main__":
    run(main)
