"""Search spaces: their defaults, their first points, and their form in records."""

import json
import pickle
import re
from pathlib import Path

import pytest

from fpp_sweep.space.objectives import Constraint, Objective
from fpp_sweep.space.params import Param
from fpp_sweep.space.reading import load_space, parse_space, space_of
from fpp_sweep.space.work import BASELINES, Search, Work
from fpp_sweep.spec.catalogue import COMPARED
from fpp_sweep.spec.config import PRESETS, TrialConfig, preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.released import published_points

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "search_spaces").glob("*.yaml"))
RANGE = "params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}\n"


def read_space(text, *overrides):
    return parse_space(text, "x.yaml", overrides)


def test_one_range_is_a_space_with_defaults():
    space = read_space(RANGE)
    assert space.name == "x"
    assert space.params == (Param(key="fpp.gamma1", low=0.1, high=10.0, log=True),)
    assert space.objectives == (Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min"))
    assert space.search == Search(sampler="gp", trials=16)
    assert space.work == Work(datasets=("tiny",))
    assert tuple(space.baselines()) == BASELINES


CONDITION = "params: {method: [tpt, ctpt], adapt.penalty_weight: {low: 1, high: 9, when: {method: ctpt}}}\n"


@pytest.mark.parametrize(
    ("text", "sampler"), [(RANGE, "gp"), (CONDITION, "tpe"), ("grid: [{method: [tpt, ctpt]}]\n", "grid")]
)
def test_the_default_sampler_is_gp_or_the_one_that_the_space_needs(text, sampler):
    assert read_space(f"{text}search: {{sampler: auto}}").search.sampler == sampler
    assert read_space(text).search.sampler == sampler


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_a_value_is_not_checked_against_the_base_of_a_setting_that_is_searched(sampler):
    """The base of the embedded model has views.min_area 0.5."""
    space = read_space(
        f"params: {{views.min_area: [0.1, 0.3], views.max_area: [0.4, 1]}}\nsearch: {{sampler: {sampler}}}"
    )
    assert [param.choices for param in space.params] == [(0.1, 0.3), (0.4, 1.0)]


def test_bounds_and_choices_may_be_relative_to_the_default():
    space = read_space("params: {fpp.class_var: {low: x0.1, high: 1}, fpp.context_var: [x1, x2]}")
    assert space.params[0].low == pytest.approx(0.002)
    assert space.params[1].choices == (0.005, 0.01)


@pytest.mark.parametrize(
    ("text", "where", "key"),
    [
        ("params: {adapt.penalty_weight: [1, 3]}", "params.adapt.penalty_weight", "adapt.penalty_weight"),
        ("base: {prompt: a photo of a}\nparams: {fpp.gamma2: [1, 3]}", "params.fpp.gamma2", "fpp.gamma2"),
        ("grid: [{adapt.lr: [1, 3], adapt.slots: [1, 3]}]", "grid", "adapt.slots"),
    ],
    ids=["by the method", "by the prompt", "of a grid"],
)
def test_a_searched_setting_that_no_trial_reads_is_refused(text, where, key):
    with pytest.raises(InputError, match=re.escape(f"{where}: no trial reads {key}, which belongs to other methods")):
        read_space(text)


@pytest.mark.parametrize(
    "text",
    [
        "params: {method: [tpt, ctpt], adapt.penalty_weight: {low: 1, high: 3, when: {method: ctpt}}}",
        "params: {prompt: [fpp, a photo of a], fpp.gamma2: [1, 3]}",
        "params: {prompt: [fpp, a photo of a], method: {choices: [zero], when: {prompt: fpp}}, adapt.lr: [1, 3]}",
        "params: {method: [zero, tpt], prompt: {choices: [a photo], when: {method: zero}}, fpp.gamma2: [1, 3]}",
        "grid: [{method: [tpt]}, {method: [dynaprompt], adapt.slots: [1, 3]}]",
        "params: {measure.rho: [0.1, 0.2]}",
    ],
    ids=[
        "of one method",
        "of one prompt",
        "of the base's method, where the condition of the searched one fails",
        "of the base's prompt, where the condition of the searched one fails",
        "of another block",
        "of the measurement",
    ],
)
def test_a_searched_setting_that_some_trials_read_is_taken(text):
    assert read_space(text).searched()


def test_a_trial_takes_the_preset_then_the_base_then_its_values():
    space = read_space("base: {fpp.steps: 7, fpp.class_var: x2}\n" + RANGE)
    config = space.resolve({"fpp.gamma1": 3})
    assert config == preset("tiny").replace({"fpp.steps": 7, "fpp.class_var": 0.04, "fpp.gamma1": 3})


def test_the_preset_follows_the_model_unless_it_is_named():
    assert read_space(RANGE).start() == preset("tiny")
    assert read_space(RANGE, "work.model=ViT-B-16/openai").start() == preset("code")
    assert read_space(RANGE, "preset=paper").start() == preset("paper")


def test_a_parameter_exists_if_all_of_its_conditions_hold():
    space = read_space(
        "params: {method: [tpt, otpt], fpp.noise_shared: [on, off],"
        " fpp.steps: {choices: [1], when: {method: otpt, fpp.noise_shared: on}}}"
    )
    child = space.params[2]
    assert child.exists({"method": "otpt", "fpp.noise_shared": True})
    for values in (
        {"method": "tpt", "fpp.noise_shared": True},
        {"method": "otpt", "fpp.noise_shared": False},
        {"method": "otpt"},
    ):
        assert not child.exists(values)


def test_the_goal_is_that_of_the_metric():
    text = "objectives: [ece/dtd, {metric: nll, goal: min, reference: 3}, seconds]\n" + RANGE
    assert read_space(text).objectives == (
        Objective(metric="ece/dtd", goal="min"),
        Objective(metric="nll", goal="min", reference=3.0),
        Objective(metric="seconds", goal="min"),
    )


def test_the_violation_of_a_constraint_is_its_excess():
    on_dataset = Constraint(metric=f"ece/{'d' * 80}", at_most=5)
    assert on_dataset.name == f"ece_{'d' * 60}"
    within = Constraint(name="a", metric="ece", at_least=2, at_most=5)
    assert [within.violation(value) for value in (1, 2, 4, 5, 7)] == [1, 0, -1, 0, 2]
    relative = Constraint(name="b", metric="accuracy", at_least=-0.5, baseline="zero_shot")
    assert relative.violation(61.5, 62) == 0
    assert relative.violation(61, 62) == 0.5
    assert relative.violation(74.05, 74.55000000000001) == 0  # on the bound, apart from rounding
    assert relative.violation(74.05, 74.5501) > 0
    with pytest.raises(InputError, match="constraint b: baseline zero_shot has no accuracy"):
        relative.violation(61)


@pytest.mark.parametrize(
    ("search", "trials"),
    [("{}", 16), ("{trials: 3}", 3), ("{wall_clock: 5m}", None), ("{wall_clock: 5m, trials: 9}", 9)],
)
def test_a_search_without_a_budget_gets_16_trials(search, trials):
    assert read_space(f"{RANGE}search: {search}").search.trials == trials


def test_a_grid_runs_the_product_of_each_block_and_each_config_once():
    space = read_space(
        "base: {fpp.gamma2: 15}\ngrid:\n- {fpp.gamma1: [1, 2], fpp.gamma2: [0, 15]}\n- {fpp.gamma1: 2}\n- fpp.steps: 9"
    )
    points = [tuple(point.values()) for point in space.grid_points()]
    assert points == [(1.0, 0.0, 60), (1.0, 15.0, 60), (2.0, 0.0, 60), (2.0, 15.0, 60), (1.0, 15.0, 9)]
    assert space.search.sampler == "grid"


def test_a_grid_of_choices_varies_a_setting_only_under_its_condition():
    text = (
        "params: {method: [tpt, otpt], adapt.penalty_weight: {choices: [1, 2], when: {method: otpt}}}\n"
        "search: {sampler: grid}"
    )
    space = read_space(text)
    assert space.grid_points() == [
        {"method": "tpt"},
        {"method": "otpt", "adapt.penalty_weight": 1.0},
        {"method": "otpt", "adapt.penalty_weight": 2.0},
    ]
    assert space.search.trials == 3


def test_the_searched_values_of_a_grid_come_from_all_blocks():
    space = read_space("grid: [{fpp.gamma2: [1, 2]}, {fpp.start: predefined}]")
    assert space.searched() == (
        Param(key="fpp.gamma2", choices=(1.0, 2.0, 0.15)),
        Param(key="fpp.start", choices=("random", "predefined")),
    )


def test_users_points_come_first_then_the_codes_and_the_papers():
    space = read_space(
        "points: [{fpp.gamma1: 2}]\nparams: {fpp.gamma1: {low: 0, high: 3}, fpp.gamma2: {low: 0.1, high: 20}}"
    )
    assert space.queue() == [
        ("point", {"fpp.gamma1": 2.0}),
        ("code", {"fpp.gamma1": 1.0, "fpp.gamma2": 15.0}),
        ("paper", {"fpp.gamma1": 1.0, "fpp.gamma2": 0.15}),
    ]
    assert space.notes() == []


def test_a_partial_point_does_not_replace_a_point_of_a_grid():
    space = read_space(
        "points: [{method: tpt}]\ngrid: [{method: [tpt, otpt], fpp.gamma2: [0.15, 15]}]\nbase: {fpp.gamma1: 2}\n"
        "search: {include_published: false}"
    )
    values = [(point.values["method"], point.values["fpp.gamma2"]) for point in space.queue()[1:]]
    assert values == [("tpt", 0.15), ("tpt", 15.0), ("otpt", 0.15), ("otpt", 15.0)]


def test_a_published_point_outside_the_space_is_reported_and_not_tried():
    space = read_space("params: {fpp.gamma2: {low: 1, high: 20}, fpp.start: [random]}")
    assert [origin for origin, _ in space.queue()] == ["code"]
    (line,) = space.notes()
    assert line.startswith(
        "the paper's settings are not tried: fpp.gamma2: 0.15 is outside 1..20; fpp.start: predefined"
    )


def test_the_queue_of_a_grid_has_each_config_once():
    space = read_space("points: [{fpp.gamma2: 3}]\ngrid: [{fpp.gamma2: [0.15, 15, 3]}]")
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
    space = read_space(
        "base: {adapt.lr: 0.1, views.count: 9, fpp.steps: 3, anchor_prompt: a drawing of a, method: otpt}\n" + RANGE
    )
    configs = space.baselines()
    assert {(config.adapt.lr, config.views.count) for config in configs.values()} == {(0.1, 9)}
    for name in COMPARED:
        assert (configs[name].method, configs[name].prompt) == (name, "a drawing of a")
    for origin, gamma2 in (("code", 15), ("paper", 0.15)):
        config = configs[f"fpp_{origin}"]
        assert (config.method, config.prompt, config.anchor_prompt) == ("tpt", "fpp", "a drawing of a")
        assert (config.fpp.gamma2, config.fpp.steps) == (gamma2, 60)
    assert list(read_space(RANGE, "work.baselines=[tpt]").baselines()) == ["tpt"]


EVERY_PART = """
base: {fpp.steps: 3, fpp.start_std: x2, prompt: fpp}
params:
  method: [tpt, ctpt]
  fpp.gamma1: {low: 0.1, high: 3, log: true}
  fpp.draws: {low: 1, high: 9}
  anchor_prompt: [1e-3 on, 'a: b #']
  adapt.penalty_weight: {choices: [none, 2], when: {method: ctpt}}
search: {wall_clock: 5m, max_failures: none, margin: {ece: 2}}
constraints: [{metric: accuracy, at_least: -0.5, baseline: tpt}]
points: [{method: ctpt}]
objectives: [nll, {metric: ece/dtd, reference: 3}]
"""


def test_a_space_equals_the_space_of_its_plain_values():
    space = read_space(EVERY_PART)
    assert read_space(json.dumps(space.plain())) == space_of(space.plain(), "sweep.json") == space


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_space_equals_the_space_of_its_plain_values(path):
    space = load_space(path)
    assert space_of(json.loads(json.dumps(space.plain())), "sweep.json") == space
    assert pickle.loads(pickle.dumps(space)) == space


def test_a_point_that_leaves_out_what_a_grid_searches_does_not_run_one_config_twice():
    text = "points: [{method: tpt}]\ngrid: [{method: [tpt, otpt], fpp.gamma2: [0.15, 15]}]\nbase: {fpp.gamma2: 15}"
    space = read_space(text, "search.include_published=false")
    configs = [(config.method, config.fpp.gamma2) for config in space.points_by_config()]
    assert configs == [("tpt", 15), ("tpt", 0.15), ("otpt", 0.15), ("otpt", 15)]
