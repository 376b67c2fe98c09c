"""What a sweep searches, on what and for how long: a YAML file (docs/spaces.md) as a checked value.

python -m fpp_sweep.space --schema > search_spaces/schema.json
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fpp_sweep.cli import parser, run
from fpp_sweep.config import PRESETS, TrialConfig, preset
from fpp_sweep.errors import InputError, unknown
from fpp_sweep.yamlfile import (
    Node,
    Rule,
    at,
    duration,
    flag,
    list_of,
    maybe,
    number,
    of_plain,
    one_of,
    parse,
    read,
    section,
    shown,
    text,
    whole,
)

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

TRIALS = 16  # where no budget is given: TPE starts to use what it has seen after 10
MOST_POINTS = 2_000  # of a grid; every one is resolved and checked when the file is read
MOST_OBJECTIVES = 3


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
            listed = ", ".join(map(_word, self.choices))
            return None if value in self.choices else f"{_word(value)} is not among {listed}"
        assert self.low is not None
        assert self.high is not None
        if value is None or not self.low <= value <= self.high:
            return f"{_word(value)} is outside {self.low:g}..{self.high:g}"
        if self.step is not None and not _divides(self.step, value - self.low):
            return f"{_word(value)} is not {self.low:g} plus steps of {self.step:g}"
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

    >>> space = parse_space("params: {fpp.gamma2: [0.15, 15]}", "gammas.yaml")
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
        return preset(_preset_name(self.preset, self.work.model)).replace(self.base)

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
        keys = list(dict.fromkeys(key for block in self.grid for names in block for key in _names(names)))
        configs = [start.replace(values) for block in self.grid for values in _block_points(block)]
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
        points = published_points(_preset_name(self.preset, self.work.model))
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
            f"{key}: {_word(ours.get(key))} -> {_word(theirs.get(key))}"
            for key in dict.fromkeys([*ours, *theirs])
            if key not in FREE and ours.get(key) != theirs.get(key)
        ]

    def _published(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Origin, the searched part, and what does not fit."""
        for origin, settings in published_points(_preset_name(self.preset, self.work.model)).items():
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


def load_space(path: Path | str, overrides: Sequence[str] = ()) -> Space:
    """Read a file; an override is `dotted.key=value`, its value YAML, and `null` takes a key out.

    Examples: search.trials=20, work.datasets=[dtd, pets], params.fpp.gamma1.high=3.
    """
    path = Path(path)
    return _space(read(path, "search space"), path.stem, overrides)


def parse_space(text: str, where: str, overrides: Sequence[str] = ()) -> Space:
    """The same of a text; `where` is the file that complaints name."""
    return _space(parse(text, where), Path(where).stem, overrides)


def space_of(plain: Mapping[str, Any], where: str, overrides: Sequence[str] = ()) -> Space:
    """The same of `Space.plain()`, as a record of a sweep holds it."""
    return _space(of_plain(plain, where), Path(where).stem, overrides)


# ---------------------------------------------------------------- reading

