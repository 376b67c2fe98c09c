"""Values built in Python are checked like those of a file, with the same messages."""

import dataclasses
import json
import math
import pickle
from typing import Any

import pytest

from fpp_sweep.space import objectives, params, work
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from tests.kit.rows import registered

# typed as Any, because a type checker would refuse the wrong values below
Constraint: Any = objectives.Constraint
Objective: Any = objectives.Objective
Param: Any = params.Param
Search: Any = work.Search
Work: Any = work.Work

GAMMA = Param(key="fpp.gamma1", low=0.1, high=10)
ECE = {"metric": "ece", "at_most": 1}


def space(**values):
    return Space(**{"name": "x", "params": (GAMMA,), **values})


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Search(trials=True), "trials: must be a whole number (True)"),
        (lambda: Search(trials="3"), "trials: must be a whole number ('3')"),
        (lambda: Search(floor=10**400), "floor: must be a number (1000"),
        (lambda: Search(floor=math.inf), "floor: must be a finite number (inf)"),
        (lambda: Search(sampler=3), "sampler: must be one of auto, gp, tpe, random, grid (3)"),
        (lambda: Search(finalists=None), "finalists: must be a mapping such as {key: value} (nothing)"),
        (lambda: Work(seeds=(1, -1)), "seeds.1: must be >= 0 (-1)"),
        (lambda: Work(cache=" "), "cache: must be text (' ')"),
        (lambda: Param(key=3, choices=(1,)), "key: must be text (3)"),
        (lambda: Param(key="fpp.draws", choices=()), "needs low, or choices"),
        (lambda: Constraint(**ECE, name="up\n"), "name: must be letters, digits"),
        (lambda: space(params=()), "has neither params nor a grid"),
        (lambda: space(params=(GAMMA, GAMMA)), "params.fpp.gamma1: comes twice; take one out"),
        (lambda: space(base={3: 1}), "base: must have keys that are text"),
        (lambda: space(base={"views.max_area": 0.01}), "base: views.min_area must be <= views.max_area"),
        (lambda: space(params=(), grid=({"fpp.steps": range(9)},)), "grid.0.fpp.steps.0: must be a whole number"),
    ],
)
def test_a_wrong_value_in_python_is_refused_with_its_key(make, line):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value).startswith(line)


def test_values_are_converted_as_in_a_file():
    converted = space(
        params=(
            Param(key="fpp.class_var", low="x0.1", high="x10"),
            Param(key="fpp.noise_shared", choices=["on", "off"]),
        ),
        search=Search(wall_clock="1h30m"),
        work=Work(datasets=["dtd"], cpus_per_worker=2),
    )
    assert (converted.params[0].low, converted.params[0].high) == pytest.approx((0.002, 0.2))
    assert converted.params[1].choices == (True, False)
    assert converted.search.wall_clock == 5400
    assert (converted.work.datasets, converted.work.cpus_per_worker) == (("dtd",), 2.0)
    assert parse_space(json.dumps(converted.plain()), "x.yaml") == converted


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5d", 129600), (20, 20), (0.5, 0.5)]
)
def test_durations_have_units_or_are_seconds(written, seconds):
    assert Search(wall_clock=written).wall_clock == seconds


def test_a_pickled_error_keeps_its_key():
    error = pickle.loads(pickle.dumps(InputError("must be >= 1", "search.trials")))
    assert (str(error), error.problem, error.key) == ("search.trials: must be >= 1", "must be >= 1", "search.trials")


# ------------------------------------------------------------ plugins


@pytest.fixture
def plugin():
    """Add a stateful method and a metric to the catalogue."""
    method = dataclasses.replace(catalogue.METHODS["tpt"], name="stream", stateful=True, digest="d")
    metric = dataclasses.replace(catalogue.METRICS["ece"], name="oce", goal="max", digest="d")
    for row in (method, metric):
        catalogue.add(row)
    yield
    for row in (method, metric):
        catalogue.remove(row)


@pytest.mark.usefixtures("plugin")
def test_rows_of_a_plugin_are_accepted_as_soon_as_they_are_added():
    with_plugin = space(
        params=(Param(key="method", choices=("tpt", "stream")),),
        objectives=(Objective(metric="oce/dtd"),),
        work=Work(baselines=("stream", "fpp_paper")),
    )
    assert with_plugin.objectives[0].goal == "max"
    assert {name: config.method for name, config in with_plugin.baselines().items()} == {
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
def test_shards_are_refused_with_a_stateful_method(text):
    parse_space(text.replace("shards: 3, ", ""), "x.yaml")
    if "work" not in text:
        text = f"{text.strip()}\nwork: {{shards: 3}}"
    with pytest.raises(InputError, match=r"^x\.yaml:[23]: work\.shards: stream takes a dataset's samples in order"):
        parse_space(text, "x.yaml")


@pytest.mark.usefixtures("plugin")
def test_shards_are_accepted_if_the_stateful_method_of_the_base_never_runs():
    parse_space("base: {method: stream}\ngrid: [{method: tpt}]\nwork: {shards: 3}", "x.yaml")


SHARP = "work: {{baselines: {}}}\nobjectives: [accuracy, {}]\nparams: {{adapt.lr: [0.1, 0.2]}}\n{}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SHARP.format("[zero_shot]", "sharpness", ""), "of method zero_shot: it uses 1 of a sample's views only"),
        (SHARP.format("[]", "fisher_rao", "base: {method: dynaprompt}"), "of method dynaprompt: its prompts are those"),
        (SHARP.format("[]", "sharpness", "base: {method: short}"), "of method short: it has no `adapt_contexts`"),
        (SHARP.format("[dynaprompt]", "ece", "").replace("{b", "{columns: [sharpness], b"), "of method dynaprompt"),
    ],
)
def test_sharpness_is_refused_for_methods_without_a_prompt_for_each_sample(text, problem):
    class Short:
        """A method without `adapt_contexts`, so that its prompts cannot be measured."""

    row = dataclasses.replace(catalogue.METHODS["tpt"], name="short", build=Short, digest="d")
    with registered(row), pytest.raises(InputError, match=problem):
        parse_space(text, "x.yaml")


def test_metrics_of_sharpness_request_their_columns():
    assert parse_space(SHARP.format("[tpt]", "sharpness", ""), "x.yaml").columns() == ("sharpness",)
    both = SHARP.format("[tpt]", "sharpness", "constraints: [{metric: fisher_rao, at_most: 1}]")
    assert parse_space(both, "x.yaml").columns() == ("product", "sharpness")
