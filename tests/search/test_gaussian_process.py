"""The Gaussian-process sampler: trials without values, and the limit on the number of fitted trials."""

import itertools
import random

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import GPSampler
from optuna.trial import TrialState

from fpp_sweep.search.samplers import GaussianProcessSampler

RANGES = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}


def study_with_trials(trials):
    """Return a study with trials at random points; the best point is near (0.3, 0.6)."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    draw = random.Random(0)
    for _ in range(trials):
        point = {name: draw.random() for name in RANGES}
        loss = (point["x"] - 0.3) ** 2 + (point["y"] - 0.6) ** 2
        study.add_trial(optuna.create_trial(params=point, distributions=RANGES, values=[-loss, loss + point["x"]]))
    return study


def ask(study, sampler):
    study.sampler = sampler(seed=1, n_startup_trials=4)
    return study.ask(RANGES)


def distance(first, second):
    return max(abs(first.params[name] - second.params[name]) for name in RANGES)


@pytest.mark.parametrize("state", [TrialState.FAIL, TrialState.PRUNED])
def test_settings_that_gave_no_values_are_not_proposed_again(state):
    study = study_with_trials(12)
    failed = ask(study, GaussianProcessSampler)
    study.tell(failed, state=state)
    assert distance(ask(study, GPSampler), failed) < 0.001  # Optuna's own sampler forgets a failed trial
    assert distance(ask(study, GaussianProcessSampler), failed) > 0.01


@pytest.mark.parametrize("end", [None, TrialState.FAIL])
def test_settings_differ_while_no_trial_keeps_the_constraints(end):
    """The constraints are broken least in the corner (0, 0), which Optuna's own sampler proposes again and again."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    for trial in study_with_trials(8).trials:
        trial.set_constraint("sum", 1 + trial.params["x"] + trial.params["y"])
        trial.set_constraint("x", trial.params["x"] - 2)
        study.add_trial(trial)
    proposed = []
    for _ in range(4):
        trial = ask(study, GaussianProcessSampler)
        if end is not None:
            study.tell(trial, state=end)
        proposed.append(trial)
    for first, second in itertools.combinations(proposed, 2):
        assert distance(first, second) > 0.01


@pytest.mark.parametrize(("running", "is_random"), [(4, False), (5, True)])
def test_settings_are_random_until_more_trials_have_finished_than_run(running, is_random):
    study = study_with_trials(5)
    for number in range(running):
        study.enqueue_trial({"x": number / running, "y": 0.5})
        study.ask(RANGES)
    proposed = ask(study, GaussianProcessSampler)
    study.sampler = optuna.samplers.RandomSampler(seed=1)
    assert (proposed.params == study.ask(RANGES).params) == is_random
