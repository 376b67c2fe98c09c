"""Search spaces: what a file says, and what is wrong with it."""

import dataclasses
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fpp_sweep.config import PRESETS, TrialConfig, preset
from fpp_sweep.errors import InputError
from fpp_sweep.space import reading as spacefile
from fpp_sweep.space.reading import (
    CONSTRAINT,
    OBJECTIVE,
    PARAM,
    SEARCH,
    TOP,
    WORK,
    load_space,
    parse_space,
    setting_types,
    space_of,
)
from fpp_sweep.space.schema import main as print_schema
from fpp_sweep.space.schema import schema
from fpp_sweep.space.space import (
    BASELINES,
    FREE,
    METHODS,
    QUALITIES,
    Constraint,
    Objective,
    Param,
    Search,
    Space,
    Work,
    published_points,
)
from fpp_sweep.space.yamlfile import dump, parse, read

ROOT = Path(__file__).parent.parent
SHIPPED = sorted((ROOT / "search_spaces").glob("*.yaml"))
RANGE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\n"


def of(text, *overrides):
    return parse_space(text, "x.yaml", overrides)


def complaint(text, *overrides):
    with pytest.raises(InputError) as error:
        of(text, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def fits_the_schema(document):
    jsonschema = pytest.importorskip("jsonschema")  # MLflow and Ray bring it
    return jsonschema.Draft202012Validator(schema()).is_valid(document)


# ---------------------------------------------------------------- what a file says


def test_a_space_of_one_range_has_all_the_rest_by_default():
    space = of(RANGE)
    assert space.name == "x"
    assert space.params == (Param(key="fpp.gamma1", kind="float", low=0.1, high=10.0, log=True),)
    assert space.objectives == (Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min"))
    assert space.search == Search(trials=16)
    assert space.work == Work(datasets=("tiny",))
    assert tuple(space.baselines()) == BASELINES


def test_the_kind_of_a_parameter_is_that_of_the_setting():
    space = of(
        "params: {fpp.draws: {low: 1, high: 9, step: 2}, fpp.lambda_shifts: {low: 0, high: 2}, fpp.align: [on, off]}"
    )
    assert [(param.kind, param.step) for param in space.params] == [("int", 2), ("float", None), ("choice", None)]
    assert space.params[2].choices == (True, False)
    assert isinstance(space.params[0].low, int)


def test_bounds_and_choices_may_be_relative_to_the_released_setting():
    space = of("params: {fpp.class_var: {low: x0.1, high: 1}, fpp.context_var: [x1, x2]}")
    assert space.params[0].low == pytest.approx(0.002)
    assert space.params[1].choices == (0.005, 0.01)


def test_none_is_a_choice_where_the_setting_can_be_none():
    assert of("params: {adapt.penalty: [none, 3]}").params[0].choices == (None, 3.0)
    assert of("params: {adapt.penalty: [null, 3]}").params[0].choices == (None, 3.0)


def test_a_trial_is_the_preset_then_the_base_then_its_values():
    space = of("base: {fpp.steps: 7, fpp.class_var: x2}\n" + RANGE)
    config = space.resolve({"fpp.gamma1": 3})
    assert config == preset("tiny").replace({"fpp.steps": 7, "fpp.class_var": 0.04, "fpp.gamma1": 3})


def test_the_preset_follows_the_model_unless_it_is_named():
    assert of(RANGE).start() == preset("tiny")
    assert of(RANGE, "work.model=ViT-B-16/openai").start() == preset("code")
    assert of(RANGE, "preset=paper").start() == preset("paper")


def test_datasets_follow_where_data_is():
    assert of(RANGE, "work.data_root=/data").work.datasets == ("fine_grained",)
    assert of(RANGE, "work.dataset_file=mine.yaml").work.datasets == ()
    assert of(RANGE, "work.dataset_file=mine.yaml", "work.datasets=[dtd]").work.datasets == ("dtd",)


def test_parents_come_before_their_children_and_decide_whether_they_exist():
    space = of("params: {adapt.penalty: {low: 1, high: 9, when: {method: otpt}}, method: [tpt, otpt]}")
    assert [param.key for param in space.params] == ["method", "adapt.penalty"]
    child = space.params[1]
    assert child.exists({"method": "otpt"})
    assert not child.exists({"method": "tpt"})
    assert not child.exists({})  # its parent does not exist either


def test_a_parameter_exists_where_all_of_its_conditions_hold():
    space = of(
        "params: {method: [tpt, otpt], fpp.align: [on, off],"
        " fpp.steps: {choices: [1], when: {method: otpt, fpp.align: on}}}"
    )
    child = space.params[2]
    assert child.exists({"method": "otpt", "fpp.align": True})
    for values in ({"method": "tpt", "fpp.align": True}, {"method": "otpt", "fpp.align": False}, {"method": "otpt"}):
        assert not child.exists(values)


def test_the_ends_of_a_range_are_in_it():
    space = of(RANGE + "points: [{fpp.gamma1: 0.1}, {fpp.gamma1: 10}]")
    assert space.points == ({"fpp.gamma1": 0.1}, {"fpp.gamma1": 10.0})


def test_the_bounds_of_a_constraint_may_be_one_value():
    (only,) = of(RANGE + "constraints: [{metric: ece, at_least: 2, at_most: 2}]").constraints
    assert [only.violation(value) for value in (1, 2, 3)] == [1, 0, 1]


def test_a_goal_is_the_metrics_own_unless_it_is_given():
    text = "objectives: [ece/dtd, {metric: nll, goal: max, reference: 3}, device_seconds]\n" + RANGE
    assert of(text).objectives == (
        Objective(metric="ece/dtd", goal="min"),
        Objective(metric="nll", goal="max", reference=3.0),
        Objective(metric="device_seconds", goal="min"),
    )


def test_a_constraint_is_broken_by_its_excess():
    within = Constraint(name="a", metric="ece", at_least=2, at_most=5)
    assert [within.violation(value) for value in (1, 2, 4, 5, 7)] == [1, 0, -1, 0, 2]
    relative = Constraint(name="b", metric="accuracy", at_least=-0.5, baseline="zero_shot")
    assert relative.violation(61.5, 62) == 0
    assert relative.violation(61, 62) == 0.5
    with pytest.raises(InputError, match="constraint b: baseline zero_shot has no accuracy"):
        relative.violation(61)


def test_constraints_are_named_after_what_they_compare():
    text = "constraints: [{metric: accuracy, at_least: 0, baseline: tpt}, {metric: ece/dtd, at_most: 9}]\n" + RANGE
    assert [each.name for each in of(text).constraints] == ["accuracy_vs_tpt", "ece_dtd"]


@pytest.mark.parametrize(
    ("search", "trials"),
    [
        ("{}", 16),
        ("{trials: 3}", 3),
        ("{wall_clock: 5m}", None),
        ("{gpu_hours: 2}", None),
        ("{gpu_hours: 2, trials: 9}", 9),
    ],
)
def test_there_is_always_a_budget(search, trials):
    assert of(f"{RANGE}search: {search}").search.trials == trials


# ---------------------------------------------------------------- grids and points


def test_blocks_are_products_and_each_config_comes_once():
    space = of(
        "base: {fpp.gamma2: 15}\ngrid:\n- {fpp.gamma1: [1, 2], fpp.gamma2: [0, 15]}\n- {fpp.gamma1: 2}\n- fpp.steps: 9"
    )
    points = [tuple(point.values()) for point in space.grid_points()]
    assert points == [(1.0, 0.0, 60), (1.0, 15.0, 60), (2.0, 0.0, 60), (2.0, 15.0, 60), (1.0, 15.0, 9)]
    assert space.search.sampler == "grid"


def test_keys_of_one_line_move_together():
    points = of("grid: [{'fpp.context_var, fpp.class_var': [x1, x2]}]").grid_points()
    assert points == [
        {"fpp.context_var": 0.005, "fpp.class_var": 0.02},
        {"fpp.context_var": 0.01, "fpp.class_var": 0.04},
    ]
    points = of("grid: [{'prompt, init': [[fpp, a photo of a], words]}]").grid_points()
    assert points == [{"prompt": "fpp", "init": "a photo of a"}, {"prompt": "words", "init": "words"}]


def test_a_grid_of_choices_does_not_vary_what_does_not_exist():
    text = (
        "params: {method: [tpt, otpt], adapt.penalty: {choices: [1, 2], when: {method: otpt}}}\nsearch: {sampler: grid}"
    )
    space = of(text)
    assert space.grid_points() == [
        {"method": "tpt"},
        {"method": "otpt", "adapt.penalty": 1.0},
        {"method": "otpt", "adapt.penalty": 2.0},
    ]
    assert space.search.trials == 3


def test_what_a_grid_searches_are_the_values_of_all_its_blocks():
    space = of("grid: [{fpp.gamma2: [1, 2]}, {fpp.start: predefined}]")
    assert space.searched() == (
        Param(key="fpp.gamma2", kind="choice", choices=(1.0, 2.0, 0.15)),
        Param(key="fpp.start", kind="choice", choices=("random", "predefined")),
    )


def test_users_points_come_first_then_the_codes_and_the_papers():
    space = of("points: [{fpp.gamma1: 2}]\nparams: {fpp.gamma1: {low: 0, high: 3}, fpp.gamma2: {low: 0.1, high: 20}}")
    assert space.first_points() == [
        ("point", {"fpp.gamma1": 2.0}),
        ("code", {"fpp.gamma1": 1.0, "fpp.gamma2": 15.0}),
        ("paper", {"fpp.gamma1": 1.0, "fpp.gamma2": 0.15}),
    ]
    assert space.left_out() == []


def test_a_partial_point_is_another_than_the_full_one_it_looks_like():
    space = of("points: [{fpp.gamma1: 1}]\nparams: {fpp.gamma1: {low: 0, high: 3}, fpp.gamma2: {low: 0.1, high: 20}}")
    assert [origin for origin, _ in space.first_points()] == ["point", "code", "paper"]


def test_a_published_point_that_does_not_fit_is_left_out_and_told():
    space = of("params: {fpp.gamma2: {low: 1, high: 20}, fpp.start: [random]}")
    assert [origin for origin, _ in space.first_points()] == ["code"]
    (line,) = space.left_out()
    assert line.startswith(
        "the paper's settings are not tried: fpp.gamma2: 0.15 is outside 1..20; fpp.start: predefined"
    )


def test_code_and_paper_are_one_point_where_they_agree():
    assert [origin for origin, _ in of(RANGE).first_points()] == ["code"]


def test_the_queue_of_a_grid_has_each_config_once():
    space = of("points: [{fpp.gamma2: 3}]\ngrid: [{fpp.gamma2: [0.15, 15, 3]}]")
    assert [(origin, point["fpp.gamma2"]) for origin, point in space.queue()] == [
        ("point", 3),
        ("code", 15),
        ("paper", 0.15),
    ]
    assert space.search.trials == 3


def test_published_points_are_the_released_code_and_the_papers_text():
    for name in ("auto", "code", "paper"):
        points = published_points(name)
        assert TrialConfig().replace(points["code"]) == preset("code")
        assert TrialConfig().replace(points["paper"]) == preset("paper")
    assert TrialConfig().replace(published_points("tiny")["code"]) == preset("tiny").replace({"fpp.gamma2": 15})
    assert TrialConfig().replace(published_points("tiny")["paper"]) == preset("tiny").replace(PRESETS["paper"])


def test_baselines_adapt_like_trials_and_pretrain_as_published():
    space = of("base: {adapt.lr: 0.1, views.count: 9, fpp.steps: 3, init: a drawing of a, method: otpt}\n" + RANGE)
    configs = space.baselines()
    assert {(config.adapt.lr, config.views.count) for config in configs.values()} == {(0.1, 9)}
    for name in METHODS:
        assert (configs[name].method, configs[name].prompt) == (name, "a drawing of a")
    for origin, gamma2 in (("code", 15), ("paper", 0.15)):
        config = configs[f"fpp_{origin}"]
        assert (config.method, config.prompt, config.init) == ("tpt", "fpp", "a drawing of a")
        assert (config.fpp.gamma2, config.fpp.steps) == (gamma2, 60)
    assert list(of(RANGE, "work.baselines=[tpt]").baselines()) == ["tpt"]


# ---------------------------------------------------------------- what is wrong with a file


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x.yaml:1: is empty"),
        ("- a", "x.yaml:1: must be a mapping"),
        ("base: {}", "x.yaml:1: has neither params nor a grid"),
        ("\nparms: {}", "x.yaml:2: unknown key 'parms', did you mean 'params'?"),
        ("search:\n  trails: 3", "x.yaml:2: unknown key 'search.trails', did you mean 'search.trials'?"),
        (
            "params:\n  fpp.gama1: [1]",
            "x.yaml:2: params.fpp.gama1: unknown config key 'fpp.gama1', did you mean 'fpp.gamma1'?",
        ),
        (
            "params:\n  fpp.gamma1:\n    low: 3\n    high: 1",
            "x.yaml:2: params.fpp.gamma1: low must be < high, got 3 and 1",
        ),
        ("params: {fpp.gamma1: {low: 3, high: 3}}", "x.yaml:1: params.fpp.gamma1: low must be < high, got 3 and 3"),
        (
            "params:\n  fpp.gamma1:\n    low: 3\n    hihg: 4",
            "x.yaml:4: unknown key 'params.fpp.gamma1.hihg', did you mean",
        ),
        ("params: {fpp.gamma1: {low: 1}}", "x.yaml:1: params.fpp.gamma1: needs high, or choices"),
        (
            "params: {fpp.gamma1: {low: 0, high: 1, log: true}}",
            "x.yaml:1: params.fpp.gamma1.low: must be > 0 where log",
        ),
        (
            "params: {fpp.gamma1: {low: 1, high: 2, log: 3}}",
            "x.yaml:1: params.fpp.gamma1.log: must be true or false, got 3",
        ),
        (
            "params: {fpp.gamma1: {low: 0, high: 1, step: 0.3}}",
            "x.yaml:1: params.fpp.gamma1.step: must divide high - low = 1",
        ),
        ("params: {fpp.gamma1: {low: 0, high: 1, step: 0}}", "x.yaml:1: params.fpp.gamma1.step: must be > 0, got 0"),
        (
            "params: {fpp.gamma1: {low: 1, high: 2, step: 1, log: true}}",
            "x.yaml:1: params.fpp.gamma1.step: does not go with",
        ),
        (
            "params: {fpp.draws: {low: 1, high: 4, step: 0.5}}",
            "x.yaml:1: params.fpp.draws.step: must be a whole number",
        ),
        (
            "params: {fpp.draws: {low: 1.5, high: 4}}",
            "x.yaml:1: params.fpp.draws.low: fpp.draws must be a whole number",
        ),
        ("params: {fpp.draws: {low: 0, high: 4}}", "x.yaml:1: params.fpp.draws.low: fpp.draws must be >= 1, got 0"),
        (
            "params: {fpp.gamma1: {low: a, high: 4}}",
            "x.yaml:1: params.fpp.gamma1.low: fpp.gamma1 must be a number, got 'a'",
        ),
        ("params: {fpp.gamma1: {low: .nan, high: 4}}", "x.yaml:1: params.fpp.gamma1.low: fpp.gamma1 must be finite"),
        (
            "params: {adapt.penalty: {low: none, high: 4}}",
            "x.yaml:1: params.adapt.penalty.low: must be a number, got none",
        ),
        ("params: {fpp.align: {low: 0, high: 1}}", "x.yaml:1: params.fpp.align: has no range; give choices"),
        ("params: {fpp.gamma1: 3}", "x.yaml:1: params.fpp.gamma1: must be a mapping (key: value), got 3"),
        ("params: [fpp.gamma1]", "x.yaml:1: params: must be a mapping (key: value), got a list"),
        ("params: {fpp.gamma1: []}", "x.yaml:1: params.fpp.gamma1: must have at least 1 entry, is empty"),
        ("params: {fpp.class_var: [x1, 0.02]}", "x.yaml:1: params.fpp.class_var.1: 0.02 comes twice"),
        ("params: {fpp.gamma1: {choices: [1], low: 2}}", "x.yaml:1: params.fpp.gamma1.low: does not go with choices"),
        (
            "params: {fpp.start: [rnadom]}",
            "x.yaml:1: params.fpp.start.0: fpp.start: unknown value 'rnadom', did you mean 'random'",
        ),
        ("params: {method: [tptt]}", "x.yaml:1: params.method.0: unknown method 'tptt', did you mean 'tpt'?"),
        ("params: {init: [fpp]}", "x.yaml:1: params.init.0: FPP needs words"),
        ("params: {prompt: [[a]]}", "x.yaml:1: params.prompt.0: must be a single value, got a list"),
        ("base: {fpp.gamma1: 1}\n" + RANGE, "x.yaml:2: params.fpp.gamma1: is fixed in base as well"),
        ("base: {fpp: {gamma1: 1}}\n" + RANGE, "x.yaml:1: base.fpp: must be a single value, got a mapping"),
        ("base: {fpp: 1}\n" + RANGE, "x.yaml:1: base.fpp: write its settings out, such as fpp.gamma1"),
        (
            "base: {views.min_area: 2}\n" + RANGE,
            "x.yaml:1: base.views.min_area: views.min_area must be in (0, views.max_area]",
        ),
        (
            "params: {method: [tpt], fpp.steps: {choices: [1], when: {metod: tpt}}}",
            "x.yaml:1: params.fpp.steps.when.metod: unknown",
        ),
        (
            "params:\n  method: [tpt, otpt]\n  fpp.steps: {choices: [1], when: {method: ctpt}}",
            "x.yaml:3: params.fpp.steps.when.method: can never hold: ctpt is not among tpt, otpt",
        ),
        (
            RANGE.replace("}}", "}, fpp.steps: {choices: [1], when: {fpp.gamma1: 1}}}"),
            "x.yaml:1: params.fpp.steps.when.fpp.gamma1: fpp.gamma1 is a range of real numbers",
        ),
        (
            "params: {method: {choices: [tpt], when: {fpp.steps: 1}}, fpp.steps: {choices: [1], when: {method: tpt}}}",
            "x.yaml:1: params.method: when goes in a circle among method, fpp.steps",
        ),
        (RANGE + "objectives: [acuracy]", "x.yaml:2: objectives.0: unknown metric 'acuracy', did you mean 'accuracy'?"),
        (RANGE + "objectives: [ece, ece]", "x.yaml:2: objectives.1: ece is an objective already"),
        (RANGE + "objectives: [ece, {metric: ece, goal: max}]", "x.yaml:2: objectives.1: ece is an objective already"),
        (RANGE + "objectives: [ece, nll, mce, sce]", "x.yaml:2: objectives: must have at most 3 entries, has 4"),
        (RANGE + "objectives: []", "x.yaml:2: objectives: must have at least 1 entry"),
        (RANGE + "objectives: [{goal: max}]", "x.yaml:2: objectives.0: needs a metric"),
        (RANGE + "objectives: [{metric: ece, goal: up}]", "x.yaml:2: objectives.0.goal: unknown goal 'up'"),
        (RANGE + "objectives: [seconds/dtd]", "x.yaml:2: objectives.0: 'seconds/dtd' is of a whole trial"),
        (RANGE + "objectives: [ece/]", "x.yaml:2: objectives.0: 'ece/' lacks a dataset after '/'"),
        (RANGE + "constraints: [{metric: ece}]", "x.yaml:2: constraints.0: needs at_least or at_most"),
        (
            RANGE + "constraints: [{metric: ece, at_least: 2, at_most: 1}]",
            "x.yaml:2: constraints.0: at_least must be <= at_most",
        ),
        (
            RANGE + "constraints: [{metric: ece, at_most: 1, baseline: clip}]",
            "x.yaml:2: constraints.0.baseline: unknown baseline",
        ),
        (
            RANGE + "work: {baselines: []}\nconstraints: [{metric: ece, at_most: 1, baseline: tpt}]",
            "x.yaml:3: constraints.0: baseline tpt is not among work.baselines",
        ),
        (
            RANGE + "constraints: [{metric: ece, at_most: 1}, {metric: ece, at_least: 0}]",
            "x.yaml:2: constraints.1: there is a constraint named ece already",
        ),
        (RANGE + "search: {sampler: tpee}", "x.yaml:2: search.sampler: unknown sampler 'tpee', did you mean 'tpe'?"),
        (RANGE + "search: {sampler: grid}", "x.yaml:1: params.fpp.gamma1: is a range, which sampler grid cannot run"),
        (RANGE + "search: {trials: 0}", "x.yaml:2: search.trials: must be >= 1, got 0"),
        (RANGE + "search: {trials: 2.5}", "x.yaml:2: search.trials: must be a whole number, got 2.5"),
        (RANGE + "search: {wall_clock: soon}", "x.yaml:2: search.wall_clock: must be a duration such as 90s"),
        (RANGE + "search: {split: train}", "x.yaml:2: search.split: unknown split 'train'"),
        (RANGE + "search: [trials]", "x.yaml:2: search: must be a mapping (key: value), got a list"),
        (RANGE + "search:", "x.yaml:2: search: must be a mapping (key: value), got nothing"),
        (RANGE + "work: {seeds: []}", "x.yaml:2: work.seeds: must have at least 1 entry, is empty"),
        (RANGE + "work: {seeds: [1, 1]}", "x.yaml:2: work.seeds.1: 1 comes twice"),
        (RANGE + "work: {seeds: 0}", "x.yaml:2: work.seeds: must be a list, such as [0], got 0"),
        (RANGE + "work: {model: 3}", "x.yaml:2: work.model: must be text, got 3"),
        (RANGE + "work: {gpus_per_actor: -1}", "x.yaml:2: work.gpus_per_actor: must be >= 0, got -1"),
        (RANGE + "preset: papre", "x.yaml:2: preset: unknown preset 'papre', did you mean 'paper'?"),
        (RANGE + "name: ../up", "x.yaml:2: name: must be letters, digits"),
        (RANGE + "points: [{fpp.gamma1: 20}]", "x.yaml:2: points.0.fpp.gamma1: 20 is outside 0.1..10"),
        (
            RANGE + "points: [{fpp.gamma2: 1}]",
            "x.yaml:2: points.0.fpp.gamma2: unknown parameter 'fpp.gamma2', did you mean",
        ),
        (RANGE + "points: [{}]", "x.yaml:2: points.0: is an empty point"),
        (RANGE + "points: [{fpp.gamma1: 1}, {fpp.gamma1: 1.0}]", "x.yaml:2: points.1: comes twice"),
        (
            "params: {fpp.draws: {low: 1, high: 5, step: 2}}\npoints: [{fpp.draws: 2}]",
            "x.yaml:2: points.0.fpp.draws: 2 is not 1 plus",
        ),
        (
            "params: {method: [tpt, otpt], fpp.steps: {choices: [1], when: {method: tpt}}}\n"
            "points: [{fpp.steps: 1, method: otpt}]",
            "x.yaml:2: points.0: fpp.steps does not exist where method is otpt",
        ),
        ("grid: {fpp.gamma1: [1]}", "x.yaml:1: grid: must be a list"),
        ("grid: [{}]", "x.yaml:1: grid.0: is an empty block"),
        ("grid: [{fpp.gamma: [1]}]", "x.yaml:1: grid.0.fpp.gamma.0: unknown config key 'fpp.gamma', did you mean"),
        ("grid: [{fpp.gamma1: [1, 1.0]}]", "x.yaml:1: grid.0.fpp.gamma1.1: 1.0 comes twice"),
        (
            "grid: [{fpp.gamma1: 1, 'fpp.gamma2, fpp.gamma1': 2}]",
            "x.yaml:1: grid.0.fpp.gamma2, fpp.gamma1: fpp.gamma1 comes twice",
        ),
        (
            "grid: [{'fpp.gamma1, fpp.gamma2': [[1, 2, 3]]}]",
            "x.yaml:1: grid.0.fpp.gamma1, fpp.gamma2.0: must be one value, or 2",
        ),
        ("grid: [{fpp.align: off, fpp.flat: off}]", "x.yaml:1: grid.0: fpp.align or fpp.flat must be on"),
        ("grid: [{fpp.steps: [1]}]\nsearch: {sampler: tpe}", "x.yaml:2: search.sampler: tpe does not go with a grid"),
        ("grid: [{fpp.steps: [1]}]\n" + RANGE, "x.yaml:2: params: does not go with a grid"),
        (
            "params: {method: [tpt], fpp.steps: {choices: [1], when: {method: tpt}}}\nsearch: {sampler: gp}",
            "x.yaml:1: params.fpp.steps: when does not go with sampler gp",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_the_place(text, told):
    assert complaint(text).startswith(told)


def test_a_grid_that_would_never_end_is_refused_before_it_is_built():
    values = json.dumps(list(range(1, 100)))
    keys = ("fpp.gamma1", "fpp.gamma2", "fpp.steps", "fpp.draws")
    assert "more than 2000 points" in complaint("grid:\n- {" + ", ".join(f"{key}: {values}" for key in keys) + "}")
    text = "params: {" + ", ".join(f"{key}: {values}" for key in keys) + "}\nsearch: {sampler: grid}"
    assert "more than 2000 points" in complaint(text)


@pytest.mark.parametrize(
    "grid",
    [
        "grid: [{fpp.gamma1: [1, 2]}, {fpp.gamma1: [3, 4], fpp.draws: [1, 2]}]",
        "params: {fpp.gamma1: [1, 2, 3], fpp.draws: [1, 2]}\nsearch: {sampler: grid}",
    ],
)
def test_a_grid_may_have_as_many_points_as_its_limit_and_not_one_more(grid, monkeypatch):
    monkeypatch.setattr(spacefile, "MOST_POINTS", 6)
    assert len(of(grid).grid_points()) == 6
    monkeypatch.setattr(spacefile, "MOST_POINTS", 5)
    assert "more than 5 points" in complaint(grid)


@given(st.text("abx.:{}[],-0\n #'"))
@settings(max_examples=50, deadline=None)
def test_no_text_is_more_than_a_line_of_complaint(text):
    said = "x.yaml: nothing wrong"
    try:
        of(text)
    except InputError as error:
        said = str(error)
    assert said.startswith("x.yaml")
    assert "\n" not in said


# ---------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("search.trials=20", lambda space: space.search.trials == 20),
        ("search.wall_clock=5m", lambda space: space.search.wall_clock == 300),
        ("work.datasets=[dtd, pets]", lambda space: space.work.datasets == ("dtd", "pets")),
        ("work.model=ViT-B-16:/a/b.pt", lambda space: space.work.model == "ViT-B-16:/a/b.pt"),
        ("params.fpp.gamma1.high=3", lambda space: space.params[0].high == 3),
        ("params.fpp.gamma1={low: 1, high: 2}", lambda space: space.params[0].high == 2),
        ("params.fpp.gamma2={low: 1, high: 2}", lambda space: space.params[1].key == "fpp.gamma2"),
        ("params.method=[tpt, otpt]", lambda space: space.params[1].choices == ("tpt", "otpt")),
        ("base.fpp.steps=3", lambda space: space.base == {"fpp.steps": 3}),
        ("base.init=a sketch of a", lambda space: space.base == {"init": "a sketch of a"}),
        ("objectives=[nll]", lambda space: [each.metric for each in space.objectives] == ["nll"]),
        ("objectives.1.reference=30", lambda space: space.objectives[1].reference == 30),
        ("objectives.1.goal=null", lambda space: space.objectives[1].goal == "min"),
        ("points.0.fpp.gamma1=7", lambda space: space.points == ({"fpp.gamma1": 7.0},)),
        ("name=mine", lambda space: space.name == "mine"),
        ("search.trials=null", lambda space: space.search.trials == 16),
    ],
)
def test_every_key_can_be_overridden(override, found):
    text = RANGE + "search: {trials: 5}\nobjectives: [accuracy, {metric: ece, goal: max}]\npoints: [{fpp.gamma1: 2}]"
    assert found(of(text, override))


def test_a_parameter_can_be_taken_out_and_fixed_instead():
    space = of(RANGE.replace("}}", "}, fpp.draws: [1, 2]}"), "params.fpp.gamma1=null", "base.fpp.gamma1=2")
    assert [param.key for param in space.params] == ["fpp.draws"]
    assert space.base == {"fpp.gamma1": 2.0}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("search.trials", "--set 'search.trials': expected key=value"),
        ("serch.trials=3", "--set serch.trials=3: unknown key 'serch', did you mean 'search'?"),
        ("search.trails=3", "--set search.trails=3: unknown key 'search.trails', did you mean 'search.trials'?"),
        ("search.trials=0", "--set search.trials=0: search.trials: must be >= 1, got 0"),
        ("search.trials=[", "--set search.trials=[:1: not valid YAML"),
        ("params.fpp.gamma1.high=0", "x.yaml:1: params.fpp.gamma1: low must be < high, got 0.1 and 0"),
        ("params.fpp.gamma9.high=0", "--set params.fpp.gamma9.high=0: params.fpp.gamma9: unknown config key"),
        ("objectives.5.goal=max", "--set objectives.5.goal=max: objectives is a list of 1; '5' is no place in it"),
        ("name.first=a", "--set name.first=a: name is 'n', which has no 'first'"),
    ],
)
def test_a_bad_override_is_told_as_it_was_written(override, told):
    assert complaint(RANGE + "objectives: [ece]\nname: n", override).startswith(told)


