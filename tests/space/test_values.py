"""Values built in Python are held to what a file is held to, in the same words."""

import dataclasses
import json
import math
import pickle

import pytest

from fpp_sweep import catalogue
from fpp_sweep.errors import InputError
from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.params import Param
from fpp_sweep.space.reading import parse_space
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search, Work

METHODS = Param(key="method", choices=("tpt", "otpt"))
GAMMA = Param(key="fpp.gamma1", low=0.1, high=10)
GRID = ({"fpp.steps": (1, 2)},)


def space(**values):
    return Space(**{"name": "x", "params": () if "grid" in values else (GAMMA,), **values})


def gamma(**values):
    return Param(key="fpp.gamma1", **values)


def steps(**values):
    return Param(key="fpp.steps", choices=(1,), **values)


def constrained(*constraints, **work):
    return space(constraints=constraints, work=Work(**work))


ECE = {"metric": "ece", "at_most": 1}

# the document that a file would have, the same in Python, and what both are told
NONSENSE = [
    ({"search": {"trials": -5}}, lambda: Search(trials=-5), "search.trials: must be >= 1, got -5"),
    ({"search": {"trials": 2.5}}, lambda: Search(trials=2.5), "search.trials: must be a whole number, got 2.5"),
    ({"search": {"trials": True}}, lambda: Search(trials=True), "search.trials: must be a whole number, got True"),
    ({"search": {"gpu_hours": 0}}, lambda: Search(gpu_hours=0), "search.gpu_hours: must be > 0, got 0"),
    (
        {"search": {"gpu_hours": 10**400}},
        lambda: Search(gpu_hours=10**400),
        "search.gpu_hours: must be a number, got 1000",
    ),
    (
        {"search": {"sampler": "tpee"}},
        lambda: Search(sampler="tpee"),
        "search.sampler: unknown sampler 'tpee', did you mean 'tpe'?",
    ),
    ({"search": {"split": 3}}, lambda: Search(split=3), "search.split: must be one of val, test, got 3"),
    ({"work": {"seeds": []}}, lambda: Work(seeds=()), "work.seeds: must have at least 1 entry, is empty"),
    ({"work": {"seeds": [1, -1]}}, lambda: Work(seeds=(1, -1)), "work.seeds.1: must be >= 0, got -1"),
    ({"work": {"datasets": "dtd"}}, lambda: Work(datasets="dtd"), "work.datasets: must be a list, such as [dtd]"),
    ({"work": {"loaders": -1}}, lambda: Work(loaders=-1), "work.loaders: must be >= 0, got -1"),
    (
        {"work": {"on_bad_image": "skp"}},
        lambda: Work(on_bad_image="skp"),
        "work.on_bad_image: unknown on_bad_image 'skp', did you mean 'skip'?",
    ),
    (
        {"work": {"baselines": ["tptt"]}},
        lambda: Work(baselines=("tptt",)),
        "work.baselines.0: unknown baseline 'tptt', did you mean 'tpt'?",
    ),
    ({"work": {"task_timeout": "1x"}}, lambda: Work(task_timeout="1x"), "work.task_timeout: must be a duration such"),
    (
        {"params": {"fpp.gama1": [1]}},
        lambda: Param(key="fpp.gama1", choices=(1,)),
        "params.fpp.gama1: unknown config key 'fpp.gama1', did you mean 'fpp.gamma1'?",
    ),
    (
        {"params": {"fpp.gamma1": {"low": 3, "high": 1}}},
        lambda: gamma(low=3, high=1),
        "params.fpp.gamma1: low must be < high, got 3 and 1",
    ),
    (
        {"params": {"fpp.gamma1": {"low": 3, "high": 3}}},
        lambda: gamma(low=3, high=3),
        "params.fpp.gamma1: low must be < high, got 3 and 3",
    ),
    (
        {"params": {"fpp.gamma1": {"low": 0, "high": 1, "log": True}}},
        lambda: gamma(low=0, high=1, log=True),
        "params.fpp.gamma1.low: must be > 0 where log is true, got 0",
    ),
    (
        {"params": {"fpp.gamma1": {"low": 0, "high": 1, "step": 0.3}}},
        lambda: gamma(low=0, high=1, step=0.3),
        "params.fpp.gamma1.step: must divide high - low = 1, got 0.3",
    ),
    (
        {"params": {"fpp.gamma1": {"low": 0, "high": math.nan}}},
        lambda: gamma(low=0, high=math.nan),
        "params.fpp.gamma1.high: fpp.gamma1 must be finite, got nan",
    ),
    ({"params": {"fpp.gamma1": {"low": 1}}}, lambda: gamma(low=1), "params.fpp.gamma1: needs high, or choices"),
    ({"params": {"fpp.gamma1": {}}}, lambda: gamma(choices=()), "params.fpp.gamma1: needs low, or choices"),
    (
        {"params": {"fpp.gamma1": []}},
        lambda: gamma(choices=[]),
        "params.fpp.gamma1.choices: must have at least 1 entry, is empty",
    ),
    (
        {"params": {"fpp.gamma1": {"choices": [1], "low": 0}}},
        lambda: gamma(choices=(1,), low=0),
        "params.fpp.gamma1.low: does not go with choices",
    ),
    (
        {"params": {"fpp.align": {"low": 0, "high": 1}}},
        lambda: Param(key="fpp.align", low=0, high=1),
        "params.fpp.align: has no range; give choices",
    ),
    (
        {"params": {"method": ["tptt"]}},
        lambda: Param(key="method", choices=("tptt",)),
        "params.method.choices.0: unknown method 'tptt', did you mean 'tpt'?",
    ),
    (
        {"params": {"fpp.draws": [1, 0]}},
        lambda: space(params=(Param(key="fpp.draws", choices=(1, 0)),)),
        "params.fpp.draws.choices.1: fpp.draws must be >= 1, got 0",
    ),
    (
        {"params": {"fpp.draws": {"low": 0, "high": 4}}},
        lambda: space(params=(Param(key="fpp.draws", low=0, high=4),)),
        "params.fpp.draws.low: fpp.draws must be >= 1, got 0",
    ),
    (
        {"params": {"fpp.steps": {"choices": [1], "when": {"method": "tpt"}}}},
        lambda: space(params=(steps(when={"method": ("tpt",)}),)),
        "params.fpp.steps.when.method: unknown parameter 'method'",
    ),
    (
        {"params": {"fpp.gamma1": {"low": 0, "high": 1}, "fpp.steps": {"choices": [1], "when": {"fpp.gamma1": 1}}}},
        lambda: space(params=(gamma(low=0, high=1), steps(when={"fpp.gamma1": 1}))),
        "params.fpp.steps.when.fpp.gamma1: fpp.gamma1 is a range of real numbers",
    ),
    (
        {"params": {"method": ["tpt", "otpt"], "fpp.steps": {"choices": [1], "when": {"method": "ctpt"}}}},
        lambda: space(params=(METHODS, steps(when={"method": "ctpt"}))),
        "params.fpp.steps.when.method: can never hold: ctpt is not among tpt, otpt",
    ),
    (
        {
            "params": {
                "method": {"choices": ["tpt"], "when": {"fpp.steps": 1}},
                "fpp.steps": {"choices": [1], "when": {"method": "tpt"}},
            }
        },
        lambda: space(
            params=(Param(key="method", choices=("tpt",), when={"fpp.steps": 1}), steps(when={"method": "tpt"}))
        ),
        "params.method: when goes in a circle among method, fpp.steps",
    ),
    (
        {
            "params": {"method": ["tpt", "otpt"], "fpp.steps": {"choices": [1], "when": {"method": "tpt"}}},
            "search": {"sampler": "gp"},
        },
        lambda: space(params=(METHODS, steps(when={"method": "tpt"})), search=Search(sampler="gp")),
        "params.fpp.steps: when does not go with sampler gp",
    ),
    ({"objectives": ["acuracy"]}, lambda: Objective(metric="acuracy"), "metric: unknown metric 'acuracy'"),
    ({"objectives": [{"metric": "ece", "goal": "up"}]}, lambda: Objective(metric="ece", goal="up"), "goal: unknown"),
    ({"objectives": ["seconds/dtd"]}, lambda: Objective(metric="seconds/dtd"), "metric: 'seconds/dtd' is of a whole"),
    ({"objectives": []}, lambda: space(objectives=()), "objectives: must have at least 1 entry, is empty"),
    (
        {"objectives": ["ece", "ece"]},
        lambda: space(objectives=(Objective(metric="ece"), Objective(metric="ece", goal="max"))),
        "objectives.1: ece is an objective already",
    ),
    (
        {"objectives": ["ece", "nll", "mce", "sce"]},
        lambda: space(objectives=tuple(Objective(metric=name) for name in ("ece", "nll", "mce", "sce"))),
        "objectives: must have at most 3 entries, has 4",
    ),
    ({"constraints": [{"metric": "ece"}]}, lambda: Constraint(metric="ece"), "needs at_least or at_most"),
    (
        {"constraints": [{"metric": "ece", "at_least": 2, "at_most": 1}]},
        lambda: Constraint(metric="ece", at_least=2, at_most=1),
        "at_least must be <= at_most, got 2 and 1",
    ),
    (
        {"constraints": [{**ECE, "baseline": "clip"}]},
        lambda: Constraint(**ECE, baseline="clip"),
        "baseline: unknown baseline 'clip'",
    ),
    ({"constraints": [{**ECE, "name": "../up"}]}, lambda: Constraint(**ECE, name="../up"), "name: must be letters"),
    (
        {"constraints": [{**ECE, "baseline": "tpt"}], "work": {"baselines": []}},
        lambda: constrained(Constraint(**ECE, baseline="tpt"), baselines=()),
        "constraints.0: baseline tpt is not among work.baselines",
    ),
    (
        {"constraints": [ECE, {"metric": "ece", "at_least": 0}]},
        lambda: constrained(Constraint(**ECE), Constraint(metric="ece", at_least=0)),
        "constraints.1: there is a constraint named ece already",
    ),
    ({"name": "../up"}, lambda: space(name="../up"), "name: must be letters, digits"),
    ({"question": 3}, lambda: space(question=3), "question: must be text, got 3"),
    ({"preset": "papre"}, lambda: space(preset="papre"), "preset: unknown preset 'papre', did you mean 'paper'?"),
    ({"params": {}}, lambda: space(params=()), "has neither params nor a grid"),
    ({"base": {"fpp.gamma1": 1}}, lambda: space(base={"fpp.gamma1": 1}), "params.fpp.gamma1: is fixed in base as well"),
    ({"base": [1]}, lambda: space(base=[1]), "base: must be a mapping (key: value), got a list"),
    ({"base": {"fpp": 1}}, lambda: space(base={"fpp": 1}), "base.fpp: write its settings out, such as fpp.gamma1"),
    (
        {"base": {"views.min_area": 2}},
        lambda: space(base={"views.min_area": 2}),
        "base.views.min_area: views.min_area must be in (0, views.max_area]",
    ),
    (
        {"base": {"fpp.align": False, "fpp.flat": False}},
        lambda: space(base={"fpp.align": False, "fpp.flat": False}),
        "base: fpp.align or fpp.flat must be on",
    ),
    (
        {"search": {"sampler": "grid"}},
        lambda: space(search=Search(sampler="grid")),
        "params.fpp.gamma1: is a range, which sampler grid cannot run",
    ),
    (
        {"params": {}, "grid": [{"fpp.steps": [1, 2]}], "search": {"sampler": "tpe"}},
        lambda: space(grid=GRID, search=Search(sampler="tpe")),
        "search.sampler: tpe does not go with a grid",
    ),
    ({"grid": [{"fpp.steps": [1, 2]}]}, lambda: space(grid=GRID, params=(GAMMA,)), "params: does not go with a grid"),
    ({"grid": [{}]}, lambda: space(grid=({},)), "grid.0: is an empty block"),
    ({"grid": [{"fpp.steps": []}]}, lambda: space(grid=({"fpp.steps": ()},)), "grid.0.fpp.steps: must have at least 1"),
    (
        {"grid": [{"fpp.draws": [1, 0]}]},
        lambda: space(grid=({"fpp.draws": (1, 0)},)),
        "grid.0.fpp.draws.1: fpp.draws must be >= 1, got 0",
    ),
    (
        {"grid": [{"fpp.gamma1": list(range(50)), "fpp.steps": list(range(50))}]},
        lambda: space(grid=({"fpp.gamma1": tuple(range(50)), "fpp.steps": tuple(range(50))},)),
        "grid.0: makes a grid of more than 2000 points",
    ),
    (
        {"points": [{"fpp.gamma1": 20}]},
        lambda: space(points=({"fpp.gamma1": 20},)),
        "points.0.fpp.gamma1: 20 is outside",
    ),
    ({"points": [{}]}, lambda: space(points=({},)), "points.0: is an empty point"),
    (
        {"points": [{"fpp.gamma2": 1}]},
        lambda: space(points=({"fpp.gamma2": 1},)),
        "points.0.fpp.gamma2: unknown parameter 'fpp.gamma2', did you mean 'fpp.gamma1'?",
    ),
]


