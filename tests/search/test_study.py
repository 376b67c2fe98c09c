"""The study in real Optuna: what is tried, in which order, and the same again after any kill."""

import random
import shutil
import time
from dataclasses import replace
from unittest.mock import patch

import optuna
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from fpp_sweep.records.pareto import front
from fpp_sweep.search import samplers
from fpp_sweep.search import study as module
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from tests.kit.long_forms import short_and_long
from tests.kit.names import CTPT, OTPT, TPT, named
from tests.kit.records import trial

SPACE = named("""
params:
  fpp.gamma2: {low: 0.1, high: 20, log: true}
  fpp.draws: {low: 2, high: 8, step: 2}
  fpp.steps: {low: 1, high: 2000, log: true}
  method: [tpt, ctpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: [ctpt]}}
  adapt.view_fraction: {low: 0.1, high: 0.9, step: 0.1}
points: [{fpp.gamma2: 1.0, method: ctpt}]
""")
GRID = named("""
params: {fpp.gamma2: [0.15, 1.0, 15.0], method: [tpt, otpt]}
""")
FEW = named("""
params: {method: [tpt, ctpt], adapt.view_fraction: {low: 0.001, high: 1}, views.min_area: {low: 0.1, high: 0.9}}
""")
FIXED = named("""
params: {fpp.gamma2: {low: 0.1, high: 20, log: true}, fpp.draws: {low: 2, high: 8, step: 2}, method: [tpt, ctpt]}
points: [{fpp.gamma2: 1.0, method: ctpt}]
""")
SPACES = {"tpe": SPACE, "gp": FIXED, "random": SPACE, "nsga2": SPACE, "grid": GRID}
LINE = """
params: {adapt.view_fraction: {low: 0.001, high: 1}}
"""


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Samplers that have seen enough after a few trials."""
    monkeypatch.setattr(samplers, "TPE_STARTUP_TRIALS", 3)
    monkeypatch.setattr(samplers, "POPULATION_SIZE", 3)


def space_of(text=SPACE, sampler="tpe", seed=3, objectives="[accuracy, ece]"):
    return parse_space(f"{text}search: {{sampler: {sampler}, seed: {seed}}}\nobjectives: {objectives}\n", "space.yaml")


@pytest.fixture(scope="module", autouse=True)
def empty_study(tmp_path_factory, quick_disk):
    """Optuna's tables and nothing in them, which take a while to create."""
    file = tmp_path_factory.mktemp("optuna") / "empty.db"
    optuna.storages.RDBStorage(f"sqlite:///{file}").engine.dispose()
    with patch.object(module, "remove_study", lambda study: shutil.copyfile(file, study)):
        yield


def opened(folder, space, records=()):
    """The study of a driver that starts with these records."""
    return SweepStudy(folder / "study.db", "noise-20261120-185232", space, records=records)


def stored(folder):
    return optuna.load_study(study_name="noise-20261120-185232", storage=f"sqlite:///{folder / 'study.db'}")


def scores(values):
    """Two objectives that depend on nothing but the values."""
    number = random.Random(repr(sorted(values.items())))
    return [number.uniform(20, 90), number.uniform(0, 40)]


def record(number, params, **changes):
    """Return a trial whose values depend on its settings alone."""
    return replace(trial(number, params=params, values=scores(params)), **changes)


def undisturbed(folder, space, count):
    study = opened(folder, space)
    suggestions = []
    for _ in range(count):
        suggestions.append(study.ask())
        study.tell(record(suggestions[-1][0], suggestions[-1][2]))
    return suggestions


TRIALS = 8  # with the third generation of NSGA-II, whose parents come from two generations


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory, empty_study):
    with patch.object(samplers, "TPE_STARTUP_TRIALS", 3), patch.object(samplers, "POPULATION_SIZE", 3):
        runs = {}
        for sampler, text in SPACES.items():
            space = space_of(text, sampler)
            runs[sampler] = space, undisturbed(tmp_path_factory.mktemp(sampler), space, TRIALS)
        return runs


