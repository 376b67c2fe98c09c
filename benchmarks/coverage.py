"""How often intervals hold the truth, and what support for the front is worth: `python -m benchmarks.coverage RESULTS`.

RESULTS are folders of `python -m fpp_sweep.evaluate` on the same images, thousands of each dataset, or of sweeps, each
on its own; experiments/intervals has the commands. Those images are the population, whose values are the truth; a
validation split is some of them, drawn with replacement. Beside the trials that are read stand mixtures of two, each
image from one or the other by chance: near ties, as a search makes them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.catalogue import Goal, sign
from fpp_sweep.statistics.block_stats import BlockStats, block_size, metric_value
from fpp_sweep.statistics.old_bootstrap import (
    CLEAR,
    DRAWS,
    JUDGED_BY,
    REACH,
    UNLIKELY,
    BootstrapSamples,
    averaged,
    difference,
    drawn,
    front_support,
    on_front,
    optimism,
    signed,
    single,
    weights,
)
from fpp_sweep.trial.artifacts import read_predictions

METRICS = ("accuracy", "ece", "debiased_ece", "smooth_ece", "nll", "brier")
OBJECTIVES = ("accuracy", "ece")
FRONTS = (OBJECTIVES, ("accuracy", "smooth_ece"))
GOALS: tuple[Goal, ...] = ("max", "min")
Pool = dict[str, list[BlockStats]]  # by dataset, of each trial; a block is an image


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.coverage", __doc__ or "")
    options.add_argument("results", type=Path, nargs="+")
    options.add_argument("--images", type=int, nargs="+", default=[200, 1000], help="of a dataset, in a split")
    options.add_argument("--splits", type=int, default=100, help="that are drawn")
    options.add_argument("--mixed", type=int, default=12, help="mixtures of two trials")
    options.add_argument("--calibrated", action="store_true", help="with confidences that are nearly right")
    args = options.parse_args(argv)
    results = [path for path in args.results if (path / "results.json").is_file()]
    sweeps = [path for path in args.results if path not in results]
    if results:
        told(", ".join(path.name for path in results), with_mixtures(read(results, args.calibrated), args.mixed), args)
    for path in sweeps:
        told(path.name, with_mixtures(stored(SweepFolder.open(path), args.calibrated), args.mixed), args)


def told(name: str, pool: Pool, args: argparse.Namespace) -> None:
    truth = {
        metric: np.mean([[metric_value(metric, one) for one in pool[name]] for name in pool], 0) for metric in METRICS
    }
    apart = {name: [metric_value("ece", one) for one in trials] for name, trials in pool.items()}
    low, high = (f(truth["ece"]) for f in (min, max))
    trials, datasets = len(truth["ece"]), len(pool)
    print(f"\n{name}: {trials} trials on {datasets} datasets; ECE {low:.1f} to {high:.1f}; {args.splits} splits")
    for images in args.images:
        print(f"\n{images} images of each dataset")
        print(accuracy_alone(pool, images))
        for line in table(pool, truth, apart, images, args.splits):
            print(line)


def accuracy_alone(pool: Pool, images: int, splits: int = 2000) -> str:
    """Of the first trial, and of the second less the first: intervals of all trials of a split miss together, so that
    it takes thousands of splits to count them."""
    generator = np.random.default_rng(0)
    sides = [np.stack([one.correct for one in trials[:2]], 1).astype(float) for trials in pool.values()]
    truth = np.mean([side.mean(axis=0) for side in sides], axis=0)
    held = np.zeros(2)
    for _ in range(splits):
        means = []
        for name, side in zip(pool, sides, strict=True):
            starts = np.arange(0, images, block_size(images))
            blocks = np.add.reduceat(side[generator.integers(0, len(side), images)], starts)
            weighted = np.concatenate([np.ones((1, len(starts))), weights(name, "", len(starts), DRAWS)])
            means.append(weighted @ blocks / (weighted @ np.diff([*starts, images]))[:, None])
        mean = np.mean(means, axis=0)
        for index, (values, wanted) in enumerate(((mean[:, 0], truth[0]), (mean @ [-1, 1], truth[1] - truth[0]))):
            rare = index * np.sqrt(2) * 100 / images / len(pool)  # as core.evidence has it
            held[index] += 100 * abs(values[0] - wanted) <= REACH * np.hypot(100 * values[1:].std(), rare)
    alone, paired = 100 * held / splits
    return f"{splits} splits: accuracy of one trial {alone:.1f} %, of a difference {paired:.1f} %"


def read(results: Sequence[Path], calibration: bool) -> Pool:
    """Of each trial in these folders."""
    pool: Pool = {}
    for folder in results:
        document = json.loads((folder / "results.json").read_text())
        for trial in document["trials"]:
            for dataset in trial["datasets"]:
                files = folder / trial["files"] / document["split"]
                for file in sorted(files.glob(f"{dataset}.seed*.predictions.parquet")):
                    pool.setdefault(dataset, []).append(by_image(dataset, file, calibration))
    return pool


def stored(folder: SweepFolder, calibration: bool = False) -> Pool:
    """Of a sweep's trials, in the order in which they ended."""
    split = folder.info().search_split
    ended = [record for record in folder.trials() if record.kind == "trial" and record.state == "complete"]
    pool: Pool = {}
    for record in sorted(ended, key=lambda record: record.finished or 0.0):
        for file in sorted((folder.artifacts(record.name) / split).glob("*.seed*.predictions.parquet")):
            name = file.name.partition(".predictions")[0]
            pool.setdefault(name, []).append(by_image(name, file, calibration))
    return pool


