"""The configs and tasks that a sweep is expected to run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fpp_sweep.records.recommendation import reference_labels
from fpp_sweep.records.records import FINAL, baseline_name, trial_name
from fpp_sweep.search.choosing import MAX_ON_TEST_SPLIT
from fpp_sweep.space.params import Param
from fpp_sweep.space.space import QueuedPoint, Space
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.plan import Plan, with_pretrainings

FRONT_SIZE = 4  # members that are expected to run on the test split, without a final stage


@dataclass(frozen=True, slots=True)
class Phase:
    """The trials of a sweep on one split, each with its tasks."""

    sweep: ExpectedSweep
    split: str
    trials: Sequence[Sequence[Task]]

    @property
    def is_search(self) -> bool:
        return self.split == self.sweep.space.search.split

    def trials_at_once(self, workers: int) -> int:
        return self.sweep.plan.concurrent_trials(self.sweep.space.search, workers)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedSweep:
    """A sweep with the configs that it is expected to run, by name."""

    space: Space
    plan: Plan
    configs: Mapping[str, TrialConfig]
    later_plans: Mapping[str, Plan] = field(default_factory=dict)  # plans of the final stage and the test split

    @property
    def has_final_stage(self) -> bool:
        return bool(self.later_plans)

    def phases(self) -> list[Phase]:
        """Return the search, the final stage if there is one, and the test split if the search is on another one."""
        search = self.space.search
        phases = [self._phase(list(self.configs.values()), search.split)]
        if self.has_final_stage:
            phases.append(self._phase(self._configs_of_final_stage(), FINAL))
        if search.split != "test" and not search.evaluate_only:
            phases.append(self._phase(self._configs_on_test(), "test"))
        return phases

    def _configs_of_final_stage(self) -> list[TrialConfig]:
        """Return the configs of the baselines and the finalists.

        If the test split comes later, the only baseline is the one that the finalists are measured against.
        """
        baselines = self.space.baselines()
        labels = list(baselines)
        if self.space.search.split != "test":
            labels = reference_labels(baselines)[:1]
        return [*(baselines[label] for label in labels), *self.finalists()]

    def _configs_on_test(self) -> list[TrialConfig]:
        """Return the configs of the baselines, and of the trials that run on the test split after the search."""
        finalists = self.finalists()
        if self.has_final_stage:
            finalists = finalists[:MAX_ON_TEST_SPLIT]
        return [*self.space.baselines().values(), *finalists]

    def finalists(self) -> list[TrialConfig]:
        """Return the configs of as many trials as will run again; the first trials stand for the best ones."""
        count = FRONT_SIZE
        if self.has_final_stage:
            count = self.space.search.finalists.count
        return self.trial_configs()[:count]

    def _phase(self, configs: Sequence[TrialConfig], split: str) -> Phase:
        trials = []
        for config in configs:
            plan = self.plan
            if split in self.later_plans:
                plan = self.later_plans[split].for_config(config, self.plan.seeds)
            evaluations: list[EvalTask] = []
            for shards in plan.tasks(config, split).values():
                evaluations += shards
            evaluations += plan.posthoc_tasks(config, split).evaluations
            trials.append(with_pretrainings(evaluations))
        return Phase(self, split, trials)

    def trial_configs(self) -> list[TrialConfig]:
        return [config for name, config in self.configs.items() if name.startswith("trial")]


def expected_configs(space: Space) -> dict[str, TrialConfig]:
    """Return baselines and trials by name; random values stand for the sampler's."""
    configs = {baseline_name(name): config for name, config in space.baselines().items()}
    queue = space.queue()
    searched = space.searched()
    generator = random.Random(space.search.seed)
    total = space.search.trials or len(queue)
    if space.search.sampler == "grid":
        total = min(total, len(queue))
    for number in range(total):
        point = QueuedPoint("sampled", {})
        if number < len(queue):
            point = queue[number]
        values = point.values
        if point.is_partial(searched):
            values = sample_point(searched, generator, values)
        with suppress(InputError):  # settings that exclude each other: the trial fails before its first task
            configs[trial_name(number)] = space.resolve(values)
    return configs


def sample_point(params: Iterable[Param], generator: random.Random, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point of the space with the fixed values; the values of other parameters are drawn."""
    point: dict[str, Any] = {}
    for param in params:
        if not param.exists(point):
            continue
        if param.key in fixed:
            point[param.key] = fixed[param.key]
        else:
            point[param.key] = _sample_value(param, generator)
    return point


def _sample_value(param: Param, generator: random.Random) -> Any:
    if param.kind == "choice":
        return generator.choice(param.choices)
    low, high = param.bounds
    if param.step is not None:
        steps = generator.randrange(int(param.n_values))
        return param.at_step(low + steps * param.step)
    if param.log:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        value = generator.uniform(low, high)
    value = min(max(value, low), high)
    if param.kind == "int":
        return round(value)
    return value