# ---------------------------------------------------------------- a space as a record


@st.composite
def spaces(draw):
    """Files of all kinds: mostly good ones."""
    params = draw(
        st.fixed_dictionaries(
            {"method": st.lists(st.sampled_from(METHODS), min_size=1, unique=True)},
            optional={
                "fpp.gamma1": st.just({"low": 0.1, "high": draw(st.floats(0.2, 1e6)), "log": draw(st.booleans())}),
                "fpp.draws": st.just({"low": 1, "high": 9, "step": draw(st.sampled_from([1, 2, 4]))}),
                "fpp.class_var": st.just(["x0.1", "x1", 3]),
                "adapt.penalty": st.just({"choices": [None, 1, 2]}),
                "init": st.lists(st.text("abc e1-:'#", min_size=1).map("x".__add__), min_size=1, unique=True),
            },
        )
    )
    if "adapt.penalty" in params and draw(st.booleans()):
        params["adapt.penalty"]["when"] = {"method": params["method"][0]}
    document = {"params": params, "search": {"seed": draw(st.integers(0, 9))}}
    if draw(st.booleans()):
        document["search"]["wall_clock"] = draw(st.sampled_from(["5m", 30, 1.5]))
    if draw(st.booleans()):
        document["search"]["max_failures"] = None
    if draw(st.booleans()):
        document["base"] = {"fpp.steps": draw(st.integers(0, 9)), "fpp.start_std": "x2", "prompt": "1e-3 on"}
    if draw(st.booleans()):
        document["constraints"] = [{"metric": "accuracy", "at_least": -0.5, "baseline": "tpt"}]
    if draw(st.booleans()):
        document["points"] = [{"method": params["method"][-1]}]
    if draw(st.booleans()):
        document["objectives"] = ["nll", {"metric": "ece/dtd", "reference": draw(st.floats(0, 1e9))}]
    return document


