"""What racing saves and what it loses: `python -m benchmarks.racing [SWEEP ...]`.

SWEEPs are folders of finished sweeps without a race; their trials race in the order in which they came, and the product
decides. First on the images that they saw, in the sweep's own order: what the sweep would have done. Then those images
are the population, whose values are the truth, and each race is run on some of them, drawn with replacement. Beside the
trials stand mixtures of two, each image from one or the other by chance: near ties, as a search makes them. Without a
folder the trials are made up. --rules compares other rules than the product's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.coverage import GOALS, OBJECTIVES, Pool, mixed, stored
from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.metrics import BINS, Confidences
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.search.racing import DRAWS, LEAST_SD, NEAREST, Seen, beaten, expected, rungs, together
from fpp_sweep.space.work import Race
from fpp_sweep.spec.catalogue import sign
from fpp_sweep.statistics.block_stats import CELLS, BlockStats, block_size, metric_value
from fpp_sweep.statistics.old_bootstrap import BootstrapSamples, resampled

POPULATION, DATASETS = 4000, 4  # made-up images
PRETRAINING = 0.3  # of made-up trials, the share of a trial's cost before its first image
Table = dict[str, BootstrapSamples]  # by objective, of all trials after a block


@dataclass(frozen=True, slots=True)
class Rule:
    """Who is stopped: as the product has it, or otherwise."""

    race: Race = field(default_factory=Race)
    confidences: Sequence[float] = ()  # after each block another
    nearest: int = NEAREST
    many: bool = False  # as if these images were a few of many, and the trials were judged on those
    seen: bool = False  # where another is ahead on the images that both have seen

    def stops(self, found: Sequence[BootstrapSamples], known: np.ndarray, left: float, block: int) -> bool:
        """Whether the first of these trials; `known` are the others' values, (trials, objectives)."""
        sure = self.confidences[min(block, len(self.confidences) - 1)] if self.confidences else self.race.confidence
        least = NormalDist().inv_cdf(sure)
        if self.seen:
            pairs = zip(*(row.against(0) for row in found), strict=True)
            gaps, sds = (np.stack(each, axis=1)[1:] for each in pairs)
            ahead = gaps * [sign(goal) for goal in GOALS] > least * np.maximum(sds, LEAST_SD)
            return bool(ahead.all(axis=1).any())
        left = 1.0 if self.many else left
        own = [expected(row, values, left, self.nearest) for row, values in zip(found, known.T, strict=True)]
        return beaten(own, known, GOALS, least) is not None


