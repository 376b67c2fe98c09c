"""Time of adaptation with other steps than TPT's per image, text side: `python -m experiments.other_methods.steps`.

As in `benchmarks.adapt`, the naive reference adapts one image at a time, and the engine adapts a batch. The first
gradient comes from the Jacobian J. Here J is random and only has the right size, because `benchmarks.adapt` measures
how long building it takes. Every further gradient of a method is computed forward and back through the tower for every
image. Before the timing, the results of both sides are compared with real first gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.adapt import MOST_IMAGES, QUICK_IMAGES, TOKENS_AT_ONCE, StandInJacobian
from benchmarks.harness import Ratio, check_equal, finish, parse, rounds
from benchmarks.world import LOGIT_SCALE, SMALL, STAND_IN, TEST_SETS, VIT_B_16, World, build
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.methods import build_method
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import AdaptConfig
from tests.reference.naive import Adapted, adapt_sharpness_aware, adapt_two_steps, householder

NAIVE: Mapping[str, Callable[..., Adapted]] = {
    "tpt_sam": partial(adapt_sharpness_aware, rho=0.05),
    "tpt_ent_ent": partial(adapt_two_steps, order=("ent", "ent")),
    "otpt_ent_reg": partial(adapt_two_steps, order=("ent", "reg"), penalty=householder),
    "otpt_reg_ent": partial(adapt_two_steps, order=("reg", "ent"), penalty=householder),
}


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("experiments.other_methods.steps", __doc__ or "", _options, argv)
    rows, raw = [], {}
    for count in args.classes or ([10] if args.quick else [47, 101]):
        timings = measure_methods(args, count)
        raw[str(count)] = timings
        cells: dict[str, object] = {"K": count, "as": TEST_SETS[count][0]}
        for name in args.methods:
            ratio = Ratio.of(timings[f"naive {name}"], timings[name])
            cells |= {name: str(ratio.wall), f"{name}, CPU": f"{ratio.cpu.median:.1f}"}
        rows.append(cells)
    notes = [
        STAND_IN,
        "Ratios are naive / engine, with J given: median (lowest..highest) over rounds, wall-clock and CPU seconds.",
    ]
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    options.add_argument("--classes", type=int, nargs="+", choices=sorted(TEST_SETS), metavar="K", help="10 ... 1000")
    options.add_argument("--methods", nargs="+", choices=NAIVE, default=list(NAIVE), metavar="NAME", help=str([*NAIVE]))


def measure_methods(args: Any, classes: int) -> dict[str, Any]:
    """Return the seconds per image by method and side."""
    world = build(SMALL if args.quick else VIT_B_16, classes, samples=MOST_IMAGES, device=args.device)
    batch = QUICK_IMAGES if args.quick else max(1, min(MOST_IMAGES, TOKENS_AT_ONCE // len(world.texts.packing)))
    world = replace(world, views=world.views[:batch])
    print(f"K = {classes}: {len(world.texts.packing)} tokens, {batch} images at once", flush=True)
    works: dict[str, tuple[Callable[[], object], float]] = {}
    with torch.no_grad():
        jacobian = StandInJacobian.of(world)
    for name in args.methods:
        method: Any = build_method(name, AdaptConfig(), "fine_grained")
        check_method(world, name, method, count=batch if args.quick else 1)
        with patch.object(Tpt, "first_gradient", lambda *unused: jacobian):
            state = method.start(world.model, world.context, batch)
        works[f"naive {name}"] = partial(adapt_naively, world, name), 1
        works[name] = partial(method.predict, world.model, state, world.views), batch
    return dict(rounds(works, args.repeats, args.device))


def adapt_naively(world: World, name: str, image: int = 0) -> Adapted:
    views, weight = world.views[image], catalogue.method(name).weight
    return NAIVE[name](world.naive, world.token_ids, world.context, views, logit_scale=LOGIT_SCALE, weight=weight)


def check_method(world: World, name: str, method: Any, count: int) -> None:
    """Check that both sides give the same probabilities; the engine uses a real first gradient."""
    state = method.start(world.model, world.context, 1)
    logits, _ = method.predict(world.model, state, world.views[:count])
    expected = torch.stack([adapt_naively(world, name, image).probabilities for image in range(count)])
    check_equal(logits.softmax(-1), expected, f"K = {len(world.texts)}, {name}", predictions=True)


if __name__ == "__main__":
    run(main)