# ------------------------------------------------------------ what is tried


def test_points_come_first_and_then_what_is_published_and_then_samples(unkilled):
    _, suggestions = unkilled["tpe"]
    assert [number for number, _, _ in suggestions] == list(range(TRIALS))
    assert [origin for _, origin, _ in suggestions] == ["point", "code", "paper", *["sampled"] * 5]
    point, code, paper = (values for _, _, values in suggestions[:3])
    assert (point["fpp.gamma2"], point["method"]) == (1.0, CTPT)
    assert {"fpp.draws", "fpp.steps", "adapt.penalty_weight", "adapt.view_fraction"} < set(
        point
    )  # which the sampler has drawn
    assert (code["fpp.gamma2"], paper["fpp.gamma2"]) == (15.0, 0.15)
    assert len({repr(values) for _, _, values in suggestions}) == TRIALS


def test_a_grid_is_tried_in_its_order_each_point_once(tmp_path):
    space = space_of(GRID, "grid")
    suggestions = undisturbed(tmp_path, space, 8)
    assert [(origin, values) for _, origin, values in suggestions[:6]] == space.queue()
    assert {(values["fpp.gamma2"], values["method"]) for _, _, values in suggestions[:6]} == {
        (gamma, method) for gamma in (0.15, 1.0, 15.0) for method in (TPT, OTPT)
    }
    assert len(opened(tmp_path, space).queue) == 6


def test_a_block_of_a_grid_has_its_own_keys_and_the_bases_values(tmp_path):
    space = space_of(named("grid: [{fpp.gamma2: [0.15, 3.0]}, {method: [tpt, ctpt]}]\n"), "grid")
    suggestions = undisturbed(tmp_path, space, len(space.queue()))
    assert [values for _, _, values in suggestions] == [values for _, values in space.queue()]


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_every_value_is_one_that_the_space_holds(unkilled, sampler):
    space, suggestions = unkilled[sampler]
    for _, _, values in suggestions:
        assert set(values) == {param.key for param in space.params if param.exists(values)}
        assert ("adapt.penalty_weight" in values) == (values["method"] == CTPT)
        assert [param.problem(values[param.key]) for param in space.params if param.key in values].count(None) == len(
            values
        )
        assert isinstance(values["fpp.draws"], int)
        assert isinstance(values["fpp.steps"], int)
        assert isinstance(values["adapt.view_fraction"], float)
        space.resolve(values)


def test_logarithmic_ranges_are_sampled_by_magnitude(tmp_path):
    space = space_of("params: {fpp.steps: {low: 1, high: 10000, log: true}}\n", "random")
    sampled = [values["fpp.steps"] for _, origin, values in undisturbed(tmp_path, space, 18) if origin == "sampled"]
    assert (
        3 < sum(value < 100 for value in sampled) < len(sampled) - 3
    )  # half of them; on a plain scale one in a hundred


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_two_parameters_of_the_same_range_are_drawn_apart(tmp_path, sampler):
    space = space_of(
        "params: {views.min_area: {low: 0.1, high: 0.9}, adapt.view_fraction: {low: 0.1, high: 0.9}}\n", sampler
    )
    sampled = [values for _, origin, values in undisturbed(tmp_path, space, 6) if origin == "sampled"]
    assert len(sampled) > 3
    assert not [values for values in sampled if values["views.min_area"] == values["adapt.view_fraction"]]


def test_optuna_knows_every_range_as_the_space_has_it(tmp_path):
    undisturbed(tmp_path, space_of(), 1)
    (trial,) = stored(tmp_path).trials
    assert trial.distributions == {
        "fpp.gamma2": FloatDistribution(0.1, 20, log=True),
        "fpp.draws": IntDistribution(2, 8, step=2),
        "fpp.steps": IntDistribution(1, 2000, log=True),
        "method": CategoricalDistribution([TPT, CTPT]),
        "adapt.penalty_weight": FloatDistribution(1, 30),
        "adapt.view_fraction": FloatDistribution(0.1, 0.9, step=0.1),
    }


