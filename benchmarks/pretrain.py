"""One step of flatness-aware pretraining: `python -m benchmarks.pretrain`.

A step draws noise, computes the clean and the four perturbed branches, sends the clean one back and applies AdamW. The
naive reference computes all 77 positions. The engine's steps are measured within a pretraining after its first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.harness import Ratio, Spent, check_equal, finish, measure, now, parse
from benchmarks.world import SMALL, STAND_IN, TEST_SETS, VIT_B_16, World, build
from fpp_sweep.cli import Parser, run
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.text.tower import Noise
from fpp_sweep.spec.config import FppConfig
from tests.reference import naive

DRAWS = 4
STEPS_COMPARED = 2  # the losses of the second step depend on the gradient of the first
ENGINE_STEPS = 4  # number of steps in one measurement, because one is much shorter than a naive step


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.pretrain", __doc__ or "", _options, argv)
    classes = args.classes or ([10, 47] if args.quick else [10, 47, 101])
    rows, raw = [], {}
    for count in classes:
        world = build(SMALL if args.quick else VIT_B_16, count, samples=1, device=args.device)
        print(f"K = {count}: {len(world.texts.packing)} tokens", flush=True)
        check(world)
        spent = measure_sides(world, args)
        ratio = Ratio.of(spent["naive"], spent["engine"])
        raw[str(count)] = {**spent, "tokens": len(world.texts.packing)}
        cells = {"K": count, "as": TEST_SETS[count][0], "tokens": len(world.texts.packing)}
        row = {**cells, "step": ratio.wall, "step, CPU": ratio.cpu}
        rows.append(row)
    notes = [STAND_IN, "Ratios are naive / engine: median (lowest..highest) over rounds, wall, and CPU seconds."]
    if args.cuda_graphs:
        notes.append("With --cuda-graphs, eager / captured.")
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    text = "10, 47 and 101 unless given; the naive side of 397 takes 20 GiB"
    options.add_argument("--cuda-graphs", action="store_true", help="engine's steps captured, against its eager ones")
    options.add_argument("--classes", type=int, nargs="+", choices=sorted(TEST_SETS), metavar="K", help=text)


def check(world: World) -> None:
    """Check that both sides have equal losses with equal noise."""
    config = FppConfig(steps=STEPS_COMPARED, draws=DRAWS)
    generator = torch.Generator().manual_seed(0)
    start = draw_start(world.context, config, generator)
    draws = [naive_noise(world, world.texts.packing.longest, generator) for _ in range(STEPS_COMPARED)]
    weight = config.flatness_weight(len(world.texts))
    learned = pretrain(
        world.texts, world.context, config, flatness_weight=weight, start=start, noise=map(in_engine_form, draws)
    )
    expected = naive.pretrain(world.naive, world.token_ids, world.context, start, draws, weight=weight)
    check_equal(learned.losses, expected.losses, f"K = {len(world.texts)}, losses of {STEPS_COMPARED} steps")


def naive_noise(world: World, suffix: int, generator: torch.Generator) -> naive.Noise:
    def normal(positions: int) -> torch.Tensor:
        return torch.randn(DRAWS, positions, world.context.shape[1], generator=generator).to(world.context.device)

    return naive.Noise(context=normal(len(world.context)), sos=normal(1), suffix=normal(suffix))


def in_engine_form(noise: naive.Noise) -> Noise:
    """Return the draws in the form of the engine."""
    return Noise(
        sos=noise.sos[:, None] * naive.CLASS_STD,
        context=noise.context[:, None] * naive.CONTEXT_STD,
        suffix=noise.suffix[:, None] * naive.CLASS_STD,
    )


def measure_sides(world: World, args: Any) -> dict[str, list[Spent]]:
    if args.cuda_graphs:
        sides = [(engine_step(world, args.device), engine_step(world, args.device, True)) for _ in range(args.repeats)]
        return {"naive": [eager for eager, _ in sides], "engine": [captured for _, captured in sides]}
    step = naive_steps(world)
    next(step)
    spent: dict[str, list[Spent]] = {"naive": [], "engine": []}
    for _ in range(args.repeats):
        spent["naive"].append(measure(lambda: next(step), device=args.device))
        spent["engine"].append(engine_step(world, args.device))
    return spent


def naive_steps(world: World) -> Iterator[None]:
    """Yield after each step of the naive reference."""
    generator = torch.Generator().manual_seed(1)
    embeddings = world.naive.embed(world.token_ids)
    with torch.no_grad():
        target = naive.prompt_features(world.naive, world.token_ids, world.context)
    context = world.context.clone().requires_grad_()
    optimizer = torch.optim.AdamW([context], lr=1e-2, weight_decay=0.01)
    positions = world.token_ids.shape[1]
    while True:
        noise = naive_noise(world, positions - 1 - len(context), generator)
        offsets = noise.scaled(naive.CONTEXT_STD, naive.CLASS_STD, positions)
        prompts = naive.with_context(embeddings, context)
        losses = naive.fpp_losses(world.naive, world.token_ids, prompts, target, offsets, weight=1.0)
        optimizer.zero_grad()
        torch.autograd.backward(list(losses))
        optimizer.step()
        yield


def engine_step(world: World, device: str, cuda_graphs: bool = False) -> Spent:
    """Return the costs of a step without the preparations before the first step."""
    config = FppConfig(steps=1 + ENGINE_STEPS, draws=DRAWS)
    clocks: list[Spent] = []
    noise = draw_noise(world.texts, len(world.context), config, torch.Generator().manual_seed(1))
    start = draw_start(world.context, config, torch.Generator().manual_seed(2))

    def tick() -> None:
        clocks.append(now(device))

    pretrain(
        world.texts,
        world.context,
        config,
        flatness_weight=1.0,
        start=start,
        noise=noise,
        on_step=tick,
        cuda_graphs=cuda_graphs,
    )
    return (clocks[-1] - clocks[0]) * (1 / ENGINE_STEPS)


if __name__ == "__main__":
    run(main)