NAME = Rule(
    lambda node: _name(node), {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}
)  # it becomes a folder's
SEARCH: dict[str, Rule] = {
    "sampler": one_of("sampler", typing.get_args(Sampler)),
    "trials": maybe(whole(1)),
    "wall_clock": maybe(duration()),
    "gpu_hours": maybe(number(above=0)),
    "concurrency": maybe(whole(1)),
    "seed": whole(0),
    "split": one_of("split", typing.get_args(Split)),
    "max_failures": maybe(whole(1)),
}
WORK: dict[str, Rule] = {
    "model": text(),
    "data_root": maybe(text()),
    "dataset_file": maybe(text()),
    "datasets": list_of(text()),
    "limit": maybe(whole(1)),
    "seeds": list_of(whole(0)),
    "shards": maybe(whole(1)),
    "actors": maybe(whole(1)),
    "gpus_per_actor": maybe(number(least=0)),
    "cpus_per_actor": number(least=0),
    "threads": maybe(whole(1)),
    "compile": flag(),
    "cache": maybe(text()),
    "attempts": whole(1),
    "unit_timeout": duration(),
    "baselines": list_of(one_of("baseline", BASELINES), least=0),
    "tracking_uri": maybe(text()),
}
METRIC = Rule(
    lambda node: _metric(node), {"type": "string", "pattern": rf"^(({'|'.join(QUALITIES)})(/.+)?|{'|'.join(COSTS)})$"}
)
OBJECTIVE: dict[str, Rule] = {
    "metric": METRIC,
    "goal": one_of("goal", typing.get_args(Goal)),
    "reference": maybe(number()),
}
CONSTRAINT: dict[str, Rule] = {
    "name": Rule(lambda node: _name(node), NAME.schema),
    "metric": METRIC,
    "at_least": maybe(number()),
    "at_most": maybe(number()),
    "baseline": maybe(one_of("baseline", BASELINES)),
}
PARAM = ("low", "high", "log", "step", "choices", "when")
TOP = (
    *("name", "question", "preset", "base", "params", "grid"),
    *("points", "objectives", "constraints", "search", "work"),
)
OBJECTIVES = (Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min"))


def _space(root: Node, stem: str, overrides: Sequence[str]) -> Space:
    if root.value is None:
        raise root.error("is empty; a search space has params or a grid, see docs/spaces.md")
    root.mapping()
    for override in overrides:
        _override(root, override)
    top = root.mapping(TOP)

    def node(key: str, empty: Any) -> Node:
        return top.get(key, Node(empty, root.where, key))

    work = _work(node("work", {}))
    preset_name = one_of("preset", ("auto", *PRESETS)).read(node("preset", "auto"))
    base = _settings(node("base", {}), preset(_preset_name(preset_name, work.model)))
    space = Space(
        name=NAME.read(top["name"])
        if "name" in top
        else re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", stem).strip("-"),
        question=text().read(top["question"]) if "question" in top else "",
        preset=preset_name,
        base=base,
        objectives=_objectives(node("objectives", [])) if "objectives" in top else OBJECTIVES,
        constraints=_constraints(node("constraints", []), work),
        work=work,
    )
    params = _params(node("params", {}), space.start(), base)
    grid = _grid(node("grid", []), space.start())
    search = _search(node("search", {}), params, grid, node("params", {}))
    if not params and not grid:
        raise root.error("has neither params nor a grid, so there is nothing to search")
    space = dataclasses.replace(space, params=params, grid=grid, search=search)
    space = dataclasses.replace(space, points=_points(node("points", []), space))
    return _with_budget(space)


def _work(node: Node) -> Work:
    work = Work(**section(node, WORK))
    if work.datasets or work.dataset_file:
        return work
    return dataclasses.replace(work, datasets=("fine_grained",) if work.data_root else ("tiny",))


def _with_budget(space: Space) -> Space:
    """A sweep without a budget ends too: after its grid, or some trials."""
    search = space.search
    if (search.trials, search.wall_clock, search.gpu_hours) != (None, None, None):
        return space
    trials = len(space.queue()) if search.sampler == "grid" else TRIALS
    return dataclasses.replace(space, search=dataclasses.replace(search, trials=trials))


def _preset_name(name: str, model: str) -> str:
    if name != "auto":
        return name
    return "tiny" if model == "tiny" else "code"


def _name(node: Node) -> str:
    if not isinstance(node.value, str) or not re.fullmatch(NAME.schema["pattern"], node.value):
        problem = "must be letters, digits, '.', '_' and '-', beginning with a letter or digit"
        raise node.error(f"{problem}, got {shown(node.value)}")
    return node.value


def _metric(node: Node) -> str:
    if not isinstance(node.value, str):
        raise node.error(f"must be the name of a metric, got {shown(node.value)}")
    metric, slash, dataset = node.value.partition("/")
    if metric not in QUALITIES and metric not in COSTS:
        raise node.error(unknown("metric", metric, [*QUALITIES, *COSTS]))
    if slash and (metric in COSTS or not dataset.strip()):
        problem = "is of a whole trial, not of a dataset" if metric in COSTS else "lacks a dataset after '/'"
        raise node.error(f"{node.value!r} {problem}")
    return node.value


def goal_of(metric: str) -> Goal:
    """A metric's natural direction.

    >>> goal_of("ece/dtd")
    'min'
    """
    return (QUALITIES | COSTS)[metric.partition("/")[0]]


def _settings(node: Node, start: TrialConfig) -> dict[str, Any]:
    """Dotted settings as the config has them: numbers for x0.1, and checked."""
    entries = node.mapping()
    values = {key: _setting(start, key, child) for key, child in entries.items()}
    _checked(start, values, node)
    return values


def _setting(start: TrialConfig, key: str, node: Node) -> Any:
    """One value of a setting, as the config converts and checks it."""
    value = node.scalar()
    section_names = {name.partition(".")[0] for name in setting_types() if "." in name}
    if key in section_names:
        raise node.error(f"write its settings out, such as {key}.{_first_of(key)}")
    converted = _checked(start, {key: value}, node).flat()[key]
    if key == "method" and converted not in METHODS:
        raise node.error(unknown("method", converted, METHODS))
    if key == "init" and converted == "fpp":
        raise node.error("FPP needs words or a prompt file to stay aligned with, such as 'a photo of a'")
    return converted


def _checked(start: TrialConfig, values: Mapping[str, Any], node: Node) -> TrialConfig:
    try:
        return start.replace(values)
    except InputError as error:
        raise node.error(error) from None


@functools.cache
def setting_types(cls: type = TrialConfig, prefix: str = "") -> Mapping[str, Any]:
    """The type of every dotted setting."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        found |= setting_types(hint, f"{prefix}{name}.") if nested else {f"{prefix}{name}": hint}
    return found


def _range_kind(key: str) -> Kind:
    """What a range of the setting is; a choice if it has none."""
    hint = setting_types()[key]
    kind = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
    return {float: "float", int: "int"}.get(kind, "choice")  # type: ignore[return-value]


def _params(node: Node, start: TrialConfig, base: Mapping[str, Any]) -> tuple[Param, ...]:
    found: dict[str, Param] = {}
    entries = node.mapping()
    for key, child in entries.items():
        if key not in setting_types():
            raise child.error(unknown("config key", key, setting_types()))
        if key in base:
            raise child.error("is fixed in base as well; take it out of one of them")
        found[key] = _param(key, child, start)
    for key, child in entries.items():
        if isinstance(child.value, dict) and "when" in child.value:
            when = _when(child.value["when"], found, start)
            found[key] = dataclasses.replace(found[key], when=when)
    return _parents_first(found, entries)


def _param(key: str, node: Node, start: TrialConfig) -> Param:
    """A range or choices; a bare list is choices."""
    if isinstance(node.value, list):
        return Param(key=key, kind="choice", choices=_choices(key, node, start))
    entries = node.mapping(PARAM)
    kind = _range_kind(key)
    if "choices" in entries:
        for other in set(entries) - {"choices", "when"}:
            raise entries[other].error("does not go with choices")
        return Param(key=key, kind="choice", choices=_choices(key, entries["choices"], start))
    if kind == "choice":
        raise node.error("has no range; give choices")
    for bound in ("low", "high"):
        if bound not in entries:
            raise node.error(f"needs {bound}, or choices")
    low, high = (_bound(key, entries[bound], start) for bound in ("low", "high"))
    if not low < high:
        raise node.error(f"low must be < high, got {low:g} and {high:g}")
    log = flag().read(entries["log"]) if "log" in entries else False
    if log and low <= 0:
        raise entries["low"].error(f"must be > 0 where log is true, got {low:g}")
    step = _step(entries["step"], kind, high - low, log) if "step" in entries else None
    return Param(key=key, kind=kind, low=low, high=high, log=log, step=step)


def _bound(key: str, node: Node, start: TrialConfig) -> float | int:
    value = _setting(start, key, node)
    if value is None:
        raise node.error("must be a number, got none")
    return typing.cast(float | int, value)


def _step(node: Node, kind: Kind, width: float, log: bool) -> float | int:
    step: float | int = (whole(1) if kind == "int" else number(above=0)).read(node)
    if log:
        raise node.error("does not go with log: true")
    if not _divides(step, width):
        raise node.error(f"must divide high - low = {width:g}, got {step:g}")
    return step


def _divides(step: float, width: float) -> bool:
    steps = width / step
    return math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-6)  # decimals such as 0.1 are not exact


def _choices(key: str, node: Node, start: TrialConfig) -> tuple[Any, ...]:
    return typing.cast(tuple[Any, ...], list_of(Rule(lambda each: _setting(start, key, each), {})).read(node))


def _when(node: Node, params: Mapping[str, Param], start: TrialConfig) -> dict[str, tuple[Any, ...]]:
    found = {}
    for key, child in node.mapping().items():
        if key not in params:
            raise child.error(unknown("parameter", key, params))
        if params[key].kind == "float":
            raise child.error(f"{key} is a range of real numbers, on whose values nothing can depend; give it choices")
        values = child if isinstance(child.value, list) else Node([child], child.where, child.path)
        found[key] = _choices(key, values, start)
        for value in found[key]:
            if problem := params[key].complaint(value):
                raise child.error(f"can never hold: {problem}")
    return found


def _parents_first(params: Mapping[str, Param], entries: Mapping[str, Node]) -> tuple[Param, ...]:
    ordered: dict[str, Param] = {}
    waiting = dict(params)
    while waiting:
        ready = [key for key, param in waiting.items() if set(param.when) <= set(ordered)]
        if not ready:
            raise entries[next(iter(waiting))].error(f"when goes in a circle among {', '.join(waiting)}")
        ordered[ready[0]] = waiting.pop(ready[0])
    return tuple(ordered.values())


def _grid(node: Node, start: TrialConfig) -> tuple[dict[str, tuple[Any, ...]], ...]:
    blocks = []
    total = 0
    for block_node in node.items():
        block: dict[str, tuple[Any, ...]] = {}
        for names, child in block_node.mapping().items():
            keys = _names(names)
            if repeated := [key for key in keys if keys.count(key) > 1 or any(key in _names(k) for k in block)]:
                raise child.error(f"{repeated[0]} comes twice in this block")
            block[", ".join(keys)] = _axis(keys, child, start)
        if not block:
            raise block_node.error("is an empty block")
        total += math.prod(map(len, block.values()))
        if total > MOST_POINTS:
            raise block_node.error(f"makes a grid of more than {MOST_POINTS} points; use a sampler")
        for values in _block_points(block):
            _checked(start, values, block_node)
        blocks.append(block)
    return tuple(blocks)


def _axis(keys: Sequence[str], node: Node, start: TrialConfig) -> tuple[Any, ...]:
    """The values of a key, or tuples of values of keys that move together."""
    items = node if isinstance(node.value, list) else Node([node], node.where, node.path)
    if len(keys) == 1:
        return _choices(keys[0], items, start)

    def together(each: Node) -> tuple[Any, ...]:
        values = each.items() if isinstance(each.value, list) else [each] * len(keys)
        if len(values) != len(keys):
            raise each.error(f"must be one value, or {len(keys)}: one for each key")
        return tuple(_setting(start, key, value) for key, value in zip(keys, values, strict=True))

    return typing.cast(tuple[Any, ...], list_of(Rule(together, {})).read(items))


def _names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _block_points(block: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """A block's cartesian product."""
    for combination in itertools.product(*block.values()):
        point: dict[str, Any] = {}
        for names, value in zip(block, combination, strict=True):
            keys = _names(names)
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


def _search(node: Node, params: Sequence[Param], grid: Sequence[Any], params_node: Node) -> Search:
    values = section(node, SEARCH)
    if grid:
        values.setdefault("sampler", "grid")
    search = Search(**values)
    sampler = node.value.get("sampler", node)
    if grid and search.sampler != "grid":
        raise sampler.error(f"{search.sampler} does not go with a grid, whose points are given; take one of them out")
    if grid and params:
        raise params_node.error("does not go with a grid; write the values as a block of it")
    for param in params:
        if search.sampler == "grid" and param.kind != "choice":
            raise params_node.value[param.key].error("is a range, which sampler grid cannot run; give choices")
        if search.sampler == "gp" and param.when:
            raise params_node.value[param.key].error("when does not go with sampler gp, which needs a fixed space")
    if search.sampler == "grid" and math.prod(len(param.choices) for param in params) > MOST_POINTS:
        raise params_node.error(f"makes a grid of more than {MOST_POINTS} points; use another sampler")
    return search


def _points(node: Node, space: Space) -> tuple[dict[str, Any], ...]:
    searched = {param.key: param for param in space.searched()}
    start = space.start()
    points = []
    for point_node in node.items():
        point = {}
        for key, child in point_node.mapping().items():
            if key not in searched:
                raise child.error(unknown("parameter", key, searched))
            point[key] = _setting(start, key, child)
            if problem := searched[key].complaint(point[key]):
                raise child.error(problem)
        if not point:
            raise point_node.error("is an empty point")
        for key in point:
            broken = [p for p, allowed in searched[key].when.items() if p in point and point[p] not in allowed]
            if broken:
                raise point_node.error(f"{key} does not exist where {broken[0]} is {_word(point[broken[0]])}")
        if point in points:
            raise point_node.error("comes twice")
        _checked(start, point, point_node)
        points.append(point)
    return tuple(points)


def _objectives(node: Node) -> tuple[Objective, ...]:
    taken: set[str] = set()

    def objective(each: Node) -> Objective:
        values = {"metric": METRIC.read(each)} if isinstance(each.value, str) else section(each, OBJECTIVE)
        if "metric" not in values:
            raise each.error("needs a metric")
        metric = values["metric"]
        if metric in taken:
            raise each.error(f"{metric} is an objective already")
        taken.add(metric)
        return Objective(**{"goal": goal_of(metric), **values})

    return typing.cast(tuple[Objective, ...], list_of(Rule(objective, {}), most=MOST_OBJECTIVES).read(node))


def _constraints(node: Node, work: Work) -> tuple[Constraint, ...]:
    constraints: dict[str, Constraint] = {}
    for each in node.items():
        values = section(each, CONSTRAINT)
        if "metric" not in values:
            raise each.error("needs a metric")
        made = Constraint(**{"name": _constraint_name(values), **values})
        if made.at_least is None and made.at_most is None:
            raise each.error("needs at_least or at_most")
        if made.at_least is not None and made.at_most is not None and made.at_least > made.at_most:
            raise each.error(f"at_least must be <= at_most, got {made.at_least:g} and {made.at_most:g}")
        if made.baseline is not None and made.baseline not in work.baselines:
            raise each.error(f"baseline {made.baseline} is not among work.baselines, so it will have no value")
        if made.name in constraints:
            raise each.error(f"there is a constraint named {made.name} already; give it another name")
        constraints[made.name] = made
    return tuple(constraints.values())


def _constraint_name(values: Mapping[str, Any]) -> str:
    """Such as accuracy_vs_zero_shot."""
    metric = re.sub(r"[^A-Za-z0-9_.-]", "_", values["metric"])
    return f"{metric}_vs_{values['baseline']}" if values.get("baseline") else metric


# ---------------------------------------------------------------- overrides


def _override(root: Node, override: str) -> None:
    """Set one key of the document, as if the file had it so."""
    path, equals, value = override.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(f"--set {override!r}: expected key=value, such as search.trials=20")
    where = f"--set {override}"
    head = path.partition(".")[0]
    if head not in TOP:
        raise InputError(f"{where}: {unknown('key', head, TOP)}")
    _put(root, path, at(parse(value, where), where, path), where)


def _put(node: Node, path: str, new: Node, where: str) -> None:
    if isinstance(node.value, list):
        place, _, rest = path.partition(".")
        if not place.isdecimal() or int(place) >= len(node.value):
            raise InputError(f"{where}: {node.path} is a list of {len(node.value)}; {place!r} is no place in it")
        if rest:
            _put(node.value[int(place)], rest, new, where)
        else:
            node.value[int(place)] = new
        return
    if node.value is None:
        node.value = {}
    if not isinstance(node.value, dict):
        raise InputError(f"{where}: {node.path} is {shown(node.value)}, which has no {path!r}")
    key = _key_of(node, path)
    rest = path[len(key) + 1 :]
    if rest:
        child = node.value.setdefault(key, Node({}, where, f"{node.path}.{key}" if node.path else key))
        _put(child, rest, new, where)
    elif new.value is None:
        node.value.pop(key, None)
    else:
        node.value[key] = new


def _key_of(node: Node, path: str) -> str:
    """The first key of a path, which may have dots itself."""
    for key in typing.cast(dict[str, Node], node.value):
        if path == key or path.startswith(f"{key}."):
            return key
    if not node.path:
        return path.partition(".")[0]
    stem, _, last = path.rpartition(".")
    return stem if node.path == "params" and last in PARAM else path


# ---------------------------------------------------------------- plain values


def _fpp_defaults() -> dict[str, Any]:
    return {key: value for key, value in TrialConfig().flat().items() if key.startswith("fpp.")}


def _first_of(prefix: str) -> str:
    return next(name for name in setting_types() if name.startswith(f"{prefix}.")).partition(".")[2]


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


def _word(value: Any) -> str:
    """A value as a file would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- schema


def schema() -> dict[str, Any]:
    """What editors check a file against while it is written; complaints of `load_space` go further."""
    settings = {key: _setting_schema(key, hint) for key, hint in setting_types().items()}
    references = {key: {"$ref": f"#/$defs/{key}"} for key in settings}
    several = {key: _one_or_more(reference) for key, reference in references.items()}
    objective = _object({key: rule.schema for key, rule in OBJECTIVE.items()}, required=["metric"])
    constraint = _object({key: rule.schema for key, rule in CONSTRAINT.items()}, required=["metric"])
    block = _object(several) | {"minProperties": 1, "patternProperties": {",": _one_or_more({})}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A search space of fpp_sweep",
        **_object(
            {
                "name": NAME.schema,
                "question": text().schema,
                "preset": {"enum": ["auto", *PRESETS]},
                "base": _object(references),
                "params": _object({key: _param_schema(key, reference) for key, reference in references.items()}),
                "grid": {"type": "array", "items": block},
                "points": {"type": "array", "items": _object(references) | {"minProperties": 1}},
                "objectives": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_OBJECTIVES,
                    "items": {"anyOf": [METRIC.schema, objective]},
                },
                "constraints": {"type": "array", "items": constraint},
                "search": _object({key: rule.schema for key, rule in SEARCH.items()}),
                "work": _object({key: rule.schema for key, rule in WORK.items()}),
            }
        ),
        "$defs": {**settings, "when": _object(several)},
    }


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    made = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


def _one_or_more(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]}


def _setting_schema(key: str, hint: Any) -> dict[str, Any]:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found = [each for part in parts for each in _type_schemas(key, part)]
    default = TrialConfig().flat()[key]
    return {**(found[0] if len(found) == 1 else {"anyOf": found}), "default": default}


def _type_schemas(key: str, kind: Any) -> list[dict[str, Any]]:
    if typing.get_origin(kind) is Literal:
        return [{"enum": list(typing.get_args(kind))}]
    if kind is bool:
        return [{"type": "boolean"}, {"enum": ["on", "off"]}]
    if kind is float:
        return [{"type": "number"}, {"type": "string", "pattern": r"^x[0-9.eE+-]+$"}]
    if kind is int:
        return [{"type": "integer"}]
    if kind is type(None):
        return [{"enum": [None, "none"]}]
    return [{"enum": list(METHODS)} if key == "method" else {"type": "string"}]


def _param_schema(key: str, one: Mapping[str, Any]) -> dict[str, Any]:
    choices = {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}

    forms = [choices, _object({"choices": choices, "when": {"$ref": "#/$defs/when"}}, required=["choices"])]
    if _range_kind(key) != "choice":
        step = whole(1) if _range_kind(key) == "int" else number(above=0)
        rest = {"log": flag().schema, "step": step.schema, "when": {"$ref": "#/$defs/when"}}
        forms.append(_object({"low": one, "high": one, **rest}, required=["low", "high"]))
    return {"anyOf": forms}


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("space", "The JSON schema of search spaces, for editors.")
    options.add_argument("--schema", action="store_true", required=True, help="print it")
    options.parse_args(argv)
    print(json.dumps(schema(), indent=1))


if __name__ == "__main__":
    run(main)
