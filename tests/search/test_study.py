"""The study in real Optuna: the settings of trials, their order, and equal studies after any kill."""

import copy
import itertools
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from fpp_sweep.search import samplers
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from tests.kit.names import CTPT, OTPT, TPT, named
from tests.kit.records import trial
from tests.kit.study import exported_study

SPACE = named("""
params:
  fpp.gamma2: {low: 0.1, high: 20, log: true}
  fpp.draws: {low: 2, high: 8}
  fpp.steps: {low: 1, high: 2000, log: true}
  method: [tpt, ctpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: [ctpt]}}
  adapt.view_fraction: {low: 0.1, high: 0.9}
points: [{fpp.gamma2: 1.0, method: ctpt}]
""")
TRIALS = 8
GRID = named("""
params: {fpp.gamma2: [0.15, 1.0, 15.0], method: [tpt, otpt]}
""")
FEW = named("""
params: {method: [tpt, ctpt], adapt.view_fraction: {low: 0.001, high: 1}, views.min_area: {low: 0.1, high: 0.9}}
""")
FIXED = named("""
params: {fpp.gamma2: {low: 0.1, high: 20, log: true}, fpp.draws: {low: 2, high: 8}, method: [tpt, ctpt]}
points: [{fpp.gamma2: 1.0, method: ctpt}]
""")
SPACES = {"tpe": SPACE, "gp": FIXED, "random": SPACE, "grid": GRID}


@pytest.fixture(autouse=True)
def _short_startup(monkeypatch):
    """Let the samplers learn after three trials instead of their usual number."""
    monkeypatch.setattr(samplers, "TPE_STARTUP_TRIALS", 3)


def space_of(text=SPACE, sampler="tpe", seed=3, objectives="[accuracy, ece]"):
    return parse_space(f"{text}search: {{sampler: {sampler}, seed: {seed}}}\nobjectives: {objectives}\n", "space.yaml")


def open_study(space, records=()):
    """Return the study of a driver that starts with these records."""
    return SweepStudy(space, records=records)


def objective_values(values):
    """Return two objective values that depend only on the settings."""
    number = random.Random(repr(sorted(values.items())))
    return [number.uniform(20, 90), number.uniform(0, 40)]


def record(number, params, **changes):
    """Return the record of a trial whose objective values depend only on its settings."""
    return replace(trial(number, params=params, values=objective_values(params)), **changes)


def run_undisturbed(space, count):
    return run_trials(open_study(space), count)


def run_trials(study, count):
    suggestions = []
    for _ in range(count):
        suggestions.append(study.ask())
        study.tell(record(suggestions[-1][0], suggestions[-1][2]))
    return suggestions


@pytest.fixture(scope="module")
def unkilled():
    with patch.object(samplers, "TPE_STARTUP_TRIALS", 3):
        runs = {}
        for sampler, text in SPACES.items():
            space = space_of(text, sampler)
            runs[sampler] = space, run_undisturbed(space, TRIALS)
        return runs


# ------------------------------------------------------------ settings of trials


def test_points_come_first_then_published_settings_then_samples(unkilled):
    _, suggestions = unkilled["tpe"]
    assert [number for number, _, _ in suggestions] == list(range(TRIALS))
    assert [origin for _, origin, _ in suggestions] == ["point", "code", "paper", *["sampled"] * 5]
    point, code, paper = (values for _, _, values in suggestions[:3])
    assert (point["fpp.gamma2"], point["method"]) == (1.0, CTPT)
    drawn_by_the_sampler = {"fpp.draws", "fpp.steps", "adapt.penalty_weight", "adapt.view_fraction"}
    assert drawn_by_the_sampler < set(point)
    assert (code["fpp.gamma2"], paper["fpp.gamma2"]) == (15.0, 0.15)
    assert len({repr(values) for _, _, values in suggestions}) == TRIALS


def test_a_grid_runs_each_point_once_in_its_order():
    space = space_of(GRID, "grid")
    suggestions = run_undisturbed(space, 8)
    assert [(origin, values) for _, origin, values in suggestions[:6]] == space.queue()
    tried = {(values["fpp.gamma2"], values["method"]) for _, _, values in suggestions[:6]}
    assert tried == set(itertools.product((0.15, 1.0, 15.0), (TPT, OTPT)))


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_every_value_lies_in_the_space(unkilled, sampler):
    space, suggestions = unkilled[sampler]
    for _, _, values in suggestions:
        assert set(values) == {param.key for param in space.params if param.exists(values)}
        assert ("adapt.penalty_weight" in values) == (values["method"] == CTPT)
        for param in space.params:
            if param.key in values:
                assert param.problem(values[param.key]) is None
        assert isinstance(values["fpp.draws"], int)
        assert isinstance(values["fpp.steps"], int)
        assert isinstance(values["adapt.view_fraction"], float)
        space.resolve(values)


def test_optuna_gets_the_ranges_of_the_space():
    study = open_study(space_of())
    run_trials(study, 1)
    (trial,) = study.trials()
    assert trial.distributions == {
        "fpp.gamma2": FloatDistribution(0.1, 20, log=True),
        "fpp.draws": IntDistribution(2, 8),
        "fpp.steps": IntDistribution(1, 2000, log=True),
        "method": CategoricalDistribution([TPT, CTPT]),
        "adapt.penalty_weight": FloatDistribution(1, 30),
        "adapt.view_fraction": FloatDistribution(0.1, 0.9),
    }


