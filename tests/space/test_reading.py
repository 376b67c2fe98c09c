"""What is wrong with a file or a `--set` is one line that says where."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.errors import InputError
from fpp_sweep.space import grid
from fpp_sweep.space.reading import parse_space

RANGE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\n"


def of(text, *overrides):
    return parse_space(text, "x.yaml", overrides)


def complaint(text, *overrides):
    with pytest.raises(InputError) as error:
        of(text, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


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
        (RANGE + "work: {gpus_per_worker: -1}", "x.yaml:2: work.gpus_per_worker: must be >= 0, got -1"),
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
    "text",
    [
        "grid: [{fpp.gamma1: [1, 2]}, {fpp.gamma1: [3, 4], fpp.draws: [1, 2]}]",
        "params: {fpp.gamma1: [1, 2, 3], fpp.draws: [1, 2]}\nsearch: {sampler: grid}",
    ],
)
def test_a_grid_may_have_as_many_points_as_its_limit_and_not_one_more(text, monkeypatch):
    monkeypatch.setattr(grid, "MOST_POINTS", 6)
    assert len(of(text).grid_points()) == 6
    monkeypatch.setattr(grid, "MOST_POINTS", 5)
    assert "more than 5 points" in complaint(text)


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
        ("objectives.5.goal=max", "--set objectives.5.goal=max: objectives is a list of 1, which has no item '5'"),
        ("name.first=a", "--set name.first=a: name is 'n', which has no 'first'"),
    ],
)
def test_a_bad_override_is_told_as_it_was_written(override, told):
    assert complaint(RANGE + "objectives: [ece]\nname: n", override).startswith(told)


def test_reading_a_space_loads_nothing_heavy():
    code = (
        "import sys, fpp_sweep.space.reading as s; s.parse_space('params: {fpp.draws: [1]}', 'x.yaml')\n"
        "print({'torch', 'numpy', 'ray', 'optuna', 'mlflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