EVERY = tuple(sixteenth / 16 for sixteenth in range(1, 16))
RULES = {
    "0.95": Rule(Race(confidence=0.95)),
    "0.975": Rule(Race(confidence=0.975)),
    "0.99": Rule(Race(confidence=0.99)),
    "0.995": Rule(Race(confidence=0.995)),
    "0.995 to 0.975": Rule(confidences=(0.995, 0.99, 0.985, 0.975)),
    "0.99, after every sixteenth": Rule(Race(rungs=EVERY)),
    "0.99, from 1/8 to 3/4": Rule(Race(rungs=(1 / 8, 1 / 4, 1 / 2, 3 / 4))),
    "0.99, by the nearest alone": Rule(nearest=1),
    "0.99, by the ten nearest": Rule(nearest=10),
    "0.99, as of many images": Rule(many=True),
    "0.975, as of many images": Rule(Race(confidence=0.975), many=True),
    "0.975, ahead on what both have seen": Rule(Race(confidence=0.975), seen=True),
    "0.95, ahead on what both have seen": Rule(Race(confidence=0.95), seen=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What all trials have shown when it ends."""

    table: Table
    share: float  # of all images, so far
    left: float  # the largest share that a dataset has left

    @classmethod
    def of(cls, split: Mapping[str, Sequence[Shown]], ends: Mapping[str, int]) -> Block:
        sizes = {name: len(trials[0]) for name, trials in split.items()}
        left = 1 - min(end / sizes[name] for name, end in ends.items())
        return cls(after(split, ends), sum(ends.values()) / sum(sizes.values()), left)


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.racing", __doc__ or "")
    options.add_argument("sweeps", type=Path, nargs="*")
    options.add_argument("--images", type=int, nargs="+", default=[200, 1000, 5000], help="of a dataset, in a split")
    options.add_argument("--races", type=int, default=20)
    options.add_argument("--trials", type=int, default=48, help="that are made up")
    options.add_argument("--mixed", type=int, default=24, help="mixtures of two trials")
    options.add_argument("--confidence", type=float, nargs="+", default=[0.975, 0.99])
    options.add_argument("--rules", action="store_true", help="others beside the product's, in place of --confidence")
    args = options.parse_args(argv)
    rules = RULES if args.rules else {f"{sure:g}": Rule(Race(confidence=sure)) for sure in args.confidence}
    for name, pool, pretraining in pools(args.sweeps, args.trials):
        if args.sweeps:
            told(f"{name}, its own images", pool, None, rules, [0], pretraining)
        pool = with_mixtures(pool, args.mixed)
        for images in args.images:
            told(f"{name}, {images} images", pool, images, rules, range(args.races), pretraining)


def told(
    name: str, pool: Pool, images: int | None, rules: Mapping[str, Rule], seeds: Sequence[int], pretraining: float
) -> None:
    truth = values(pool)
    members = len(front(truth.tolist(), GOALS))
    print(f"\n{name}: {len(truth)} trials, {members} on the true front, {pretraining:.0%} of a trial is pretraining")
    shown = {dataset: [Shown.of(one) for one in trials] for dataset, trials in pool.items()}
    found: dict[str, list[Raced]] = {rule: [] for rule in rules}
    for seed in seeds:
        split = shown if images is None else drawn_from(shown, images, seed)
        whole = after(split, {name: len(trials[0]) for name, trials in split.items()})
        points = np.stack([whole[metric].values for metric in OBJECTIVES], axis=1)
        blocks: dict[tuple[int, ...], Block] = {}
        for rule in rules:
            found[rule].append(raced(split, points, truth, rules[rule], blocks))
    print("| rule | saved of adaptation | of all | front lost | true front lost | hypervolume lost | stopped after |")
    print("|---|---|---|---|---|---|---|")
    for rule, each in found.items():
        print(line(rule, each, pretraining))


def line(rule: str, found: Sequence[Raced], pretraining: float) -> str:
    def share(name: str) -> str:
        each = [100 * getattr(one, name) for one in found]
        return f"{np.mean(each):.1f}" + (f" ± {np.std(each) / np.sqrt(len(each) - 1):.1f}" if len(each) > 1 else "")

    of_all = 100 * np.mean([one.saved for one in found]) * (1 - pretraining)
    most = max((block for one in found for block in one.stopped), default=0)
    stops = np.mean([np.bincount(one.stopped, minlength=most + 1) for one in found], 0) / found[0].trials
    cells = [rule, share("saved"), f"{of_all:.0f}", share("lost"), share("true_lost"), share("volume")]
    return "| " + " | ".join([*cells, ", ".join(f"{stop:.2f}" for stop in stops)]) + " |"


# --- a race -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raced:
    """What came of a race, in shares."""

    trials: int
    saved: float  # of adaptation
    lost: float  # of the front by all images of the split
    true_lost: float
    volume: float  # true hypervolume of the trials that are chosen, less than without a race
    stopped: list[int]  # after which block, of each that was


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A trial's predictions of a dataset, image by image, as far as accuracy and ECE go."""

    correct: np.ndarray
    bins: np.ndarray
    gaps: np.ndarray  # correct less confidence

    @classmethod
    def of(cls, one: BlockStats) -> Shown:
        """Of sums whose blocks are images."""
        return cls(one.correct, one.counts.argmax(axis=1), one.residuals.sum(axis=1))

    def __len__(self) -> int:
        return len(self.correct)

    def take(self, images: Any) -> Shown:
        return Shown(self.correct[images], self.bins[images], self.gaps[images])

    def sums(self) -> BlockStats:
        """In the product's blocks; nothing of NLL, Brier score and smooth ECE."""
        size = block_size(len(self))
        block = np.arange(len(self)) // size
        blocks = int(block[-1]) + 1

        def added(width: int, where: np.ndarray, values: np.ndarray) -> np.ndarray:
            return np.bincount(block * width + where, values, blocks * width).reshape(blocks, width)

        none, whole = np.zeros(blocks), np.ones(len(self))
        return BlockStats(
            size=size,
            digests=np.zeros(blocks, np.uint64),
            images=np.bincount(block),
            correct=np.bincount(block, self.correct, blocks).astype(np.int64),
            counts=added(BINS, self.bins, whole).astype(np.int64),
            hits=added(BINS, self.bins, self.correct).astype(np.int64),
            residuals=added(BINS * CELLS, self.bins * CELLS, self.gaps),
            nll=none,
            brier=none,
        )


def drawn_from(shown: Mapping[str, Sequence[Shown]], images: int, seed: int) -> dict[str, list[Shown]]:
    generator = np.random.default_rng([seed, images])
    split = {}
    for name, trials in shown.items():
        taken = generator.integers(0, len(trials[0]), images)
        split[name] = [one.take(taken) for one in trials]
    return split


def raced(
    split: Mapping[str, Sequence[Shown]], points: np.ndarray, truth: np.ndarray, rule: Rule, blocks: dict[Any, Block]
) -> Raced:
    """`points` are the values on all images of the split; `blocks` those at hand, by where they end."""
    facts: list[Any] = [SimpleNamespace(name=name, split="val", size=len(of[0])) for name, of in split.items()]
    ends = [*zip(*rungs(rule.race, facts).values(), strict=True)]
    for end in ends:
        if end not in blocks:
            blocks[end] = Block.of(split, dict(zip(split, end, strict=True)))
    cost, stopped = run_race([blocks[end] for end in ends], points, rule)
    naive, true = (set(front(each.tolist(), GOALS)) for each in (points, truth))
    finished = [trial for trial in range(len(truth)) if trial not in stopped]
    chosen = [finished[index] for index in front(points[finished].tolist(), GOALS)]
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


def run_race(blocks: Sequence[Block], points: np.ndarray, rule: Rule) -> tuple[float, dict[int, int]]:
    """The trials' cost, in trials, and after which block each was stopped that was."""
    cost, stopped = 0.0, dict[int, int]()
    finished: list[int] = []
    for trial in range(len(points)):
        for number, block in enumerate(blocks):
            if len(finished) < rule.race.reserve:
                continue
            if rule.stops(among(block.table, [trial, *finished]), points[finished], block.left, number):
                stopped[trial] = number
                cost += block.share
                break
        else:
            cost += 1
            finished.append(trial)
    return cost, stopped


def among(block: Table, trials: Sequence[int]) -> list[BootstrapSamples]:
    return [BootstrapSamples(row.values[trials], row.draws[trials], row.image) for row in block.values()]


def after(split: Mapping[str, Sequence[Shown]], ends: Mapping[str, int]) -> Table:
    """What all trials have shown when their blocks end there."""
    first = {name: [one.take(slice(0, ends[name])).sums() for one in trials] for name, trials in split.items()}
    images = tuple((name, b"", end) for name, end in ends.items())
    trials = range(len(next(iter(first.values()))))
    seen = [Seen(images, {name: resampled(name, "val", [first[name][t]], OBJECTIVES, DRAWS) for name in first})
            for t in trials]  # fmt: skip
    return together(seen, OBJECTIVES)


def values(pool: Pool) -> np.ndarray:
    """(trials, objectives)"""
    rows = [[[metric_value(metric, one) for metric in OBJECTIVES] for one in trials] for trials in pool.values()]
    return np.mean(rows, axis=0)


# --- trials -----------------------------------------------------------------------------------------


def pools(sweeps: Sequence[Path], trials: int) -> Iterator[tuple[str, Pool, float]]:
    """With the share of a trial that is pretraining."""
    if not sweeps:
        yield "made-up trials", made_up(trials), PRETRAINING
    for path in sweeps:
        folder = SweepFolder.open(path)
        yield path.name, stored(folder), pretraining_of(folder.trials(), folder.info().search_split)


def pretraining_of(records: Sequence[TrialRecord], split: str) -> float:
    """Its share of the seconds of trials whose image features were at hand."""
    spent = {"pretrain": 0.0, "adapt": 0.0}
    for record in records:
        for stages in record.results[split].costs.values() if split in record.results else ():
            for stage in spent:
                spent[stage] += stages.get(stage, 0.0)
    return spent["pretrain"] / (sum(spent.values()) or 1.0)


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
            pool.setdefault(f"set{number}", []).append(BlockStats.of(f"set{number}", ids, given, none, none, size=1))
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