def by_image(name: str, file: Path, calibration: bool) -> BlockStats:
    rows = read_predictions(file)
    given = Confidences.of(rows)
    given = calibrated(given) if calibration else given
    return BlockStats.of(name, list(rows["id"]), given, rows["nll"], rows["brier"], size=1)


def with_mixtures(pool: Pool, count: int) -> Pool:
    generator = np.random.default_rng(0)
    real = len(next(iter(pool.values())))
    for first, second in (generator.choice(real, 2, replace=False) for _ in range(count)):
        for trials in pool.values():
            take = generator.random(len(trials[first])) < 0.5
            trials.append(mixed(trials[first], trials[second], take))
    return pool


def calibrated(given: Confidences) -> Confidences:
    """Confidences through the logistic map that fits them best, by a few damped steps of Newton's."""
    likely = np.clip(given.confidence.astype(np.float64), 1e-3, 1 - 1e-3)
    x = np.stack([np.ones(len(given)), np.log(likely / (1 - likely))], 1)
    beta = np.array([0.0, 0.5])
    for _ in range(40):
        p = 1 / (1 + np.exp(-x @ beta))
        beta += 0.5 * np.linalg.solve((x.T * (p * (1 - p))) @ x + np.eye(2), x.T @ (given.correct - p))
    return Confidences((1 / (1 + np.exp(-x @ beta))).astype(np.float32), given.correct)


def mixed(first: BlockStats, second: BlockStats, take: np.ndarray) -> BlockStats:
    both = first.take(np.arange(len(first)))
    for name in ("correct", "counts", "hits", "residuals", "nll", "brier"):
        getattr(both, name)[~take] = getattr(second, name)[~take]
    return both


def table(
    pool: Pool, truth: Mapping[str, np.ndarray], apart: Mapping[str, list[float]], images: int, splits: int
) -> Iterator[str]:
    generator = np.random.default_rng(images)
    held: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    for number in range(splits):
        by_dataset = {}
        for dataset, trials in pool.items():
            taken = generator.integers(0, len(trials[0]), images)
            chosen = [[one.take(taken).with_block_size(block_size(images))] for one in trials]
            by_dataset[dataset] = drawn(dataset, f"split {number}", chosen, METRICS)
        found = averaged(list(by_dataset.values()))
        for name, hits in covered(found, truth, images).items():
            held.setdefault(name, []).append(hits)
        for dataset, one in by_dataset.items():
            inside = [one["debiased_ece"].interval(t).low <= apart[dataset][t] <= one["debiased_ece"].interval(t).high
                      for t in range(len(truth["ece"]))]  # fmt: skip
            held.setdefault("ece of one dataset", []).append(float(np.mean(inside)))
        for name, score in judged(found, truth).items():
            scores.setdefault(name, []).append(score)
    yield "| the 95 % interval of | holds the truth in % |\n|---|---|"
    yield from (f"| {name} | {100 * np.mean(hits):.1f} ± {100 * error(hits):.1f} |" for name, hits in held.items())
    yield "\n| of the front | mean over splits |\n|---|---|"
    for name, values in scores.items():
        known = [value for value in values if np.isfinite(value)]
        yield f"| {name} | {np.mean(known):.3f} ± {error(known):.3f} |" if known else f"| {name} | none |"


