"""A dry run: the configs and tasks of the sweep, their costs, and bounds on the sweep's time."""

import random
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch

from fpp_sweep.records.front import front_of
from fpp_sweep.records.recommendation import main_reference
from fpp_sweep.records.records import FINAL
from fpp_sweep.search.finalists import later_plans
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.config import preset, relevant
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.spec.tasks import EvalTask, PretrainTask
from fpp_sweep.sweep import estimate, timing
from fpp_sweep.sweep.cost_report import (
    OVERHEAD,
    budget_lines,
    config_lines,
    cost_lines,
    final_stage_lines,
    total_time,
    worker_table,
)
from fpp_sweep.sweep.costs import Costs
from fpp_sweep.sweep.estimate import dry_run
from fpp_sweep.sweep.expected import ExpectedSweep, expected_configs, sample_point
from fpp_sweep.sweep.plan import make_plan
from fpp_sweep.sweep.worker_spec import worker_spec
from fpp_sweep.trial.plan import Plan
from fpp_sweep.trial.worker import Worker
from fpp_sweep.tune import worker_counts
from tests.kit.names import CTPT, OTPT, TPT, ZERO_SHOT, named
from tests.kit.records import baseline, sweep_info
from tests.kit.spaces import DATASET_INFOS, MODEL_INFO, ONE_DATASET, SPEED, TWO_DATASETS
from tests.kit.waiting import wait_for


def expected_sweep_and_costs(*overrides, plan=None):
    """Return a sweep on 100 images of validation and 60 of test, and its costs."""
    space = parse_space(ONE_DATASET, "space.yaml", overrides)
    plan = plan or Plan(datasets=DATASET_INFOS, seeds=(0,))
    sweep = ExpectedSweep(space, plan, expected_configs(space))
    return sweep, Costs.of([sweep], {"dtd": SPEED}, TaskKeys(MODEL_INFO, plan.datasets_by_key()))


# ------------------------------------------------------------ configs


def test_the_expected_configs_are_the_configs_that_the_sweep_will_run(space):
    configs = expected_configs(space)
    queue = space.queue()
    assert list(configs)[:2] == [f"baseline-{ZERO_SHOT}", f"baseline-{TPT}"]
    assert len(configs) == 2 + 6
    for number, (_, values) in enumerate(queue):
        assert configs[f"trial-{number:04d}"] == space.resolve(values)


def test_settings_that_exclude_each_other_make_no_expected_config():
    text = "params: {views.min_area: {low: 0.4, high: 0.9}, views.max_area: {low: 0.5, high: 1.0}}\n"
    crossing = parse_space(f"{text}search: {{trials: 50}}\nwork: {{baselines: []}}", "space.yaml")
    assert 0 < len(expected_configs(crossing)) < 50


def test_sampled_points_are_in_the_space(space):
    generator = random.Random(0)
    points = [sample_point(space.params, generator, {}) for _ in range(50)]
    assert all(0.1 <= point["fpp.gamma1"] <= 10 for point in points)
    assert {point["method"] for point in points} == {TPT, OTPT}
    assert all(("adapt.penalty_weight" in point) == (point["method"] == OTPT) for point in points)


def test_expected_values_are_in_the_space_and_keep_those_of_a_partial_point():
    text = """
params:
  fpp.draws: {low: 1, high: 7, step: 3}
  fpp.weight_decay: {low: 0.1, high: 0.4, step: 0.1}
  method: [tpt, otpt]
  adapt.penalty_weight: {low: 1, high: 30, when: {method: otpt}}
points: [{method: otpt}]
search: {trials: 30}
work: {baselines: []}
"""
    space = parse_space(named(text), "space.yaml")
    configs = [config.flat() for config in expected_configs(space).values()]
    assert {config["fpp.draws"] for config in configs} == {1, 4, 7}
    assert {config["fpp.weight_decay"] for config in configs} == {0.1, 0.2, 0.3, 0.4}
    assert configs[0]["method"] == OTPT
    assert 1 <= configs[0]["adapt.penalty_weight"] <= 30
    lines = [line for line in config_lines(space, expected_configs(space)) if "trial-" in line]
    first, second = [" ".join(line.split()) for line in lines]
    assert first.endswith("(what its point leaves out is drawn at random here)")
    assert second.endswith("(drawn at random here)")