def favoured(folder, sampler, good, *, by_constraint):
    """Count samples with C-TPT if the good method has better values, or if only the good method is feasible."""
    folder.mkdir()
    study = opened(folder, space_of(FEW, sampler))
    tried = []
    for _ in range(14):
        number, _, values = study.ask()
        bad = values["method"] != good
        point = [50.0 + number % 3, 20.0] if by_constraint else [50.0 - 10 * bad, 20.0 + 10 * bad + number % 3]
        study.tell(record(number, values, values=point, constraints={"fast": 2.0 * bad - 1} if by_constraint else {}))
        tried.append(values["method"])
    return tried[5:].count(CTPT)


@pytest.mark.parametrize("by_constraint", [False, True])
@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "gp"])
def test_samplers_learn_from_the_values_and_constraints_that_are_reported(tmp_path, sampler, by_constraint):
    """One that does not look draws the same for the same seed."""
    liked, disliked = (favoured(tmp_path / good, sampler, good, by_constraint=by_constraint) for good in (CTPT, TPT))
    assert liked > disliked


def test_the_first_points_are_parents_of_nsga2s_children(tmp_path):
    space = space_of(sampler="nsga2")
    undisturbed(tmp_path, space, 4)
    generations = [
        next((value for key, value in trial.system_attrs.items() if key.endswith(":generation")), None)
        for trial in stored(tmp_path).trials
    ]
    assert generations == [0, 0, 0, 1]


# ------------------------------------------------------------ kills


class Killed(BaseException):
    pass


class Deadline:
    """Kills the driver before its n-th step: asking for a trial, drawing a parameter, telling what came of it."""

    def __init__(self, steps):
        self.left = steps

    def step(self):
        if self.left == 0:
            raise Killed
        self.left -= 1


def run_driver(folder, space, count, records, deadline):
    """Run a driver that goes on from the records until it is done; return False if it was killed before."""
    study = opened(folder, space, records.values())
    plain_suggest, plain_ask = module.suggest, study._study.ask

    def suggest(trial, param):
        deadline.step()
        return plain_suggest(trial, param)

    def ask():
        deadline.step()
        return plain_ask()

    def finish(number):
        deadline.step()
        params = records[number].params
        records[number] = replace(records[number], state="complete", values=scores(params))
        deadline.step()
        study.tell(records[number])

    try:
        with patch.object(module, "suggest", suggest), patch.object(study._study, "ask", ask):
            for number in study.unfinished():
                finish(number)
            while study.count() < count:
                number, origin, values = study.ask()
                deadline.step()
                generation = study.generation(number)
                records[number] = record(
                    number, values, state="running", values=None, origin=origin, generation=generation
                )
                finish(number)
    except Killed:
        return False
    return True


