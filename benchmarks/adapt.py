"""Test-time adaptation, text side, per image: `python -m benchmarks.adapt`.

The naive reference adapts one image at a time: 77 tokens; forward, backward, AdamW, forward. The engine's TPT adapts a
batch of images, with each sample's first gradient from the Jacobian J (built once for a dataset) or sent back through
the tower (pullback). Both start from given image features.

- With more than --naive-up-to classes, autograd's records do not fit into the memory of a small machine. The naive side
  is then measured on the first --naive-up-to classes and scaled linearly to K; such numbers are marked with ~.
- Building J takes minutes for many classes. With more than --whole-jacobian-up-to classes, its time is measured on
  a few of the D feature dimensions and scaled; the products are then timed with a random J of the right size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Ratio, Spent, Spread, check_equal, finish, measure, now, parse, rounds
from benchmarks.world import LOGIT_SCALE, SMALL, STAND_IN, TEST_SETS, VIT_B_16, World, build
from fpp_sweep.cli import Parser, run
from fpp_sweep.core.methods.gradients import ByBackward, ByJacobian, FirstGradient
from fpp_sweep.core.methods.penalties import orthogonality
from fpp_sweep.core.methods.tpt import Tpt, TptState
from fpp_sweep.spec.config import AdaptConfig
from tests.reference.naive import adapt_one, householder

OTPT_WEIGHT = 18.0
MOST_IMAGES = 32  # largest number of images in a batch
TOKENS_AT_ONCE = 8192  # largest number of tokens in a batch of several images
SAMPLED_DIMENSIONS = 16  # feature dimensions that are measured if J is not built completely
QUICK_IMAGES = 4


@dataclass(slots=True, eq=False)
class StandInJacobian:
    """A substitute for ByJacobian with the same costs and random numbers in J."""

    features: Tensor
    jacobian: Tensor  # (K * D, n * W)
    context: torch.Size

    @classmethod
    def of(cls, world: World) -> StandInJacobian:
        features = world.texts.features(world.context)
        jacobian = features.new_empty(features.numel(), world.context.numel()).uniform_(-1, 1)
        return cls(features, jacobian, world.context.shape)

    def backward(self, gradients: Tensor) -> Tensor:
        return (gradients.flatten(1) @ self.jacobian).unflatten(-1, self.context)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.adapt", __doc__ or "", _options, argv)
    classes = args.classes or ([10, 47] if args.quick else [10, 47, 101])
    rows, raw = [], {}
    for count in classes:
        timings = measure_classes(args, count)
        raw[str(count)] = timings
        rows.append(row(count, timings))
    notes = [STAND_IN, "Ratios are naive / engine: median (lowest..highest) over rounds, wall; CPU seconds beside."]
    notes.append("'with J' counts building J, spread over the test set of the dataset that K stands for.")
    notes += growth(raw)
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    options.add_argument("--classes", type=int, nargs="+", choices=sorted(TEST_SETS), metavar="K", help="10 ... 1000")
    options.add_argument("--naive-up-to", type=int, default=101, metavar="K", help="measure naive on more by scaling")
    options.add_argument("--whole-jacobian-up-to", type=int, default=10, metavar="K", help="on more: a part, scaled")


def measure_classes(args: Any, classes: int) -> dict[str, Any]:
    """Return all measurements for one number of classes; seconds are per image."""
    world = build(SMALL if args.quick else VIT_B_16, classes, samples=MOST_IMAGES, device=args.device)
    tokens = len(world.texts.packing)
    batch = QUICK_IMAGES if args.quick else max(1, min(MOST_IMAGES, TOKENS_AT_ONCE // tokens))
    world = replace(world, views=world.views[:batch])
    whole = args.quick or classes <= args.whole_jacobian_up_to
    dataset, images = TEST_SETS[classes]
    print(f"K = {classes} ({dataset}): {tokens} tokens, {batch} images at once", flush=True)
    with torch.no_grad():
        once, jacobian = build_jacobian(world, whole, args.device)
        pulling = ByBackward(world.texts, world.context)
    naive_classes = min(classes, args.naive_up_to)
    check(world, pulling, jacobian if whole else None, naive_classes, args)
    tpt = Tpt(adapt=AdaptConfig())
    otpt = Tpt(adapt=AdaptConfig(), penalty=orthogonality, weight=OTPT_WEIGHT)

    def naive() -> object:
        ids = world.token_ids[:naive_classes]
        return adapt_one(world.naive, ids, world.context, world.views[0], logit_scale=LOGIT_SCALE)

    def engine(method: Tpt, first: FirstGradient) -> Any:
        start = start_state(method, world, first)
        return lambda: method.predict(world.model, start, world.views)

    works = {
        "naive": (naive, naive_classes / classes),
        "jacobian": (engine(tpt, jacobian), batch),
        "pullback": (engine(tpt, pulling), batch),
    }
    spent: dict[str, Any] = dict(rounds(works, args.repeats, args.device))
    penalties = {"tpt": (engine(tpt, jacobian), batch), "otpt": (engine(otpt, jacobian), batch)}
    spent |= rounds(penalties, 1 if args.quick else 2 * args.repeats + 1, args.device)
    scaled = naive_classes < classes
    return {**spent, "once": once, "images": images, "tokens": tokens, "batch": batch, "naive_scaled": scaled}


def build_jacobian(world: World, whole: bool, device: str) -> tuple[Spent, FirstGradient]:
    """Return the costs of building J, and J or a random matrix with the same cost of multiplication."""
    if whole:
        began = now(device)
        jacobian = ByJacobian(world.texts, world.context)
        return now(device) - began, jacobian
    weight, bias = world.texts.tower.projection
    narrow = replace(world.texts.tower, projection=(weight[:SAMPLED_DIMENSIONS], bias[:SAMPLED_DIMENSIONS]))
    texts = replace(world.texts, tower=narrow)
    once = measure(lambda: ByJacobian(texts, world.context), device=device)
    return once * (len(weight) / SAMPLED_DIMENSIONS), StandInJacobian.of(world)


def start_state(method: Tpt, world: World, first: FirstGradient) -> TptState:
    """Return the state of `method.start`, with our choice of the first gradient's form."""
    if method.penalty is None:
        return TptState(world.context, first, 0.0)
    features = first.features.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(method.weight * method.penalty(features), features)
    with torch.no_grad():
        return TptState(world.context, first, first.backward(gradient[None])[0])


