"""Values built in Python are held to what a file is held to, in the same words."""

import dataclasses
import json
import math
import pickle
from typing import Any

import pytest

from fpp_sweep.space import objectives, params, work
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import require_plugins
from fpp_sweep.space.yamlfile import parse
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from tests.space.nonsense import VALUES
from tests.toys import registered

# types would refuse much of what follows
Constraint: Any = objectives.Constraint
Objective: Any = objectives.Objective
Param: Any = params.Param
Search: Any = work.Search
Work: Any = work.Work

GAMMA = Param(key="fpp.gamma1", low=0.1, high=10)
ECE = {"metric": "ece", "at_most": 1}


def space(**values):
    return Space(**{"name": "x", "params": (GAMMA,), **values})


def built(document):
    """What a file says, without the file's reader."""
    builders = {
        "params": lambda value: [
            Param(key=key, **(one if isinstance(one, dict) else {"choices": one})) for key, one in value.items()
        ],
        "objectives": lambda value: [Objective(**(one if isinstance(one, dict) else {"metric": one})) for one in value],
        "constraints": lambda value: [Constraint(**one) for one in value],
        "search": lambda value: Search(**value),
        "work": lambda value: Work(**value),
    }
    return Space(**{"name": "x", **{key: builders.get(key, lambda plain: plain)(document[key]) for key in document}})


@pytest.mark.parametrize(("text", "told"), VALUES)
def test_nonsense_is_refused_in_python_as_in_a_file(text, told):
    with pytest.raises(InputError) as in_a_file:
        parse_space(text, "x.yaml")
    with pytest.raises(InputError) as in_python:
        built(parse(text, "x.yaml").plain())
    assert str(in_a_file.value).endswith(in_python.value.problem)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: Search(trials=-5), "search.trials: must be >= 1, got -5"),
        (lambda: Search(trials=True), "search.trials: must be a whole number, got True"),
        (lambda: Search(gpu_hours=10**400), "search.gpu_hours: must be a number, got 1000"),
        (lambda: Search(sampler="tpee"), "search.sampler: unknown sampler 'tpee', did you mean 'tpe'?"),
        (lambda: Work(seeds=(1, -1)), "work.seeds.1: must be >= 0, got -1"),
        (lambda: Work(loaders=-1), "work.loaders: must be >= 0, got -1"),
        (lambda: Work(on_bad_image="skp"), "work.on_bad_image: unknown on_bad_image 'skp', did you mean 'skip'?"),
        (lambda: Work(baselines=("tptt",)), "work.baselines.0: unknown baseline 'tptt', did you mean 'tpt'?"),
        (
            lambda: Param(key="fpp.gama1", choices=(1,)),
            "params.fpp.gama1: unknown config key 'fpp.gama1', did you mean",
        ),
        (lambda: Param(key=3, choices=(1,)), "params.3: must be text, got 3"),
        (lambda: Param(key="fpp.draws", low=3, high=3), "params.fpp.draws: low must be < high, got 3 and 3"),
        (lambda: Param(key="fpp.draws", choices=()), "params.fpp.draws: needs low, or choices"),
        (lambda: Param(key="fpp.draws", choices=(1,), low=0), "params.fpp.draws.low: does not go with choices"),
        (
            lambda: Param(key="method", choices=("tptt",)),
            "params.method.choices.0: unknown method 'tptt', did you mean",
        ),
        (lambda: Objective(metric="acuracy"), "metric: unknown metric 'acuracy', did you mean 'accuracy'?"),
        (lambda: Objective(metric="ece", goal="up"), "goal: unknown goal 'up'"),
        (lambda: Constraint(metric="ece"), "needs at_least or at_most"),
        (lambda: Constraint(**ECE, name="../up"), "name: must be letters, digits"),
        (lambda: Constraint(**ECE, name="up\n"), "name: must be letters, digits"),
        (lambda: space(params=()), "has neither params nor a grid"),
        (lambda: space(params=(GAMMA, GAMMA)), "params.fpp.gamma1: comes twice"),
        (lambda: space(base={3: 1}), "base: must have keys that are text"),
        (
            lambda: space(base={"fpp.align_distance": "none", "fpp.flat_distance": "none"}),
            "base: fpp.align_distance or fpp.flat_dist",
        ),
        (lambda: space(points=({"fpp.gamma1": 20},)), "points.0.fpp.gamma1: 20 is outside 0.1..10"),
        (lambda: space(search=Search(sampler="grid")), "params.fpp.gamma1: is a range, which sampler grid cannot run"),
        (lambda: space(params=(), grid=({"fpp.steps": range(9)},)), "grid.0.fpp.steps.0: fpp.steps must be a whole"),
    ],
)
def test_nonsense_in_python_is_told_with_its_key(build, told):
    with pytest.raises(InputError) as error:
        build()
    assert str(error.value).startswith(told)


def test_values_that_are_changed_are_checked_again():
    with pytest.raises(InputError, match=r"^search\.trials: must be >= 1, got 0"):
        dataclasses.replace(Search(), trials=0)
    with pytest.raises(InputError, match=r"^points\.0\.fpp\.gamma1: 11 is outside"):
        dataclasses.replace(space(), points=({"fpp.gamma1": 11},))


