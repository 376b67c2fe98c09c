"""Samplers of the search on responses whose truth is known: `python -m benchmarks.search`.

A search asks a sampler for settings of `perturb.yaml` (the published points come first), adds noise to the true values
of a response, and reports them. Then the front is chosen by the observed values. The figures are hypervolumes of the
true values of these fronts, in % of that of 4,000 random points.

Responses: `smooth` (draws from a Gaussian process, with the same noise everywhere); `forest` and `process` (a random
forest or a Gaussian process, fitted to the trials of benchmarks.clouds; the noise is the measured one of seeds).
Samplers: those of `search.sampler`, and `gpN`, Optuna's own GPSampler after N trials.
"""

from __future__ import annotations

import argparse
import math
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler

from benchmarks.clouds import Cloud, read_clouds
from benchmarks.harness import append_line, table
from benchmarks.responses import Response, SmoothResponse, SurrogateResponse
from fpp_sweep.cli.command import parser, run
from fpp_sweep.search.samplers import build_sampler, stream_seed
from fpp_sweep.search.study import suggest
from fpp_sweep.space.reading import find_space, load_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError

ASKS = 3  # number of timed requests for settings
SMOOTH = "smooth"
KINDS = (SMOOTH, "forest", "process")
SAMPLERS = [name for name in catalogue.BUILT_IN_SAMPLERS if name not in ("auto", "grid")]
Qualities = dict[int, float]  # by number of trials