def check(world: World, pulling: FirstGradient, jacobian: FirstGradient | None, naive_classes: int, args: Any) -> None:
    """Check that both sides give the same probabilities, unless the naive side cannot take all classes."""
    if naive_classes < len(world.texts):
        print(f"K = {len(world.texts)}: results are compared at {naive_classes} classes and fewer only", flush=True)
        return
    forms: dict[str, FirstGradient] = {"pullback": pulling}
    if jacobian is not None:
        forms = {"J": jacobian, **forms}
    if not args.quick:
        check_method(world, "tpt", Tpt(adapt=AdaptConfig()), None, forms, images=1)
        return
    otpt = Tpt(adapt=AdaptConfig(), penalty=orthogonality, weight=OTPT_WEIGHT)
    check_method(world, "tpt", Tpt(adapt=AdaptConfig()), None, forms, images=len(world.views))
    check_method(world, "otpt", otpt, householder, forms, images=len(world.views))


def check_method(
    world: World, name: str, method: Tpt, naive_penalty: Any, forms: dict[str, FirstGradient], images: int
) -> None:
    """Check a method with each form of the first gradient against the naive reference, whose penalty is given."""
    expected = []
    for views in world.views[:images]:
        adapted = adapt_one(
            world.naive,
            world.token_ids,
            world.context,
            views,
            logit_scale=LOGIT_SCALE,
            penalty=naive_penalty,
            weight=method.weight,
        )
        expected.append(adapted.probabilities)
    for form, first in forms.items():
        logits, _ = method.predict(world.model, start_state(method, world, first), world.views[:images])
        what = f"K = {len(world.texts)}, {name}, {form}"
        check_equal(logits.softmax(-1), torch.stack(expected), what, predictions=True)


def row(classes: int, timings: dict[str, Any]) -> dict[str, object]:
    naive, jacobian = timings["naive"], timings["jacobian"]
    with_once = [spent + timings["once"] * (1 / timings["images"]) for spent in jacobian]
    slower = Ratio.of(timings["otpt"], timings["tpt"])
    mark = "~" if timings["naive_scaled"] else ""
    forms = {
        "J": Ratio.of(naive, jacobian),
        "with J": Ratio.of(naive, with_once),
        "pullback": Ratio.of(naive, timings["pullback"]),
    }
    cells: dict[str, object] = {"K": classes, "as": TEST_SETS[classes][0], "tokens": timings["tokens"]}
    for name, ratio in forms.items():
        cells[name] = f"{mark}{ratio.wall}"
        cells[f"{name}, CPU"] = f"{mark}{ratio.cpu.median:.1f}"
    cells["O-TPT / TPT"] = f"{slower.wall:.3f}"
    return {**cells, "O-TPT / TPT, CPU": f"{slower.cpu:.3f}"}


def growth(raw: dict[str, Any]) -> list[str]:
    """Return the growth of the cost of an image relative to the growth of the number of class tokens."""
    costs = {
        classes: Spread.of([spent.cpu for spent in timings["jacobian"]]).median for classes, timings in raw.items()
    }
    first, *rest = raw
    per_token = {classes: costs[classes] / timings["tokens"] for classes, timings in raw.items()}
    return [
        f"CPU seconds per image and class token, K = {classes} against K = {first}: "
        f"{per_token[classes] / per_token[first]:.2f}"
        for classes in rest
    ]


if __name__ == "__main__":
    run(main)