def test_settings_that_no_method_reads_are_not_shown(space):
    configs = expected_configs(space)
    unread = ("fpp.", "adapt.", "views.")
    assert not [key for key in relevant(configs[f"baseline-{ZERO_SHOT}"].flat()) if key.startswith(unread)]
    text = "\n".join(config_lines(space, configs))
    assert "fpp.steps=3" in text
    assert f"baseline-{TPT}: method={TPT}, prompt=a photo of a" in text


def test_settings_are_shown_as_set_takes_them():
    space = parse_space(named(f"params: {{fpp.noise_shared: [true, false], method: [{OTPT}]}}"), "space.yaml")
    text = " ".join(line.strip() for line in config_lines(space, expected_configs(space)))
    assert "adapt.penalty_weight=none" in text
    assert "fpp.noise_shared=true" in text
    words = [word.removesuffix(",") for word in text.split() if word.startswith(("adapt.", "views.", "fpp."))]
    parse_space(named(f"params: {{method: [{OTPT}]}}"), "space.yaml", words)  # refuses words that are no values


def test_settings_of_one_config_alone_stand_in_its_line(space):
    first, second = expected_configs(space)["trial-0000"], expected_configs(space)[f"baseline-{ZERO_SHOT}"]
    _, shared, *lines = config_lines(space, {"trial-0000": first, "baseline-0": second})
    assert shared.startswith("the same in all configs that read them: ")
    assert "fpp.steps" not in shared
    assert "fpp.steps=3" in "".join(lines)
    assert not any("the same" in line for line in config_lines(space, {"trial-0000": first}))


def test_trials_beyond_the_requested_ones_are_marked_whatever_the_length_of_their_number(space):
    config = expected_configs(space)["trial-0000"]
    for name, is_drawn in (("trial-0000", False), ("trial-9999", True), ("trial-10000", True)):
        *_, line = config_lines(space, {name: config})
        assert line.endswith("(drawn at random here)") == is_drawn


@pytest.mark.parametrize(("trials", "count"), [(3, 3), (100, 4)])
def test_a_grid_has_no_more_trials_than_points_and_budget(trials, count):
    text = named("grid: [{method: [tpt, ctpt, otpt, zero_shot]}]\nsearch: {sampler: grid}\nwork: {baselines: []}")
    space = parse_space(text, "space.yaml", [f"search.trials={trials}"])
    assert len(space.queue()) == 4
    assert list(expected_configs(space)) == [f"trial-{number:04d}" for number in range(count)]


# ------------------------------------------------------------ costs


def test_a_task_that_several_trials_share_is_counted_once(space, worker):
    plan = make_plan(space, worker)
    sweep = ExpectedSweep(space, plan, expected_configs(space))
    keys = TaskKeys(MODEL_INFO, plan.datasets_by_key())
    costs = Costs.of([sweep], dict.fromkeys(["scenes", "digits"], SPEED), keys)
    tasks = {}
    for name, config in sweep.configs.items():
        is_tested = name.startswith("baseline") or name <= "trial-0003"
        for split in ("val", "test") if is_tested else ("val",):
            for shards in plan.tasks(config, split).values():
                tasks |= {keys.of(task): task for task in (*shards, *shards[0].needs)}
    pretrainings = sum(isinstance(task, PretrainTask) for task in tasks.values())
    evaluations = sum(isinstance(task, EvalTask) for task in tasks.values())
    lines = list(cost_lines(costs, 2, device="CPU"))
    assert f"{pretrainings} pretrainings, {evaluations} evaluations" in lines[0]
    assert re.search(rf"pretraining {3 * SPEED.pretraining_step * pretrainings:.0f} s", lines[1])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # six prompts of 3 steps; 8 configs on validation, 2 baselines and 4 front members on test
        (
            [],
            [
                "tasks: 6 pretrainings, 14 evaluations of shards, 1160 images",
                # 160 images without adaptation; 12 adapters, adaptation to 1000 images; 1 and 4 views of 160 images,
                # which fill batches of 192 in the image tower
                "worker time, measured here (CPU): pretraining 9 s, adaptation 40 s, image features 59 s "
                "(features once, less where cached)",
                "estimate: 1.8 min of CPU time, 2.2 min with 1 worker like this one",
            ],
        ),
        (["base.adapt.steps=2"], [", 1160 images", "adaptation 60 s", "estimate: 2.1 min"]),
        (
            ["search.split=test"],
            [
                "6 pretrainings, 8 evaluations of shards, 480 images",
                "pretraining 9 s, adaptation 18 s, image features 21 s",
                "estimate: 49 s of CPU time, 73 s",
            ],
        ),
        (["search.trials=2"], ["2 pretrainings, 8 evaluations of shards, 640 images", "worker time", "estimate"]),
    ],
)
def test_costs_are_the_sums_over_all_tasks(overrides, expected):
    _, costs = expected_sweep_and_costs(*overrides)
    lines = list(cost_lines(costs, 1, device="CPU"))
    assert len(lines) == len(expected)
    for line, words in zip(lines, expected, strict=True):
        assert words in line


