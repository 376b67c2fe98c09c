"""Image features of all views: `python -m benchmarks.features`.

Naive is image by image in one process: decode, draw the views, send them through the tower. The engine fills a feature
cache, with views of several images in a batch, and with worker processes that decode and draw; what their start takes
is counted. CPU seconds are those of the main process, so only wall-clock ratios are given.

The embedded model sees its own drawings; it and ViT-B-16's tower, with random weights, see JPEG files of several sizes.

`--handing` measures instead what handing an image's views over takes, of the CPU of the process that reads and of the
one that waits: as normalised floats, as today, and as what a device needs to draw them.

`--tower` measures the image towers alone instead, on groups of random pixels: as open_clip runs it, with its last block
for the class token alone, and through torch.compile.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import process_time, thread_time
from typing import Any, cast, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.harness import Ratio, Spent, Spread, equal, finish, now, parse, require_open_clip, rounds
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.compute.compiling import eagerly
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.datasets import Dataset, FileImages, open_dataset
from fpp_sweep.core.images.device_views import ViewRenderer
from fpp_sweep.core.images.features import BATCH, FeatureCache
from fpp_sweep.core.images.reading import Reader, read_views
from fpp_sweep.core.images.views import as_tower_input, make_views, sample_rng
from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.models.image_tower import shorten_last_block
from fpp_sweep.core.models.loading import load
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.progress import time_shares
from fpp_sweep.spec.specs import StagePrecision

STAGES = ("decode", "views", "tower")
SIZES = ((500, 375), (375, 500), (640, 480), (300, 300), (1024, 768), (160, 120))  # pixels of photographs, in turn
SEED = 0


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.features", __doc__ or "", _options, argv)
    require_open_clip()
    rows: list[dict[str, object]] = []
    raw: dict[str, Any] = {}
    # in float32 a GPU would not convolve by default
    precision: StagePrecision = args.precision if args.tower else "float32"
    with tempfile.TemporaryDirectory() as name, computing(precision, torch.device(args.device)):
        folder = Path(name)
        if args.handing:
            notes = ["CPU milliseconds an image: median (lowest..highest) over rounds."]
            for augmix in ("off", "on"):
                images = photographs(folder / augmix, 2 if args.quick else args.images[0])
                raw[augmix] = handed(args, images, augmix)
                cells = {title: Spread.of([1000 * one for one in each]) for title, each in raw[augmix].items()}
                rows.append({"AugMix": augmix, **cells})
        elif args.tower:
            notes = ["Ratios: median (lowest..highest) over rounds, wall, and CPU seconds."]
            for clip in {clip.name: clip for clip, _ in subjects(args, folder)}.values():
                raw[clip.name] = towers(args, clip)
                rows.append(tower_row(args, clip, raw[clip.name]))
        else:
            notes = ["Ratios are naive / engine, wall, by worker processes: median (lowest..highest) over rounds."]
            notes += [
                "Decode, views, tower: shares of the naive side's time, and the rate of each alone in one process."
            ]
            for (clip, dataset), augmix in product(subjects(args, folder), ("off", "on")):
                timings = measured(args, clip, dataset, augmix, folder)
                raw[f"{clip.name}, {dataset.name}, AugMix {augmix}"] = timings
                rows.append(row(args, f"{clip.name}, {dataset.name}", augmix, timings))
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    options.add_argument("--images", type=int, nargs=2, default=[64, 4], metavar="N", help="embedded model, ViT-B-16")
    options.add_argument("--views", type=int, default=64, metavar="N", help="per image")
    options.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="processes to compare")
    options.add_argument("--handing", action="store_true", help="what handing views over takes")
    options.add_argument("--tower", action="store_true", help="the image towers alone, in each of their forms")
    options.add_argument("--groups", type=int, nargs=2, default=[BATCH, 16], metavar="N", help="views, with --tower")
    options.add_argument("--precision", choices=get_args(StagePrecision), default="float32", help="with --tower")


def subjects(args: Any, folder: Path) -> Iterator[tuple[Clip, Dataset]]:
    """The embedded model and, unless in a hurry, ViT-B-16's image tower."""
    embedded = load("tiny", args.device)
    if args.quick:
        args.images, args.views, args.workers = [4, 0], 8, [0]  # a worker takes seconds to start
    yield embedded, open_dataset("scenes", "test").head(args.images[0])
    yield embedded, photographs(folder / "small", args.images[0])
    if not args.quick and args.images[1]:
        visual = shorten_last_block(vit_b_16()).to(args.device)
        preprocess = Preprocess(size=224)
        # the text side of the embedded model goes along; nothing here looks at it
        clip = replace(embedded, name="ViT-B-16", visual=visual, preprocess=preprocess, image_digest="random")
        yield clip, photographs(folder / "large", args.images[1])