@pytest.mark.parametrize("sampler", short_and_long(SPACES, lambda sampler: sampler in ("gp", "random")))
@settings(
    deadline=None, max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(lives=st.lists(st.integers(0, 20), min_size=1, max_size=3))
@example(lives=[8, 15])  # after the parents of the second generation have been chosen, before any parameter is drawn
@example(lives=[3, 32])  # between the parameters of a point, and between those of the fourth trial
def test_a_study_that_was_killed_goes_on_as_if_it_had_not(tmp_path_factory, unkilled, sampler, lives):
    space, wanted = unkilled[sampler]
    folder = tmp_path_factory.mktemp("killed")
    records = {}
    for steps in [*lives, -1]:
        is_done = run_driver(folder, space, TRIALS, records, Deadline(steps))
        if is_done:
            break
    assert is_done
    assert [(number, records[number].origin, records[number].params) for number in sorted(records)] == wanted
    trials = stored(folder).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * TRIALS
    assert [trial.params for trial in trials] == [values for _, _, values in wanted]
    assert [trial.values for trial in trials] == [scores(values) for _, _, values in wanted]


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2", "gp"])
def test_the_seed_decides_the_sequence(tmp_path, unkilled, sampler):
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
    same = undisturbed(tmp_path / "same", space_of(SPACES[sampler], sampler), TRIALS)
    other = undisturbed(tmp_path / "other", space_of(SPACES[sampler], sampler, seed=4), 4)
    assert unkilled[sampler][1] == same
    assert same[:4] != other  # the points differ in what they leave open


def test_a_study_has_the_trials_on_record(tmp_path):
    space = space_of()
    study = opened(tmp_path, space)
    suggestions = [study.ask() for _ in range(5)]
    records = [record(number, values, state="running", values=None) for number, _, values in suggestions]
    records[1] = record(1, suggestions[1][2], constraints={"fast": -1.0}, key="0123", started=5.0, finished=7.0)
    study.tell(records[1])
    before = stored(tmp_path).trials
    again = opened(tmp_path, space, records)
    assert again.unfinished() == [0, 2, 3, 4]
    assert again.count() == 5
    after = stored(tmp_path).trials
    for name in ("number", "state", "params", "distributions", "values", "user_attrs", "constraints"):
        assert [getattr(trial, name) for trial in after] == [getattr(trial, name) for trial in before]
    assert after[1].duration.total_seconds() == 2.0
    for number in again.unfinished():
        again.tell(record(number, suggestions[number][2]))
    assert again.unfinished() == []
    assert again.ask()[0] == 5


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_a_trial_without_a_record_gets_the_same_settings_again(tmp_path, unkilled, sampler):
    space, wanted = unkilled[sampler]
    records = [record(number, values, origin=origin) for number, origin, values in wanted if number not in (1, 4)]
    study = opened(tmp_path, space, records)
    assert study.unfinished() == [1, 4]
    assert [study.ask_again(number) for number in (1, 4)] == [wanted[1], wanted[4]]


# ------------------------------------------------------------ what came of it


def test_a_failed_trial_has_a_reason_and_no_values(tmp_path):
    study = opened(tmp_path, space_of())
    number, _, values = study.ask()
    failure = record(number, values, state="failed", reason="FloatingPointError: ece is nan", values=None)
    study.tell(failure)
    (trial,) = stored(tmp_path).trials
    assert trial.state == TrialState.FAIL
    assert trial.values is None
    assert trial.user_attrs["reason"] == "FloatingPointError: ece is nan"
    assert trial.params == values


def test_what_failed_does_not_count_as_good_or_bad(tmp_path):
    """Values of a failed trial, if a record had some, would not reach the sampler."""
    study = opened(tmp_path, space_of())
    number, _, values = study.ask()
    study.tell(record(number, values, state="failed", reason="no"))
    assert stored(tmp_path).trials[0].values is None


def test_a_trial_is_reported_with_its_name_origin_and_key(tmp_path):
    study = opened(tmp_path, space_of())
    number, origin, values = study.ask()
    study.tell(record(number, values, origin=origin, key="0123456789ab"))
    (trial,) = stored(tmp_path).trials
    assert trial.values == scores(values)
    assert trial.user_attrs == {"name": "trial-0000", "origin": "point", "key": "0123456789ab"}


@pytest.mark.parametrize("is_new_driver", [False, True])
@pytest.mark.parametrize("first", ["complete", "failed"])
def test_a_result_that_is_reported_twice_counts_once(tmp_path, first, is_new_driver):
    space = space_of()
    study = opened(tmp_path, space)
    number, _, values = study.ask()
    result = record(number, values, state=first, constraints={"fast": 1.0})
    if first == "failed":
        result = replace(result, reason="no", values=None)
    study.tell(result)
    if is_new_driver:
        study = opened(tmp_path, space, [result])
    before = stored(tmp_path).trials
    study.tell(result)
    study.tell(replace(result, state="complete", values=[1.0, 2.0]))
    assert stored(tmp_path).trials == before


def test_a_result_is_reported_by_a_driver_that_did_not_begin_the_trial(tmp_path):
    space = space_of()
    number, _, values = opened(tmp_path, space).ask()
    running = record(number, values, state="running", values=None)
    opened(tmp_path, space, [running]).tell(record(0, values))
    assert stored(tmp_path).trials[0].values == scores(values)


# ------------------------------------------------------------ objectives and constraints


def test_the_study_knows_the_objectives_names_and_directions(tmp_path):
    opened(tmp_path, space_of(objectives="[accuracy, ece/dtd, seconds]"))
    study = stored(tmp_path)
    assert study.metric_names == ["accuracy", "ece/dtd", "seconds"]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE", "MINIMIZE"]
    assert optuna.get_all_study_names(study._storage) == ["noise-20261120-185232"]


def test_one_objective_is_enough(tmp_path):
    study = opened(tmp_path, space_of(objectives="[ece]"))
    for _ in range(6):
        number, _, values = study.ask()
        study.tell(record(number, values, values=[values["fpp.gamma2"]]))
    best = stored(tmp_path).best_trial
    assert best.params["fpp.gamma2"] == min(trial.params["fpp.gamma2"] for trial in stored(tmp_path).trials)


def test_constraints_are_in_the_study(tmp_path):
    study = opened(tmp_path, space_of(LINE))
    for violation in (0.5, -0.5):
        number, _, values = study.ask()
        study.tell(record(number, values, constraints={"accurate": violation, "fast": -3.0}))
    assert [trial.constraints for trial in stored(tmp_path).trials] == [
        {"accurate": 0.5, "fast": -3.0},
        {"accurate": -0.5, "fast": -3.0},
    ]


@settings(
    deadline=None, max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 10**6), limited=st.booleans())