def error(values: Sequence[float]) -> float:
    """The standard error of their mean: what is counted in a split misses together."""
    return float(np.std(values) / np.sqrt(max(len(values) - 1, 1)))


def covered(found: Mapping[str, BootstrapSamples], truth: Mapping[str, np.ndarray], images: int) -> dict[str, float]:
    """The share of trials whose interval holds the truth; for ECE that of the 20 bins."""
    hits: dict[str, list[bool]] = {}
    for trial in range(len(truth["ece"])):
        for metric in ("accuracy", "ece", "smooth_ece", "nll", "brier"):
            interval = found[JUDGED_BY.get(metric, metric)].interval(trial)
            inside = interval.low <= truth[metric][trial] <= interval.high
            given = not isinstance(single(found, metric, trial, images), str)
            hits.setdefault(f"{metric}, mean over datasets", []).append(inside)
            hits.setdefault(f"{metric}, mean over datasets: share that has an interval", []).append(given)
            if given:
                hits.setdefault(f"{metric}, mean over datasets, where there is one", []).append(inside)
            if trial:
                gap = difference(found, metric, trial, 0)
                assert gap is not None
                wanted = truth[metric][trial] - truth[metric][0]
                hits.setdefault(f"difference of {metric}", []).append(gap.low <= wanted <= gap.high)
    return {name: float(np.mean(values)) for name, values in hits.items()}


def beaten(points: np.ndarray) -> np.ndarray:
    return on_front(points[:, :, None]) == 0


def judged(found: Mapping[str, BootstrapSamples], truth: Mapping[str, np.ndarray]) -> dict[str, float]:
    told = {}
    for objectives in FRONTS:
        of_front = supported(found, truth, objectives)
        told.update({f"front by {objectives[1]}: {name}": value for name, value in of_front.items()})
    best, surest = int(found["accuracy"].values.argmax()), int(found["ece"].values.argmin())
    gap = float(found["accuracy"].values[best] - truth["accuracy"][best])
    errors = {name: float(found[name].values[surest] - truth["ece"][surest]) for name in ("ece", "debiased_ece")}
    return {
        **told,
        "accuracy of the most accurate trial: value less truth": gap,
        "the same, corrected for being chosen": gap - optimism(signed(found, OBJECTIVES, GOALS)[0]),
        "ECE of the trial with the least: value less truth": errors["ece"],
        "the same, debiased": errors["debiased_ece"],
    }


def towards(values: Mapping[str, np.ndarray], objectives: Sequence[str]) -> np.ndarray:
    """(objectives, trials), more being better."""
    return np.stack([sign(goal) * values[name] for name, goal in zip(objectives, GOALS, strict=True)])


def supported(
    found: Mapping[str, BootstrapSamples], truth: Mapping[str, np.ndarray], objectives: Sequence[str]
) -> dict[str, float]:
    """What support is worth beside the naive front: who is on it or not by the values alone."""
    members = ~beaten(towards(truth, objectives))
    values = {name: np.round(found[name].values, 9) for name in objectives}  # as many images right are a tie
    naive, support = ~beaten(towards(values, objectives)), front_support(signed(found, objectives, GOALS))
    unlikely, clear = support < UNLIKELY, support >= CLEAR
    return {
        "Brier score of being on it by the values": float(np.mean((naive - 1.0 * members) ** 2)),
        "Brier score of support": float(np.mean((support - members) ** 2)),
        "members among those called unlikely": float(members[unlikely].mean()) if unlikely.any() else np.nan,
        "trials called unlikely": float(unlikely.mean()),
        "members among those called clear": float(members[clear].mean()) if clear.any() else np.nan,
    }


if __name__ == "__main__":
    run(main)
