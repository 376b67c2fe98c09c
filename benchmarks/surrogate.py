"""Search that races against search that does not, at equal device time: `python -m benchmarks.surrogate SWEEP ...`.

SWEEPs are folders of finished sweeps of one space without a race. What a trial would be worth is read from a Gaussian
process over all of theirs, for each objective, and what its residuals leave to chance. What it would show on a
validation split is what the trials nearest to it showed, each image from one of them by chance, moved to where the
process has it: so what a block tells varies as it does in truth, and differences are paired. The search is the
product's: its samplers, its decisions and what it tells them. Searches in a pair share seed and split; each spends as
much as so many whole trials.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from benchmarks.coverage import GOALS, OBJECTIVES, stored
from benchmarks.racing import Shown, drawn_from, pretraining_of
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.search.racing import DRAWS, beaten, expected, rungs
from fpp_sweep.search.study import build_sampler, draw
from fpp_sweep.space.params import Param
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.work import Race, Search
from fpp_sweep.spec.catalogue import ACCURACY
from fpp_sweep.statistics.old_bootstrap import BootstrapSamples, resampled

NEIGHBOURS = 6  # of a trial, which lend it their images
FAR = 4.0  # points beyond the corner; how bad worse trials are does not matter
ATTAINABLE = 4000  # random trials whose front is what can be attained
Points = dict[str, Any]
Verdict = Callable[["OneSearch", "Trial", int], Sequence[float] | None]


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.surrogate", __doc__ or "")
    options.add_argument("sweeps", type=Path, nargs="+")
    options.add_argument("--samplers", nargs="+", default=["tpe", "nsga2", "random"])
    options.add_argument("--images", type=int, default=1000, help="of a dataset, in a split")
    options.add_argument("--budget", type=float, default=60, help="whole trials that a search may cost")
    options.add_argument("--pairs", type=int, default=50, help="of searches with the same seed")
    options.add_argument("--confidence", type=float, nargs="+", default=[0.99])
    args = options.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    world = World.of([SweepFolder.open(path) for path in args.sweeps])
    print(world.told())
    rules: dict[str, Verdict | None] = {"no race": None}
    rules |= {f"race at {sure:g}": racing(Race(confidence=sure)) for sure in args.confidence}
    rules["MO-ASHA, best half"] = best_half
    print("| sampler | rule | trials begun | finished | hypervolume, % | more than without a race |")
    print("|---|---|---|---|---|---|")
    for sampler in args.samplers:
        found: dict[str, list[Outcome]] = {rule: [] for rule in rules}
        for seed in range(args.pairs):
            split = world.split(args.images, seed)
            for rule, verdict in rules.items():
                search = OneSearch(world, split, Search(sampler=sampler, seed=seed), args.images, args.budget, verdict)
                found[rule].append(search.run())
        alone = np.array([one.volume for one in found["no race"]])
        for rule, each in found.items():
            print(line(sampler, rule, each, np.array([one.volume for one in each]) - alone), flush=True)


def line(sampler: str, rule: str, found: Sequence[Outcome], more: np.ndarray) -> str:
    begun, finished, volume = (np.mean([getattr(one, name) for one in found]) for name in Outcome.__annotations__)
    gain = f"{more.mean():+.2f} ± {more.std(ddof=1) / np.sqrt(len(more)):.2f}" if more.any() else ""
    return f"| {sampler} | {rule} | {begun:.0f} | {finished:.0f} | {volume:.1f} | {gain} |"


# --- what trials are worth, and what they show --------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Every trial that could be."""

    params: Sequence[Param]
    queue: Sequence[Points]  # tried first
    places: np.ndarray  # (trials, params) of the real ones, between 0 and 1
    shown: Mapping[str, Sequence[Shown]]
    pretraining: float
    truth: np.ndarray  # (trials, objectives) of the real ones
    corner: np.ndarray  # that hypervolume is measured from
    processes: Sequence[GaussianProcessRegressor]
    attainable: float  # hypervolume

    @classmethod
    def of(cls, sweeps: Sequence[SweepFolder]) -> World:
        info = sweeps[0].info()
        params = tuple(space_of(info.space, "space").searched())
        records = [record for folder in sweeps for record in ended(folder)]
        shown: dict[str, list[Shown]] = {}
        for folder in sweeps:
            for name, trials in stored(folder).items():
                shown.setdefault(name, []).extend(map(Shown.of, trials))
        places = np.array([[unit(param, record.params[param.key]) for param in params] for record in records])
        queue = [record.params for record in ended(sweeps[0]) if record.origin in ("code", "paper")]
        return cls.made(params, queue, places, shown, pretraining_of(records, info.search_split))

    @classmethod
    def made(
        cls,
        params: Sequence[Param],
        queue: Sequence[Points],
        places: np.ndarray,
        shown: Mapping[str, Sequence[Shown]],
        pretraining: float,
    ) -> World:
        truth = np.mean([[worth(one) for one in trials] for trials in shown.values()], axis=0)
        corner = np.array([np.quantile(truth[:, 0], 0.25), np.quantile(truth[:, 1], 0.75)])
        near = np.stack([np.maximum(truth[:, 0], corner[0] - FAR), np.minimum(truth[:, 1], corner[1] + FAR)], axis=1)
        processes = [fitted(places, column) for column in near.T]
        anywhere = np.random.default_rng(0).random((ATTAINABLE, len(params)))
        points = np.stack([one.predict(anywhere) for one in processes], axis=1)
        attainable = hypervolume(points.tolist(), GOALS, corner.tolist())
        return cls(params, queue, places, shown, pretraining, truth, corner, processes, attainable)

    @property
    def rest(self) -> np.ndarray:
        """Standard deviation of what the processes leave to chance, by objective."""
        return np.array([np.sqrt(one.kernel_.k2.noise_level) * one._y_train_std for one in self.processes])

    def told(self) -> str:
        rest, left, spread = (
            ", ".join(f"{value:.2f}" for value in each)
            for each in (self.rest, map(left_out, self.processes), [one._y_train_std for one in self.processes])
        )
        real = 100 * hypervolume(self.truth.tolist(), GOALS, self.corner.tolist()) / self.attainable
        return (
            f"{len(self.places)} trials that vary by {spread} points; one left out is missed by {left}; {rest} is left "
            f"to chance; their own front has {real:.0f} % of what can be attained; {self.pretraining:.0%} of a trial "
            "is pretraining"
        )

    def split(self, images: int, seed: int) -> dict[str, list[Shown]]:
        return drawn_from(self.shown, images, seed)

    def worth(self, place: np.ndarray) -> np.ndarray:
        return np.array([one.predict(place[None])[0] for one in self.processes])


