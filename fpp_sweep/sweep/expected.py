"""The configs and tasks that a sweep is expected to run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fpp_sweep.records.recommendation import reference_label
from fpp_sweep.records.records import FINAL, baseline_name, trial_name
from fpp_sweep.records.texts import setting_text
from fpp_sweep.search.study import random_trials, suggest
from fpp_sweep.space.params import Param
from fpp_sweep.space.space import QueuedPoint, Space
from fpp_sweep.spec.config import TrialConfig, relevant
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.tasks import Task
from fpp_sweep.trial.plan import Plan, flatten, with_pretrainings

WIDTH = 110  # columns
TRIALS_SHOWN = 8
FRONT_SIZE = 4  # members that are expected to run on the test split, without a final stage


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedSweep:
    """A sweep with the configs that it is expected to run, by name."""

    space: Space
    plan: Plan
    configs: Mapping[str, TrialConfig]
    later_plans: Mapping[str, Plan] = field(default_factory=dict)  # plans of the final stage and the test split

    def tasks(self) -> dict[str, list[Task]]:
        """Return the tasks of the search, of the final stage, and of the test split if the search is on another one.

        Tasks that several trials need are listed for each of them.
        """
        search = self.space.search
        baselines = self.space.baselines()
        tasks: dict[str, list[Task]] = {search.split: self._tasks(self.configs.values(), search.split)}
        if self.later_plans:
            labels = list(baselines)
            if search.split != "test":  # the finalists alone are measured against all baselines, on the test split
                methods = {config.method for config in self.finalists()}
                main = reference_label(baselines)
                labels = [label for label in baselines if label == main or label in methods]
            tasks[FINAL] = self._tasks([*(baselines[label] for label in labels), *self.finalists()], FINAL)
        if search.split != "test" and not search.evaluate_only:
            on_test = self.finalists()
            if self.later_plans:
                on_test = on_test[:1]
            tasks["test"] = self._tasks([*baselines.values(), *on_test], "test")
        return tasks

    def finalists(self) -> list[TrialConfig]:
        """Return the configs of as many trials as will run again; the first trials stand for the best ones."""
        count = FRONT_SIZE
        if self.later_plans:
            count = self.space.search.finalists.count
        trials = [config for name, config in self.configs.items() if name.startswith("trial")]
        return trials[:count]

    def _tasks(self, configs: Iterable[TrialConfig], split: str) -> list[Task]:
        tasks: list[Task] = []
        for config in configs:
            plan = self.plan
            if split in self.later_plans:
                plan = self.later_plans[split].for_config(config, self.plan.seeds)
            evaluations = flatten([*plan.tasks(config, split).values()])
            tasks += with_pretrainings([*evaluations, *flatten(plan.posthoc_tasks(config, split).values())])
        return tasks


def expected_configs(space: Space) -> dict[str, TrialConfig]:
    """Return baselines and trials by name; random values stand for the sampler's."""
    configs = {baseline_name(name): config for name, config in space.baselines().items()}
    queue = space.queue()
    searched = space.searched()
    trials = random_trials(space.search.seed)
    total = space.search.trials or len(queue)
    if space.search.sampler == "grid":
        total = min(total, len(queue))
    for number in range(total):
        point = QueuedPoint("sampled", {})
        if number < len(queue):
            point = queue[number]
        values = point.values
        if point.is_partial(searched):
            values = sample_point(searched, next(trials), values)
        with suppress(InputError):  # settings that exclude each other: the trial fails before its first task
            configs[trial_name(number)] = space.resolve(values)
    return configs


def sample_point(params: Iterable[Param], trial: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point of the space with the fixed values; the trial draws the values of other parameters."""
    point: dict[str, Any] = {}
    for param in params:
        if param.key in fixed:
            point[param.key] = fixed[param.key]
        elif param.exists(point):
            point[param.key] = suggest(trial, param)
    return point


def config_lines(space: Space, configs: Mapping[str, TrialConfig]) -> Iterator[str]:
    """Yield the settings that configs share, and the other settings of the first few."""
    flat = {name: relevant(config.flat()) for name, config in configs.items()}
    shared = _shared_settings(list(flat.values()))
    configs_text = plural(len(configs), "config")
    yield f"sweep {space.name}: {configs_text}, {space.search.sampler}, on {space.work.model}"
    if shared:
        yield _filled(f"the same in all configs that read them: {_settings_text(shared)}", indent="", hanging=4)
    listed = {trial_name(number): point for number, point in enumerate(space.queue())}
    searched = space.searched()
    n_shown = len(space.baselines()) + min(len(listed), TRIALS_SHOWN) + 1  # one more, as an example of a sampled trial
    shown = list(flat)[:n_shown]
    for name in shown:
        own_settings = {key: value for key, value in flat[name].items() if key not in shared}
        text = f"{name}: {_settings_text(own_settings)}"
        if name in listed and listed[name].is_partial(searched):
            text += " (what its point leaves out is drawn at random here)"
        elif name.startswith("trial") and name not in listed:
            text += " (drawn at random here)"
        yield _filled(text, indent="  ", hanging=6)
    if len(flat) > len(shown):
        yield f"  ... and {len(flat) - len(shown)} more"


def _shared_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that several configs read, and that have one value in all of these."""
    values: dict[str, list[Any]] = {}
    for settings in configs:
        for key, value in settings.items():
            values.setdefault(key, []).append(value)
    shared = {}
    for key, column in values.items():
        if len(column) > 1 and len({str(value) for value in column}) == 1:
            shared[key] = column[0]
    return shared


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={setting_text(key, value, 4)}" for key, value in settings.items())


def _filled(text: str, *, indent: str, hanging: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=" " * hanging, break_on_hyphens=False)