def test_the_time_lies_between_work_per_worker_and_a_bound_with_the_longest_chain():
    _, costs = expected_sweep_and_costs()
    search, test = costs.phase_times(5)
    # Work: 9 s of prompts, 26 s of adaptation, 37.8 s of features. Longest chain: the baseline that computes features
    # of 4 views of 100 images (30.2 s) and adapts to them (3 s).
    assert (search.low, search.high) == pytest.approx((33.24, 72.8 / 5 + 33.24 * 4 / 5))
    assert test.low < test.high
    total = total_time(costs, 5)
    assert (total.low, total.high) == pytest.approx(
        (OVERHEAD + search.low + test.low, OVERHEAD + search.high + test.high)
    )
    for workers in (1, 2, 16, 1000):
        for time in costs.phase_times(workers):
            assert time.low <= time.high + 1e-9
    one_worker = costs.phase_times(1)
    assert sum(time.low for time in one_worker) == pytest.approx(costs.work)
    assert sum(time.high for time in one_worker) == pytest.approx(costs.work)


def test_sequential_trials_form_one_chain():
    _, parallel = expected_sweep_and_costs("search.concurrency=8")
    _, sequential = expected_sweep_and_costs("search.concurrency=1")
    assert sequential.phase_times(100)[0].low > 1.5 * parallel.phase_times(100)[0].low


def test_a_busy_machine_makes_the_estimate_a_range():
    sweep, _ = expected_sweep_and_costs()
    speeds = {"dtd": replace(SPEED, core_share=0.5)}
    costs = Costs.of([sweep], speeds, TaskKeys(MODEL_INFO, sweep.plan.datasets_by_key()))
    *_, line, note = cost_lines(costs, 1, device="CPU")
    assert "78 s to 2.2 min with 1 worker like" in line
    assert note.startswith("note: other work took 50% of a core while this was measured")


@pytest.mark.parametrize(("wall_clock", "is_short"), [(60, True), (1000, False)])
def test_a_budget_that_is_too_short_is_named(wall_clock, is_short):
    sweep, costs = expected_sweep_and_costs(f"search.wall_clock={wall_clock}")
    assert list(budget_lines(sweep, costs, 1)) == [f"the budget of {wall_clock} s may end it earlier"] * is_short


def sweep_with_final_stage(*overrides):
    """Return an expected sweep whose two finalists run again with three seeds."""
    space = parse_space(ONE_DATASET, "space.yaml", ["search.finalists={count: 2, seeds: 3}", *overrides])
    plan = Plan(datasets=DATASET_INFOS, seeds=(0,))
    later = later_plans(plan, space, lambda names, split: DATASET_INFOS["val"])  # no fresh images are left
    return ExpectedSweep(space, plan, expected_configs(space), later)


@pytest.mark.parametrize("baselines", [(TPT, ZERO_SHOT), (CTPT, TPT), (OTPT, CTPT), ("zero", "mta")])
def test_the_final_stage_runs_the_baseline_that_the_sweep_chooses_as_reference(baselines):
    sweep = sweep_with_final_stage(f"work.baselines=[{', '.join(baselines)}]")
    records = [baseline(name, 60.0, 5.0) for name in baselines]
    reference = main_reference(front_of(sweep_info(), records).baselines)
    _, stage, _ = sweep.phases()
    assert [tasks[0].config.method for tasks in stage.trials[:-2]] == [reference.label]