def test_optunas_own_front_is_ours(tmp_path_factory, seed, limited):
    folder = tmp_path_factory.mktemp("front")
    space = space_of(LINE, "random")
    study = opened(folder, space)
    draw = random.Random(seed)
    able = []
    for _ in range(12):
        number, _, values = study.ask()
        point = [float(draw.randint(0, 5)), float(draw.randint(0, 5))]
        violation = draw.choice([-1.0, 0.0, 1.0]) if limited else 0.0
        state = draw.choice(["complete"] * 5 + ["failed"])
        constraints = {"accurate": violation} if limited else {}
        study.tell(record(number, values, values=point, constraints=constraints, state=state, reason="no"))
        if state == "complete" and violation <= 0:
            able.append((number, point))
    goals = [objective.goal for objective in space.objectives]
    ours = [able[index][0] for index in front([point for _, point in able], goals)]
    assert sorted(trial.number for trial in stored(folder).best_trials) == ours


@pytest.mark.nightly
@pytest.mark.slow  # two thousand trials take a minute to write
def test_asking_stays_quick_when_there_are_many_trials(tmp_path, monkeypatch):
    monkeypatch.undo()  # the samplers as they are
    space = space_of(FEW)
    study = opened(tmp_path, space)
    _, _, values = study.ask()
    (suggestions,) = study._study.get_trials()
    draw = random.Random(0)
    for _ in range(2000):
        params = {
            "method": draw.choice([TPT, CTPT]),
            "adapt.view_fraction": draw.uniform(0.001, 1),
            "views.min_area": draw.uniform(0.1, 0.9),
        }
        study._study.add_trial(
            optuna.create_trial(params=params, distributions=suggestions.distributions, values=scores(params))
        )
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        number, _, values = study.ask()
        seconds.append(time.perf_counter() - began)
        study.tell(record(number, values))
    print(f"ask at 2,000 trials: {1000 * min(seconds):.0f} ms, {1000 * max(seconds):.0f} ms at worst")
    assert min(seconds) < 2