@given(spaces())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plain_values_make_the_same_space_again(document):
    space = of(dump(document))
    assert space_of(json.loads(json.dumps(space.plain())), "sweep.json") == space
    assert of(dump(space.plain())) == space
    assert space.difference(of(dump(space.plain()))) == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_plain_values_of_the_shipped_spaces_make_them_again(path):
    space = load_space(path)
    assert space_of(json.loads(json.dumps(space.plain())), "sweep.json") == space
    assert pickle.loads(pickle.dumps(space)) == space


def test_a_difference_tells_what_decides_results_and_nothing_else():
    space = of(RANGE)
    same = of(RANGE, "search.trials=99", "search.concurrency=3", "work.actors=7", "work.shards=2", "name=other")
    assert space.difference(same) == []
    other = of(
        RANGE, "params.fpp.gamma1.high=3", "base.fpp.steps=2", "search.seed=1", "work.limit=5", "objectives=[ece]"
    )
    assert space.difference(other) == [
        "params.fpp.gamma1.high: 10 -> 3",
        'objectives: [{"metric": "accuracy", "goal": "max"}, {"metric": "ece", "goal": "min"}] -> '
        '[{"metric": "ece", "goal": "min"}]',
        "search.seed: 0 -> 1",
        "work.limit: none -> 5",
        "base.fpp.steps: none -> 2",
    ]