def test_at_most_three_finalists_are_expected_on_the_test_split():
    search, stage, test = sweep_with_final_stage("search.finalists={count: 6, seeds: 3}").phases()
    baselines = len(search.trials) - len(search.sweep.trial_configs())
    assert len(stage.trials) == 1 + 6
    assert len(test.trials) == baselines + 3


def test_a_final_stage_runs_the_finalists_again_with_more_seeds():
    sweep = sweep_with_final_stage()
    search, stage, test = sweep.phases()
    assert (search.split, stage.split, test.split) == ("val", FINAL, "test")
    assert [len(phase.trials) for phase in (search, stage, test)] == [8, 3, 4]  # the final stage runs zero-shot too
    pretrainings = [sum(isinstance(task, PretrainTask) for task in trial) for trial in stage.trials]
    assert pretrainings == [0, 3, 3]
    words, tpt, *finalists = test.trials  # a prompt of words is not pretrained, so one seed is enough
    assert [len(trial) for trial in (words, tpt)] == [1, 1]
    assert [len(trial) for trial in finalists] == [6, 6]
    costs = Costs.of([sweep], {"dtd": SPEED}, TaskKeys(MODEL_INFO, sweep.plan.datasets_by_key()))
    (line,) = final_stage_lines(sweep, costs)
    assert line.startswith("final stage: 2 finalists with 3 seeds, and test: ")
    assert costs.seconds_after_search(sweep) == pytest.approx(costs.work - search_work(costs))
    assert list(final_stage_lines(expected_sweep_and_costs()[0], costs)) == []


def test_a_final_stage_counts_no_more_finalists_than_there_are_trials():
    sweep = sweep_with_final_stage("search.finalists={count: 6, seeds: 3}", "search.trials=2")
    costs = Costs.of([sweep], {"dtd": SPEED}, TaskKeys(MODEL_INFO, sweep.plan.datasets_by_key()))
    (line,) = final_stage_lines(sweep, costs)
    assert line.startswith("final stage: 2 finalists with 3 seeds, and test: ")


def search_work(costs):
    """Return the seconds of work in the first phase."""
    computed = set()
    return sum(costs._new_work(trial, computed)[0] for trial in costs.phases[0].trials)


def test_a_table_compares_numbers_of_workers():
    _, costs = expected_sweep_and_costs()
    size, _, one, many = worker_table(costs, (1, 100), view_bytes=1000)
    assert size.startswith("image features: 0.8 MB ")  # 4 views and 1 view of 160 images
    # validation: 9 s of prompts, 26 s of adaptation, 37.8 s of features; test: 14 s and 20.8 s
    assert re.split("  +", one.strip()) == ["1", "73 s", "35 s", "2.2 min", "18%"]
    assert re.split("  +", many.strip()) == ["100", "33 to 34 s", "19 s", "77 s", "99%"]


# ------------------------------------------------------------ measured speed


@pytest.mark.parametrize(
    ("override", "busy_cores", "words"),
    [
        ("work.workers=3", 2, "with 3 workers"),
        ("work.workers=20", 7, "20 workers"),
        ("work.cpus_per_worker=2", 3, "4 w"),
    ],
)
def test_speed_is_measured_while_other_cores_are_as_busy_as_in_the_sweep(
    monkeypatch, capsys, override, busy_cores, words
):
    busy = []
    monkeypatch.setattr(estimate, "cores", lambda: 8)
    monkeypatch.setattr(estimate, "busy_cores", lambda count: nullcontext(busy.append(count)))
    monkeypatch.setattr(timing, "measure", lambda worker, start, dataset: SPEED)
    search = ["search.split=test", "search.finalists.seeds=1"]
    overrides = [*search, "work.gpus_per_worker=0", "work.workers=null", override]
    text = dry_run([parse_space(TWO_DATASETS, "space.yaml", overrides)])
    assert busy == [busy_cores]
    assert words in text
    assert "16 evaluations of shards" in text
    assert capsys.readouterr().err.splitlines() == [
        "loading tiny ...",
        "measuring pretraining, adaptation and image features on scenes ...",
        "measuring pretraining, adaptation and image features on digits ...",
    ]


