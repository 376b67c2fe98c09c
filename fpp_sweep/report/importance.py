"""Which settings matter: PED-ANOVA on the finished trials, for each objective."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from fpp_sweep.records.front import format_setting, is_number, search_range, values_by_setting, values_of, varies
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective

TRIALS = 10  # fewer say nothing about two settings or more
RESAMPLES = 10  # of the trials, with replacement: how much chance there is in the shares
TOP = 5  # trials above its quantile that PED-ANOVA's authors recommend


@dataclass(frozen=True)
class Importance:
    """Of the searched settings for one metric; the shares sum to 1 where there are any."""

    metric: str
    shares: Mapping[str, float] = field(default_factory=dict)  # by setting, the largest first
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of resampled trials, lowest and highest
    skipped: str = ""  # why there are none


def importances(info: SweepInfo, trials: Sequence[TrialRecord]) -> list[Importance]:
    """One for each objective, from the records of finished trials."""
    varied = [key for key, values in values_by_setting(trials).items() if varies(values)]
    return [
        _importance(info, objective, trials, [values_of(trial)[index] for trial in trials], varied)
        for index, objective in enumerate(info.objectives)
    ]


def _importance(
    info: SweepInfo, objective: Objective, trials: Sequence[TrialRecord], values: Sequence[float], keys: Sequence[str]
) -> Importance:
    metric = objective.metric
    if len(trials) < TRIALS:
        return Importance(metric, skipped=f"{len(trials)} finished trials; importances need {TRIALS}")
    if len(keys) < 2:
        return Importance(metric, skipped="fewer than two settings took more than one value")
    if len(set(values)) == 1:
        return Importance(metric, skipped=f"all trials have the same {metric}")
    draw, count = random.Random(0), len(trials)
    samples = [draw.choices(range(count), k=count) for _ in range(RESAMPLES)]
    *others, shares = _ped_anova(info, objective, trials, values, keys, [*samples, range(count)])
    if not all(map(math.isfinite, shares.values())) or not sum(shares.values()):
        return Importance(metric, skipped="no setting tells good trials from the others")
    ends = {key: sorted(other.get(key, 0.0) for other in others) for key in shares}
    return Importance(metric, shares, {key: (found[0], found[-1]) for key, found in ends.items() if found})


def _ped_anova(
    info: SweepInfo,
    objective: Objective,
    trials: Sequence[TrialRecord],
    values: Sequence[float],
    keys: Sequence[str],
    samples: Sequence[Sequence[int]],
) -> list[dict[str, float]]:
    """Of each sample of the trials, on a study of this objective alone: the sweep's own may be written to just now."""
    ranges = {
        key: _distribution(search_range(info, key), [trial.params[key] for trial in trials if key in trial.params])
        for key in keys
    }

    def as_sampled(key: str, value: Any) -> Any:
        return format_setting(value) if isinstance(ranges[key], CategoricalDistribution) else float(value)

    made = []
    for trial, value in zip(trials, values, strict=True):
        params = {key: as_sampled(key, setting) for key, setting in trial.params.items() if key in ranges}
        distributions = {key: ranges[key] for key in params}
        made.append(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    with _quiet():
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=max(0.1, TOP / len(trials)))
        found = []
        for sample in samples:
            if len({values[index] for index in sample}) < 2:
                continue
            study = optuna.create_study(
                storage=optuna.storages.InMemoryStorage(),
                direction="maximize" if objective.goal == "max" else "minimize",
            )
            study.add_trials([made[index] for index in sample])
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
            found.append({key: float(share) for key, share in shares.items()})
        return found


def _distribution(searched: Mapping[str, Any], values: Sequence[Any]) -> BaseDistribution:
    """The range that was searched, widened to the points that were tried outside it; else the values that occur."""
    ends = [searched.get("low"), searched.get("high"), *values]
    if not all(map(is_number, ends)):
        return CategoricalDistribution(sorted({format_setting(value) for value in values}))
    low, high = float(min(ends)), float(max(ends))
    return FloatDistribution(low, high, log=bool(searched.get("log")) and low > 0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna logs each new study, and warns of small ones, of which the page says more."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
