"""What is wrong with a file or a `--set` is one line that says where."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.space import grid
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from tests.space.nonsense import RANGE, SHAPES, VALUES


def of(text, *overrides):
    return parse_space(text, "x.yaml", overrides)


def complaint(text, *overrides):
    with pytest.raises(InputError) as error:
        of(text, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("text", "told"), [*SHAPES, *VALUES])
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
        ("base.anchor_prompt=a sketch of a", lambda space: space.base == {"anchor_prompt": "a sketch of a"}),
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