def test_loops_that_keep_cores_busy_end_with_a_process_that_is_killed():
    code = "from fpp_sweep.sweep.estimate import busy_cores\nwith busy_cores(1):\n    print(flush=True)\n    input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (loop,) = psutil.Process(process.pid).children()
        process.kill()
    wait_for(lambda: not loop.is_running() or loop.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    ("gpus_per_worker", "share", "words"), [("null", 1.0, "with 2 workers"), ("0.5", 0.5, "with 4 workers")]
)
def test_the_expected_number_of_workers_fills_the_gpus(monkeypatch, gpus_per_worker, share, words):
    """Torch is replaced with a stand-in that reports two GPUs; no speed is measured."""
    shares = []

    def worker_spec_on_cpu(space, gpus):
        shares.append(gpus)
        return worker_spec(space, 0.0)

    two_gpus = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setattr(estimate, "torch", SimpleNamespace(cuda=two_gpus))
    monkeypatch.setattr(estimate, "cores", lambda: 16)
    machine_shares = []

    def record(spec):
        machine_shares.append(spec.machine_share)
        return Worker(spec)

    monkeypatch.setattr(estimate, "worker_spec", worker_spec_on_cpu)
    monkeypatch.setattr(estimate, "Worker", record)
    monkeypatch.setattr(estimate, "busy_cores", lambda count: nullcontext())
    monkeypatch.setattr(timing, "measure", lambda worker, start, dataset: SPEED)
    overrides = [f"work.gpus_per_worker={gpus_per_worker}", "work.workers=null"]
    text = dry_run([parse_space(TWO_DATASETS, "space.yaml", overrides)])
    assert shares == [share]
    assert machine_shares == [share / 2]  # one of two GPUs, or a part of one
    assert words in text


VIEWS = preset("tiny").views.count


@pytest.mark.parametrize(("float32_cache", "size"), [(False, 2), (True, 4)])
def test_the_size_of_a_view_in_the_cache_depends_on_the_models_width_and_the_type(float32_cache, size):
    worker = Worker(WorkerSpec(model="tiny", float32_cache=float32_cache, device="cpu"))
    side = worker.clip.preprocess.size
    (feature,) = worker.clip.image_features(torch.zeros(1, 3, side, side))
    assert estimate._view_bytes(worker) == size * len(feature)


def count_views(method, *overrides):
    """Return the number of views whose features a grid of one method needs on validation."""
    text = f"grid: [{{method: [{method}], prompt: [a photo of a]}}]\nsearch: {{sampler: grid, evaluate_only: true}}"
    space = parse_space(f"{text}\nwork: {{baselines: []}}", "space.yaml", overrides)
    plan = Plan(datasets=DATASET_INFOS, seeds=(0,))
    sweep = ExpectedSweep(space, plan, expected_configs(space))
    return Costs.of([sweep], {"dtd": SPEED}, TaskKeys(MODEL_INFO, plan.datasets_by_key())).views


def test_views_are_counted_by_the_methods_protocol():
    images = DATASET_INFOS["val"][0].size
    assert count_views(TPT) == VIEWS * images
    assert count_views("tda") == images  # one view: the plain image
    assert count_views("tda, zero_shot") == images
    assert count_views("zero, zero_shot") == (VIEWS + 1) * images


def test_methods_share_features_only_within_one_protocol():
    images = DATASET_INFOS["val"][0].size
    assert count_views("zero, mta, zero_mean") == VIEWS * images
    assert count_views(f"{TPT}, zero") == 2 * VIEWS * images


def test_the_validation_images_of_post_hoc_maps_are_counted():
    overrides = ["search.evaluate_only=true", "search.split=test"]
    plan = Plan(datasets=DATASET_INFOS, seeds=(0,))
    _, without = expected_sweep_and_costs(*overrides, plan=plan)
    _, costs = expected_sweep_and_costs(*overrides, plan=replace(plan, posthoc=("temperature_val",)))
    assert {task.split for task in without.evaluations} == {"test"}
    assert len(costs.evaluations) == 2 * len(without.evaluations)


@pytest.mark.parametrize("words", ["", "0", "1,0", "-1", "1,", "1.5", "two", "1,,4"])
def test_numbers_of_workers_are_whole_and_at_least_one(words):
    with pytest.raises(ArgumentTypeError, match=r"invalid worker counts .*: use for example 1,4,16"):
        worker_counts(words)
