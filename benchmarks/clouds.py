"""Clouds of real trials: `python -m benchmarks.clouds --out FILE`, read by `read_clouds`.

A cloud holds random trials of search_spaces/perturb.yaml: the same points run on each embedded dataset with each seed.
Benchmarks of the search fit surrogates to their values: the mean over seeds is the surface, the differences between
seeds are the noise. Each row is written at once, point by point and one group of datasets after the other, so that a
stopped run has complete clouds. A second run continues where the first ended.
"""

from __future__ import annotations

import csv
import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fpp_sweep.cli.command import parser, run
from fpp_sweep.space.reading import load_space
from fpp_sweep.space.shipped import find_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec

FILE = Path(__file__).parent / "clouds.csv"
SPLIT = "val"
METRICS = ("accuracy", "smooth_ece")
GROUPS = (("scenes", "digits", "colours"), ("letters", "textures"), ("objects", "compositions"))  # the cheapest first
DATASETS = tuple(itertools.chain.from_iterable(GROUPS))
POINTS_SEED = 20  # seed of the random points
MIN_TRIALS = 60  # benchmarks use no smaller cloud; a stopped run leaves some


@dataclass(frozen=True, slots=True, eq=False)
class Cloud:
    """The trials of one dataset that ran with each seed."""

    dataset: str
    keys: tuple[str, ...]  # names of the settings
    points: np.ndarray  # (trials, settings), as a trial takes them
    values: np.ndarray  # (trials, seeds, metrics): accuracy and smooth ECE, percent


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.clouds", __doc__ or "")
    options.add_argument("--out", type=Path, default=FILE, metavar="FILE", help="CSV file; its rows are kept")
    options.add_argument("--trials", type=int, default=70, metavar="N", help="number of points, equal for all datasets")
    options.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds of views and pretraining")
    options.add_argument("--images", type=int, default=200, metavar="N", help="images of each dataset")
    options.add_argument("--views", type=int, default=16, metavar="N", help="views of an image")
    options.add_argument(
        "--minutes", type=float, default=35.0, metavar="N", help="CPU time after which no trial starts"
    )
    args = options.parse_args(argv)
    space = load_space(find_space("perturb"), [f"base.views.count={args.views}"])
    with tempfile.TemporaryDirectory() as cache:
        collect(space, args, cache)


def collect(space: Space, args: Any, cache: str) -> None:
    """Run the missing trials, and append a row to the file after each."""
    # imported here because they load torch, which --help and the reader do not need
    from fpp_sweep.trial.local_runner import LocalExecutor
    from fpp_sweep.trial.plan import Plan
    from fpp_sweep.trial.trial import run_trial
    from fpp_sweep.trial.worker import Worker

    worker = Worker(WorkerSpec(model="tiny", device="cpu", threads=1, limit=args.images, cache=cache))
    facts = {name: tuple(worker.describe([name], SPLIT)) for name in DATASETS}
    done = _done(args.out)
    end = time.process_time() + 60 * args.minutes
    points = list(random_points(space, args.trials))
    for group in GROUPS:
        for number, seed, name in itertools.product(range(len(points)), range(args.seeds), group):
            if (number, seed, name) in done:
                continue
            if time.process_time() > end:
                return
            plan = Plan(datasets={SPLIT: facts[name]}, seeds=(seed,))
            executor = LocalExecutor(worker, TaskKeys(worker.model_info(), plan.datasets_by_key()))
            result, _ = run_trial(plan, space.resolve(points[number]), SPLIT, executor)
            _append(args.out, _row(number, seed, name, points[number], result.average))


def random_points(space: Space, count: int) -> Iterator[dict[str, float]]:
    """Yield random points, uniform within each range or within its logarithm."""
    rng = np.random.default_rng(POINTS_SEED)
    for _ in range(count):
        point = {}
        for param in space.params:
            low, high = param.bounds
            share = float(rng.random())
            value = low + share * (high - low)
            if param.log:
                value = low * math.exp(share * math.log(high / low))
            point[param.key] = float(f"{value:.4g}")
        yield point


def _row(
    number: int, seed: int, dataset: str, point: Mapping[str, float], averages: Mapping[str, float]
) -> dict[str, object]:
    row: dict[str, object] = {"trial": number, "seed": seed, "dataset": dataset}
    for key, value in point.items():
        row[key] = f"{value:.4g}"
    for metric in METRICS:
        row[metric] = f"{averages[metric]:.4g}"
    return row


def _append(file: Path, row: Mapping[str, object]) -> None:
    is_new = not file.exists()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _done(file: Path) -> set[tuple[int, int, str]]:
    if not file.exists():
        return set()
    with file.open(newline="") as stream:
        return {(int(row["trial"]), int(row["seed"]), row["dataset"]) for row in csv.DictReader(stream)}


def read_clouds(file: Path = FILE) -> dict[str, Cloud]:
    """Return the clouds by dataset, without trials that lack a seed and without datasets of few trials."""
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    keys = tuple(key for key in rows[0] if key not in ("trial", "seed", "dataset", *METRICS))
    seeds = sorted({int(row["seed"]) for row in rows})
    clouds = {}
    for name in DATASETS:
        trials: dict[int, dict[int, dict[str, str]]] = {}
        for row in rows:
            if row["dataset"] == name:
                trials.setdefault(int(row["trial"]), {})[int(row["seed"])] = row
        whole = [trial for _, trial in sorted(trials.items()) if len(trial) == len(seeds)]
        if len(whole) < MIN_TRIALS:
            continue
        points = [[float(trial[seeds[0]][key]) for key in keys] for trial in whole]
        values = [[[float(trial[seed][metric]) for metric in METRICS] for seed in seeds] for trial in whole]
        clouds[name] = Cloud(name, keys, np.array(points), np.array(values))
    return clouds


if __name__ == "__main__":
    run(main)
