"""The Gaussian-process sampler of the search: Optuna's GPSampler, cheaper and without repeats of failed settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import GPSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

MAX_FITTED_TRIALS = 200  # trials that the model is fitted to: the cost grows with the cube of their number
MAX_TRIALS_WITHOUT_VALUES = 8  # trials whose settings are avoided because they gave no values: the latest ones


class GaussianProcessSampler(GPSampler):
    """Optuna's GPSampler with five additions.

    Settings are random until the finished trials outnumber the running ones. A model of so few trials proposes
    worse settings than chance if seeds differ as much as settings do (benchmarks/RESULTS.md, Search).

    Settings of trials without values are avoided: of failed ones, and of those that the user stopped. They count as
    running: Optuna looks for settings that add most to the running trials, and does not propose the same settings
    again.

    Until a trial keeps all constraints, Optuna looks for settings that do, and with several objectives not at running
    trials: all trials at a time would have the same settings. Avoided trials then count as bad finished ones.

    Trials that collapsed before they had values count as finished ones with mean values that break the gate: the model
    learns the gate's border from them.

    The model is fitted to at most MAX_FITTED_TRIALS trials: the Pareto front, and a random choice of the others.
    """

    def _sample_relative_impl(
        self,
        study: Study,
        completed_trials: list[FrozenTrial],
        running_trials: list[FrozenTrial],
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        if len(completed_trials) <= len(running_trials):
            return {}  # Optuna then samples each setting at random
        without_values = []
        collapsed = []
        for trial in study.get_trials(deepcopy=False, states=(TrialState.FAIL, TrialState.PRUNED)):
            if not search_space.keys() <= trial.params.keys():
                continue
            if _is_feasible(trial):
                without_values.append(trial)
            else:
                collapsed.append(trial)
        avoided = [*without_values[-MAX_TRIALS_WITHOUT_VALUES:], *running_trials]
        fitted = self._trials_to_fit(study, [*completed_trials, *_as_bad_trials(collapsed, completed_trials)])
        if not any(_is_feasible(trial) for trial in fitted):
            with_all_settings = []
            for trial in avoided:
                if search_space.keys() <= trial.params.keys():
                    with_all_settings.append(trial)
            fitted = [*fitted, *_as_bad_trials(with_all_settings, fitted)]
            avoided = []
        settings: dict[str, Any] = super()._sample_relative_impl(study, fitted, avoided, search_space)
        return settings

    def _trials_to_fit(self, study: Study, completed_trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that the model is fitted to, in the order of `completed_trials`."""
        if len(completed_trials) <= MAX_FITTED_TRIALS:
            return completed_trials
        front_numbers = {trial.number for trial in study.best_trials[:MAX_FITTED_TRIALS]}
        random_ranks = self._rng.rng.permutation(len(completed_trials))
        in_random_order = np.argsort(random_ranks).tolist()
        on_front = []
        others = []
        for index in in_random_order:
            if completed_trials[index].number in front_numbers:
                on_front.append(index)
            else:
                others.append(index)
        fitted = []
        for index in sorted((on_front + others)[:MAX_FITTED_TRIALS]):
            fitted.append(completed_trials[index])
        return fitted


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(violation <= 0 for violation in trial.constraints.values())


def _as_bad_trials(trials: Sequence[FrozenTrial], finished: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return trials as if they had the mean values of finished ones.

    A constraint without a value is broken by as much as any finished trial breaks it.
    """
    mean_values = np.mean([trial.values for trial in finished], axis=0).tolist()
    largest_violations = {}
    for name in finished[0].constraints:
        largest_violations[name] = max(trial.constraints[name] for trial in finished)
    bad_trials = []
    for trial in trials:
        bad = create_trial(params=trial.params, distributions=trial.distributions, values=mean_values)
        for name, violation in largest_violations.items():
            bad.set_constraint(name, trial.constraints.get(name, violation))
        bad_trials.append(bad)
    return bad_trials