def vit_b_16() -> torch.nn.Module:
    # `require_open_clip` has said so where it is missing
    from open_clip import get_model_config
    from open_clip.model import CLIP

    config = get_model_config("ViT-B-16")
    torch.manual_seed(SEED)
    visual: torch.nn.Module = CLIP(**config).visual
    return visual.eval().requires_grad_(False)


def photographs(folder: Path, count: int) -> Dataset:
    """JPEG files of several sizes with something in them at every scale, which is what decoding costs depend on."""
    folder.mkdir()
    rng = np.random.default_rng(SEED)
    for index in range(count):
        width, height = SIZES[index % len(SIZES)]
        pixels = np.zeros((height, width, 3), np.float32)
        for size in (4, 16, 64, 256):
            noise = rng.integers(0, 256, (size, size, 3), np.uint8)
            pixels += np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)) / 4
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.jpg", quality=90)
    return Dataset(
        name="photographs",
        split="test",
        group="custom",
        classes=("photograph",),
        ids=tuple(f"{index}.jpg" for index in range(count)),
        labels=np.zeros(count, np.int64),
        source=FileImages(folder),
        augmix=True,
    )


def measured(args: Any, clip: Clip, dataset: Dataset, augmix: Any, folder: Path) -> dict[str, Any]:
    config = ViewConfig(count=args.views, augmix=augmix)
    stages: list[tuple[Spent, ...]] = []
    waited = defaultdict[int, list[Mapping[str, float]]](list)
    cache = FeatureCache(folder, exact=True)  # it chooses where views are drawn once, which is not what is measured

    def engine(workers: int) -> Tensor:
        cache.root = Path(tempfile.mkdtemp(dir=folder))
        batch = min(BATCH, args.views * len(dataset))  # batches of few images would be filled up
        found = cache.features(clip, dataset, config, SEED, workers=workers, batch=batch)
        waited[workers].append(found.cost)
        return found.batch(0, len(dataset))

    def naive() -> Tensor:
        features, spent = one_by_one(args, clip, dataset, config)
        stages.append(spent)
        return features

    print(f"{clip.name}, {dataset.name}, AugMix {augmix}: {len(dataset)} images of {args.views} views", flush=True)
    expected = naive()
    for workers in args.workers:
        equal(engine(workers), expected, f"{clip.name}, features with {workers} workers")
    works = {f"{workers} workers": (lambda workers=workers: engine(workers), len(dataset)) for workers in args.workers}
    timings = rounds({"naive": (naive, len(dataset)), **works}, args.repeats, args.device)
    return {
        **timings,
        "waited": dict(waited),
        "stages": [dict(zip(STAGES, (each * (1 / len(dataset)) for each in spent), strict=True)) for spent in stages],
    }


def one_by_one(args: Any, clip: Clip, dataset: Dataset, config: ViewConfig) -> tuple[Tensor, tuple[Spent, ...]]:
    """Features, and what each stage took."""
    total = [Spent(0, 0) for _ in STAGES]
    features = []
    for sample in dataset.ids:
        clocks = [now(args.device)]
        image = dataset.source.image(sample)
        clocks.append(now(args.device))
        rng = sample_rng(SEED, dataset.name, dataset.split, sample)
        views = make_views(image, config, clip.preprocess, augmix=config.augmix == "on", flip=dataset.flip, rng=rng)
        clocks.append(now(args.device))
        features.append(clip.image_features(views).cpu())
        clocks.append(now(args.device))
        total = [spent + after - before for spent, before, after in zip(total, clocks, clocks[1:], strict=False)]
    return torch.stack(features), tuple(total)


@dataclass(frozen=True, slots=True, eq=False)
class Clocked:
    """Gives what a reader does, and its process's CPU seconds."""

    reader: Reader
    floats: bool = False

    def __getitem__(self, index: int) -> Any:
        found = self.reader[index]
        if self.floats and isinstance(found, Tensor):
            found = as_tower_input(found, self.reader.preprocess)
        return found, process_time()


