"""Trials that another sweep saves, by its front or by its response surface: `python -m benchmarks.warm_start`.

Searches run on surrogates of the clouds of embedded datasets (benchmarks/clouds.py): Gaussian processes on the means
over seeds, with the noise of the nearest trials' seeds. A sweep on one dataset lends its front to a search on another,
which runs it first. Or it lends its surface, a Gaussian process on its trials: random search then stays in the half of
the space with the higher predicted accuracy. The front is chosen by observed values and measured by true ones;
hypervolume is in % of that of random points.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.clouds import Cloud, read_clouds
from benchmarks.harness import table
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.search.samplers import build_sampler
from fpp_sweep.search.study import DIRECTIONS
from fpp_sweep.space.work import Search
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.statistics.block_stats import Numbers

GOALS: tuple[Goal, ...] = ("max", "min")
MISLEADING_GOALS: tuple[Goal, ...] = ("min", "max")
ARMS = ("cold", "front first", "misleading front first")
SURFACE_ARMS = ("surface", "misleading surface")  # for random search only
NEIGHBOURS = 5  # trials whose seeds give the noise at a point
SETTINGS = 4
N_RANDOM = 2000


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """A dataset's response over the unit cube."""

    points: Numbers  # points of the cloud in the unit cube
    deviations: Numbers  # standard deviations over seeds by trial and metric
    models: tuple[GaussianProcessRegressor, ...]

    @classmethod
    def of(cls, cloud: Cloud) -> Surrogate:
        logs = np.log(cloud.points)
        points = (logs - logs.min(axis=0)) / (logs.max(axis=0) - logs.min(axis=0))
        means = cloud.values.mean(axis=1)
        models = []
        for metric in range(means.shape[1]):
            models.append(fit_process(points, means[:, metric]))
        return cls(points, cloud.values.std(axis=1, ddof=1), tuple(models))

    def true(self, points: Numbers) -> Numbers:
        return np.stack([model.predict(points) for model in self.models], axis=1)

    def observed(self, point: Numbers, rng: np.random.Generator) -> Numbers:
        """Return the values of one seed."""
        distances = ((self.points - point) ** 2).sum(axis=1)
        nearest = np.argsort(distances)[:NEIGHBOURS]
        deviation = np.sqrt((self.deviations[nearest] ** 2).mean(axis=0))
        noisy: Numbers = self.true(point[None])[0] + deviation * rng.standard_normal(len(deviation))
        return noisy


def fit_process(points: Numbers, values: Numbers) -> GaussianProcessRegressor:
    kernel = ConstantKernel() * Matern([0.5] * SETTINGS, (0.1, 10), nu=2.5) + WhiteKernel(0.1, (1e-3, 1))
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of length scales at their bounds
        return model.fit(points, values)


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.warm_start", __doc__ or "")
    options.add_argument("--seeds", type=int, default=20, metavar="N")
    options.add_argument("--trials", type=int, default=48, metavar="N")
    options.add_argument("--samplers", nargs="+", default=["tpe", "random"])
    args = options.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    surrogates = {name: Surrogate.of(cloud) for name, cloud in read_clouds().items()}
    rows = []
    for sampler, target in itertools.product(args.samplers, surrogates):
        sources = [name for name in surrogates if name != target]
        arms = [*ARMS, *SURFACE_ARMS] if sampler == "random" else ARMS
        curves: dict[str, list[Numbers]] = {arm: [] for arm in arms}
        for seed in range(args.seeds):
            source = surrogates[sources[seed % len(sources)]]
            for arm in arms:
                curves[arm].append(search(surrogates[target], source, arm, sampler, args.trials, seed))
        for row in compare_arms(sampler, target, curves):
            rows.append(row)
            print(row, flush=True)
    print(table(rows))


