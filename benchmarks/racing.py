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
HEADS = (
    "sweep",
    "images of a dataset",
    "confidence",
    "saved of adaptation, %",
    "of all",
    "front lost",
    "hypervolume lost",
)


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
    print(f"| {' | '.join(HEADS)} |")
    print("|---" * len(HEADS) + "|")
    for path in args.sweeps:
        folder = SweepFolder.open(path)
        pool = read_pool(folder)
        pretraining = pretraining_share(folder)
        for confidence in args.confidence:
            print_row(path.name, "own", confidence, [run_race(pool, pool, confidence)], pretraining)
        for images in args.images:
            for confidence in args.confidence:
                outcomes = []
                for seed in range(args.races):
                    outcomes.append(run_race(pool, draw_images(pool, images, seed), confidence))
                print_row(path.name, str(images), confidence, outcomes, pretraining)


def print_row(name: str, images: str, confidence: float, outcomes: Sequence[Outcome], pretraining: float) -> None:
    cells = [name, images, f"{confidence:g}"]
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


def run_race(population: Pool, split: Pool, confidence: float) -> Outcome:
    """Race the trials of a population on the images of a split; true values are those on the population."""
    true_values = values_of(population)
    finals = values_of(split)
    sizes = {dataset: len(trials[0]) for dataset, trials in split.items()}
    images_seen = race(split, finals, rungs_of(sizes), Race(confidence=confidence))  # by each stopped trial
    total = sum(sizes.values())
    saved = sum(1 - seen / total for seen in images_seen.values()) / len(finals)
    front_of_all = front(finals.tolist(), GOALS)
    finished = [trial for trial in range(len(finals)) if trial not in images_seen]
    front_of_finished = [finished[index] for index in front(finals[finished].tolist(), GOALS)]
    corner = [float(np.quantile(true_values[:, 0], 0.25)), float(np.quantile(true_values[:, 1], 0.75))]
    volume = hypervolume(true_values[front_of_all].tolist(), GOALS, corner)
    volume_of_finished = hypervolume(true_values[front_of_finished].tolist(), GOALS, corner)
    volume_lost = 0.0
    if volume:
        volume_lost = 1 - volume_of_finished / volume
    front_lost = sum(trial in images_seen for trial in front_of_all) / len(front_of_all)
    return Outcome(saved=saved, front_lost=front_lost, volume_lost=volume_lost)


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
