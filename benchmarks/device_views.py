"""Views drawn on a device compared with Pillow's: `python -m benchmarks.device_views --device cuda`.

The command first compares bytes: torch on the device and Pillow on the CPU draw random resizes, each of AugMix's
operations, and whole views. Every difference is a defect, and the command fails. It then measures costs: milliseconds
for an image's views by Pillow in one process, for planning them, and for drawing them on the device, with several
images at once. `--fused` also draws through torch.compile, whose first calls take a minute and are not measured.

It needs torch, NumPy and Pillow only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import Spread, finish, parse, rounds
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.compute.compiling import Runner, eagerly
from fpp_sweep.core.images import augmix, views
from fpp_sweep.core.images.device_views import PlannedImage, render
from fpp_sweep.core.images.distorting import apply_chains
from fpp_sweep.core.images.fused_kernels import FusedRunner, fused_runner
from fpp_sweep.core.images.resampling import Crops, pack, resize, unpack
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig
from tests.kit.views import make_views

SIDES = (1, 2, 3, 7, 33, 60, 200, 333, 500)  # widths and heights of small images
LARGE = ((4000, 3000), (3000, 1), (1, 3000), (2500, 40), (1200, 1600))
SIZES = (1, 8, 33, 48, 96, 224, 336)  # sizes of views
AT_ONCE = 64  # views that are compared in one batch
WORDS_BEFORE = 5  # words in front of an image
NAMES = tuple(operation.__name__.strip("_") for operation in augmix.OPERATIONS)


@dataclass(slots=True)
class Count:
    """The number of tried cases, and the number of cases in which some byte differs."""

    cases: int = 0
    differ: int = 0

    def add(self, drawn: Tensor, expected: NDArray[Any]) -> None:
        same = (drawn.cpu() == torch.from_numpy(expected)).flatten(1).all(1)
        self.cases += len(same)
        self.differ += int((~same).sum())


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.device_views", __doc__ or "", _options, argv)
    if args.quick:
        args.cases, args.images, args.views, args.size = 60, [2], 8, 48
    device = torch.device(args.device)
    runners: dict[str, Runner] = {"eager": eagerly}
    if args.fused:
        fused = fused_runner(device)
        if fused.failure:
            print(f"compiled kernels are left out: {fused.failure}")
        else:
            runners["fused"] = fused
    counts_by_runner = {name: compare_bytes(args, device, runner) for name, runner in runners.items()}
    costs = []
    for mix in (True, False):
        for images in args.images:
            costs.append(cost(args, device, runners, mix, images))
    print("\n" + "\n".join(str(row) for row in costs) + "\n")
    raw = {"equality": counts_by_runner, "costs": costs}
    finish(args, equality_rows(counts_by_runner), raw, ["Milliseconds an image: median (lowest..highest)."])
    require_equality(runners, counts_by_runner)
    print("equal within 0: all bytes are Pillow's")


def equality_rows(counts_by_runner: dict[str, dict[str, Count]]) -> list[dict[str, object]]:
    """Return a row for each kind of drawing, with the cases in which each runner's bytes differ."""
    rows = []
    for kind, eager_count in counts_by_runner["eager"].items():
        cells: dict[str, object] = {"bytes of": kind, "cases": eager_count.cases}
        for name, counts in counts_by_runner.items():
            cells[f"differ, {name}"] = counts[kind].differ
        rows.append(cells)
    return rows


def require_equality(runners: dict[str, Runner], counts_by_runner: dict[str, dict[str, Count]]) -> None:
    """End the command with an error if bytes differ, or if compiled kernels were not used throughout."""
    fused = runners.get("fused")
    if isinstance(fused, FusedRunner) and fused.failure:
        raise SystemExit(f"what is called fused was eager from some case on: {fused.failure}")
    wrong = 0
    for counts in counts_by_runner.values():
        wrong += sum(count.differ for count in counts.values())
    if wrong:
        raise SystemExit(f"{wrong} cases differ from Pillow's bytes")