@dataclass(frozen=True, slots=True)
class Case:
    """The conditions of a search."""

    response: str
    world: int
    sampler: str
    noise: float
    at_once: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a search."""

    case: Case
    by_value: Qualities
    ask_seconds: float  # CPU


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = load_space(find_space("perturb"))
    if args.ask_after:
        print(table([ask_seconds(sampler, space, args.ask_after) for sampler in args.samplers]))
        return
    outcomes = []
    for case, response in cases(args, space):
        outcome = search(case, response, space, args.budgets)
        outcomes.append(outcome)
        if args.out:
            append_line(args.out, asdict(outcome))
    print_tables(outcomes, args.budgets)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.search", __doc__ or "")
    add = options.add_argument
    add("--responses", nargs="+", default=[SMOOTH], choices=KINDS)
    add("--samplers", nargs="+", default=["random", "tpe", "gp"], metavar="NAME")
    add("--datasets", nargs="+", metavar="NAME", help="datasets of the surrogates; default: all of benchmarks.clouds")
    add("--worlds", type=int, default=2, metavar="N", help="smooth responses, or searches on each surrogate")
    add("--first-world", type=int, default=0, metavar="N")
    add("--budgets", type=int, nargs="+", default=[16], metavar="N", help="trials after which the front is chosen")
    add("--noise", type=float, nargs="+", default=[1.0], metavar="X", help="factors of the measured noise")
    add("--at-once", type=int, nargs="+", default=[1], metavar="N", help="numbers of simultaneous trials")
    add(
        "--ask-after",
        type=int,
        nargs="+",
        metavar="N",
        help="instead: CPU seconds for the settings of one trial after N",
    )
    add("--out", type=Path, metavar="FILE", help="append a line of JSON for each search")
    args = options.parse_args(argv)
    for name in args.samplers:
        if name not in SAMPLERS and not re.fullmatch(r"gp\d+", name):
            raise InputError(f"--samplers: unknown sampler {name!r}; use {', '.join(SAMPLERS)} or gpN")
    return args


def cases(args: argparse.Namespace, space: Space) -> Iterator[tuple[Case, Response]]:
    """Yield the conditions of each search with its response, world by world; all samplers meet the same responses."""
    surrogates = {noise: surrogates_of(args, noise, space) for noise in args.noise}
    for world in range(args.first_world, args.first_world + args.worlds):
        for noise in args.noise:
            responses: dict[str, Response] = dict(surrogates[noise])
            if SMOOTH in args.responses:
                responses[SMOOTH] = SmoothResponse(world, len(space.params), noise)
            for name, response in responses.items():
                for at_once in args.at_once:
                    for sampler in args.samplers:
                        yield Case(name, world, sampler, noise, at_once), response


def surrogates_of(args: argparse.Namespace, noise: float, space: Space) -> dict[str, Response]:
    """Return the surrogates of real trials by name."""
    surrogates: dict[str, Response] = {}
    if set(args.responses) == {SMOOTH}:
        return surrogates
    for cloud in read_clouds().values():
        if args.datasets and cloud.dataset not in args.datasets:
            continue
        points = unit_points(cloud, space)
        for kind in args.responses:
            if kind != SMOOTH:
                surrogates[f"{kind} of {cloud.dataset}"] = SurrogateResponse(kind, points, cloud.values, noise)
    return surrogates


def unit_points(cloud: Cloud, space: Space) -> np.ndarray:
    """Return the points of a cloud within the unit cube, with the parameters in the order of the space."""
    columns = []
    for param in space.params:
        low, high = param.bounds
        values = cloud.points[:, cloud.keys.index(param.key)]
        columns.append(np.log(values / low) / math.log(high / low))
    return np.stack(columns, axis=1)


def search(case: Case, response: Response, space: Space, budgets: Sequence[int]) -> Outcome:
    """Run a search, and choose the front after each number of trials."""
    rng = np.random.default_rng([case.world, 7])
    study = optuna.create_study(directions=["maximize", "minimize"])
    first = [point for _, point in space.first_points()]
    running: list[tuple[optuna.Trial, np.ndarray]] = []
    points: list[np.ndarray] = []
    observed: list[np.ndarray] = []
    outcome = Outcome(case, {}, 0.0)
    ask_seconds = 0.0
    while len(observed) < max(budgets):
        while len(running) < case.at_once:
            began = time.process_time()
            number = len(observed) + len(running)
            if number < len(first):
                study.enqueue_trial(first[number])
            running.append(ask(case, study, space))
            ask_seconds += time.process_time() - began
        trial, point = running.pop(0)
        value = response.true_values(point[None])[0] + response.noise(point, rng)
        study.tell(trial, value.tolist())
        points.append(point)
        observed.append(value)
        if len(observed) in budgets:
            true_values = response.true_values(np.array(points))
            outcome.by_value[len(observed)] = response.quality(np.array(observed), true_values)
    return replace(outcome, ask_seconds=ask_seconds)


def ask(case: Case, study: optuna.Study, space: Space) -> tuple[optuna.Trial, np.ndarray]:
    """Return the next trial and its settings within the unit cube, with random streams as in a sweep."""
    trial = study.ask()
    study.sampler = sampler_of(case, str(trial.number))
    _ = trial.relative_params
    point = []
    for param in space.params:
        study.sampler = sampler_of(case, f"{trial.number}/{param.key}")
        point.append(share_of_range(suggest(trial, param), *param.bounds))
    return trial, np.array(point)


def ask_seconds(sampler: str, space: Space, counts: Sequence[int]) -> dict[str, object]:
    """Return the CPU seconds that a sampler takes for the settings of a trial, after each number of random trials."""
    case = Case(SMOOTH, 0, sampler, 1.0, 1)
    row: dict[str, object] = {"sampler": sampler}
    for count in counts:
        study = optuna.create_study(directions=["maximize", "minimize"])
        add_random_trials(study, space, count)
        seconds = []
        for _ in range(ASKS + 1):  # the first request loads libraries and is not counted
            began = time.process_time()
            trial, _point = ask(case, study, space)
            seconds.append(time.process_time() - began)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        row[f"after {count}"] = ", ".join(f"{value:.2f}" for value in seconds[1:])
    return row


def add_random_trials(study: optuna.Study, space: Space, count: int) -> None:
    response = SmoothResponse(0, len(space.params), 1.0)
    rng = np.random.default_rng(0)
    random = Case(SMOOTH, 0, "random", 1.0, 1)
    for _ in range(count):
        trial, point = ask(random, study, space)
        value = response.true_values(point[None])[0] + response.noise(point, rng)
        study.tell(trial, value.tolist())


def share_of_range(value: float, low: float, high: float) -> float:
    """Return the position of a value in a logarithmic range: 0 at the low end, 1 at the high end."""
    return math.log(value / low) / math.log(high / low)


def sampler_of(case: Case, stream: str) -> BaseSampler:
    """Return the sampler of a case with the random stream that a sweep with this seed has."""
    startup = re.fullmatch(r"gp(\d+)", case.sampler)
    if startup is None:
        return build_sampler(Search(sampler=case.sampler, seed=case.world), stream)
    return GPSampler(seed=stream_seed(case.world, stream), n_startup_trials=int(startup[1]))


def print_tables(outcomes: Sequence[Outcome], budgets: Sequence[int]) -> None:
    """Print a table for each response, noise and number of running trials, with paired differences to random search."""
    groups: dict[tuple[str, float, int], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        case = outcome.case
        group = groups.setdefault((case.response, case.noise, case.at_once), {})
        group.setdefault(case.sampler, []).append(outcome)
    for (response, noise, at_once), by_sampler in groups.items():
        print(f"\n{response}, noise x {noise:g}, {at_once} at a time, {len(next(iter(by_sampler.values())))} searches")
        print(table([row_of(name, by_sampler, budgets) for name in by_sampler]))


def row_of(name: str, by_sampler: Mapping[str, list[Outcome]], budgets: Sequence[int]) -> dict[str, object]:
    row: dict[str, object] = {"sampler": name}
    own = by_sampler[name]
    for budget in budgets:
        row[str(budget)] = mean_with_error([outcome.by_value[budget] for outcome in own])
    for rival in ("random", "tpe"):
        if rival in by_sampler:
            row[f"minus {rival}"] = " / ".join(difference(own, by_sampler[rival], budget) for budget in budgets)
    row["CPU seconds"] = f"{np.mean([outcome.ask_seconds for outcome in own]):.1f}"
    return row


def difference(own: Sequence[Outcome], rival: Sequence[Outcome], budget: int) -> str:
    pairs = zip(own, rival, strict=False)
    return mean_with_error([ours.by_value[budget] - theirs.by_value[budget] for ours, theirs in pairs])


def mean_with_error(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.1f}"
    if len(values) < 2:
        return mean
    return f"{mean} +- {np.std(values, ddof=1) / math.sqrt(len(values)):.1f}"


if __name__ == "__main__":
    run(main)