def handed(args: Any, dataset: Dataset, augmix: Any) -> dict[str, list[float]]:
    """CPU seconds an image, of the process that reads and of this one, by what is handed over."""
    reader = Reader.of(dataset, ViewConfig(count=args.views, augmix=augmix), Preprocess(size=224), SEED)
    ways = {
        "as floats": Clocked(reader, floats=True),
        "as today": Clocked(reader),
        "for a device": Clocked(replace(reader, renderer="device")),
    }
    renderer, pixels = ViewRenderer(reader.preprocess, torch.device("cpu")), torch.zeros(3, args.views, 3, 224, 224)
    renderer.fill(pixels, {row: each[0][0] for row, each in enumerate(ways.values())})
    for row, name in enumerate(ways):
        equal(pixels[row], pixels[0], f"AugMix {augmix}, views handed over {name}", 0.0)
    found = defaultdict[str, list[float]](list)
    for _ in range(args.repeats):
        for name, each in ways.items():
            views: Iterator[Any] = read_views(cast(Any, each), range(len(dataset)), workers=1, pin=False)
            _, first = next(views)
            began, clocks = thread_time(), [there for _, there in views]
            here = thread_time() - began
            found[f"{name}, reading"].append((clocks[-1] - first) / len(clocks))
            found[f"{name}, waiting"].append(here / len(clocks))
    return found


def towers(args: Any, clip: Clip) -> dict[str, list[Spent]]:
    """Each form of a tower in turn, on the same views."""
    views = 8 if args.quick else args.groups[0 if clip.name == "tiny" else 1]
    size, noise = clip.preprocess.size, torch.Generator().manual_seed(SEED)
    pixels = torch.randn(views, 3, size, size, generator=noise).to(args.device)
    compiled = clip.compiled()
    forms = {"eager": (clip, eagerly), "compiled": (compiled, compiled.image_run)}
    if clip.name != "tiny":
        forms = {"whole last block": (replace(clip, visual=vit_b_16().to(args.device)), eagerly), **forms}
    expected = clip.image_features(pixels)
    for name, (each, runner) in forms.items():
        began = now(args.device)
        found = each.image_features(pixels, runner)
        print(f"{clip.name}, {name}: first call {(now(args.device) - began).wall:.0f} s")
        equal(found, expected, f"{clip.name}, {name}", {"float32": 1e-4, "tf32": 1e-3, "fp16": 1e-2}[args.precision])
    works = {
        name: (lambda each=each, runner=runner: each.image_features(pixels, runner), views)
        for name, (each, runner) in forms.items()
    }
    return rounds(works, args.repeats, args.device)


def tower_row(args: Any, clip: Clip, spent: dict[str, list[Spent]]) -> dict[str, object]:
    cells: dict[str, object] = {"model": clip.name, "precision": args.precision}
    for title, slow, fast in (
        ("whole / class token alone", "whole last block", "eager"),
        ("eager / compiled", "eager", "compiled"),
    ):
        ratio = Ratio.of(spent[slow], spent[fast]) if slow in spent else None
        cells[title] = f"{ratio.wall:.2f}" if ratio else ""
        cells[f"{title}, CPU"] = f"{ratio.cpu:.2f}" if ratio else ""
    return cells | {"views/s, eager": f"{Spread.of([1 / each.wall for each in spent['eager']]):.3g}"}


def row(args: Any, subject: str, augmix: str, timings: dict[str, Any]) -> dict[str, object]:
    parts = {
        stage: Spread.of([spent[stage].wall / sum(part.wall for part in spent.values()) for spent in timings["stages"]])
        for stage in STAGES
    }
    cells: dict[str, object] = {"model, images": subject, "AugMix": augmix}
    for stage, share in parts.items():
        rate = Spread.of([1 / spent[stage].wall for spent in timings["stages"]])
        cells[f"{stage}, %"] = f"{100 * share.median:.0f}"
        cells[f"{stage}, images/s"] = f"{rate.median:.3g}"
    for workers in args.workers:
        cells[f"{workers} workers"] = Ratio.of(timings["naive"], timings[f"{workers} workers"]).wall
        cells[f"images/s, {workers} workers"] = Spread.of([1 / spent.wall for spent in timings[f"{workers} workers"]])
        waited = {step: seconds for step, seconds in timings["waited"][workers][-1].items() if step != "images"}
        cells[f"{workers} workers waited for"] = time_shares(waited)
    return cells


if __name__ == "__main__":
    run(main)