def search(target: Surrogate, source: Surrogate, arm: str, sampler: str, trials: int, seed: int) -> Numbers:
    """Return the hypervolume after each trial, in % of that of random points."""
    first_points: list[Numbers] = []
    if arm == "front first":
        first_points = front_points(source, sampler, trials // 2, seed, GOALS)
    elif arm == "misleading front first":
        first_points = front_points(source, sampler, trials // 2, seed, MISLEADING_GOALS)
    elif arm == "surface":
        first_points = better_half(source, seed, trials, sign=1)
    elif arm == "misleading surface":
        first_points = better_half(source, seed, trials, sign=-1)
    points, observed = run_search(target, sampler, trials, seed, first_points, GOALS)
    everywhere = target.true(np.random.default_rng(0).random((N_RANDOM, SETTINGS)))
    corner = [float(np.quantile(everywhere[:, 0], 0.25)), float(np.quantile(everywhere[:, 1], 0.75))]
    best = hypervolume(everywhere.tolist(), GOALS, corner)
    true = target.true(points)
    volumes = []
    for count in range(1, trials + 1):
        chosen = front(observed[:count].tolist(), GOALS)
        volumes.append(100 * hypervolume(true[chosen].tolist(), GOALS, corner) / best)
    return np.array(volumes)


def front_points(source: Surrogate, sampler: str, trials: int, seed: int, goals: tuple[Goal, ...]) -> list[Numbers]:
    """Return the points of the front of a search on the source."""
    points, observed = run_search(source, sampler, trials, seed + 1000, [], goals)
    return [points[index] for index in front(observed.tolist(), goals)]


def better_half(source: Surrogate, seed: int, count: int, *, sign: int) -> list[Numbers]:
    """Return random points where the source's surface is above its median, or below it for sign -1."""
    rng = np.random.default_rng(seed + 2000)
    points = rng.random((count // 2, SETTINGS))
    accuracies = [source.observed(point, rng)[0] for point in points]
    surface = fit_process(points, np.array(accuracies))
    candidates = rng.random((4 * count, SETTINGS))
    predicted = sign * surface.predict(candidates)
    return list(candidates[predicted >= np.median(predicted)][:count])


def run_search(
    surrogate: Surrogate, sampler: str, trials: int, seed: int, first: Sequence[Numbers], goals: Sequence[Goal]
) -> tuple[Numbers, Numbers]:
    """Run a search; return its points and their observed values."""
    rng = np.random.default_rng(seed)
    directions = [DIRECTIONS[goal] for goal in goals]
    search = Search(sampler=sampler, seed=seed)
    study = optuna.create_study(directions=directions, sampler=build_sampler(search, "benchmark"))
    for point in first:
        study.enqueue_trial({str(index): value for index, value in enumerate(point)})
    points, observed = [], []
    for _ in range(trials):
        trial = study.ask()
        point = np.array([trial.suggest_float(str(index), 0, 1) for index in range(SETTINGS)])
        values = surrogate.observed(point, rng)
        study.tell(trial, values.tolist())
        points.append(point)
        observed.append(values)
    return np.array(points), np.array(observed)


def compare_arms(sampler: str, target: str, curves: dict[str, list[Numbers]]) -> list[dict[str, object]]:
    """Return a row for each arm: hypervolume, and trials until 95 % of the cold searches' final hypervolume."""
    goal = 0.95 * np.mean([curve[-1] for curve in curves["cold"]])
    cold = np.array([first_reaching(curve, goal) for curve in curves["cold"]])
    rows = []
    for arm, found in curves.items():
        counts = np.array([first_reaching(curve, goal) for curve in found])
        differences = counts - cold
        row: dict[str, object] = {"sampler": sampler, "dataset": target, "arm": arm}
        n_trials = len(found[0])
        for count in sorted({min(count, n_trials) for count in (8, 16, 32, n_trials)}):
            row[f"after {count}"] = with_error(np.array([curve[count - 1] for curve in found]))
        row["trials until 95 %"] = with_error(counts)
        row["paired difference"] = with_error(differences)
        rows.append(row)
    return rows


def first_reaching(curve: Numbers, goal: float) -> float:
    """Return the number of trials after which the hypervolume reaches a goal; all trials if it never does."""
    reached = np.flatnonzero(curve >= goal)
    return float(reached[0] + 1 if len(reached) else len(curve))


def with_error(values: Numbers) -> str:
    if len(values) < 2:
        return f"{values.mean():.1f}"
    return f"{values.mean():.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    run(main)
