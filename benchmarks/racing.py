"""Savings and losses of racing: `python -m benchmarks.racing SWEEP [SWEEP ...]`.

SWEEPs are folders of finished sweeps without a race. Their trials race in their original order, by the rules of the
package. The first race uses the sweep's own images and shows its decisions for that sweep. Then the images become a
population with known values, and races run on images that are drawn from it with replacement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from benchmarks.pools import OBJECTIVES, Pool, draw_images, pretraining_share, read_pool, values_of
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.search.racing import RungMetrics, extrapolate_final, find_dominating, rung_ends
from fpp_sweep.space.work import Race
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.specs import DatasetInfo
from fpp_sweep.statistics.block_stats import block_size

GOALS: tuple[Goal, ...] = ("max", "min")
DEFAULT = Race()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one race, as shares."""

    saved: float  # saved share of adaptation
    front_lost: float  # stopped share of the front by all images of the split
    volume_lost: float  # lost share of the true hypervolume of the front


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.racing", __doc__ or "")
    options.add_argument("sweeps", type=Path, nargs="+")
    options.add_argument(
        "--images", type=int, nargs="*", default=[200, 1000, 5000], help="images of a dataset in a split"
    )
    options.add_argument("--races", type=int, default=20)
    options.add_argument("--confidence", type=float, nargs="+", default=[0.975, 0.99])
    args = options.parse_args(argv)
    print(
        "| sweep | images of a dataset | confidence | saved of adaptation, % | of all | front lost | hypervolume lost |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in args.sweeps:
        folder = SweepFolder.open(path)
        pool = read_pool(folder)
        pretraining = pretraining_share(folder)
        for images in [None, *args.images]:
            races = 1 if images is None else args.races
            for confidence in args.confidence:
                outcomes = []
                for seed in range(races):
                    outcomes.append(run_race(pool, images, confidence, seed))
                print_row(path.name, images, confidence, outcomes, pretraining)


def print_row(
    name: str, images: int | None, confidence: float, outcomes: Sequence[Outcome], pretraining: float
) -> None:
    cells = [name, str(images or "own"), f"{confidence:g}"]
    saved = [100 * outcome.saved for outcome in outcomes]
    cells.append(with_error(saved))
    cells.append(f"{np.mean(saved) * (1 - pretraining):.0f}")
    cells.append(with_error([100 * outcome.front_lost for outcome in outcomes]))
    cells.append(with_error([100 * outcome.volume_lost for outcome in outcomes]))
    print(f"| {' | '.join(cells)} |", flush=True)


def with_error(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.1f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.1f}"


def run_race(pool: Pool, images: int | None, confidence: float, seed: int) -> Outcome:
    """Race the trials of a pool on `images` drawn images; None means all images, each once."""
    true_values = values_of(pool)
    split = pool if images is None else draw_images(pool, images, seed)
    finals = values_of(split)
    sizes = {dataset: len(trials[0]) for dataset, trials in split.items()}
    stopped = race(split, finals, rungs_of(sizes), Race(confidence=confidence))
    total = sum(sizes.values())
    saved = sum(1 - seen / total for seen in stopped.values()) / len(finals)
    members = front(finals.tolist(), GOALS)
    kept = [index for index in range(len(finals)) if index not in stopped]
    chosen = [kept[index] for index in front(finals[kept].tolist(), GOALS)]
    corner = [float(np.quantile(true_values[:, 0], 0.25)), float(np.quantile(true_values[:, 1], 0.75))]
    before = hypervolume(true_values[members].tolist(), GOALS, corner)
    after = hypervolume(true_values[chosen].tolist(), GOALS, corner)
    lost = sum(index in stopped for index in members) / len(members)
    return Outcome(saved, lost, 1 - after / before if before else 0.0)


def rungs_of(sizes: Mapping[str, int], rules: Race = DEFAULT) -> list[dict[str, int]]:
    """Return the end of each rung by dataset."""
    infos = []
    for name, size in sizes.items():
        infos.append(DatasetInfo(name=name, split="", group="", classes=("a",), size=size, digest="", images=""))
    ends = rung_ends(rules, infos)
    count = len(next(iter(ends.values())))
    return [{name: ends[name, ""][rung] for name in sizes} for rung in range(count)]


def race(split: Pool, finals: np.ndarray, rungs: Sequence[Mapping[str, int]], rules: Race) -> dict[int, int]:
    """Return the stopped trials with the number of images that each had seen."""
    min_deviations = NormalDist().inv_cdf(rules.confidence)
    sizes = {dataset: len(trials[0]) for dataset, trials in split.items()}
    at_rung: dict[int, list[RungMetrics]] = {}
    finished: list[int] = []
    stopped: dict[int, int] = {}
    for trial in range(len(finals)):
        at_rung[trial] = [metrics_at(split, trial, rung) for rung in rungs]
        for number, rung in enumerate(rungs):
            if len(finished) < rules.reserve:
                break
            left = 1 - min(end / sizes[name] for name, end in rung.items())
            predictions = []
            for column, metric in enumerate(OBJECTIVES):
                own = at_rung[trial][number].metrics[metric]
                rivals = [at_rung[rival][number].metrics[metric] for rival in finished]
                predictions.append(extrapolate_final(own, rivals, finals[finished, column], left))
            if find_dominating(predictions, finals[finished], GOALS, min_deviations) is not None:
                stopped[trial] = sum(rung.values())
                break
        if trial not in stopped:
            finished.append(trial)
    return stopped


def metrics_at(split: Pool, trial: int, rung: Mapping[str, int]) -> RungMetrics:
    table = {}
    for dataset, trials in split.items():
        stats = trials[trial]
        size = block_size(len(stats))
        table[dataset, 0] = stats.take(slice(0, rung[dataset])).with_block_size(size)
    return RungMetrics.of(table, OBJECTIVES)


if __name__ == "__main__":
    run(main)
