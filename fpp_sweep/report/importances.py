"""Optuna's importance of the searched settings."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.study import Study

from fpp_sweep.records.front import Front, values_of
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.texts import choice_texts, is_number, search_range, values_by_setting, varies

BEST_SHARE = 0.25  # share of the trials that PED-ANOVA sets apart; of 16 trials a tenth would be two


def importances(info: SweepInfo, front: Front, index: int) -> dict[str, float]:
    """Return the importance of each setting that varies and that all finished trials have, for one objective."""
    values = [values_of(record)[index] for record in front.finished]
    distributions: dict[str, BaseDistribution] = {}
    columns: dict[str, Sequence[Any]] = {}
    for key, column in values_by_setting(front.finished).items():
        if None in column or not varies(column):
            continue
        if all(is_number(value) for value in column):
            is_log = bool(search_range(info, key).get("log")) and min(column) > 0
            distributions[key] = FloatDistribution(min(column), max(column), log=is_log)
            columns[key] = column
        else:
            columns[key] = choice_texts(column)
            distributions[key] = CategoricalDistribution(sorted(set(columns[key])))
    if not columns or len(set(values)) < 2:
        return {}
    optuna.logging.set_verbosity(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction="maximize" if front.goals[index] == "max" else "minimize")
        for row, value in enumerate(values):
            params = {key: column[row] for key, column in columns.items()}
            study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=value))
        return _ped_anova(study)


def _ped_anova(study: Study) -> dict[str, float]:
    """Return Optuna's PED-ANOVA, without scikit-learn: other evaluators of Optuna load it, which takes seconds."""
    modules: dict[str, Any] = sys.modules
    sklearn = modules.setdefault("sklearn", None)  # an import of None fails, which Optuna allows
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # while it is hidden

    if sklearn is None:
        del modules["sklearn"]
    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE))