def count_samples_with_ctpt(sampler, good, *, by_constraint):
    """Count samples with C-TPT if the good method has better values, or if only the good method is feasible."""
    study = open_study(space_of(FEW, sampler))
    tried = []
    for _ in range(14):
        number, _, values = study.ask()
        bad = values["method"] != good
        if by_constraint:
            point = [50.0 + number % 3, 20.0]
            constraints = {"fast": 1.0 if bad else -1.0}
        else:
            point = [50.0 - 10 * bad, 20.0 + 10 * bad + number % 3]
            constraints = {}
        study.tell(record(number, values, values=point, constraints=constraints))
        tried.append(values["method"])
    return tried[5:].count(CTPT)


@pytest.mark.parametrize("by_constraint", [False, True])
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_samplers_learn_from_the_values_and_constraints_that_are_reported(sampler, by_constraint):
    """A sampler that ignored values and constraints would draw the same settings in both studies."""
    liked, disliked = (count_samples_with_ctpt(sampler, good, by_constraint=by_constraint) for good in (CTPT, TPT))
    assert liked > disliked


# ------------------------------------------------------------ kills


@pytest.mark.parametrize("sampler", SPACES)
def test_a_killed_study_continues_with_the_trials_of_an_undisturbed_one(unkilled, sampler):
    """Each trial loses its driver before its record is written, while it runs, and before its result is reported."""
    space, wanted = unkilled[sampler]
    records = {}
    for suggestion in wanted:
        number, origin, params = suggestion
        open_study(space, records.values()).ask()
        assert open_study(space, records.values()).ask() == suggestion
        records[number] = record(number, params, state="running", values=None, origin=origin)
        assert open_study(space, records.values()).unfinished() == [number]
        records[number] = record(number, params, origin=origin)
    trials = open_study(space, records.values()).trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * TRIALS
    assert [trial.params for trial in trials] == [values for _, _, values in wanted]
    assert [trial.values for trial in trials] == [objective_values(values) for _, _, values in wanted]


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_the_seed_decides_the_sequence(unkilled, sampler):
    same = run_undisturbed(space_of(SPACES[sampler], sampler), TRIALS)
    other = run_undisturbed(space_of(SPACES[sampler], sampler, seed=4), 4)
    assert unkilled[sampler][1] == same
    assert same[:4] != other  # even points differ: the sampler draws the settings that they leave open


def test_a_study_has_the_trials_on_record():
    space = space_of()
    study = open_study(space)
    suggestions = [study.ask() for _ in range(5)]
    records = [record(number, values, state="running", values=None) for number, _, values in suggestions]
    records[1] = record(1, suggestions[1][2], constraints={"fast": -1.0}, key="0123", started=5.0, finished=7.0)
    study.tell(records[1])
    before = study.trials()
    again = open_study(space, records)
    assert again.unfinished() == [0, 2, 3, 4]
    assert again.count() == 5
    after = again.trials()
    for name in ("number", "state", "params", "distributions", "values", "user_attrs", "constraints"):
        assert [getattr(trial, name) for trial in after] == [getattr(trial, name) for trial in before]
    assert after[1].duration.total_seconds() == 2.0
    for number in again.unfinished():
        again.tell(record(number, suggestions[number][2]))
    assert again.unfinished() == []
    assert again.ask()[0] == 5


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_a_trial_without_a_record_gets_the_same_settings_again(unkilled, sampler):
    space, wanted = unkilled[sampler]
    records = [record(number, values, origin=origin) for number, origin, values in wanted if number in (0, 2, 3, 5)]
    study = open_study(space, records)
    assert study.unfinished() == [1, 4]
    assert [study.ask_again(number) for number in (1, 4)] == [wanted[1], wanted[4]]


# ------------------------------------------------------------ reports of results


@pytest.mark.parametrize("is_new_driver", [False, True])
@pytest.mark.parametrize("first", ["complete", "failed"])
def test_a_result_that_is_reported_twice_counts_once(first, is_new_driver):
    space = space_of()
    study = open_study(space)
    number, _, values = study.ask()
    result = record(number, values, state=first, constraints={"fast": 1.0})
    if first == "failed":
        result = replace(result, reason="no", values=None)
    study.tell(result)
    if is_new_driver:
        study = open_study(space, [result])
    before = copy.deepcopy(study.trials())
    study.tell(result)
    study.tell(replace(result, state="complete", values=[1.0, 2.0]))
    assert study.trials() == before


# ------------------------------------------------------------ objectives and constraints


def test_an_exported_study_has_the_trials_and_the_names_and_directions_of_the_objectives(tmp_path):
    file = tmp_path / "study.journal"
    for count in (1, 2):  # the second export replaces the first one
        study = open_study(space_of(objectives="[accuracy, ece/dtd, seconds]"))
        for _ in range(count):
            number, _, values = study.ask()
            study.tell(record(number, values, values=[60.0, 5.0, 1.0], constraints={"fast": -1.0}))
        study.export(file, "noise-20261120-185232")
    exporting, exported = study.trials(), exported_study(file).trials
    for name in ("number", "state", "params", "distributions", "values", "user_attrs", "constraints", "duration"):
        assert [getattr(trial, name) for trial in exported] == [getattr(trial, name) for trial in exporting]
    study = exported_study(file)
    assert study.metric_names == ["accuracy", "ece/dtd", "seconds"]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE", "MINIMIZE"]
    assert study.study_name == "noise-20261120-185232"