def test_values_are_converted_as_in_a_file():
    made = space(
        params=(
            Param(key="fpp.class_var", low="x0.1", high="x10"),
            Param(key="fpp.noise_shared", choices=["on", "off"]),
        ),
        search=Search(wall_clock="1h30m"),
        work=Work(datasets=["dtd"], cpus_per_worker=2),
    )
    assert (made.params[0].low, made.params[0].high) == pytest.approx((0.002, 0.2))
    assert made.params[1].choices == (True, False)
    assert made.search.wall_clock == 5400
    assert (made.work.datasets, made.work.cpus_per_worker) == (("dtd",), 2.0)
    assert parse_space(json.dumps(made.plain()), "x.yaml") == made


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5d", 129600), (20, 20), (0.5, 0.5)]
)
def test_durations_have_units_or_are_seconds(written, seconds):
    assert Search(wall_clock=written).wall_clock == seconds


@pytest.mark.parametrize("written", ["5", "5 minutes", "m", "-5m", "0s", 0, -1, True, None, math.nan, math.inf, []])
def test_a_bad_duration_is_refused(written):
    with pytest.raises(InputError, match=r"^work\.task_timeout: must be"):
        Work(task_timeout=written)


def test_an_error_travels_with_its_key():
    error = pickle.loads(pickle.dumps(InputError("must be >= 1", "search.trials")))
    assert (str(error), error.problem, error.key) == ("search.trials: must be >= 1", "must be >= 1", "search.trials")


# ---------------------------------------------------------------- what plugins bring


@pytest.fixture
def plugin():
    """A method whose results depend on the samples before, and a metric."""
    method = dataclasses.replace(catalogue.METHODS["tpt"], name="stream", stateful=True, digest="d")
    metric = dataclasses.replace(catalogue.METRICS["ece"], name="oce", goal="max", digest="d")
    for row in (method, metric):
        catalogue.add(row)
    yield
    catalogue.remove(lambda row: row.digest == "d")


@pytest.mark.usefixtures("plugin")
def test_rows_that_a_plugin_adds_are_known_at_once():
    made = space(
        params=(Param(key="method", choices=("tpt", "stream")),),
        objectives=(Objective(metric="oce/dtd"),),
        work=Work(baselines=("stream", "fpp_paper")),
    )
    assert made.objectives[0].goal == "max"
    assert {name: config.method for name, config in made.baselines().items()} == {
        "stream": "stream",
        "fpp_paper": "tpt",
    }
    assert "stream" not in Work().baselines


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    "text",
    [
        "base: {method: stream}\nparams: {fpp.steps: [1]}",
        "params: {method: [tpt, stream]}\n",
        "grid: [{fpp.steps: 1}, {method: stream}]\n",
        "params: {method: [tpt]}\nwork: {shards: 3, baselines: [tpt, stream]}",
    ],
)
def test_a_method_that_needs_its_samples_in_order_cannot_be_cut(text):
    parse_space(text.replace("shards: 3, ", ""), "x.yaml")
    text = text if "work" in text else f"{text.strip()}\nwork: {{shards: 3}}"
    with pytest.raises(InputError, match=r"^x\.yaml:[23]: work\.shards: stream takes a dataset's samples in order"):
        parse_space(text, "x.yaml")


@pytest.mark.usefixtures("plugin")
def test_what_is_not_run_may_need_its_samples_in_order():
    parse_space("base: {method: stream}\ngrid: [{method: tpt}]\nwork: {shards: 3}", "x.yaml")


def test_a_plugin_that_is_not_loaded_is_named_with_its_flag():
    text = "params: {method: [stream]}\nwork:\n  plugins: [mine, other]"
    with pytest.raises(InputError) as error:
        parse_space(text, "x.yaml", loaded=["mine"])
    told = "plugin other is not loaded; give its file with --plugin FILE (other.py)"
    assert str(error.value) == f"x.yaml:3: work.plugins.1: {told}"
    made = space(work=Work(plugins=("mine", "other")))
    require_plugins(made.work.plugins, ["other", "mine", "more"])
    with pytest.raises(InputError) as error:
        require_plugins(made.work.plugins, ["mine"])
    assert str(error.value) == f"work.plugins.1: {told}"


SHARP = "work: {{baselines: {}}}\nobjectives: [accuracy, {}]\nparams: {{adapt.lr: [0.1, 0.2]}}\n{}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SHARP.format("[zero_shot]", "sharpness", ""), "of method zero_shot: it looks at 1 of a sample's views only"),
        (SHARP.format("[]", "fisher_rao", "base: {method: dynaprompt}"), "of method dynaprompt: its prompts are those"),
        (SHARP.format("[]", "sharpness", "base: {method: short}"), "of method short: it has no `adapted`"),
        (SHARP.format("[dynaprompt]", "ece", "").replace("{b", "{columns: [sharpness], b"), "of method dynaprompt"),
    ],
)
def test_sharpness_is_refused_of_methods_that_have_no_prompt_for_each_sample(text, problem):
    class Short:
        """Predicts, and keeps its prompts to itself."""

    row = dataclasses.replace(catalogue.METHODS["tpt"], name="short", build=Short, digest="d")
    with registered(row), pytest.raises(InputError, match=problem):
        parse_space(text, "x.yaml")


def test_sharpness_asks_for_the_columns_that_it_needs():
    assert parse_space(SHARP.format("[tpt]", "sharpness", ""), "x.yaml").columns() == ("sharpness",)
    both = SHARP.format("[tpt]", "sharpness", "constraints: [{metric: fisher_rao, at_most: 1}]")
    assert parse_space(both, "x.yaml").columns() == ("product", "sharpness")
