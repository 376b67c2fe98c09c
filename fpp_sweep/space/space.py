"""A search space: everything that a sweep is asked for, checked when it is built."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, SkipValidation, WithJsonSchema

from fpp_sweep.space.objectives import (
    FLOOR,
    Constraint,
    Constraints,
    Name,
    Objectives,
    check_constraints,
    check_objectives,
    default_objectives,
    metrics_of,
)
from fpp_sweep.space.params import (
    Block,
    Param,
    Params,
    block_points,
    check_grid,
    check_params,
    check_points,
    check_settings,
    check_size,
    combinations,
)
from fpp_sweep.space.work import EMBEDDED_GATE, Sampler, Search, Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import METHOD_AND_START, PRESETS, TrialConfig, preset, relevant
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.released import baseline_configs, preset_for, published_points
from fpp_sweep.spec.validation import at_key, checked, known_name, part, require, set_field

MIN_MAPPED_IMAGES = 50  # images that the fit of a post-hoc map, or of conformal sets, needs
DEFAULT_TRIALS = 16  # if no budget is given
DEFAULT_SAMPLER: Sampler = "auto"

NEED_RAY = ("search.wall_clock", "search.concurrency", "work.task_timeout")


PRESET_NAMES = ["auto", *PRESETS]
PresetName = Annotated[
    str, BeforeValidator(partial(known_name, "preset", names=PRESET_NAMES)), WithJsonSchema({"enum": PRESET_NAMES})
]


class QueuedPoint(NamedTuple):
    """A point that is tried instead of a sampled one."""

    origin: str  # point, code, paper or grid
    values: dict[str, Any]

    def is_partial(self, searched: Iterable[Param]) -> bool:
        """Return True if the sampler chooses values of the point; a point of a grid is complete."""
        if self.origin == "grid":
            return False
        return any(param.exists(self.values) and param.key not in self.values for param in searched)


class PublishedPoint(NamedTuple):
    """Published settings as a point of a space."""

    origin: str  # code or paper
    values: dict[str, Any]
    problems: list[str]  # why the space does not hold the point; empty: it does


@checked
class Space:
    """A search space with its objectives, budget and machines.

    >>> space = Space(name="gammas", params=(Param(key="fpp.gamma2", choices=(0.15, 15)),))
    >>> space.resolve({"fpp.gamma2": 15}).fpp.flatness_weight(10)
    2.5
    """

    name: Name
    question: str = ""
    preset: PresetName = "auto"
    base: SkipValidation[Mapping[str, Any]] = field(default_factory=dict)
    params: Params = ()  # parents before their children
    grid: SkipValidation[tuple[Block, ...]] = ()
    points: SkipValidation[tuple[Mapping[str, Any], ...]] = ()
    objectives: Objectives = field(default_factory=default_objectives)
    constraints: Constraints = ()
    search: Annotated[Search, part(Search)] = field(default_factory=Search)
    work: Annotated[Work, part(Work)] = field(default_factory=Work)

    def __post_init__(self) -> None:
        self._check_searched()
        with at_key("objectives"):
            check_objectives(self.objectives)
        with at_key("constraints"):
            check_constraints(self.constraints, self.work.baselines)
        # on training images, few-shot prompts that overfit would win
        is_searchable = self.search.split != "train" or self.search.evaluate_only
        require(is_searchable, "can only be evaluated (train); search on val or test", "search.split")
        self._check_shards()
        self._add_posthoc_maps()
        self._check_images_of_fits()
        self._check_columns()
        self._set_budget()

    # -------------------------------------------------------- checks

    def _check_searched(self) -> None:
        """Check what is fixed, what is searched, and what is tried first."""
        with at_key("base"):
            set_field(self, "base", check_settings(self.base, preset(self._preset_name())))
        start = self.start()
        check_params(self.params, self.base)
        with at_key("grid"):
            set_field(self, "grid", check_grid(self.grid, start))
        require(self.params or self.grid, "has neither params nor a grid left to search; add one")
        set_field(self, "search", replace(self.search, sampler=self._check_sampler(start)))
        searched = self.searched()  # once: all points of a grid are listed for it
        self._check_read(searched, start)
        with at_key("points"):
            set_field(self, "points", check_points(self.points, searched, start))

    def _check_read(self, searched: Sequence[Param], start: TrialConfig) -> None:
        """Raise InputError for a searched setting that no trial reads: all its values would give the same result."""
        if self.search.evaluate_only:
            return
        read = _read_settings(searched, start)
        for param in searched:
            key = param.key
            is_measurement = key.startswith("measure.")  # settings of the measure of flatness belong to no method
            remedy = "leave it out, or search them as well"
            problem = f"no trial reads {key}, which belongs to other methods or prompts; {remedy}"
            where = "grid" if self.grid else f"params.{key}"
            require(key in read or is_measurement, problem, where)

    def _check_sampler(self, start: TrialConfig) -> Sampler:
        """Return the sampler, which must suit the parameters; `auto` becomes the one that it stands for."""
        sampler: Sampler = self.search.sampler or DEFAULT_SAMPLER
        if sampler == "auto":
            sampler = self._auto_sampler()
        if self.grid:
            problem = f"{sampler} does not go with a grid, whose points are given; take one of them out"
            require(sampler == "grid", problem, "search.sampler")
            require(not self.params, "does not go with a grid; write the values as a block of it", "params")
        elif sampler == "grid":
            self._check_combinations(start)
        elif sampler == "gp":
            for param in self.params:
                problem = "when does not go with sampler gp, which needs a fixed space; use auto, which takes tpe"
                require(not param.when, problem, f"params.{param.key}")
        return sampler

    def _check_combinations(self, start: TrialConfig) -> None:
        """Raise InputError unless a trial takes each combination of the parameters' choices."""
        for param in self.params:
            problem = "is a range, which sampler grid cannot run; give choices"
            require(param.kind == "choice", problem, f"params.{param.key}")
        with at_key("params"):
            check_size(math.prod(len(param.choices) for param in self.params), "another sampler")
            for values in combinations(self.params):
                start.replace(values)

    def _auto_sampler(self) -> Sampler:
        """Return the sampler that did best for spaces of this kind (studies/samplers.md)."""
        if self.grid:
            return "grid"
        for param in self.params:
            if param.when:
                return "tpe"
        return "gp"

    def _check_shards(self) -> None:
        """Raise InputError for shards of a method whose result depends on the samples before."""
        if self.work.shards is None:
            return
        for name in self.methods():
            problem = f"{name} takes a dataset's samples in order, so that it cannot be cut; leave shards out"
            require(not catalogue.method(name).stateful, problem, "work.shards")

    def _add_posthoc_maps(self) -> None:
        """Add the post-hoc maps that objectives and constraints are measured after to those that are computed."""
        metrics = [*metrics_of(self.objectives), *[constraint.metric for constraint in self.constraints]]
        maps = [*self.work.posthoc, *[catalogue.parts_of(metric).posthoc for metric in metrics]]
        posthoc = tuple([name for name in dict.fromkeys(maps) if name])
        set_field(self, "work", replace(self.work, posthoc=posthoc))

    def _check_images_of_fits(self) -> None:
        """Raise InputError if the final stage has too few images for the fit of post-hoc maps or of conformal sets."""
        images = self.search.finalists.images
        if images is None:
            return
        is_enough = images >= MIN_MAPPED_IMAGES
        if self.work.posthoc:
            problem = f"post-hoc maps need {MIN_MAPPED_IMAGES} images ({images}); raise it, or leave the maps out"
            require(is_enough, problem, "search.finalists.images")
        if not catalogue.CONFORMAL.keys().isdisjoint(self.columns()):
            problem = f"conformal sets need {MIN_MAPPED_IMAGES} images ({images}); raise it, or leave the sets out"
            require(is_enough, problem, "search.finalists.images")

    def _check_columns(self) -> None:
        """Raise InputError for a column that is measured at adapted prompts beside a method that has none."""
        columns = self.columns()
        with at_key("work.baselines"):
            catalogue.require_measurable(self._baseline_methods(), columns)
        catalogue.require_measurable(self._trial_methods(), columns)

    def _set_budget(self) -> None:
        """Limit the trials if nothing else limits the search."""
        search = self.search
        if search.trials is not None or search.wall_clock is not None:
            return
        trials = DEFAULT_TRIALS
        if search.sampler == "grid":
            trials = len(self.queue())
        set_field(self, "search", replace(search, trials=trials))

    # -------------------------------------------------------- configs

    def start(self) -> TrialConfig:
        """Return the preset with the base's settings: a trial, apart from what is searched."""
        return preset(self._preset_name()).replace(self.base)

    def _preset_name(self) -> str:
        return preset_for(self.preset, self.work.model)

    def resolve(self, values: Mapping[str, Any]) -> TrialConfig:
        """Return the config of a trial with these values of the parameters.

        Trials with templates use no prompt; all of them get the same one.
        """
        config = self.start().replace(values)
        if config.templates:
            return config.replace({"prompt": config.anchor_prompt})
        return config

    def settings_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings of a trial with these values, also if they exclude each other."""
        return {**self.start().flat(), **values}

    def baselines(self) -> dict[str, TrialConfig]:
        """Return the configs that trials are compared with, by name."""
        return baseline_configs(self.work.baselines, self.start(), self._preset_name())

    def methods(self) -> list[str]:
        """Return the methods of trials and baselines, each once."""
        return list(dict.fromkeys([*self._trial_methods(), *self._baseline_methods()]))

    @property
    def has_state(self) -> bool:
        """True if a method keeps a state along the stream of images."""
        return any(catalogue.method(name).stateful for name in self.methods())

    def _trial_methods(self) -> list[str]:
        return _values_of_trials("method", self.searched(), self.start())

    def _baseline_methods(self) -> list[str]:
        return [config.method for config in self.baselines().values()]

    def columns(self) -> tuple[str, ...]:
        """Return the optional columns of the predictions that are requested or that metrics need."""
        columns = set(self.work.columns)
        if self.work.posthoc:
            columns.add("logits")
        for row in catalogue.dataset_metrics():
            columns.update(row.columns)
        for objective in self.objectives:
            columns.update(catalogue.metric(objective.metric).columns)
        for constraint in self.constraints:
            columns.update(catalogue.metric(constraint.metric).columns)
        return tuple(sorted(columns))

    # -------------------------------------------------------- points

    def constraints_and_floor(self) -> tuple[Constraint, ...]:
        """Return the constraints of trials; one of them is the floor of accuracy if zero-shot is a baseline."""
        reference = catalogue.ZERO_SHOT
        if reference not in self.work.baselines:
            return self.constraints
        least = -self.search.floor
        floor = Constraint(name=FLOOR, metric=catalogue.ACCURACY, at_least=least, baseline=reference)
        return (*self.constraints, floor)

    def gate(self) -> float | None:
        """Return the largest drift that a pretraining may have; None: trials have no gate."""
        if self.search.evaluate_only:
            return None
        if self.search.gate is None and self.work.model == "tiny":
            return EMBEDDED_GATE
        return self.search.gate or None

    def searched(self) -> tuple[Param, ...]:
        """Return the parameters; for a grid of blocks, its keys with all their values."""
        if not self.grid:
            return self.params
        choices: dict[str, list[Any]] = {}
        for point in self.grid_points():
            for key, value in point.items():
                values = choices.setdefault(key, [])
                if value not in values:
                    values.append(value)
        return tuple(Param(key=key, choices=tuple(values)) for key, values in choices.items())

    def grid_points(self) -> list[dict[str, Any]]:
        """Return the points of a grid sampler, each config once."""
        if self.grid:
            return self._points_of_blocks()
        if self.search.sampler == "grid":
            return list(combinations(self.params))
        return []

    def _points_of_blocks(self) -> list[dict[str, Any]]:
        """Return the points of all blocks with the keys of all blocks; the base has the values that a block lacks."""
        configs: dict[TrialConfig, None] = {}  # each once, in order
        for block in self.grid:
            for values in block_points(block):
                configs[self.resolve(values)] = None
        points = []
        for config in configs:
            settings = config.flat()
            if config.templates:
                del settings["prompt"]  # `resolve` sets it
            keys = dict.fromkeys(itertools.chain(*self.grid))  # each once, in order
            points.append({key: settings[key] for key in keys if key in settings})
        return points

    def queue(self) -> list[QueuedPoint]:
        """Return all points that are not sampled: the user's, the code's and the paper's, then the grid."""
        points = [QueuedPoint("point", dict(values)) for values in self.points]
        for published in self._published():
            if not published.problems:
                points.append(QueuedPoint(published.origin, published.values))
        for values in self.grid_points():
            points.append(QueuedPoint("grid", values))
        return self._distinct(points)

    def points_by_config(self) -> dict[TrialConfig, QueuedPoint]:
        """Return these points by config, for a run that samples nothing: what a point leaves out has the base's values.

        Of points with the same config the first counts.
        """
        points: dict[TrialConfig, QueuedPoint] = {}
        for point in self.queue():
            points.setdefault(self.resolve(point.values), point)
        return points

    def point_of(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values of the searched settings in a trial's settings; None if no trial of the space has these."""
        point: dict[str, Any] = {}
        for param in self.searched():
            if param.exists(point):
                value = settings.get(param.key)
                if param.problem(value) is not None:
                    return None
                point[param.key] = value
        try:
            expressed = self.resolve(point).flat()
        except InputError:  # a trial that failed because its settings exclude each other
            expressed = self.settings_of(point)
        return point if expressed == settings else None

    def notes(self) -> list[str]:
        """Return lines on a gate without effect, and on published points that the space does not hold."""
        lines = []
        if self.search.gate and "fpp" not in _values_of_trials("prompt", self.searched(), self.start()):
            lines.append("search.gate has no effect: no trial pretrains its prompt (prompt=fpp)")
        for published in self._published():
            if published.problems:
                lines.append(f"the {published.origin}'s settings are not tried: {'; '.join(published.problems)}")
        return lines

    def _published(self) -> Iterator[PublishedPoint]:
        """Yield the published settings of what is searched, with the reasons why they do not fit."""
        if not self.search.include_published:
            return
        for origin, settings in published_points(self._preset_name()).items():
            flat = TrialConfig().replace(settings).flat()
            values: dict[str, Any] = {}
            problems = []
            for param in self.searched():
                if not param.exists(values):
                    continue
                value = flat[param.key]
                values[param.key] = value
                problem = param.problem(value)
                if problem is not None:
                    problems.append(f"{param.key}: {problem}")
            yield PublishedPoint(origin, values, problems)

    def _distinct(self, points: Iterable[QueuedPoint]) -> list[QueuedPoint]:
        """Return the points without those that repeat an earlier one."""
        first: dict[tuple[TrialConfig, frozenset[str]], QueuedPoint] = {}
        start = self.start()
        searched = self.searched()  # once: all points of a grid are listed for it
        for point in points:
            keys_of_partial_point: frozenset[str] = frozenset()
            if point.is_partial(searched):  # a point with other keys may become another trial
                keys_of_partial_point = frozenset(point.values)
            first.setdefault((start.replace(point.values), keys_of_partial_point), point)
        return list(first.values())

    # -------------------------------------------------------- as a record

    def require_no_workers(self) -> None:
        """Raise InputError unless one process without Ray can run the space: a grid, and no key of workers."""
        sampler = self.search.sampler
        with at_key("search.sampler"):
            require(sampler == "grid", f"sampler {sampler} needs workers on Ray; give --workers")
        with at_key("work.baselines"):
            require(not self.work.baselines, "baselines need workers on Ray; give --workers, or set work.baselines=[]")
        for key in NEED_RAY:
            part, _, name = key.partition(".")
            section = getattr(self, part)
            is_default = getattr(section, name) == getattr(type(section)(), name)
            require(is_default, "needs workers on Ray; give --workers, or leave the key out", key)

    def plain(self) -> dict[str, Any]:
        """Return plain values from which `space_of`, or `parse_space` on their YAML, makes this space again."""
        document = asdict(self)
        document["params"] = {param.key: param.plain() for param in self.params}
        for key in ("objectives", "constraints"):
            document[key] = [_without_none(criterion) for criterion in document[key]]
        for key in list(document):
            if not document[key]:
                del document[key]
        plain: dict[str, Any] = json.loads(json.dumps(document))
        return plain


def _read_settings(searched: Sequence[Param], start: TrialConfig) -> set[str]:
    """Return the settings that a trial reads with at least one of the searched methods, prompts and templates."""
    settings = start.flat()
    choices = [_values_of_trials(key, searched, start) for key in METHOD_AND_START]
    read: set[str] = set()
    for values in itertools.product(*choices):
        alternative = dict(zip(METHOD_AND_START, values, strict=True))
        read.update(relevant({**settings, **alternative}))
    return read


def _values_of_trials(key: str, searched: Iterable[Param], start: TrialConfig) -> list[Any]:
    """Return the values of a setting that trials may have: its choices, or the base's value.

    Trials have the base's value, too, where the conditions of a searched setting fail.
    """
    base_value = start.flat()[key]
    for param in searched:
        if param.key == key:
            values = list(param.choices)
            if param.when and base_value not in values:
                values.append(base_value)
            return values
    return [base_value]


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
