"""What a sweep searches, on what and for how long: a value that is checked when it is made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from fpp_sweep.space.grid import Block, block_points, check_grid, check_size, combinations, split_keys
from fpp_sweep.space.objectives import Constraint, Objective, check_constraints, check_objectives, default_objectives
from fpp_sweep.space.params import Param, check_params, check_points
from fpp_sweep.space.published import baseline_configs, preset_for, published_points
from fpp_sweep.space.rules import NAME, check_fields, expect, one_of, set_field, text, under, word
from fpp_sweep.space.settings import check_settings
from fpp_sweep.space.work import STEERED, Sampler, Search, Work
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import PRESETS, TrialConfig, dotted, preset

PRESET = one_of("preset", lambda: ("auto", *PRESETS))
TRIALS = 16  # where no budget is given: TPE starts to use what it has seen after 10

# what may differ when a sweep is resumed
MAY_CHANGE = {
    "name",
    "question",
    *(f"search.{key}" for key in ("gpu_hours", "max_failures", "patience", "notify", *STEERED)),
    *(f"search.finalists{key}" for key in ("", ".count", ".seeds", ".images")),
    "search.margin",
    "search.floor",
    *(f"work.{key}" for key in ("data_root", "shards", "workers", "gpus_per_worker", "cpus_per_worker", "threads")),
    *(f"work.{key}" for key in ("loaders", "compile", "device", "cache", "reuse_results", "attempts", "task_timeout")),
    "work.baselines",
    "work.tracking_uri",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A search space and everything else that a sweep is asked for.

    >>> space = Space(name="gammas", params=(Param(key="fpp.gamma2", choices=(0.15, 15)),))
    >>> space.resolve({"fpp.gamma2": 15}).fpp.flatness_weight(10)
    2.5
    """

    name: Annotated[str, NAME]
    question: Annotated[str, text("")] = ""
    preset: Annotated[str, PRESET] = "auto"
    base: Mapping[str, Any] = field(default_factory=dict)
    params: tuple[Param, ...] = ()  # parents before their children
    grid: tuple[Block, ...] = ()
    points: tuple[Mapping[str, Any], ...] = ()
    objectives: tuple[Objective, ...] = field(default_factory=default_objectives)
    constraints: tuple[Constraint, ...] = ()
    search: Search = field(default_factory=Search)
    work: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        check_fields(self)
        with under("base"):
            first = preset(preset_for(self.preset, self.work.model))
            set_field(self, "base", check_settings(self.base, first))
        start = self.start()
        set_field(self, "params", check_params(self.params, self.base, start))
        with under("grid"):
            set_field(self, "grid", check_grid(self.grid, start))
        expect(self.params or self.grid, "has neither params nor a grid, so there is nothing to search")
        set_field(self, "search", replace(self.search, sampler=self._check_sampler()))
        with under("points"):
            set_field(self, "points", check_points(self.points, self.searched(), start))
        for name in ("objectives", "constraints"):
            set_field(self, name, tuple(getattr(self, name)))
        check_objectives(self.objectives)
        check_constraints(self.constraints, self.work.baselines)
        self._check_shards()
        self._check_search()
        catalogue.require_measurable(self.methods(), self.columns())
        search = self.search
        if (search.trials, search.wall_clock, search.gpu_hours) == (None, None, None):
            trials = len(self.queue()) if search.sampler == "grid" else TRIALS
            set_field(self, "search", replace(search, trials=trials))

    def _check_sampler(self) -> Sampler:
        sampler = self.search.sampler or ("grid" if self.grid else "tpe")
        if self.grid:
            problem = f"{sampler} does not go with a grid, whose points are given; take one of them out"
            expect(sampler == "grid", problem, "search.sampler")
            expect(not self.params, "does not go with a grid; write the values as a block of it", "params")
        for param in self.params:
            with under(f"params.{param.key}"):
                problem = "is a range, which sampler grid cannot run; give choices"
                expect(sampler != "grid" or param.kind == "choice", problem)
                problem = "when does not go with sampler gp, which needs a fixed space"
                expect(sampler != "gp" or not param.when, problem)
        if sampler == "grid":
            with under("params"):
                check_size(math.prod(len(param.choices) for param in self.params), "another sampler")
        return sampler

    def _check_shards(self) -> None:
        """A method whose result depends on the samples before needs the whole dataset, in order."""
        if self.work.shards is None:
            return
        for name in self.methods():
            problem = f"{name} takes a dataset's samples in order, so that it cannot be cut; leave shards out"
            expect(not catalogue.method(name).stateful, problem, "work.shards")

    def _check_search(self) -> None:
        """Check what the split, early stopping and patience need."""
        problem = "train can only be evaluated; search on val or test"
        expect(self.search.split != "train" or self.search.evaluate_only, problem, "search.split")
        if self.search.race is not None:
            for name in self.methods():
                problem = f"{name} learns from sample to sample, and a part of its stream says little of the rest"
                expect(not catalogue.method(name).stateful, f"{problem}; leave race or the method out", "search.race")
        cornered = self.work.baselines or all(objective.reference is not None for objective in self.objectives)
        problem = "there are neither baselines nor references of the objectives that hypervolume is measured from"
        expect(cornered or self.search.patience is None, problem, "search.patience")

    def methods(self) -> list[str]:
        """Of trials and baselines."""
        searched = {param.key: param.choices for param in self.searched()}
        configs = self.baselines().values()
        return [*searched.get("method", [self.start().method]), *(config.method for config in configs)]

    def columns(self) -> tuple[str, ...]:
        """Of the predictions: those that are asked for, and those that metrics need."""
        metrics = [catalogue.metric(goal.metric) for goals in (self.objectives, self.constraints) for goal in goals]
        needed = {column for row in (*metrics, *catalogue.qualities()) for column in row.columns}
        return tuple(sorted(needed.union(self.work.columns)))

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
        return tuple(Param(key=key, choices=tuple(choices)) for key, choices in values.items())

    def grid_points(self) -> list[dict[str, Any]]:
        """What a grid sampler runs, each config once; a key that a block leaves out has the base's value."""
        if not self.grid:
            return list(combinations(self.params)) if self.search.sampler == "grid" else []
        start = self.start()
        keys = dict.fromkeys(key for block in self.grid for names in block for key in split_keys(names))
        configs = dict.fromkeys(start.replace(point) for block in self.grid for point in block_points(block))
        return [{key: flat[key] for key in keys} for flat in (config.flat() for config in configs)]

    def first_points(self) -> list[tuple[str, dict[str, Any]]]:
        """Origin and values of what is tried first: the user's points, then the code's and the paper's."""
        published = [(origin, values) for origin, values, problems in self._published() if not problems]
        return self._distinct([*(("point", dict(point)) for point in self.points), *published])

    def queue(self) -> list[tuple[str, dict[str, Any]]]:
        """All that is known before anything is sampled: the first points, then the grid, each config once."""
        return self._distinct([*self.first_points(), *(("grid", point) for point in self.grid_points())])

    def left_out(self) -> list[str]:
        """A line for each published point that the space does not hold."""
        return [
            f"the {origin}'s settings are not tried: {'; '.join(problems)}"
            for origin, _, problems in self._published()
            if problems
        ]

    def baselines(self) -> dict[str, TrialConfig]:
        """The configs that trials are compared with."""
        return baseline_configs(self.work.baselines, self.start(), preset_for(self.preset, self.work.model))

    def plain(self) -> dict[str, Any]:
        """Plain values that `space_of`, or `parse_space` on their YAML, makes this space of again.

        Only the command that is notified is left out: it may hold a secret, and is of no concern to the results.
        """
        document = asdict(self) | {"params": {param.key: param.plain() for param in self.params}}
        del document["search"]["notify"]
        for key in ("objectives", "constraints"):
            document[key] = [
                {name: value for name, value in goal.items() if value is not None} for goal in document[key]
            ]
        plain: dict[str, Any] = json.loads(json.dumps({key: value for key, value in document.items() if value}))
        return plain

    def difference(self, other: Space) -> list[str]:
        """What decides results and differs in `other`, a line for each; budgets, machines and additions do not."""
        ours, theirs = (dict(dotted(space.plain())) for space in (self, other))
        wider = {f"params.{new.key}.{end}" for new in other.params for end in ("low", "high") if self._widened_by(new)}
        added = {"points"} if all(point in other.points for point in self.points) else set()
        return [
            f"{key}: {word(ours.get(key))} -> {word(theirs.get(key))}"
            for key in dict.fromkeys([*ours, *theirs])
            if key not in MAY_CHANGE | wider | added and ours.get(key) != theirs.get(key)
        ]

    def _widened_by(self, new: Param) -> bool:
        ranges = (old for old in self.params if old.key == new.key and not old.choices and not new.choices)
        return any(not any(map(new.problem, old.bounds)) for old in ranges)

    def _published(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """For each published config: its origin, its values of searched settings, and those that do not fit."""
        if not self.search.include_published:
            return
        for origin, settings in published_points(preset_for(self.preset, self.work.model)).items():
            flat = TrialConfig().replace(settings).flat()
            values: dict[str, Any] = {}
            problems = []
            for param in self.searched():
                if param.exists(values):
                    values[param.key] = flat[param.key]
                    if problem := param.problem(flat[param.key]):
                        problems.append(f"{param.key}: {problem}")
            yield origin, values, problems

    def _distinct(self, points: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
        """Without repeated configs; of a partial point the sampler chooses the rest, so it repeats only itself."""
        seen: dict[Any, tuple[str, dict[str, Any]]] = {}
        start = self.start()
        for origin, values in points:
            partial = any(param.exists(values) and param.key not in values for param in self.params)
            key = (start.replace(values), frozenset(values) if partial else None)
            seen.setdefault(key, (origin, values))
        return list(seen.values())
