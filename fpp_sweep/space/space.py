"""What a sweep searches, on what and for how long, as a checked value; `spacefile` reads one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fpp_sweep.config import PRESETS, TrialConfig, preset
from fpp_sweep.errors import InputError

Goal = Literal["max", "min"]
Kind = Literal["float", "int", "choice"]
Sampler = Literal["tpe", "nsga2", "gp", "random", "grid"]
Split = Literal["val", "test"]
METHODS = ("zero_shot", "tpt", "ctpt", "otpt")  # the core's table, which needs torch; a test holds them equal
QUALITIES: dict[str, Goal] = {  # of a dataset, and averaged
    "accuracy": "max",
    "accuracy_top5": "max",
    "ece": "min",
    "sce": "min",
    "aece": "min",
    "mce": "min",
    "aurc": "min",
    "nll": "min",
    "brier": "min",
}
COSTS: dict[str, Goal] = {"seconds": "min", "device_seconds": "min"}  # of a whole trial
BASELINES = ("zero_shot", "tpt", "ctpt", "otpt", "fpp_paper", "fpp_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a trial is judged by."""

    metric: str  # accuracy, ece, ...; ece/dtd for one dataset
    goal: Goal
    reference: float | None = None  # the hypervolume's corner; none: chosen by the sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a trial must keep to be feasible; bounds are differences from the baseline's value where one is named."""

    name: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None
    baseline: str | None = None

    def violation(self, value: float, baseline_value: float | None = None) -> float:
        """By how much it is broken, in the metric's unit; it holds where <= 0.

        >>> rule = Constraint(name="accurate", metric="accuracy", at_least=-0.5, baseline="zero_shot")
        >>> rule.violation(61.0, 62.0), rule.violation(63.0, 62.0)
        (0.5, -1.5)
        """
        if self.baseline is not None and baseline_value is None:
            raise InputError(f"constraint {self.name}: baseline {self.baseline} has no {self.metric}")
        excess = value - (baseline_value if self.baseline is not None and baseline_value is not None else 0.0)
        short = -math.inf if self.at_least is None else self.at_least - excess
        over = -math.inf if self.at_most is None else excess - self.at_most
        return max(short, over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A searched setting; it exists where each setting in `when` has one of the values there."""

    key: str
    kind: Kind
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    step: float | int | None = None
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def exists(self, values: Mapping[str, Any]) -> bool:
        return all(key in values and values[key] in allowed for key, allowed in self.when.items())

    def complaint(self, value: Any) -> str | None:
        """Why it cannot take a value; none if it can."""
        if self.kind == "choice":
            listed = ", ".join(map(word, self.choices))
            return None if value in self.choices else f"{word(value)} is not among {listed}"
        assert self.low is not None
        assert self.high is not None
        if value is None or not self.low <= value <= self.high:
            return f"{word(value)} is outside {self.low:g}..{self.high:g}"
        if self.step is not None and not divides(self.step, value - self.low):
            return f"{word(value)} is not {self.low:g} plus steps of {self.step:g}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How points are chosen, and when it is enough."""

    sampler: Sampler = "tpe"
    trials: int | None = None  # finished ones, baselines not counted; none: no limit
    wall_clock: float | None = None  # seconds
    gpu_hours: float | None = None  # that actors were held, whether they have GPUs or not
    concurrency: int | None = None  # trials at a time; none: as many as keep the actors busy
    seed: int = 0
    split: Split = "val"  # what the objectives are measured on
    max_failures: int | None = 5  # failed trials in a row that stop the sweep; none: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a trial is run on, and with what."""

    model: str = "tiny"
    data_root: str | None = None
    dataset_file: str | None = None
    datasets: tuple[str, ...] = ()  # names and groups; empty: all of dataset_file
    limit: int | None = None  # images per dataset; none: all, of the embedded ones as many as `evaluate` takes
    seeds: tuple[int, ...] = (0,)
    shards: int | None = None  # per dataset and seed; none: by size
    actors: int | None = None  # none: as many as the machines hold
    gpus_per_actor: float | None = None  # none: 1 where there are GPUs, else 0
    cpus_per_actor: float = 1.0
    threads: int | None = None  # of torch, in an actor; none: its CPUs
    compile: bool = False  # as of `evaluate`
    cache: str | None = None  # folder of image features
    attempts: int = 3  # per unit of work
    unit_timeout: float = 3600.0  # seconds
    baselines: tuple[str, ...] = BASELINES
    tracking_uri: str | None = None  # none: an embedded store


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A search space and everything else that a sweep is asked for.

    >>> space = Space(name="gammas", params=(Param(key="fpp.gamma2", kind="choice", choices=(0.15, 15)),))
    >>> space.resolve({"fpp.gamma2": 15}).fpp.weight(10)
    2.5
    """

    name: str
    question: str = ""
    preset: str = "auto"
    base: Mapping[str, Any] = field(default_factory=dict)
    params: tuple[Param, ...] = ()  # parents before their children
    grid: tuple[Mapping[str, tuple[Any, ...]], ...] = ()  # blocks; a key `a, b` has tuples for both
    points: tuple[Mapping[str, Any], ...] = ()
    objectives: tuple[Objective, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    search: Search = field(default_factory=Search)
    work: Work = field(default_factory=Work)

    def start(self) -> TrialConfig:
        """The preset with the base's settings: what a trial is, apart from what is searched."""
        return preset(preset_for(self.preset, self.work.model)).replace(self.base)

    def resolve(self, values: Mapping[str, Any]) -> TrialConfig:
        return self.start().replace(values)

    def searched(self) -> tuple[Param, ...]:
        """The parameters; of a grid of blocks, its keys with all their values."""
        if not self.grid:
            return self.params
        values: dict[str, list[Any]] = {}
        for point in self.grid_points():
            for key, value in point.items():
                if value not in (seen := values.setdefault(key, [])):
                    seen.append(value)
        return tuple(Param(key=key, kind="choice", choices=tuple(each)) for key, each in values.items())

    def grid_points(self) -> list[dict[str, Any]]:
        """What a grid sampler runs, each config once; a key that a block leaves out has the base's value."""
        if not self.grid:
            return list(_combinations(self.params)) if self.search.sampler == "grid" else []
        start = self.start()
        keys = list(dict.fromkeys(key for block in self.grid for names in block for key in split_keys(names)))
        configs = [start.replace(values) for block in self.grid for values in block_points(block)]
        return [{key: config.flat()[key] for key in keys} for config in dict.fromkeys(configs)]

    def first_points(self) -> list[tuple[str, dict[str, Any]]]:
        """Origin and values of what is tried first: the user's points, then the code's and the paper's."""
        published = [(origin, values) for origin, values, problems in self._published() if not problems]
        return self._once([*(("point", dict(point)) for point in self.points), *published])

    def queue(self) -> list[tuple[str, dict[str, Any]]]:
        """All that is known before anything is sampled: the first points, then the grid, each config once."""
        return self._once([*self.first_points(), *(("grid", point) for point in self.grid_points())])

    def left_out(self) -> list[str]:
        """A line for each published point that the space does not hold."""
        return [
            f"the {origin}'s settings are not tried: {'; '.join(problems)}"
            for origin, _, problems in self._published()
            if problems
        ]

    def baselines(self) -> dict[str, TrialConfig]:
        """The configs that trials are compared with; they adapt and look as trials do, with published prompts."""
        start = self.start()
        kept = {key: value for key, value in start.flat().items() if key.startswith(("adapt.", "views.", "init"))}
        points = published_points(preset_for(self.preset, self.work.model))
        configs = {name: start.replace({**_fpp_defaults(), "method": name, "prompt": start.init}) for name in METHODS}
        for origin in ("paper", "code"):
            configs[f"fpp_{origin}"] = TrialConfig().replace(points[origin]).replace(kept)
        return {name: configs[name] for name in self.work.baselines}

    def plain(self) -> dict[str, Any]:
        """Plain values that `space_of`, or `parse_space` on their YAML, makes this space of again."""
        work = dataclasses.asdict(self.work)
        if not self.work.datasets:
            del work["datasets"]
        document = {
            "name": self.name,
            "question": self.question,
            "preset": self.preset,
            "base": dict(self.base),
            "params": {param.key: _plain_param(param) for param in self.params},
            "grid": [dict(block) for block in self.grid],
            "points": [dict(point) for point in self.points],
            "objectives": [_without_none(each) for each in self.objectives],
            "constraints": [_without_none(each) for each in self.constraints],
            "search": dataclasses.asdict(self.search),
            "work": work,
        }
        filled = {key: value for key, value in document.items() if value or key in ("search", "work")}
        return typing.cast(dict[str, Any], _lists(filled))

    def difference(self, other: Space) -> list[str]:
        """What decides results and is another in `other`, one line each; budgets and machines do not."""
        ours, theirs = (dict(_leaves(space.plain())) for space in (self, other))
        return [
            f"{key}: {word(ours.get(key))} -> {word(theirs.get(key))}"
            for key in dict.fromkeys([*ours, *theirs])
            if key not in FREE and ours.get(key) != theirs.get(key)
        ]

    def _published(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Origin, the searched part, and what does not fit."""
        for origin, settings in published_points(preset_for(self.preset, self.work.model)).items():
            flat = TrialConfig().replace(settings).flat()
            values: dict[str, Any] = {}
            problems = []
            for param in self.searched():
                if param.exists(values):
                    values[param.key] = flat[param.key]
                    if problem := param.complaint(flat[param.key]):
                        problems.append(f"{param.key}: {problem}")
            yield origin, values, problems

    def _once(self, points: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
        """Without those that repeat a config; a partial point is what it is."""
        seen: dict[str, tuple[str, dict[str, Any]]] = {}
        for origin, values in points:
            key = json.dumps(sorted(values)) if self._partial(values) else ""
            seen.setdefault(key + self.resolve(values).key(), (origin, values))
        return list(seen.values())

    def _partial(self, values: Mapping[str, Any]) -> bool:
        return any(param.exists(values) and param.key not in values for param in self.params)


# what may be another when a sweep is resumed
FREE = {
    "name",
    "question",
    *(f"search.{key}" for key in ("trials", "wall_clock", "gpu_hours", "concurrency", "max_failures")),
    *(f"work.{key}" for key in ("data_root", "shards", "actors", "gpus_per_actor", "cpus_per_actor", "threads")),
    *(f"work.{key}" for key in ("compile", "cache", "attempts", "unit_timeout", "baselines", "tracking_uri")),
}


def published_points(preset: str) -> dict[str, dict[str, Any]]:
    """The released code's and the paper's settings, where they differ from each other or from `TrialConfig`'s defaults.

    On the embedded model both keep what its preset has for its sizes and its embeddings; its gamma2 is the paper's.

    >>> published_points("tiny")["code"]["fpp.gamma2"], published_points("tiny")["paper"]["fpp.gamma2"]
    (15.0, 0.15)
    """
    paper, defaults = PRESETS["paper"], TrialConfig().flat()
    code = {key: defaults[key] for key in paper}
    sizes = {key: value for key, value in PRESETS["tiny"].items() if key not in paper} if preset == "tiny" else {}
    return {"code": {**sizes, **code}, "paper": {**sizes, **paper}}


def preset_for(name: str, model: str) -> str:
    if name != "auto":
        return name
    return "tiny" if model == "tiny" else "code"


def goal_of(metric: str) -> Goal:
    """A metric's natural direction.

    >>> goal_of("ece/dtd")
    'min'
    """
    return (QUALITIES | COSTS)[metric.partition("/")[0]]


def divides(step: float, width: float) -> bool:
    steps = width / step
    return math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-6)  # decimals such as 0.1 are not exact


def split_keys(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def block_points(block: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """A block's cartesian product."""
    for combination in itertools.product(*block.values()):
        point: dict[str, Any] = {}
        for names, value in zip(block, combination, strict=True):
            keys = split_keys(names)
            point |= zip(keys, value if len(keys) > 1 else (value,), strict=True)
        yield point


def _combinations(params: Sequence[Param], values: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """All values of choices, parents first; a parameter that does not exist somewhere is not varied there."""
    values = dict(values or {})
    if not params:
        yield values
    elif not params[0].exists(values):
        yield from _combinations(params[1:], values)
    else:
        for choice in params[0].choices:
            yield from _combinations(params[1:], {**values, params[0].key: choice})


def _fpp_defaults() -> dict[str, Any]:
    return {key: value for key, value in TrialConfig().flat().items() if key.startswith("fpp.")}


def _plain_param(param: Param) -> dict[str, Any]:
    when = {"when": dict(param.when)} if param.when else {}
    if param.kind == "choice":
        return {"choices": list(param.choices), **when}
    step = {} if param.step is None else {"step": param.step}
    return {"low": param.low, "high": param.high, "log": param.log, **step, **when}


def _without_none(value: Any) -> dict[str, Any]:
    return {key: each for key, each in dataclasses.asdict(value).items() if each is not None}


def _lists(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, Mapping):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, list | tuple) else value


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _leaves(each, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", each


def word(value: Any) -> str:
    """A value as a file would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