def ended(folder: SweepFolder) -> list[Any]:
    found = [record for record in folder.trials() if record.kind == "trial" and record.state == "complete"]
    return sorted(found, key=lambda record: record.finished or 0.0)


def unit(param: Param, value: float) -> float:
    """Where a value lies in its range."""
    low, high, here = (np.log(each) if param.log else each for each in (*param.bounds, value))
    return float((here - low) / (high - low))


def worth(one: Shown) -> list[float]:
    """As `value_of` has it."""
    gaps = np.bincount(one.bins, one.gaps)
    return [100 * one.correct.mean(), 100 * np.abs(gaps).sum() / len(one)]


def fitted(places: np.ndarray, values: np.ndarray) -> GaussianProcessRegressor:
    kernel = ConstantKernel(1.0) * Matern(np.ones(places.shape[1]), (0.1, 20), nu=1.5) + WhiteKernel(0.1, (1e-3, 1))
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of a parameter that does not matter
        return process.fit(places, values)


def left_out(process: GaussianProcessRegressor) -> float:
    """Root mean square error of each trial's value from those of all others."""
    inverse = np.linalg.inv(process.kernel_(process.X_train_))
    residuals = inverse @ process.y_train_ / np.diag(inverse)
    return float(process._y_train_std * np.sqrt((residuals**2).mean()))


# --- a search ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    begun: int
    finished: int
    volume: float  # of the front that is chosen, as it truly is, in % of what can be attained


@dataclass(slots=True, eq=False)
class Trial:
    number: int
    truth: np.ndarray
    images: dict[str, Shown]  # of the split
    moved: np.ndarray  # what its images' values are to be moved by
    blocks: dict[int, np.ndarray] = field(default_factory=dict)  # (objectives, 1 + draws), as `resampled` has them
    complete: bool = False
    values: Sequence[float] = ()  # on all images of the split; of one that was stopped what was told


