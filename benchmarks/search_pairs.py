"""Samplers on real trials of the embedded model, in pairs of equal seeds: `python -m benchmarks.search_pairs`.

A search runs trials of perturb.yaml on validation images with one seed. Its front runs again with fresh seeds; the
result is the hypervolume of the means over these seeds beyond a fixed corner, in squared points. The searches of a pair
have the same seed, and all searches share finished tasks. A second table has the number of trials after which each
search reached SHARE of the final hypervolume of the second sampler's search with the same seed, by observed values.
`--out` stores a line for each search; a second run continues where the first ended.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.clouds import METRICS, SPLIT
from benchmarks.harness import append_line, read_lines
from benchmarks.search import Case, sampler_of
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.pareto import front, hypervolume, hypervolume_over_time
from fpp_sweep.search.study import suggest
from fpp_sweep.space.reading import load_space
from fpp_sweep.space.shipped import find_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec

CORNER = (60.0, 20.0)  # accuracy and smooth ECE; a trial that is worse in one of them adds no volume
GOALS: tuple[Goal, Goal] = ("max", "min")
FIRST_FRESH_SEED = 1000
SHARE = 0.95


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = load_space(find_space("perturb"), [f"base.views.count={args.views}"])
    with tempfile.TemporaryDirectory() as cache:
        trials = Trials(args, space, cache)
        results = finished(args.out)
        for seed in range(args.pairs):
            for sampler in args.samplers:
                if (sampler, seed) not in results:
                    results[sampler, seed] = search(args, space, trials, sampler, seed)
                    row = {"sampler": sampler, "seed": seed, "result": results[sampler, seed]}
                    append_line(args.out, row)
    print_table(args, results)
    print_trials_needed(args, results)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.search_pairs", __doc__ or "")
    add = options.add_argument
    add("--samplers", nargs=2, default=["gp", "tpe"], metavar="NAME")
    add("--pairs", type=int, default=12, metavar="N")
    add("--trials", type=int, default=24, metavar="N")
    add("--fresh", type=int, default=5, metavar="N", help="number of fresh seeds of the chosen front")
    add("--datasets", nargs="+", default=["scenes", "digits"], metavar="NAME")
    add("--images", type=int, default=200, metavar="N")
    add("--views", type=int, default=16, metavar="N")
    add("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    return options.parse_args(argv)


class Trials:
    """A runner of trials in this process that keeps finished tasks in memory."""

    def __init__(self, args: argparse.Namespace, space: Space, cache: str) -> None:
        # imported here because they load torch, which --help does not need
        from fpp_sweep.trial.store import MemoryStore
        from fpp_sweep.trial.worker import Worker

        self._space = space
        self._worker = Worker(WorkerSpec(model="tiny", device="cpu", threads=1, limit=args.images, cache=cache))
        self._datasets = tuple(self._worker.describe(args.datasets, SPLIT))
        self._store = MemoryStore()
        self.seconds: list[float] = []  # by trial; tasks of earlier trials cost no time

    def run(self, point: Mapping[str, Any], seed: int) -> list[float]:
        from fpp_sweep.trial.local_runner import LocalExecutor  # loads torch too
        from fpp_sweep.trial.plan import Plan
        from fpp_sweep.trial.trial import run_trial

        # seeds change the pretraining only: all seeds use the views of seed 0, as in a sweep's final stage
        plan = Plan(datasets={SPLIT: self._datasets}, seeds=(seed,), view_seeds={seed: 0})
        keys = TaskKeys(self._worker.model_info(), plan.datasets_by_key())
        executor = LocalExecutor(self._worker, keys, self._store)
        result, _ = run_trial(plan, self._space.resolve(point), SPLIT, executor)
        self.seconds.append(result.worker_seconds)
        return [result.average[metric] for metric in METRICS]


def search(args: argparse.Namespace, space: Space, trials: Trials, sampler: str, seed: int) -> dict[str, Any]:
    """Run a search, and its chosen front with fresh seeds."""
    case = Case("real", seed, sampler, 1.0, 1)
    study = optuna.create_study(directions=["maximize", "minimize"])
    for _, point in space.first_points():
        study.enqueue_trial(point)
    points = []
    values = []
    for _ in range(args.trials):
        trial = study.ask()
        study.sampler = sampler_of(case, str(trial.number))
        _ = trial.relative_params
        point = {}
        for param in space.params:
            study.sampler = sampler_of(case, f"{trial.number}/{param.key}")
            point[param.key] = suggest(trial, param)
        points.append(point)
        values.append(trials.run(point, seed))
        study.tell(trial, values[-1])
    chosen = list(front(values, GOALS))
    seconds = trials.seconds[-args.trials :]
    fresh = []
    for index in chosen:
        by_seed = [trials.run(points[index], FIRST_FRESH_SEED + number) for number in range(args.fresh)]
        fresh.append(np.mean(by_seed, axis=0).tolist())
    return {
        "seen": hypervolume([values[index] for index in chosen], GOALS, CORNER),
        "fresh": hypervolume(fresh, GOALS, CORNER),
        "chosen": len(chosen),
        "values": values,
        "seconds": max(seconds),  # the time of a trial without cached tasks
        "accuracy": max(value[0] for value in fresh),
        "smooth_ece": min(value[1] for value in fresh),
    }


def finished(file: Path) -> dict[tuple[str, int], dict[str, Any]]:
    results = {}
    for row in read_lines(file):
        results[row["sampler"], row["seed"]] = row["result"]
    return results


def print_table(args: argparse.Namespace, results: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """Print a row for each pair, and the mean difference with its standard error."""
    first, second = args.samplers
    print(f"| seed | {first} | {second} | difference |\n|---|---|---|---|")
    differences = []
    for seed in range(args.pairs):
        ours, theirs = results[first, seed]["fresh"], results[second, seed]["fresh"]
        differences.append(ours - theirs)
        print(f"| {seed} | {ours:.1f} | {theirs:.1f} | {ours - theirs:+.1f} |")
    mean = mean_with_error(differences)
    print(f"\n{first} minus {second}: {mean} squared points, {len(differences)} pairs")


def mean_with_error(differences: Sequence[float]) -> str:
    """Return the mean with its sign, and its standard error if there are several differences."""
    mean = f"{np.mean(differences):+.1f}"
    if len(differences) < 2:
        return mean
    error = np.std(differences, ddof=1) / math.sqrt(len(differences))
    return f"{mean} +- {error:.1f}"


def print_trials_needed(args: argparse.Namespace, results: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """Print by pair the trials until each search reached SHARE of the second search's final hypervolume."""
    first, second = args.samplers
    print(f"\n| seed | {first}, trials | {second}, trials |\n|---|---|---|")
    differences = []
    for seed in range(args.pairs):
        goal = SHARE * results[second, seed]["seen"]
        ours, theirs = (trials_until(goal, results[sampler, seed]["values"]) for sampler in (first, second))
        differences.append(ours - theirs)
        print(f"| {seed} | {ours} | {theirs} |")
    seconds = np.median([result["seconds"] for result in results.values()])
    mean = mean_with_error(differences)
    print(f"\n{first} minus {second}: {mean} trials, each of {seconds:.1f} device seconds")


def trials_until(goal: float, values: Sequence[Sequence[float]]) -> int:
    """Return the number of trials until the hypervolume reaches a goal; one more than all if it never does."""
    volumes = hypervolume_over_time(values, GOALS, CORNER)
    for count, volume in enumerate(volumes, start=1):
        if volume >= goal:
            return count
    return len(values) + 1


if __name__ == "__main__":
    run(main)
