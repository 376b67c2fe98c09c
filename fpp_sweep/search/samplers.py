"""The samplers of the search, each with a random stream that is named after the sweep's seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from optuna import Study, samplers
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from fpp_sweep.space.work import Search
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import InputError, type_and_message

# finished trials before a sampler has enough to learn from; the published points count, the rest is random
TPE_STARTUP_TRIALS = 8
GP_STARTUP_TRIALS = 4  # better than 2 and 8 (studies/samplers.md)
MAX_TRIALS_WITHOUT_VALUES = 8  # trials whose settings are avoided because they gave no values: the latest ones


def stream_seed(seed: int, stream: str) -> int:
    """Return the seed of a named random stream."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def build_sampler(search: Search, stream: str) -> BaseSampler:
    """Return the space's sampler with the random stream of that name."""
    seed = stream_seed(search.seed, stream)
    if search.sampler in catalogue.SAMPLERS:
        return _of_plugin(search.sampler, seed)
    match search.sampler:
        case "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=TPE_STARTUP_TRIALS, multivariate=True, group=True)
        case "gp":
            return GaussianProcessSampler(
                seed=seed, n_startup_trials=GP_STARTUP_TRIALS, warn_independent_sampling=False
            )
        case "random" | "grid":
            return samplers.RandomSampler(seed=seed)
    raise AssertionError(search.sampler)


# ------------------------------------------------------------ the Gaussian process


class GaussianProcessSampler(samplers.GPSampler):
    """Optuna's GPSampler with four additions.

    Settings are random until the finished trials outnumber the running ones. A model of so few trials proposes
    worse settings than chance if seeds differ as much as settings do (studies/samplers.md).

    Settings of trials without values are avoided: of failed ones, and of those that the user stopped. They count as
    running: Optuna looks for settings that add most to the running trials, and does not propose the same settings
    again.

    Until a trial keeps all constraints, Optuna looks for settings that do, and with several objectives not at running
    trials: all trials at a time would have the same settings. Avoided trials then count as bad finished ones.

    Trials that collapsed before they had values count as finished ones with mean values that break the gate: the model
    learns the gate's border from them.
    """

    # Optuna has no public method that takes the trials which its model is fitted to
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
        fitted = [*completed_trials, *_as_bad_trials(collapsed, completed_trials)]
        if not any(_is_feasible(trial) for trial in fitted):
            with_all_settings = []
            for trial in avoided:
                if search_space.keys() <= trial.params.keys():
                    with_all_settings.append(trial)
            fitted = [*fitted, *_as_bad_trials(with_all_settings, fitted)]
            avoided = []
        settings: dict[str, Any] = super()._sample_relative_impl(study, fitted, avoided, search_space)
        return settings


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


# ------------------------------------------------------------ samplers of plugins


def _of_plugin(name: str, seed: int) -> BaseSampler:
    with naming_plugin(name):
        sampler = catalogue.SAMPLERS[name].build(seed)
        if not isinstance(sampler, BaseSampler):
            kind = type(sampler).__name__
            raise InputError(f"sampler {name}: must build an optuna.samplers.BaseSampler ({kind})")
    return sampler


@contextmanager
def naming_plugin(name: str, key: str = "") -> Iterator[None]:
    """Turn an exception of a plugin's sampler into one line.

    The line names the sampler, the line of its code where that is known, and the `key` of the parameter that it draws.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if name not in catalogue.SAMPLERS or isinstance(error, InputError):
            raise
        where = plugins.at_line(f"sampler {name}", plugins.line_of(error))
        if key:
            where = f"{where}: {key}"
        raise InputError(f"{where}: {type_and_message(error)}") from error
