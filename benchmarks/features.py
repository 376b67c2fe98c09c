"""Image features of all views: `python -m benchmarks.features`.

The naive side works image by image in one process: it decodes, draws the views and sends them through the tower. The
engine fills a feature cache with views of several images in a batch and with worker processes that decode and draw; the
time of their start counts. CPU seconds would be those of the main process only, so the table has wall-clock ratios.

The embedded model computes features of embedded pictures. It and ViT-B-16's tower with random weights also compute
features of JPEG files of several sizes.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.harness import Ratio, Spent, Spread, check_equal, finish, now, parse, require_open_clip, rounds
from fpp_sweep.cli import Parser, run
from fpp_sweep.core.compute import computing
from fpp_sweep.core.datasets import Dataset, FileImages, open_dataset
from fpp_sweep.core.images.features import BATCH, FeatureCache
from fpp_sweep.core.images.views import sample_rng
from fpp_sweep.core.models.clip import Clip, Preprocess, load
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.progress import time_shares
from tests.kit.views import make_views

STAGES = ("decode", "views", "tower")
# widths and heights of the photographs
SIZES = ((500, 375), (375, 500), (640, 480), (300, 300), (1024, 768), (160, 120))
SEED = 0


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.features", __doc__ or "", _options, argv)
    require_open_clip()
    with tempfile.TemporaryDirectory() as name, computing("float32", torch.device(args.device)):
        report_engine(args, Path(name))


def report_engine(args: Any, folder: Path) -> None:
    rows = []
    raw = {}
    for (clip, dataset), augmix in product(subjects(args, folder), ("off", "on")):
        timings = measure_engine(args, clip, dataset, augmix, folder)
        raw[f"{clip.name}, {dataset.name}, AugMix {augmix}"] = timings
        rows.append(row(args, f"{clip.name}, {dataset.name}", augmix, timings))
    notes = [
        "Ratios are naive / engine, wall, by worker processes: median (lowest..highest) over rounds.",
        "Decode, views, tower: shares of the naive side's time, and the rate of each alone in one process.",
    ]
    finish(args, rows, raw, notes)


def _options(options: Parser) -> None:
    options.add_argument("--images", type=int, nargs=2, default=[64, 4], metavar="N", help="embedded model, ViT-B-16")
    options.add_argument("--views", type=int, default=64, metavar="N", help="per image")
    options.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="processes to compare")


def subjects(args: Any, folder: Path) -> Iterator[tuple[Clip, Dataset]]:
    """Yield the embedded model and, without --quick, ViT-B-16's image tower, each with its images."""
    embedded = load("tiny", args.device)
    if args.quick:
        args.images, args.views, args.workers = [4, 0], 8, [0]  # a worker takes seconds to start
    yield embedded, open_dataset("scenes", "test").head(args.images[0])
    yield embedded, photographs(folder / "small", args.images[0])
    if not args.quick and args.images[1]:
        visual = vit_b_16().to(args.device)
        preprocess = Preprocess(size=224)
        # the text tower of the embedded model is included but not used
        clip = replace(embedded, name="ViT-B-16", visual=visual, preprocess=preprocess, image_digest="random")
        yield clip, photographs(folder / "large", args.images[1])


def vit_b_16() -> torch.nn.Module:
    # `require_open_clip` has reported a missing package before
    from open_clip import get_model_config
    from open_clip.model import CLIP

    config = get_model_config("ViT-B-16")
    torch.manual_seed(SEED)
    visual: torch.nn.Module = CLIP(**config).visual
    return visual.eval().requires_grad_(False)


def photographs(folder: Path, count: int) -> Dataset:
    """Write JPEG files of several sizes with details at every scale, because the cost of decoding depends on them."""
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


def measure_engine(args: Any, clip: Clip, dataset: Dataset, augmix: Any, folder: Path) -> dict[str, Any]:
    config = ViewConfig(count=args.views, augmix=augmix)
    stages: list[tuple[Spent, ...]] = []
    waited = defaultdict[int, list[Mapping[str, float]]](list)
    cache = FeatureCache(folder, exact=True)  # its single choice of a renderer is not measured

    def engine(workers: int) -> Tensor:
        cache.root = Path(tempfile.mkdtemp(dir=folder))
        batch = min(BATCH, args.views * len(dataset))  # smaller batches would be padded
        features = cache.features(clip, dataset, config, SEED, workers=workers, batch=batch)
        waited[workers].append(features.cost)
        return features.of(np.arange(len(dataset)))

    def naive() -> Tensor:
        features, spent = naive_features(args, clip, dataset, config)
        stages.append(spent)
        return features

    print(f"{clip.name}, {dataset.name}, AugMix {augmix}: {len(dataset)} images of {args.views} views", flush=True)
    expected = naive()
    for workers in args.workers:
        check_equal(engine(workers), expected, f"{clip.name}, features with {workers} workers")
    works = {f"{workers} workers": (partial(engine, workers), len(dataset)) for workers in args.workers}
    timings = rounds({"naive": (naive, len(dataset)), **works}, args.repeats, args.device)
    stages_per_image = []
    for total in stages:
        per_image = [spent * (1 / len(dataset)) for spent in total]
        stages_per_image.append(dict(zip(STAGES, per_image, strict=True)))
    return {**timings, "waited": dict(waited), "stages": stages_per_image}


def naive_features(args: Any, clip: Clip, dataset: Dataset, config: ViewConfig) -> tuple[Tensor, tuple[Spent, ...]]:
    """Return the features and the costs of each stage."""
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


def row(args: Any, subject: str, augmix: str, timings: dict[str, Any]) -> dict[str, object]:
    cells: dict[str, object] = {"model, images": subject, "AugMix": augmix}
    for stage in STAGES:
        shares = []
        rates = []
        for by_stage in timings["stages"]:
            whole = sum(spent.wall for spent in by_stage.values())
            shares.append(by_stage[stage].wall / whole)
            rates.append(1 / by_stage[stage].wall)
        rate = Spread.of(rates)
        cells[f"{stage}, %"] = f"{100 * Spread.of(shares).median:.0f}"
        cells[f"{stage}, images/s"] = f"{rate.median:.3g}"
    for workers in args.workers:
        cells[f"{workers} workers"] = Ratio.of(timings["naive"], timings[f"{workers} workers"]).wall
        cells[f"images/s, {workers} workers"] = Spread.of([1 / spent.wall for spent in timings[f"{workers} workers"]])
        waited = {step: seconds for step, seconds in timings["waited"][workers][-1].items() if step != "images"}
        cells[f"{workers} workers waited for"] = time_shares(waited)
    return cells


if __name__ == "__main__":
    run(main)
