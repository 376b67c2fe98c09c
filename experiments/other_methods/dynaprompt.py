"""Time of DynaPrompt per image, text side: `python -m experiments.other_methods.dynaprompt`.

The naive reference works slot by slot: a forward pass of 77 tokens for each slot; then forward, backward and AdamW for
the selected slots; and one more forward pass. The engine computes all slots in one batch. It reuses the features of new
slots and of the slots that the previous image selected, and the backward pass covers the selected slots only.

Both sides start from a buffer whose slots have all been used, and adapt to one stream image by image. (With several
images in a batch, the engine could reuse more features.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
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
CHECKED, CHECKED_QUICKLY = 1, 6  # number of images whose results are compared, without and with --quick


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
    checked = CHECKED
    if args.quick:
        checked = CHECKED_QUICKLY
    images = checked + args.repeats
    world = build(SMALL if args.quick else VIT_B_16, classes, samples=images, device=args.device)
    draw = torch.Generator().manual_seed(0)
    offsets = SPREAD * torch.randn(args.slots, *world.context.shape, generator=draw)
    naive, engine = NaiveStream(world, offsets), EngineStream(world, offsets)
    by_engine, by_naive = engine.adapt_to_next(checked), naive.adapt_to_next(checked)
    check_equal(by_engine, by_naive, f"K = {classes}, {checked} images", predictions=True)
    works = {"naive": (partial(naive.adapt_to_next, 1), 1), "engine": (partial(engine.adapt_to_next, 1), 1)}
    return dict(rounds(works, args.repeats, args.device))


class NaiveStream:
    """The naive reference on a stream of images."""

    def __init__(self, world: World, offsets: Tensor) -> None:
        slots = len(offsets)
        offsets = offsets.clone().to(world.context.device)
        self._world = world
        self._buffer = NaiveBuffer(world.context, offsets, list(range(slots)), [1] * slots)
        self._images = iter(world.views)

    def adapt_to_next(self, images: int) -> Tensor:
        """Adapt to the next images of the stream; return their probabilities."""
        logits = []
        for views in islice(self._images, images):
            world = self._world
            trace = dynaprompt_one(world.naive, world.token_ids, self._buffer, views, logit_scale=LOGIT_SCALE)
            logits.append(trace.logits)
        return torch.stack(logits).softmax(-1)


class EngineStream:
    """The engine on a stream of images."""

    def __init__(self, world: World, offsets: Tensor) -> None:
        slots = len(offsets)
        offsets = offsets.to(world.context.device)
        self._world = world
        self._method = DynaPrompt(adapt=AdaptConfig(slots=slots))
        features = self._method.start(world.model, world.context, len(world.views)).initial_features
        self._state = Buffer.of(world.context, features, offsets, range(slots), [1] * slots)
        self._position = 0  # of the next image in the stream

    def adapt_to_next(self, images: int) -> Tensor:
        """Adapt to the next images of the stream; return their probabilities."""
        end = self._position + images
        views = self._world.views[self._position : end]
        logits, self._state = self._method.predict(self._world.model, self._state, views)
        self._position = end
        return logits.softmax(-1)


if __name__ == "__main__":
    run(main)
