"""Seconds and memory of all evidence of a large sweep, from sums at hand: `python -m benchmarks.evidence`.

Writes the sums of 200 made-up trials on ten datasets of 5,000 images, a file for each trial as a sweep has it, and then
measures what a report does with them: read, resample, intervals, differences to four baselines, support, trials that
are alike, region of the front.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.statistics.block_stats import BlockStats, from_bytes, to_bytes
from fpp_sweep.statistics.old_bootstrap import (
    alike,
    attained,
    averaged,
    difference,
    front_support,
    needed,
    optimism,
    resampled,
    signed,
    single,
    stacked,
)

BASELINES = 4


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.evidence", __doc__ or "")
    for name, count in (("trials", 200), ("datasets", 10), ("images", 5000)):
        options.add_argument(f"--{name}", type=int, default=count)
    options.add_argument("--metrics", nargs="+", default=["accuracy", "ece"])
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        size = write(Path(folder), args.trials, args.datasets, args.images)
        before = peak()
        began = time.process_time()
        marks = evidence(Path(folder), args.metrics)
        for name, at in marks.items():
            print(f"{name}: {at - began:.2f} CPU s")
        more = peak() - before
        print(f"files: {size / args.trials / 1000:.0f} kB a trial; memory beyond what writing took: {more:.0f} MB")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def write(folder: Path, trials: int, datasets: int, images: int) -> int:
    generator = np.random.default_rng(0)
    hardness = generator.normal(size=(datasets, images))
    ids = [f"image {index}" for index in range(images)]
    written = 0
    for trial in range(trials):
        table = {}
        for number in range(datasets):
            logit = 1 - hardness[number] + generator.normal(scale=0.3, size=images)
            confidence = (1 / (1 + np.exp(-logit - generator.uniform(0, 1)))).astype(np.float32)
            given = Confidences(confidence, generator.random(images) < 1 / (1 + np.exp(-logit)))
            table[f"dataset{number}", 0] = BlockStats.of(f"dataset{number}", ids, given, *generator.random((2, images)))
        data = to_bytes(table)
        (folder / f"{trial}.npz").write_bytes(data)
        written += len(data)
    return written


def evidence(folder: Path, objectives: Sequence[str]) -> dict[str, float]:
    marks = {}
    trials: dict[str, list[dict[str, np.ndarray]]] = {}
    for file in sorted(folder.iterdir()):
        for (dataset, _), one in from_bytes(file.read_bytes()).items():
            trials.setdefault(dataset, []).append(resampled(dataset, "val", [one], needed(objectives)))
    by_dataset = {dataset: stacked(rows, 5000) for dataset, rows in trials.items()}
    found = averaged(list(by_dataset.values()))
    marks["read and resampled"] = time.process_time()
    count = len(trials[next(iter(trials))])
    for trial in range(count):
        for metric in objectives:
            single(found, metric, trial, 5000)
            for baseline in range(BASELINES):
                difference(found, metric, trial, baseline)
    marks["intervals and differences"] = time.process_time()
    better = signed(found, objectives, ["max" if metric == "accuracy" else "min" for metric in objectives])
    front_support(better)
    marks["support for the front"] = time.process_time()
    for trial in range(count):
        alike(found, objectives, trial)
    optimism(better[0])
    attained(better[:2])
    marks["trials alike, optimism, region of the front"] = time.process_time()
    return marks


if __name__ == "__main__":
    run(main)