@pytest.mark.parametrize(("document", "build", "told"), NONSENSE, ids=[told for *_, told in NONSENSE])
def test_nonsense_is_refused_in_python_as_in_a_file(document, build, told):
    with pytest.raises(InputError) as in_python:
        build()
    assert str(in_python.value).startswith(told)
    document = {"params": {"fpp.gamma1": {"low": 0.1, "high": 10}}, **document}
    with pytest.raises(InputError) as in_a_file:
        parse_space(json.dumps(document).replace("NaN", ".nan"), "x.yaml")
    assert str(in_a_file.value).startswith("x.yaml:1: ")
    assert str(in_a_file.value).endswith(in_python.value.problem)


def test_a_parameter_comes_once():
    with pytest.raises(InputError, match=r"^params\.fpp\.gamma1: comes twice"):
        space(params=(GAMMA, GAMMA))


def test_values_that_are_changed_are_checked_again():
    with pytest.raises(InputError, match=r"^search\.trials: must be >= 1, got 0"):
        dataclasses.replace(Search(), trials=0)
    with pytest.raises(InputError, match=r"^points\.0\.fpp\.gamma1: 11 is outside"):
        dataclasses.replace(space(), points=({"fpp.gamma1": 11},))


def test_values_are_converted_as_in_a_file():
    made = space(
        params=(Param(key="fpp.class_var", low="x0.1", high="x10"), Param(key="fpp.align", choices=["on", "off"])),
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
    made.require_plugins(["other", "mine", "more"])
    with pytest.raises(InputError) as error:
        made.require_plugins(["mine"])
    assert str(error.value) == f"work.plugins.1: {told}"
