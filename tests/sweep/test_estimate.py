"""A dry run: the configs and tasks of the sweep, and about how long it takes."""

import re
from dataclasses import replace

import pytest

from fpp_sweep.records.records import FINAL
from fpp_sweep.search.finalists import later_plans
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.sweep.estimate import OVERHEAD, ExpectedSweep, Speed, config_lines, cost_lines, dry_run, expected_configs
from fpp_sweep.trial.trial import Plan
from tests.kit.names import OTPT, TPT, ZERO_SHOT, named
from tests.kit.spaces import DATASET_INFOS, MODEL_INFO, ONE_DATASET, SEARCH_VIEWS, TWO_DATASETS

SPEED = Speed(pretraining_step=0.5, method_start=1.0, adapted_image=0.02, view=0.05)


def expected_sweep(*overrides):
    """Return a sweep on 100 images of validation and 60 of test."""
    space = parse_space(ONE_DATASET, "space.yaml", overrides)
    plan = Plan(datasets=DATASET_INFOS, seeds=(0,))
    return ExpectedSweep(space, plan, expected_configs(space))


def lines_of(sweep, workers=1):
    keys = TaskKeys(MODEL_INFO, sweep.plan.datasets_by_key())
    return list(cost_lines([sweep], {"dtd": SPEED}, keys, workers))


# ------------------------------------------------------------ configs


def test_the_expected_configs_are_the_configs_that_the_sweep_will_run(space):
    configs = expected_configs(space)
    queue = space.queue()
    assert list(configs)[:2] == [f"baseline-{ZERO_SHOT}", f"baseline-{TPT}"]
    assert len(configs) == 2 + 6
    for number, (_, values) in enumerate(queue):
        assert configs[f"trial-{number:04d}"] == space.resolve(values)


def test_expected_values_are_in_the_space_and_keep_those_of_a_partial_point():
    text = """
params:
  fpp.draws: [1, 4, 7]
  fpp.weight_decay: [0.1, 0.2, 0.3, 0.4]
  method: [tpt, otpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: otpt}}
points: [{method: otpt}]
search: {trials: 30}
work: {baselines: []}
"""
    space = parse_space(named(text), "space.yaml")
    configs = [config.flat() for config in expected_configs(space).values()]
    assert {config["fpp.draws"] for config in configs} == {1, 4, 7}
    assert {round(config["fpp.weight_decay"], 9) for config in configs} == {0.1, 0.2, 0.3, 0.4}
    assert configs[0]["method"] == OTPT
    assert 1 <= configs[0]["adapt.penalty_weight"] <= 30
    assert "drawn at random" in list(config_lines(space, expected_configs(space)))[-1]


def test_settings_are_shown_as_set_takes_them():
    space = parse_space(named(f"params: {{fpp.noise_shared: [true, false], method: [{OTPT}]}}"), "space.yaml")
    text = " ".join(line.strip() for line in config_lines(space, expected_configs(space)))
    assert "adapt.penalty_weight=none" in text
    assert "fpp.noise_shared=true" in text
    words = [word.removesuffix(",") for word in text.split() if word.startswith(("adapt.", "views.", "fpp."))]
    parse_space(named(f"params: {{method: [{OTPT}]}}"), "space.yaml", words)  # refuses words that are no values


@pytest.mark.parametrize(("trials", "count"), [(3, 3), (100, 4)])
def test_a_grid_has_no_more_trials_than_points_and_budget(trials, count):
    text = named("grid: [{method: [tpt, ctpt, otpt, zero_shot]}]\nsearch: {sampler: grid}\nwork: {baselines: []}")
    space = parse_space(text, "space.yaml", [f"search.trials={trials}"])
    assert list(expected_configs(space)) == [f"trial-{number:04d}" for number in range(count)]


# ------------------------------------------------------------ costs


@pytest.mark.parametrize(
    ("overrides", "tasks", "seconds"),
    [
        # six prompts of 3 steps; 8 configs on validation, 2 baselines and 4 front members on test; 12 of these adapt
        # to 1000 images; 1 and 4 views of 160 images
        ([], "6 pretrainings, 14 evaluations of shards, 1160 images", (9, 32, 40)),
        (["base.adapt.steps=2"], "6 pretrainings, 14 evaluations of shards, 1160 images", (9, 52, 40)),
        (["search.split=test"], "6 pretrainings, 8 evaluations of shards, 480 images", (9, 15, 15)),
        (["search.trials=2"], "2 pretrainings, 8 evaluations of shards, 640 images", None),
    ],
)
def test_costs_are_the_sums_over_all_tasks_with_shared_ones_counted_once(overrides, tasks, seconds):
    first, second, *_ = lines_of(expected_sweep(*overrides))
    assert first == f"tasks: {tasks}"
    if seconds is not None:
        pretraining, adaptation, features = seconds
        assert second == (
            f"worker time, measured here: pretraining {pretraining} s, adaptation {adaptation} s, "
            f"image features {features} s"
        )


def test_the_time_is_the_work_divided_by_the_workers():
    *_, one = lines_of(expected_sweep())
    *_, four = lines_of(expected_sweep(), 4)
    work = 9 + 32 + 40
    assert one == f"estimate: about {(OVERHEAD + work) / 60:.1f} min with 1 worker, within 30 %"
    assert four == f"estimate: about {OVERHEAD + work / 4:.0f} s with 4 workers, within 30 %"


def sweep_with_final_stage(*overrides):
    """Return an expected sweep whose finalists run again with three seeds."""
    space = parse_space(ONE_DATASET, "space.yaml", ["search.finalists={count: 2, seeds: 3}", *overrides])
    plan = Plan(datasets=DATASET_INFOS, seeds=(0,))
    later = later_plans(plan, space, lambda names, split: DATASET_INFOS["val"])  # no fresh images are left
    return ExpectedSweep(space, replace(plan, later=later), expected_configs(space))


def test_a_final_stage_runs_the_finalists_again_with_more_seeds():
    tasks = sweep_with_final_stage().tasks()
    assert list(tasks) == ["val", FINAL, "test"]
    assert [sum(isinstance(task, PretrainTask) for task in phase) for phase in tasks.values()] == [6, 6, 3]
    assert [len(phase) for phase in tasks.values()] == [2 + 12, 2 + 12, 2 + 6]  # the champion alone is tested
    many = sweep_with_final_stage("search.finalists={count: 6, seeds: 3}")
    assert [len(many.finalists()), len(many.tasks()["test"])] == [6, 2 + 6]
    few = sweep_with_final_stage("search.finalists={count: 6, seeds: 3}", "search.trials=2")
    assert len(few.finalists()) == 2


# ------------------------------------------------------------ a real dry run


def test_a_dry_run_measures_and_leaves_nothing(tmp_path, capsys):
    space = parse_space(TWO_DATASETS, "space.yaml", [f"work.cache={tmp_path}/cache", "work.limit=20", SEARCH_VIEWS])
    text = dry_run([space])
    assert re.search(r"tasks: \d+ pretrainings, \d+ evaluations of shards, \d+ images", text)
    times = re.findall(r"estimate: about ([0-9.]+ \w+) with (\d+) worker", text)
    assert [int(workers) for _, workers in times] == [2]
    assert re.search(r"pretraining [0-9.]+ \w+, adaptation [0-9.]+ \w+, image features [0-9.]+ \w+", text)
    assert "loading tiny" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
