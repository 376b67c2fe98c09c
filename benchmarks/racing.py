"""What racing saves and what it loses: `python -m benchmarks.racing [SWEEP ...]`.

SWEEPs are folders of finished sweeps without a race; their trials race in the order in which they came, and the product
decides. The images of a sweep's split are the population, whose values are the truth; each race is run on some of them,
drawn with replacement. Beside the trials stand mixtures of two, each image from one or the other by chance: near ties,
as a search makes them. Without a folder the trials are made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.coverage import GOALS, OBJECTIVES, Pool, mixed
from fpp_sweep.cli import parser, run
from fpp_sweep.core.evidence import resampled
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.core.sums import Sums, block_size, value_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.search.racing import DRAWS, Seen, beaten, margin, rungs, together
from fpp_sweep.space.work import Race
from fpp_sweep.trial.artifacts import read_predictions

POPULATION, DATASETS = 4000, 4  # made-up images


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.racing", __doc__ or "")
    options.add_argument("sweeps", type=Path, nargs="*")
    options.add_argument("--images", type=int, nargs="+", default=[200, 1000, 5000], help="of a dataset, in a split")
    options.add_argument("--races", type=int, default=20)
    options.add_argument("--trials", type=int, default=48, help="that are made up")
    options.add_argument("--mixed", type=int, default=24, help="mixtures of two trials")
    options.add_argument("--confidence", type=float, nargs="+", default=[0.975])
    options.add_argument(
        "--pretraining", type=float, default=0.3, help="share of a trial's cost before its first image"
    )
    args = options.parse_args(argv)
    for name, pool in pools(args.sweeps, args.trials, args.mixed):
        truth = values(pool)
        print(f"{name}: {len(truth)} trials, {len(front(truth.tolist(), GOALS))} on the true front")
        for images in args.images:
            for confidence in args.confidence:
                race = Race(confidence=confidence)
                found = [raced(pool, truth, images, race, seed) for seed in range(args.races)]
                print(line(found, images, confidence, args.pretraining))


def line(found: Sequence[Raced], images: int, confidence: float, pretraining: float) -> str:
    def share(name: str) -> str:
        each = [100 * getattr(one, name) for one in found]
        return f"{np.mean(each):.1f} ± {np.std(each):.1f} %"

    of_all = 100 * np.mean([one.saved for one in found]) * (1 - pretraining)
    stops = np.mean([np.bincount(one.stopped, minlength=4) for one in found], 0) / found[0].trials
    return (
        f"{images} images, {confidence:g}: saved {share('saved')} of adaptation ({of_all:.0f} % of all), lost "
        f"{share('lost')} of the front, {share('true_lost')} of the true one, {share('volume')} of hypervolume; "
        f"stopped after each block: {', '.join(f'{stop:.2f}' for stop in stops)}"
    )


@dataclass(frozen=True)
class Raced:
    """What came of a race, in shares."""

    trials: int
    saved: float  # of adaptation
    lost: float  # of the front by all images of the split
    true_lost: float
    volume: float  # true hypervolume of the trials that are chosen, less than without a race
    stopped: list[int]  # after which block, of each that was


def raced(pool: Pool, truth: np.ndarray, images: int, race: Race, seed: int) -> Raced:
    generator = np.random.default_rng([seed, images])
    split: Pool = {}
    for name, trials in pool.items():
        taken = generator.integers(0, len(trials[0]), images)
        split[name] = [one.take(taken) for one in trials]
    facts: list[Any] = [SimpleNamespace(name=name, split="val", size=images) for name in pool]
    ends = [*zip(*rungs(race, facts).values(), strict=True)]
    seen = [[part(split, trial, end) for trial in range(len(truth))] for end in ends]
    cost, stopped = run_race(seen, [end[0] / images for end in ends], race)
    whole = values(split)
    naive, true = (set(front(points.tolist(), GOALS)) for points in (whole, truth))
    finished = [trial for trial in range(len(truth)) if trial not in stopped]
    chosen = [finished[index] for index in front(whole[finished].tolist(), GOALS)]
    corner = [truth[:, 0].min(), truth[:, 1].max()]
    volumes = [hypervolume(truth[[*each]].tolist(), GOALS, corner) for each in (naive, chosen)]
    return Raced(
        trials=len(truth),
        saved=1 - cost / len(truth),
        lost=len(naive & set(stopped)) / len(naive),
        true_lost=len(true & set(stopped)) / len(true),
        volume=1 - volumes[1] / volumes[0],
        stopped=[*stopped.values()],
    )


def run_race(seen: Sequence[Sequence[Seen]], shares: Sequence[float], race: Race) -> tuple[float, dict[int, int]]:
    """The trials' cost, in trials, and after which block each was stopped that was."""
    cost, stopped = 0.0, dict[int, int]()
    there: list[list[Seen]] = [[] for _ in shares]  # of those that have ended, after each block
    least = margin(race, len(OBJECTIVES))
    for trial in range(len(seen[0])):
        for block, share in enumerate(shares):
            found = together([seen[block][trial], *there[block]], OBJECTIVES)
            finished = trial - len(stopped)
            if finished >= race.reserve and beaten([*found.values()], GOALS, least):
                stopped[trial] = block
                cost += share
                break
        else:
            cost += 1
        for block in range(stopped.get(trial, len(shares) - 1) + 1):
            there[block].append(seen[block][trial])
    return cost, stopped


