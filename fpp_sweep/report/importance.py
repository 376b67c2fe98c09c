"""Importance of the searched settings for each objective: PED-ANOVA on the finished trials."""

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

MIN_TRIALS = 10  # fewer say nothing about two settings or more
N_RESAMPLES = 10  # of the trials, with replacement: they show how uncertain the shares are
N_TOP_TRIALS = 5  # at least so many trials count as good; PED-ANOVA's authors recommend a tenth


@dataclass(frozen=True)
class Importance:
    """Shares of the searched settings for one metric; they sum to 1 if there are any."""

    metric: str
    shares: Mapping[str, float] = field(default_factory=dict)  # by setting, the largest first
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # lowest and highest over the resamples
    skipped: str = ""  # the reason why there are no shares


def compute_importances(info: SweepInfo, trials: Sequence[TrialRecord]) -> list[Importance]:
    """Return the importances for each objective, from finished trials."""
    keys = [key for key, values in values_by_setting(trials).items() if varies(values)]
    importances = []
    for index, objective in enumerate(info.objectives):
        values = [values_of(trial)[index] for trial in trials]
        importances.append(_importance(info, objective, trials, values, keys))
    return importances


def _importance(
    info: SweepInfo, objective: Objective, trials: Sequence[TrialRecord], values: Sequence[float], keys: Sequence[str]
) -> Importance:
    metric = objective.metric
    if len(trials) < MIN_TRIALS:
        return Importance(metric, skipped=f"{len(trials)} finished trials; importances need {MIN_TRIALS}")
    if len(keys) < 2:
        return Importance(metric, skipped="fewer than two settings took more than one value")
    if len(set(values)) == 1:
        return Importance(metric, skipped=f"all trials have the same {metric}")
    frozen_trials = _frozen_trials(info, trials, values, keys)
    shares = _shares(objective, frozen_trials)
    if not all(math.isfinite(share) for share in shares.values()) or not sum(shares.values()):
        return Importance(metric, skipped="no setting separates good trials from the others")
    generator = random.Random(0)
    resampled_shares = []
    for _ in range(N_RESAMPLES):
        sample = generator.choices(frozen_trials, k=len(frozen_trials))
        if len({trial.value for trial in sample}) > 1:
            resampled_shares.append(_shares(objective, sample))
    return Importance(metric, shares, _spread(list(shares), resampled_shares))


def _spread(keys: Sequence[str], resampled_shares: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return the lowest and the highest share of each setting."""
    if not resampled_shares:
        return {}
    spread = {}
    for key in keys:
        shares = [resampled.get(key, 0.0) for resampled in resampled_shares]
        spread[key] = min(shares), max(shares)
    return spread


def _shares(objective: Objective, trials: Sequence[optuna.trial.FrozenTrial]) -> dict[str, float]:
    """Return the shares by PED-ANOVA, in a study in memory: the sweep's own study may be in use."""
    with _quiet_optuna():
        study = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(), direction="maximize" if objective.goal == "max" else "minimize"
        )
        study.add_trials(trials)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=max(0.1, N_TOP_TRIALS / len(trials)))
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def _frozen_trials(
    info: SweepInfo, trials: Sequence[TrialRecord], values: Sequence[float], keys: Sequence[str]
) -> list[optuna.trial.FrozenTrial]:
    distributions = {}
    for key in keys:
        settings = [trial.params[key] for trial in trials if key in trial.params]
        distributions[key] = _distribution(search_range(info, key), settings)
    frozen = []
    for trial, value in zip(trials, values, strict=True):
        params = {}
        for key, setting in trial.params.items():
            if key in distributions:
                params[key] = _optuna_value(distributions[key], setting)
        used = {key: distributions[key] for key in params}
        frozen.append(optuna.trial.create_trial(params=params, distributions=used, value=value))
    return frozen


def _optuna_value(distribution: BaseDistribution, setting: Any) -> str | float:
    if isinstance(distribution, CategoricalDistribution):
        return format_setting(setting)
    return float(setting)


def _distribution(searched: Mapping[str, Any], values: Sequence[Any]) -> BaseDistribution:
    """Return the searched range, widened to points that were tried outside it; else the values that occur."""
    ends = [searched.get("low"), searched.get("high"), *values]
    if not all(is_number(end) for end in ends):
        return CategoricalDistribution(sorted({format_setting(value) for value in values}))
    low, high = float(min(ends)), float(max(ends))
    return FloatDistribution(low, high, log=bool(searched.get("log")) and low > 0)


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Silence Optuna, which logs each new study and warns about small ones."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