class OneSearch:
    """One search on one split."""

    def __init__(
        self,
        world: World,
        split: Mapping[str, Sequence[Shown]],
        search: Search,
        images: int,
        budget: float,
        verdict: Verdict | None,
    ) -> None:
        self._world, self._split, self._search, self._budget = world, split, search, budget
        self._verdict = verdict
        facts: list[Any] = [SimpleNamespace(name=name, split="val", size=images) for name in split]
        self.ends = [end[0] for end in zip(*rungs(Race(), facts).values(), strict=True)]
        self.images = images
        self._rest = world.rest
        self._scale = np.mean([one.kernel_.k1.k2.length_scale for one in world.processes], axis=0)
        self._study = optuna.create_study(directions=["maximize", "minimize"])
        self.trials: list[Trial] = []

    def run(self) -> Outcome:
        spent = 0.0
        while True:
            asked, values = self._ask()
            trial = self._begun(asked.number, values)
            cost = self._raced(trial)
            spent += cost
            if spent > self._budget:
                break
            self.trials.append(trial)
            self._study.tell(asked, list(trial.values))
        finished = [trial for trial in self.trials if trial.complete]
        chosen = [finished[index] for index in front([trial.values for trial in finished], GOALS)]
        volume = hypervolume([trial.truth.tolist() for trial in chosen], GOALS, self._world.corner.tolist())
        return Outcome(len(self.trials), len(finished), 100 * volume / self._world.attainable)

    def rivals(self, block: int, *, complete: bool = False) -> list[Trial]:
        return [trial for trial in self.trials if block in trial.blocks and (trial.complete or not complete)]

    def _ask(self) -> tuple[optuna.Trial, Points]:
        """As the product does."""
        number = len(self.trials)
        if number < len(self._world.queue):
            self._study.enqueue_trial(dict(self._world.queue[number]))
        self._study.sampler = build_sampler(self._search, str(number))
        trial = self._study.ask()
        _ = trial.relative_params
        values = {}
        for param in self._world.params:
            self._study.sampler = build_sampler(self._search, f"{number}/{param.key}")
            values[param.key] = draw(trial, param)
        return trial, values

    def _begun(self, number: int, values: Points) -> Trial:
        world = self._world
        place = np.array([unit(param, values[param.key]) for param in world.params])
        own = np.random.default_rng([self._search.seed, number, 2]).normal(size=len(OBJECTIVES))
        truth = world.worth(place) + self._rest * own
        distances = (((world.places - place) / self._scale) ** 2).sum(axis=1)
        near = np.argsort(distances)[:NEIGHBOURS]
        generator = np.random.default_rng([self._search.seed, number, 3])
        images, whole = {}, []
        for name, trials in self._split.items():
            images[name] = picked([trials[index] for index in near], generator)
            whole.append(worth(together_shown([world.shown[name][index] for index in near])))
        return Trial(number, truth, images, truth - np.mean(whole, axis=0))

    def _raced(self, trial: Trial) -> float:
        """What it costs, in trials; it then has its values."""
        pretraining = self._world.pretraining
        for block, end in enumerate(self.ends if self._verdict else []):
            trial.blocks[block] = self.seen(trial, end)
            told = self._verdict(self, trial, block) if self._verdict else None
            if told is not None and trial.number >= len(self._world.queue):
                trial.values = told
                return pretraining + (1 - pretraining) * end / self.images
        trial.complete = True
        parts = [worth(one) for one in trial.images.values()]
        trial.values = (np.mean(parts, axis=0) + trial.moved).tolist()
        return 1.0

    def seen(self, trial: Trial, end: int) -> np.ndarray:
        """What it has shown by then, on average over datasets."""
        parts = []
        for name, one in trial.images.items():
            shown = resampled(name, "val", [one.take(slice(0, end)).sums()], OBJECTIVES, DRAWS)
            parts.append([shown[metric] for metric in OBJECTIVES])
        return np.asarray(np.mean(parts, axis=0) + trial.moved[:, None])

    def compared(self, trials: Sequence[Trial], block: int) -> list[BootstrapSamples]:
        image = 100 / self.ends[block] / len(self._split)
        tables = np.stack([trial.blocks[block] for trial in trials], axis=1)
        each = zip(OBJECTIVES, tables, strict=True)
        return [BootstrapSamples(rows[:, 0], rows[:, 1:], image * (metric == ACCURACY)) for metric, rows in each]


def together_shown(trials: Sequence[Shown]) -> Shown:
    """All images of all: what a mixture of them comes to with as many images as one likes."""
    return Shown(*(np.concatenate([getattr(one, name) for one in trials]) for name in ("correct", "bins", "gaps")))


def picked(trials: Sequence[Shown], generator: np.random.Generator) -> Shown:
    """Each image from one of them."""
    which = generator.integers(0, len(trials), len(trials[0]))
    every = np.arange(len(which))
    rows = (np.stack([getattr(one, name) for one in trials])[which, every] for name in ("correct", "bins", "gaps"))
    return Shown(*rows)


# --- who is stopped, and what is told of it -----------------------------------------------------------


def racing(race: Race) -> Verdict:
    """As `search.racing` decides, and estimates."""
    least = NormalDist().inv_cdf(race.confidence)

    def verdict(search: OneSearch, trial: Trial, block: int) -> Sequence[float] | None:
        finished = search.rivals(block, complete=True)
        if len(finished) < race.reserve:
            return None
        known = np.array([one.values for one in finished])
        rows = zip(search.compared([trial, *finished], block), known.T, strict=True)
        own = [expected(row, values, 1 - search.ends[block] / search.images) for row, values in rows]
        return [value for value, _ in own] if beaten(own, known, GOALS, least) else None

    return verdict


def best_half(search: OneSearch, trial: Trial, block: int) -> Sequence[float] | None:
    """Stopped unless in the best half by rank, of all that have seen the block; told as it is there."""
    points = [each.blocks[block][:, 0].tolist() for each in (*search.rivals(block), trial)]
    ranks = layers(points)
    return None if sum(rank < ranks[-1] for rank in ranks) < len(ranks) / 2 else points[-1]


def layers(points: Sequence[Sequence[float]]) -> list[int]:
    """0 on the front, 1 on the front of the rest, and so on."""
    ranks, left, rank = [0] * len(points), list(range(len(points))), 0
    while left:
        members = {left[index] for index in front([points[each] for each in left], GOALS)}
        for member in members:
            ranks[member] = rank
        left, rank = [each for each in left if each not in members], rank + 1
    return ranks


if __name__ == "__main__":
    run(main)
