"""Searches on surrogates of real trials: `python -m benchmarks.search`.

A search asks a sampler for settings of `perturb.yaml` (the published points come first), adds noise to the true values
of a surrogate, and reports them. A surrogate is a random forest or a Gaussian process, fitted to the mean of the first
sweep's datasets in benchmarks.clouds; the noise is the measured one of seeds.

A variant is a sampler with additions, such as `gp+floor+gate`: `floor` and `gate` tell the sampler of these
constraints, `corner` cuts values off at the corner, and `narrow` searches gamma1 <= 2 and gamma2 <= 10. A gate ends
trials that truly lose 8 points or more, after a tenth of their cost. The corner is zero-shot with 5 points less
accuracy and 5 points more ECE. A search is worth the hypervolume of the true values of its chosen front beyond the
corner, in % of that of 4,000 random points.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.clouds import Cloud, read_clouds
from benchmarks.harness import append_line, table
from fpp_sweep.cli import parser, run
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.search.samplers import build_sampler
from fpp_sweep.search.study import suggest
from fpp_sweep.space.reading import load_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import DEFAULT_FLOOR, EMBEDDED_GATE, Search
from fpp_sweep.spec.catalogue import Goal

KINDS = ("forest", "process")
DATASETS = ("letters", "colours", "textures")  # of the first sweep
GOALS: tuple[Goal, ...] = ("max", "min")  # accuracy and smooth ECE
ZERO_SHOT = np.array([60.83, 8.14])  # on 200 validation images of each dataset (docs/demo/sweep.txt)
CORNER = ZERO_SHOT + np.array([-DEFAULT_FLOOR, 5.0])
POINTS_PER_DRIFT = 20.0  # lost points of accuracy that make a drift of 1: the gate of 0.4 is at 8 points
COST_OF_COLLAPSED = 0.1  # of a trial
REFERENCE_POINTS = 4000
NEAREST_TRIALS = 5  # number of trials of a cloud whose differences between seeds are the noise at a point
NARROW = ("params.fpp.gamma1.high=2", "params.fpp.gamma2.high=10")
VARIANTS = ("random", "gp", "gp+floor", "gp+gate", "gp+floor+gate", "gp+floor+gate+corner", "gp+floor+gate+narrow")


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.search", __doc__ or "")
    options.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="NAME")
    options.add_argument("--worlds", type=int, default=20, metavar="N", help="searches on each of the two surrogates")
    options.add_argument("--first-world", type=int, default=0, metavar="N")
    options.add_argument("--trials", type=int, default=16, metavar="N")
    options.add_argument("--out", type=Path, metavar="FILE", help="append a line of JSON for each search; print all")
    args = options.parse_args(argv)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for row in searches(args):
        rows.append(row)
        if args.out:
            append_line(args.out, row)
    if args.out:
        rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    print(table(list(summary(rows))))


def searches(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    clouds = read_clouds()
    surrogates = {kind: Surrogate(kind, [clouds[name] for name in DATASETS]) for kind in KINDS}
    for world in range(args.first_world, args.first_world + args.worlds):
        for kind, surrogate in surrogates.items():
            for variant in args.variants:
                figures = search(variant, surrogate, world, args.trials)
                yield {"variant": variant, "kind": kind, "world": world} | figures


class Surrogate:
    """A regression on real trials: means over seeds are the truth, and differences between seeds are the noise."""

    def __init__(self, kind: str, clouds: Sequence[Cloud]) -> None:
        space = load_space("perturb")
        settings = [dict(zip(clouds[0].keys, point, strict=True)) for point in clouds[0].points]
        self._points = np.array([unit_point(space, point) for point in settings])
        values = np.mean([cloud.values for cloud in clouds], axis=0)
        means = values.mean(axis=1)
        seeds = values.shape[1]
        self._residuals = (values - means[:, None]) * np.sqrt(seeds / (seeds - 1))
        self._models = [fit_model(kind, self._points, column) for column in means.T]
        points = np.random.default_rng(1).random((REFERENCE_POINTS, len(space.params)))
        self._attainable = hypervolume(self.true_values(points).tolist(), GOALS, CORNER.tolist())

    def true_values(self, points: np.ndarray) -> np.ndarray:
        return np.stack([model.predict(points) for model in self._models], axis=1)

    def noise(self, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        distances = np.linalg.norm(self._points - point, axis=1)
        trial = rng.choice(np.argsort(distances, kind="stable")[:NEAREST_TRIALS])
        residual: np.ndarray = rng.choice(self._residuals[trial])
        return residual

    def quality(self, observed: np.ndarray, true_values: np.ndarray) -> float:
        """Return the hypervolume of the true values of trials that are on the front by the values observed, in %."""
        chosen = front(observed.tolist(), GOALS)
        return 100 * hypervolume(true_values[chosen].tolist(), GOALS, CORNER.tolist()) / self._attainable


def fit_model(kind: str, points: np.ndarray, values: np.ndarray) -> RandomForestRegressor | GaussianProcessRegressor:
    if kind == "forest":
        return RandomForestRegressor(100, min_samples_leaf=2, random_state=0).fit(points, values)
    kernel = ConstantKernel(1.0) * Matern(np.ones(points.shape[1]), (0.1, 20), nu=2.5) + WhiteKernel(0.1, (1e-3, 1))
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(points, values)


def unit_point(space: Space, settings: dict[str, float]) -> list[float]:
    """Return the positions of settings in their logarithmic ranges: 0 at the low end, 1 at the high end."""
    positions = []
    for param in space.params:
        low, high = param.bounds
        positions.append(math.log(settings[param.key] / low) / math.log(high / low))
    return positions


def search(variant: str, surrogate: Surrogate, world: int, trials: int) -> dict[str, float]:
    """Run a search, and return its figures."""
    sampler, *additions = variant.split("+")
    space = load_space("perturb", NARROW if "narrow" in additions else ())
    whole = load_space("perturb")
    rng = np.random.default_rng([world, 7])
    study = optuna.create_study(directions=["maximize", "minimize"])
    for first in space.queue():
        study.enqueue_trial(first.values)
    points = []
    observed = []
    for _ in range(trials):
        trial = ask(study, space, Search(sampler=sampler, seed=world))
        point = np.array(unit_point(whole, trial.params))
        truth = surrogate.true_values(point[None])[0]
        excess = (ZERO_SHOT[0] - truth[0]) / POINTS_PER_DRIFT - EMBEDDED_GATE
        values = truth + surrogate.noise(point, rng)
        if "gate" in additions:
            trial.set_constraint("gate", excess)
            if excess > 0:
                study.tell(trial, state=TrialState.PRUNED)
                continue
        points.append(point)
        observed.append(values)
        if "floor" in additions:
            trial.set_constraint("floor", CORNER[0] - values[0])
        if "corner" in additions:
            values = np.array([max(values[0], CORNER[0]), min(values[1], CORNER[1])])
        study.tell(trial, values.tolist())
    seen = np.array(observed)
    is_above = seen[:, 0] >= CORNER[0]
    quality = 0.0
    if is_above.any():
        quality = surrogate.quality(seen[is_above], surrogate.true_values(np.array(points)[is_above]))
    cost = len(seen) + COST_OF_COLLAPSED * (trials - len(seen))
    return {"below": 100 * float((~is_above).sum()) / trials, "quality": quality, "cost": 100 * cost / trials}


def ask(study: optuna.Study, space: Space, settings: Search) -> optuna.Trial:
    """Return the next trial with its settings, with random streams as in a sweep."""
    trial = study.ask()
    study.sampler = build_sampler(settings, str(trial.number))
    _ = trial.relative_params
    for param in space.params:
        study.sampler = build_sampler(settings, f"{trial.number}/{param.key}")
        suggest(trial, param)
    return trial


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """Yield a row of a table for each variant, with paired differences to random search."""
    random = {(row["kind"], row["world"]): row["quality"] for row in rows if row["variant"] == "random"}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        gains = []
        for row in own:
            if (row["kind"], row["world"]) in random:
                gains.append(row["quality"] - random[row["kind"], row["world"]])
        yield {
            "variant": variant,
            "searches": len(own),
            "below the floor at full cost, %": mean_with_error([row["below"] for row in own]),
            "hypervolume, %": mean_with_error([row["quality"] for row in own]),
            "minus random": mean_with_error(gains),
            "cost, %": mean_with_error([row["cost"] for row in own]),
        }


def mean_with_error(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "-"
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    run(main)