def _options(options: Parser) -> None:
    options.add_argument(
        "--cases", type=int, default=4000, metavar="N", help="number of resizes, and of cases of each operation"
    )
    options.add_argument(
        "--images", type=int, nargs="+", default=[1, 4], metavar="N", help="images that are drawn at once in the timing"
    )
    options.add_argument("--views", type=int, default=64, metavar="N", help="views per image in the timing")
    options.add_argument("--size", type=int, default=224, metavar="PIXELS", help="size of a view in the timing")
    options.add_argument("--fused", action="store_true", help="also draw through torch.compile")


# --- bytes


def compare_bytes(args: Any, device: torch.device, runner: Runner) -> dict[str, Count]:
    resized, whole = Count(), Count()
    single = {name: Count() for name in NAMES}
    rng = np.random.default_rng(0)
    for pixels, size in subjects(rng):
        if resized.cases >= args.cases:
            break
        resizes(rng, pixels, size, 16, device, runner, resized)
    while min(count.cases for count in single.values()) < args.cases:
        operations(rng, int(rng.choice(SIZES[2:6])), device, runner, single)
    while whole.cases < args.cases / 4:
        whole_views(rng, device, runner, whole)
    return {"resize": resized, **single, "whole views": whole}


def subjects(rng: np.random.Generator) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield images of every shape with sizes of views: first large images, then endlessly many small ones."""
    for width, height in LARGE:
        yield picture(rng, width, height), int(rng.choice((48, 224)))
    while True:
        yield picture(rng, *rng.choice(SIDES, 2).tolist()), int(rng.choice(SIZES))


def picture(rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Return a random picture: noise, black and white, or smooth shades of some contrast."""
    kind = rng.integers(0, 4)
    if kind == 0:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        return (rng.integers(0, 2, (height, width, 3)) * rng.integers(1, 256)).astype(np.uint8)
    small = rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))
    return (smooth * rng.uniform(0.2, 1)).astype(np.uint8)


def resizes(
    rng: np.random.Generator,
    pixels: NDArray[np.uint8],
    size: int,
    boxes: int,
    device: torch.device,
    runner: Runner,
    count: Count,
) -> None:
    """Compare random boxes of an image: the whole image, single pixels, and sizes between them."""
    height, width, _ = pixels.shape
    left, right = random_interval(rng, width, boxes)
    top, bottom = random_interval(rng, height, boxes)
    corners = np.stack([left, top, right + 1, bottom + 1], axis=1)
    corners[0] = 0, 0, width, height
    mirrored = rng.random(boxes) < 0.5
    image = Image.fromarray(pixels)
    pairs = zip(corners.tolist(), mirrored.tolist(), strict=True)
    expected = np.stack([views.render_crop(image, box, size, mirror) for box, mirror in pairs])
    before = torch.full((WORDS_BEFORE,), 99, dtype=torch.int32)  # the image does not begin at the first word
    words = torch.cat([before, pack(torch.from_numpy(pixels)).flatten()])
    crops = Crops(origins=np.full(boxes, WORDS_BEFORE), strides=np.full(boxes, width), boxes=corners, mirrored=mirrored)
    drawn = resize(words.to(device), crops, size, runner)
    count.add(unpack(drawn), expected)


