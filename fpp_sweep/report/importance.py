"""Which settings matter: PED-ANOVA on the finished trials, for each objective."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.files import written_whole
from fpp_sweep.records.front import format_setting, is_number, search_range, values_by_setting, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

TRIALS = 10  # fewer say nothing about several settings
TOP = 5  # trials that PED-ANOVA's authors want to see above its quantile


@dataclass(frozen=True)
class Importance:
    """Of the searched settings for one metric; they sum to 1 where there are any."""

    metric: str
    shares: Mapping[str, float] = field(default_factory=dict)  # the largest first
    skipped: str = ""  # why there are none


def importances(info: SweepInfo, trials: Sequence[TrialRecord]) -> list[Importance]:
    """One for each objective, from the records of finished trials."""
    varied = [key for key, values in values_by_setting(trials).items() if len(set(map(format_setting, values))) > 1]
    return [_importance(info, trials, varied, index) for index in range(len(info.objectives))]


def _importance(info: SweepInfo, trials: Sequence[TrialRecord], keys: Sequence[str], index: int) -> Importance:
    metric = info.objectives[index].metric
    if len(trials) < TRIALS:
        return Importance(metric, skipped=f"{len(trials)} finished trials; importances need {TRIALS}")
    if len(keys) < 2:
        return Importance(metric, skipped="fewer than two settings took more than one value")
    if len({values_of(trial)[index] for trial in trials}) == 1:
        return Importance(metric, skipped=f"all trials have the same {metric}")
    shares = _ped_anova(info, trials, keys, index)
    if not all(map(math.isfinite, shares.values())) or not sum(shares.values()):
        return Importance(metric, skipped="no setting tells good trials from the others")
    return Importance(metric, shares)


def _ped_anova(info: SweepInfo, trials: Sequence[TrialRecord], keys: Sequence[str], index: int) -> dict[str, float]:
    """On a study of this objective alone, rebuilt in memory: a sweep's own may be written to at this moment."""
    import optuna

    ranges = {
        key: _distribution(info, key, [record.params[key] for record in trials if key in record.params]) for key in keys
    }
    with _quiet():
        study = optuna.study.create_study(
            storage=optuna.storages.InMemoryStorage(),
            direction="maximize" if info.objectives[index].goal == "max" else "minimize",
        )
        for trial in trials:
            kept = {key: value for key, value in trial.params.items() if key in ranges}
            study.add_trial(
                optuna.trial.create_trial(
                    params={key: _as_given(value, ranges[key]) for key, value in kept.items()},
                    distributions={key: ranges[key] for key in kept},
                    value=values_of(trial)[index],
                )
            )
        top = max(0.1, TOP / len(trials))
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=top)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def _distribution(info: SweepInfo, key: str, values: Sequence[Any]) -> BaseDistribution:
    """The range that was searched, as wide as the points that were tried beside it; else the values seen."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    setting = search_range(info, key)
    ends = [setting.get("low"), setting.get("high"), *values]
    if not all(map(is_number, ends)):
        return CategoricalDistribution(sorted({format_setting(value) for value in values}))
    low, high = float(min(ends)), float(max(ends))
    return FloatDistribution(low, high, log=bool(setting.get("log")) and low > 0)


def _as_given(value: Any, distribution: BaseDistribution) -> Any:
    from optuna.distributions import CategoricalDistribution

    return format_setting(value) if isinstance(distribution, CategoricalDistribution) else float(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of each new study, and warns of small ones, of which the page says more."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def write_importances(path: Path, importances: Sequence[Importance]) -> None:
    document = {
        importance.metric: dict(importance.shares) if importance.shares else {"skipped": importance.skipped}
        for importance in importances
    }
    with written_whole(path) as partial:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