def part(split: Pool, trial: int, ends: Sequence[int]) -> Seen:
    """What a trial has seen when its blocks end there."""
    first = {
        name: trials[trial].take(slice(0, end)).by(block_size(end))
        for (name, trials), end in zip(split.items(), ends, strict=True)
    }
    images = tuple((name, one.digests.tobytes(), one.total) for name, one in first.items())
    return Seen(images, {name: resampled(name, "val", [one], OBJECTIVES, DRAWS) for name, one in first.items()})


def values(pool: Pool) -> np.ndarray:
    """(trials, objectives)"""
    rows = [[[value_of(metric, one) for metric in OBJECTIVES] for one in trials] for trials in pool.values()]
    return np.mean(rows, axis=0)


def pools(sweeps: Sequence[Path], trials: int, mixtures: int) -> Iterator[tuple[str, Pool]]:
    if not sweeps:
        yield "made-up trials", with_mixtures(made_up(trials), mixtures)
    for path in sweeps:
        yield path.name, with_mixtures(stored(SweepFolder.open(path)), mixtures)


def stored(folder: SweepFolder) -> Pool:
    split = folder.info().search_split
    ended = [record for record in folder.trials() if record.kind == "trial" and record.state == "complete"]
    pool: Pool = {}
    for record in sorted(ended, key=lambda record: record.finished or 0.0):
        for file in sorted((folder.artifacts(record.name) / split).glob("*.seed*.predictions.parquet")):
            name = file.name.partition(".predictions")[0]
            rows = read_predictions(file)
            one = Sums.of(name, list(rows["id"]), Confidences.of(rows), rows["nll"], rows["brier"], size=1)
            pool.setdefault(name, []).append(one)
    return pool


def made_up(trials: int) -> Pool:
    """Trials that differ in how good and how sure they are; the later ones lie closer to the best."""
    generator = np.random.default_rng(0)
    pool: Pool = {}
    width = np.where(np.arange(trials) < trials // 2, 1.0, 0.3)
    surer = 0.25 + 0.4 * width * generator.normal(size=trials)
    better = 0.2 * surer - 0.4 * width * np.abs(generator.normal(size=trials))  # who is surer may be better
    for number in range(DATASETS):
        hard, luck = generator.normal(size=POPULATION), generator.random(POPULATION)
        ids = [f"image {index}" for index in range(POPULATION)]
        for trial in range(trials):
            logit = 1.0 + better[trial] - 1.5 * hard + 0.3 * generator.normal(size=POPULATION)
            likely = 1 / (1 + np.exp(-logit))
            own = np.where(generator.random(POPULATION) < 0.1, generator.random(POPULATION), luck)
            confidence = 1 / (1 + np.exp(-np.abs(logit) * np.exp(surer[trial])))
            given = Confidences(confidence.astype(np.float32), own < likely)
            none = np.zeros(POPULATION)
            pool.setdefault(f"set{number}", []).append(Sums.of(f"set{number}", ids, given, none, none, size=1))
    return pool


def with_mixtures(pool: Pool, count: int) -> Pool:
    """Of the better half by the sum of ranks."""
    generator = np.random.default_rng(1)
    found = values(pool) * [-1, 1]
    good = np.argsort(found.argsort(0).argsort(0).sum(1))[: max(2, len(found) // 2)]
    for first, second in (generator.choice(good, 2, replace=False) for _ in range(count)):
        for trials in pool.values():
            trials.append(mixed(trials[first], trials[second], generator.random(len(trials[first])) < 0.5))
    return pool


if __name__ == "__main__":
    run(main)
