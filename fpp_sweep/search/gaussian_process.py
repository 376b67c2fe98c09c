"""The Gaussian-process sampler of the search: Optuna's GPSampler with limited cost, and away from failed trials."""

from __future__ import annotations

from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import GPSampler
from optuna.trial import FrozenTrial, TrialState

MAX_MODELLED = 200  # trials that the model is fitted to: the cost grows with their cube
MAX_WITHOUT_VALUES = 8  # trials without values that the model keeps away from: the latest ones


class GaussianProcessSampler(GPSampler):
    """Optuna's GPSampler with three additions.

    Settings are random until more trials have finished than run: the model of so few is worse than chance where seeds
    differ as much as settings (benchmarks/RESULTS.md, Search).

    A trial that failed, or that a command has stopped, has settings but no values. It counts as running: Optuna then
    looks for settings that gain most beside it, and does not propose the same settings again.

    Of more than MAX_MODELLED trials the model sees the best ones by Optuna's front, and a random choice of the others.
    """

    def _sample_relative_impl(
        self,
        study: Study,
        completed_trials: list[FrozenTrial],
        running_trials: list[FrozenTrial],
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        if len(completed_trials) <= len(running_trials):
            return {}
        without_values = []
        for trial in study.get_trials(deepcopy=False, states=(TrialState.FAIL, TrialState.PRUNED)):
            if search_space.keys() <= trial.params.keys():
                without_values.append(trial)
        pending = [*without_values[-MAX_WITHOUT_VALUES:], *running_trials]
        modelled = self._modelled(study, completed_trials)
        settings: dict[str, Any] = super()._sample_relative_impl(study, modelled, pending, search_space)
        return settings

    def _modelled(self, study: Study, completed_trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that the model is fitted to, in their order."""
        if len(completed_trials) <= MAX_MODELLED:
            return completed_trials
        on_front = {trial.number for trial in study.best_trials[:MAX_MODELLED]}
        ranks = self._rng.rng.permutation(len(completed_trials))
        order = sorted(
            range(len(completed_trials)),
            key=lambda index: (completed_trials[index].number not in on_front, ranks[index]),
        )
        return [completed_trials[index] for index in sorted(order[:MAX_MODELLED])]