# ---------------------------------------------------------------- the tables


def test_the_tables_are_the_dataclasses_fields():
    for table, cls in ((SEARCH, Search), (WORK, Work), (OBJECTIVE, Objective), (CONSTRAINT, Constraint)):
        assert list(table) == [field.name for field in dataclasses.fields(cls)]
    assert set(PARAM) == {field.name for field in dataclasses.fields(Param)} - {"key", "kind"}
    assert tuple(TOP) == tuple(field.name for field in dataclasses.fields(Space))


def test_what_may_change_on_resume_is_there():
    leaves = {f"search.{key}" for key in SEARCH} | {f"work.{key}" for key in WORK} | set(TOP)
    assert leaves >= FREE


def test_metrics_and_methods_are_the_cores():
    from fpp_sweep.core import methods
    from fpp_sweep.core.metrics import Metrics

    assert tuple(methods.METHODS) == METHODS
    assert list(QUALITIES) == [field.name for field in dataclasses.fields(Metrics) if field.name != "samples"]


def test_setting_types_are_the_configs():
    assert list(setting_types()) == list(TrialConfig().flat())


def test_reading_a_space_loads_nothing_heavy():
    code = (
        "import sys, fpp_sweep.space.reading as s; s.parse_space('params: {fpp.draws: [1]}', 'x.yaml')\n"
        "print({'torch', 'numpy', 'ray', 'optuna', 'mlflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---------------------------------------------------------------- what is shipped


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_spaces_begin_with_what_they_are_for_and_fit_the_schema(path):
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert f"#     python -m fpp_sweep.tune --space search_spaces/{path.name}" in lines
    assert "# yaml-language-server: $schema=schema.json" in lines
    assert fits_the_schema(read(path, "space").plain())
    assert load_space(path).question.endswith("?")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_spaces_try_both_published_points_on_every_model(path):
    for overrides in ([], ["work.model=ViT-B-16/openai", "work.datasets=[dtd]"]):
        space = load_space(path, overrides)
        assert {"code", "paper"} <= {origin for origin, _ in space.queue()}
        assert space.left_out() == []
        for _, values in space.queue():
            assert space.resolve(values).key()


def test_all_that_the_paper_says_is_in_paper_vs_code():
    last = load_space(ROOT / "search_spaces/paper_vs_code.yaml").grid[-1]
    assert {key: values[0] for key, values in last.items()} == PRESETS["paper"]


def test_the_schema_on_disk_is_the_one_that_is_printed(capsys):
    print_schema([])
    assert capsys.readouterr().out == (ROOT / "search_spaces/schema.json").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "parms: {}",
        "params: {fpp.gamma9: [1]}",
        "params: {fpp.align: {low: 0, high: 1}}",
        "params: {fpp.gamma1: {low: 1, high: a}}",
        "params: {method: [tptt]}",
        "objectives: [acuracy]",
        "search: {trials: 0}",
        "work: {datasets: dtd}",
        "grid: [{fpp.gamma9: 1}]",
    ],
)
def test_the_schema_refuses_slips(text):
    assert not fits_the_schema(parse(text, "x.yaml").plain())


def test_the_document_lists_every_key_and_no_other():
    document = (ROOT / "docs/spaces.md").read_text()
    listed = re.findall(r"^\| `([\w.*]+)` \|", document, flags=re.M)
    expected = []
    for key in TOP:
        inner = {
            "params": PARAM,
            "objectives": OBJECTIVE,
            "constraints": CONSTRAINT,
            "search": SEARCH,
            "work": WORK,
        }.get(key)
        middle = {"params": ".*", "objectives": ".N", "constraints": ".N"}.get(key, "")
        if key not in ("search", "work"):
            expected.append(key)
        expected += [f"{key}{middle}.{name}" for name in inner or ()]
    assert listed == expected


def test_the_documents_examples_are_spaces():
    document = (ROOT / "docs/spaces.md").read_text()
    examples = re.findall(r"^```yaml\n(.*?)^```", document, flags=re.M | re.S)
    assert len(examples) == 2
    for example in examples:
        assert of(example).queue()
        assert fits_the_schema(parse(example, "x").plain())