def random_interval(rng: np.random.Generator, side: int, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first and the last pixel of random intervals of a side."""
    ends = np.stack([rng.integers(0, side, count), rng.integers(0, side, count)])
    first, last = np.sort(ends, axis=0)
    return first, last


def operations(
    rng: np.random.Generator, size: int, device: torch.device, runner: Runner, counts: dict[str, Count]
) -> None:
    """Compare all nine operations on the same pictures at random levels."""
    pictures = np.stack([picture(rng, size, size) for _ in range(AT_ONCE)])
    words = pack(torch.from_numpy(pictures)).to(device)
    for number, (name, count) in enumerate(counts.items()):
        level = rng.uniform(0.01, 0.1, AT_ONCE) * rng.choice((-1, 1), AT_ONCE)
        levels = np.zeros((AT_ONCE, 3, 3))
        levels[:, 0, 0] = level
        operations_of_chains = np.full((AT_ONCE, 3, 3), augmix.NO_OPERATION)
        operations_of_chains[:, 0, 0] = number
        mixing = augmix.MixingPlan(np.ones((AT_ONCE, 4), np.float32), operations_of_chains, levels)
        apply = augmix.OPERATIONS[number]
        assert apply.__name__.strip("_") == name
        expected = np.stack([apply(*pair) for pair in zip(pictures, level.tolist(), strict=True)])
        count.add(unpack(apply_chains(words, mixing, runner)[:, 0]), expected)


def whole_views(
    rng: np.random.Generator, device: torch.device, runner: Runner, count: Count, size: int = 0, longest: int = 600
) -> None:
    """Compare the normalised numbers of views of several images of different sizes to the last bit."""
    preprocess = Preprocess(size=size or int(rng.choice(SIZES[2:6])))
    config = ViewConfig(count=int(rng.choice((1, 2, 8))))
    images = [Image.fromarray(picture(rng, *rng.integers(1, longest, 2).tolist())) for _ in range(rng.integers(1, 4))]
    mix, seed = bool(rng.random() < 0.7), int(rng.integers(1 << 30))
    expected, planned = [], []
    for image in images:
        first, again = (views.sample_rng(seed, "any", "test", f"{image.size}") for _ in range(2))
        expected.append(make_views(image, config, preprocess, augmix=mix, flip=True, rng=first))
        chosen = views.plan_views(image.size, config, augmix=mix, flip=True, rng=again)
        planned.append(sent(PlannedImage.of(image, chosen, preprocess.size), device))
    drawn = render(planned, preprocess, runner).flatten(0, 1)
    count.add(drawn.view(torch.int32), torch.cat(expected).view(torch.int32).numpy())


def sent(planned: PlannedImage, device: torch.device) -> PlannedImage:
    return replace(planned, data=planned.data.to(device))


# --- costs


class Operations(TorchDispatchMode):
    """Counts the operations that read or write tensors' contents: one kernel each if nothing is fused."""

    VIEW_OPERATIONS: tuple[str, ...] = (
        "view",
        "reshape",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "permute",
        "unbind",
        "alias",
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.bytes = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if self.touches_contents(function.overloadpacket.__name__, out):
            self.calls += 1
            self.bytes += self.bytes_moved((args, kwargs), out)
        return out

    def touches_contents(self, name: str, out: object) -> bool:
        if not isinstance(out, Tensor) or name.startswith("empty"):
            return False
        return not any(operation in name for operation in self.VIEW_OPERATIONS)

    def bytes_moved(self, given: object, out: Any) -> int:
        """Return the bytes that the operation writes."""
        return int(out.nbytes)


def cost(args: Any, device: torch.device, runners: dict[str, Runner], mix: bool, images: int) -> dict[str, object]:
    """Return a row with the milliseconds per image of every way to draw views."""
    preprocess, config = Preprocess(size=args.size), ViewConfig(count=args.views)
    rng = np.random.default_rng(0)
    image = Image.fromarray(picture(rng, 500, 400))

    def plan(number: int) -> PlannedImage:
        stream = views.sample_rng(0, "any", "test", f"{number}")
        chosen = views.plan_views(image.size, config, augmix=mix, flip=True, rng=stream)
        return PlannedImage.of(image, chosen, preprocess.size)

    planned = [plan(number) for number in range(images)]

    def drawing(runner: Runner) -> Callable[[], object]:
        return lambda: render([sent(each, device) for each in planned], preprocess, runner)

    drawn = {name: drawing(runner) for name, runner in runners.items()}
    for work in drawn.values():  # first calls include work that is done only once, such as compiling
        work()
    with Operations() as counted:
        drawn["eager"]()
    works: dict[str, tuple[Callable[[], object], float]] = {
        "Pillow": (lambda: views.render_with_pillow(image, planned[0].plan, preprocess.size), 1.0),
        "plan": (lambda: plan(0), 1.0),
        **{name: (work, float(images)) for name, work in drawn.items()},
    }
    spent = rounds(works, args.repeats, args.device)
    costs = {f"{name}, ms": f"{Spread.of([1e3 * each.wall for each in spent[name]])}" for name in works}
    written = f"{counted.bytes / images / 1e9:.2f}"
    return {"AugMix": mix, "images": images, **costs, "eager kernels": counted.calls, "GB written an image": written}


if __name__ == "__main__":
    run(main)
