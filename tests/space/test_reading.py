"""Errors in a space file or a `--set` are one line with file, line number and key."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.space import params
from fpp_sweep.space.reading import load_space, parse_space, read_config
from fpp_sweep.spec.errors import InputError
from tests.space.wrong_spaces import RANGE, SHAPES, VALUES


def read_space(text, *overrides):
    return parse_space(text, "x.yaml", overrides)


def error_of(text, *overrides):
    with pytest.raises(InputError) as error:
        read_space(text, *overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("text", "line"), [*SHAPES, *VALUES])
def test_an_error_is_one_line_with_file_line_and_key(text, line):
    assert error_of(text) == line


def test_a_grid_of_too_many_points_is_refused_before_it_is_built():
    values = json.dumps(list(range(1, 100)))
    keys = ("fpp.gamma1", "fpp.gamma2", "fpp.steps", "fpp.draws")
    block = ", ".join(f"{key}: {values}" for key in keys)
    assert "more than 2000 points" in error_of(f"grid:\n- {{{block}}}")
    assert "more than 2000 points" in error_of(f"params: {{{block}}}\nsearch: {{sampler: grid}}")


@pytest.mark.parametrize(
    "text",
    [
        "grid: [{fpp.gamma1: [1, 2]}, {fpp.gamma1: [3, 4], fpp.draws: [1, 2]}]",
        "params: {fpp.gamma1: [1, 2, 3], fpp.draws: [1, 2]}\nsearch: {sampler: grid}",
    ],
)
def test_the_limit_of_a_grids_points_is_inclusive(text, monkeypatch):
    monkeypatch.setattr(params, "MAX_POINTS", 6)
    assert len(read_space(text).grid_points()) == 6
    monkeypatch.setattr(params, "MAX_POINTS", 5)
    assert "more than 5 points" in error_of(text)


@given(st.text("abx.:{}[],-0\n #'"))
@settings(max_examples=50, deadline=None)
def test_any_text_is_read_or_refused_in_one_line(text):
    line = "x.yaml: no error"
    try:
        read_space(text)
    except InputError as error:
        line = str(error)
    assert line.startswith("x.yaml")
    assert "\n" not in line


# ------------------------------------------------------------ overrides

OVERRIDABLE = RANGE + "search: {trials: 5}\nobjectives: [accuracy, {metric: ece, goal: min}]\npoints: [{fpp.gamma1: 2}]"


@pytest.mark.parametrize(
    ("override", "is_applied"),
    [
        ("search.trials=20", lambda space: space.search.trials == 20),
        ("search.wall_clock=5m", lambda space: space.search.wall_clock == 300),
        ("search.finalists={seeds: 2}", lambda space: space.search.finalists.seeds == 2),
        ("search.finalists.count=3", lambda space: space.search.finalists.count == 3),
        ("search.margin={ece: 2}", lambda space: space.search.margin == {"ece": 2.0}),
        ("work.datasets=[dtd, pets]", lambda space: space.work.datasets == ("dtd", "pets")),
        ("work.model=ViT-B-16:/a/b.pt", lambda space: space.work.model == "ViT-B-16:/a/b.pt"),
        ("work.data_root=/data", lambda space: space.work.datasets == ("fine_grained",)),
        ("work.device=cpu", lambda space: space.work.gpus_per_worker == 0),
        ("work.device=cuda:1", lambda space: space.work.gpus_per_worker is None),
        ("params.fpp.gamma1.high=3", lambda space: space.params[0].high == 3),
        ("params.fpp.gamma1={low: 1, high: 2}", lambda space: space.params[0].high == 2),
        ("params.fpp.gamma2={low: 1, high: 2}", lambda space: space.params[1].key == "fpp.gamma2"),
        ("params.method=[tpt, otpt]", lambda space: space.params[1].choices == ("tpt", "otpt")),
        ("base.fpp.steps=3", lambda space: space.base == {"fpp.steps": 3}),
        ("fpp.steps=3", lambda space: space.base == {"fpp.steps": 3}),
        ("method=otpt", lambda space: space.base == {"method": "otpt"}),
        ("base.anchor_prompt=a sketch of a", lambda space: space.base == {"anchor_prompt": "a sketch of a"}),
        ("objectives=[nll]", lambda space: [objective.metric for objective in space.objectives] == ["nll"]),
        ("name=mine", lambda space: space.name == "mine"),
        ("search.trials=null", lambda space: space.search.trials == 16),
        ("search.max_failures=none", lambda space: space.search.max_failures is None),
        ("search.max_failures=null", lambda space: space.search.max_failures == 5),
    ],
)
def test_every_key_can_be_overridden(override, is_applied):
    assert is_applied(read_space(OVERRIDABLE, override))


def test_a_parameter_can_be_taken_out_and_fixed_instead():
    space = read_space(RANGE.replace("}}", "}, fpp.draws: [1, 2]}"), "params.fpp.gamma1=null", "base.fpp.gamma1=2")
    assert [param.key for param in space.params] == ["fpp.draws"]
    assert space.base == {"fpp.gamma1": 2.0}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("search.race=true", "--set search.race=true: search.race: unknown key 'race'"),
        ("search.margin={acc: 1}", "--set search.margin={acc: 1}: search.margin.acc: unknown metric 'acc', did you"),
        ("search.margin={ece: -1}", "--set search.margin={ece: -1}: search.margin.ece: must be >= 0 (-1)"),
        (
            "params.fpp.gamma1.high=0",
            "--set params.fpp.gamma1.high=0: params.fpp.gamma1: low must be < high (0.1 and 0)",
        ),
        ("params.fpp.gamma9.high=0", "--set params.fpp.gamma9.high=0: params.fpp.gamma9: unknown setting 'fpp.gamma9'"),
        ("objectives.5.goal=max", "--set objectives.5.goal=max: objectives is a list, which has no '5.goal'"),
        ("name.first=a", "--set name.first=a: name is 'n', which has no 'first'"),
    ],
)
def test_an_error_in_an_override_quotes_the_override(override, line):
    assert error_of(RANGE + "objectives: [ece]\nname: n", override).startswith(line)


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ("params: {fpp.gamma1: [1, 2]}\nbase: {method: tpt}\nwork:\n  columns: [product]\n  baselines: [zero_shot]", 5),
        ("params: {fpp.gamma1: [1, 2]}\nbase: {method: tpt}\nwork:\n  baselines: [zero_shot]\n  columns: [product]", 4),
    ],
)
def test_a_baseline_without_adapted_prompts_is_named_with_its_line(columns, where):
    problem = "work.baselines: product cannot be measured of method zero_shot"
    assert error_of(columns).startswith(f"x.yaml:{where}: {problem}")


# ------------------------------------------------------------ files


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path):
    (tmp_path / "perturb.yaml").write_text(RANGE)
    with pytest.raises(InputError) as error:
        load_space(tmp_path / "pertrub.yaml")
    missing, present = tmp_path / "pertrub.yaml", tmp_path / "perturb.yaml"
    assert str(error.value) == f"search space {missing} does not exist, did you mean {present}?"
    with pytest.raises(InputError, match=r"other\.yaml does not exist; give another file$"):
        load_space(tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("best.yaml", "config: {fpp.gama2: 1}", "best.yaml:1: config.fpp.gama2: unknown setting 'fpp.gama2', did you"),
        ("best.yaml", "config: {fpp.draws: 0}", "best.yaml:1: config.fpp.draws: must be >= 1 (0)"),
        ("best.yaml", "settings: {}", "best.yaml: has no `config:`; a sweep's best/*.yaml and trials/*.json do"),
        ("best.yaml", "{}", "best.yaml: has no `config:`; a sweep's best/*.yaml and trials/*.json do"),
    ],
)
def test_an_error_in_a_config_file_names_the_setting(tmp_path, monkeypatch, name, text, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        read_config(tmp_path / name)
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith(line)


# ------------------------------------------------------------ start-up time


def test_reading_a_space_loads_no_slow_library():
    code = "from fpp_sweep.space.reading import parse_space\nparse_space('params: {fpp.draws: [1]}', 'x.yaml')"
    show = "import sys\nprint({'torch', 'numpy', 'ray', 'optuna', 'mlflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()"]
