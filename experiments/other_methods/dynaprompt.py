"""Time of DynaPrompt per image, text side: `python -m experiments.other_methods.dynaprompt`.

The naive reference works slot by slot: a forward pass of 77 tokens for each slot; then forward, backward and AdamW for
the selected slots; and one more forward pass. The engine computes all slots in one batch. It reuses the features of new
slots and of the slots that the previous image selected, and the backward pass covers the selected slots only.

Both sides start from a buffer whose slots have all been used, and adapt to one stream image by image. (With several
images in a batch, the engine could reuse more features.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Ratio, check_equal, finish, parse, rounds
from benchmarks.world import LOGIT_SCALE, SMALL, STAND_IN, TEST_SETS, VIT_B_16, World, build
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.methods.dynaprompt import Buffer, DynaPrompt
from fpp_sweep.spec.config import AdaptConfig
from tests.reference.dynaprompt import NaiveBuffer, dynaprompt_one

SPREAD = 0.02  # standard deviation of the offsets at the start, so that no two slots are equal
CHECKED = {True: 6, False: 1}  # number of images whose results are compared, by --quick


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("experiments.other_methods.dynaprompt", __doc__ or "", _options, argv)
    rows, raw = [], {}
    for classes in args.classes or ([10] if args.quick else [47, 101]):
        timings = measure_streams(args, classes)
        raw[str(classes)] = timings
        ratio = Ratio.of(timings["naive"], timings["engine"])
        cells = {"K": classes, "as": TEST_SETS[classes][0], "slots": args.slots}
        rows.append({**cells, "naive / engine": str(ratio.wall), "naive / engine, CPU": str(ratio.cpu)})
    notes = [STAND_IN, "Ratios are naive / engine: median (lowest..highest) over rounds, wall and CPU seconds."]
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    options.add_argument("--classes", type=int, nargs="+", choices=sorted(TEST_SETS), metavar="K", help="10 ... 101")
    options.add_argument("--slots", type=int, default=12, metavar="N", help="slots of the buffer")


def measure_streams(args: Any, classes: int) -> dict[str, Any]:
    """Check that both sides agree for a number of classes, and return their seconds per image."""
    checked = CHECKED[args.quick]
    images = checked + args.repeats
    world = build(SMALL if args.quick else VIT_B_16, classes, samples=images, device=args.device)
    draw = torch.Generator().manual_seed(0)
    offsets = SPREAD * torch.randn(args.slots, *world.context.shape, generator=draw)
    naive, engine = naive_stream(world, offsets), engine_stream(world, offsets)
    check_equal(engine(checked), naive(checked), f"K = {classes}, {checked} images", predictions=True)
    return dict(rounds({"naive": (lambda: naive(1), 1), "engine": (lambda: engine(1), 1)}, args.repeats, args.device))


Stream = Callable[
    [int], Tensor
]  # a function that adapts to the next images of a stream and returns their probabilities


def naive_stream(world: World, offsets: Tensor) -> Stream:
    slots, views = len(offsets), iter(world.views)
    buffer = NaiveBuffer(world.context, offsets.clone().to(world.context.device), list(range(slots)), [1] * slots)

    def adapt_to_next(images: int) -> Tensor:
        traces = [
            dynaprompt_one(world.naive, world.token_ids, buffer, next(views), logit_scale=LOGIT_SCALE)
            for _ in range(images)
        ]
        return torch.stack([trace.logits for trace in traces]).softmax(-1)

    return adapt_to_next


def engine_stream(world: World, offsets: Tensor) -> Stream:
    method, taken = DynaPrompt(adapt=AdaptConfig(slots=len(offsets))), 0
    empty = method.start(world.model, world.context, len(world.views))
    slots, offsets = len(offsets), offsets.to(world.context.device)
    state = Buffer.of(world.context, empty.initial_features, offsets, range(slots), [1] * slots)

    def adapt_to_next(images: int) -> Tensor:
        nonlocal state, taken
        logits, state = method.predict(world.model, state, world.views[taken : taken + images])
        taken += images
        return logits.softmax(-1)

    return adapt_to_next


if __name__ == "__main__":
    run(main)
