"""A trial has the same bits on any executor and with any shards; no result is lost or counted twice."""

import asyncio
import math
import re
from dataclasses import replace

import pytest
import torch

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.metrics import score
from fpp_sweep.core.prompt import from_bytes
from fpp_sweep.records.front import measured_value
from fpp_sweep.records.measurements import read_block_stats
from fpp_sweep.records.records import SplitResult
from fpp_sweep.search.job import TrialStopped
from fpp_sweep.spec import plugins
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, views_for
from fpp_sweep.statistics.block_stats import metric_value
from fpp_sweep.trial.adapting import evaluate, make_adapter
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.prompts import make_prompt
from fpp_sweep.trial.results import TaskFailed, TaskResult, pack_predictions
from fpp_sweep.trial.trial import DatasetResult, Plan, join_shards, run_trial, summarize
from tests.kit.names import CTPT, OTPT, TPT, ZERO_SHOT
from tests.kit.rows import metric_row, registered
from tests.kit.tasks import dataset_info, evaluation, predictions, same_predictions
from tests.kit.workers import Gate, StoppingExecutor, executing, inline, plan_of

IMAGES, SMALL = 150, 20  # images of the workers `worker` and `small`
QUICK = {"views.count": 4, "fpp.steps": 2, "fpp.draws": 1}
WORDS = preset("tiny").replace({**QUICK, "prompt": "a photo of a", "method": TPT})
CONFIGS = {
    "pretrained": WORDS.replace({"prompt": "fpp", "method": CTPT}),
    "words": WORDS,
    "zero-shot": WORDS.replace({"method": ZERO_SHOT}),
}
NAMES = ("digits", "scenes")

both_executors = pytest.mark.parametrize("kind", ["inline", "scheduled"])


def compute_whole(worker, config, dataset, *, seed=0, split="val"):
    """Return a dataset's predictions and prompt, computed without shards, keys and executors."""
    data = open_dataset(dataset, split).head(worker.spec.limit)
    prompt = make_prompt(worker.clip, PretrainTask(config=config, dataset=dataset, seed=seed), data)
    features = worker.cache.features(worker.clip, data, views_for(config, data.group), seed)
    whole = EvalTask(config=config, dataset=dataset, split=split, seed=seed, start=0, stop=len(data))
    result, _ = evaluate(worker.clip, whole, data, features, make_adapter(worker.clip, config, data, prompt))
    return result, prompt


# ------------------------------------------------------------ equal results in one piece and in shards


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_number_of_shards_equals_the_whole(worker, tmp_path, config):
    whole, prompt = compute_whole(worker, config, "digits")
    for shards in (None, 1, 2, 3):
        plan = plan_of(worker, shards=shards)
        found, (part,) = run_trial(plan, config, "val", inline(worker, plan, tmp_path / str(shards)))
        assert len(plan.tasks(config, "val")["digits", 0]) == (shards or 1)
        assert same_predictions(part.predictions, whole)
        assert dict(found.average) == dict(found.datasets["digits"]) == score(whole)
        assert (found.samples, found.deviation) == (IMAGES, {})
        if config.prompt == "fpp":
            assert torch.equal(from_bytes(worker.clip, part.prompt).context, prompt.context)
        else:
            assert part.prompt is None


def test_averages_are_over_datasets_and_deviations_over_seeds(small, tmp_path):
    plan = plan_of(small, datasets=NAMES, seeds=(0, 1))
    found, parts = run_trial(plan, CONFIGS["words"], "val", inline(small, plan, tmp_path))
    runs = [("digits", 0), ("scenes", 0), ("digits", 1), ("scenes", 1)]
    assert [(part.dataset.name, part.seed) for part in parts] == runs
    scores = {}
    for name, seed in runs:
        whole, _ = compute_whole(small, CONFIGS["words"], name, seed=seed)
        scores[name, seed] = score(whole)
    assert scores["digits", 0] != scores["digits", 1]
    for metric in ("accuracy", "ece", "nll"):
        values = {run: numbers[metric] for run, numbers in scores.items()}
        by_seed = [(values["digits", seed] + values["scenes", seed]) / 2 for seed in (0, 1)]
        digits = (values["digits", 0] + values["digits", 1]) / 2
        assert found.datasets["digits"][metric] == pytest.approx(digits, rel=1e-12)
        assert found.average[metric] == pytest.approx(sum(by_seed) / 2, rel=1e-12)
        # the standard deviation of two values is their distance divided by the root of two
        assert found.deviation[metric] == pytest.approx(abs(by_seed[0] - by_seed[1]) / math.sqrt(2), rel=1e-9)
    assert found.samples == 2 * SMALL


def test_the_test_split_has_its_own_samples(small, tmp_path):
    plan = plan_of(small, splits=("val", "test"))
    executor = inline(small, plan, tmp_path)
    (val,), (test,) = (run_trial(plan, CONFIGS["words"], split, executor)[1] for split in ("val", "test"))
    assert same_predictions(test.predictions, compute_whole(small, CONFIGS["words"], "digits", split="test")[0])
    assert val.predictions.ids != test.predictions.ids


@pytest.mark.parametrize("config", [CONFIGS["pretrained"], CONFIGS["zero-shot"]], ids=["pretrained", "zero-shot"])
def test_the_scheduler_and_one_worker_give_equal_results(worker, tmp_path, config):
    plan = plan_of(worker, datasets=NAMES, shards=3, columns=("logits",))
    runs = []
    for kind in ("inline", "scheduled"):
        with executing(kind, worker, plan, tmp_path / kind) as executor:
            runs.append(run_trial(plan, config, "val", executor))
    (inline_result, inline_parts), (scheduled_result, scheduled_parts) = runs
    for name in ("average", "datasets", "samples"):
        assert getattr(inline_result, name) == getattr(scheduled_result, name)
    assert inline_result.seconds.keys() == scheduled_result.seconds.keys()
    for inline_part, scheduled_part in zip(inline_parts, scheduled_parts, strict=True):
        assert same_predictions(inline_part.predictions, scheduled_part.predictions)
        if config.prompt == "fpp":  # prompt files differ in the seconds that they contain
            contexts = [from_bytes(worker.clip, part.prompt).context for part in (inline_part, scheduled_part)]
            assert torch.equal(*contexts)


@both_executors
def test_a_failure_names_location_and_cause_in_one_line(small, tmp_path, kind):
    plan, where = plan_of(small), f"digits, val samples 0..{SMALL}, seed 0, {small.model_info().where}"
    config = WORDS.replace({"prompt": str(tmp_path / "none.safetensors")})
    with executing(kind, small, plan, tmp_path) as executor, pytest.raises(TaskFailed) as failure:
        run_trial(plan, config, "val", executor)
    assert failure.value.reason == f"{where}: prompt file {config.prompt} does not exist"
    assert "in from_file\n" in failure.value.details


@both_executors
def test_a_trial_is_charged_for_computed_and_not_for_cached_results(small, tmp_path, kind):
    plan = plan_of(small, seeds=(0, 1))
    with executing(kind, small, plan, tmp_path, workers=1) as executor:
        paid, _ = run_trial(plan, CONFIGS["pretrained"], "val", executor, order=1)
        again, _ = run_trial(plan, CONFIGS["pretrained"], "val", executor, order=2)
        other, _ = run_trial(plan, CONFIGS["pretrained"].replace({"method": OTPT}), "val", executor, order=3)
    assert set(paid.seconds) == {"pretrain", "features", "adapt"}
    assert min(paid.seconds.values()) > 0
    assert paid.worker_seconds >= sum(paid.seconds.values()) * 0.99
    assert (dict(again.seconds), again.worker_seconds, dict(again.features)) == ({}, 0.0, {})
    assert again.average == paid.average
    assert again.cost("seconds") == paid.cost("seconds") > 0  # an objective that a repeat does not win
    assert other.costs["digits"]["pretrain"] == paid.costs["digits"]["pretrain"]
    assert set(other.seconds) == {"features", "adapt"}  # its prompt is the cached one


def test_tasks_are_the_shards_of_every_dataset_and_seed(worker):
    plan = plan_of(worker, datasets=NAMES, seeds=(3, 5), shards=3)
    cut = plan.tasks(WORDS, "val")
    assert list(cut) == [("digits", 3), ("scenes", 3), ("digits", 5), ("scenes", 5)]
    for (dataset, seed), tasks in cut.items():
        assert {(task.dataset, task.seed, task.split) for task in tasks} == {(dataset, seed, "val")}
        assert [(task.start, task.stop) for task in tasks] == [(0, 64), (64, 128), (128, IMAGES)]


def test_a_plan_may_use_a_range_of_the_images_of_each_dataset(worker, tmp_path):
    """The final stage uses such ranges. Each image keeps the views and results that it has in the whole dataset."""
    whole = plan_of(worker, datasets=NAMES)
    ranges = {("digits", "val"): range(64, IMAGES), ("scenes", "val"): range(0, 64)}
    plan = replace(whole, ranges=ranges)
    _, all_parts = run_trial(whole, WORDS, "val", inline(worker, whole, tmp_path / "whole"))
    numbers, parts = run_trial(plan, WORDS, "val", inline(worker, plan, tmp_path / "ranges"))
    assert numbers.samples == IMAGES - 64 + 64
    for part, all_part in zip(parts, all_parts, strict=True):
        images = plan.range_of(part.dataset)
        assert part.predictions.ids == all_part.predictions.ids[images.start : images.stop]
        confidence = all_part.predictions.confidence[images.start : images.stop]
        assert (part.predictions.confidence == confidence).all()


def test_further_seeds_may_draw_the_pretraining_only():
    plan = replace(PLAN, seeds=(4, 7), view_seeds={7: 4})
    pretrained = [(task.seed, task.pretrain.seed) for task in shards_of(plan, CONFIGS["pretrained"])]
    assert pretrained == [(4, 4), (4, 7)]
    whole = replace(PLAN, seeds=(4,), later={"test": plan})
    assert whole.on("test", CONFIGS["pretrained"]) == plan
    assert whole.on("test", WORDS).seeds == (4,)


# ------------------------------------------------------------ columns

PLAN = Plan(datasets={"val": (dataset_info("dtd", size=200),)}, seeds=(0,))


def test_columns_are_requested_by_the_plan_or_by_a_metric():
    def requested(**options):
        (tasks,) = replace(PLAN, **options).tasks(WORDS, "val").values()
        return {task.columns for task in tasks}

    assert requested() == {()}
    assert requested(columns=("logits",)) == {("logits",)}
    with registered(metric_row(), metric_row("other", columns=("logits", "a"))):
        assert requested(columns=("b",)) == {("a", "b", "logits")}
    assert requested() == {()}


# ------------------------------------------------------------ the order of tasks, and trials that are stopped


def shards_of(plan, config):
    return [task for tasks in plan.tasks(config, "val").values() for task in tasks]


def test_results_are_yielded_as_they_end(worker, tmp_path):
    plan, begun, last_begun = plan_of(worker, shards=3), [], asyncio.Event()
    tasks = shards_of(plan, WORDS)[::-1]

    async def around(task, what):
        if what == "begins":
            begun.append(task.start)
        if task.start == 128 and what == "ends":  # the task that starts first ends last
            await last_begun.wait()
        if task.start == 0:
            last_begun.set()

    with executing("scheduled", worker, plan, tmp_path, workers=2, around=around) as executor:
        ended = [task.start for task, _ in executor.results(tasks)]
    assert (sorted(begun[:2]), begun[2]) == ([64, 128], 0)
    assert ended[0] == 64


@both_executors
def test_a_stopped_trial_keeps_finished_tasks_and_starts_no_others(worker, tmp_path, kind):
    plan, gate = plan_of(worker, seeds=(0, 1), shards=3), Gate(2)
    with executing(kind, worker, plan, tmp_path, workers=1, around=gate) as executor:
        with pytest.raises(TrialStopped):
            run_trial(plan, WORDS, "val", StoppingExecutor(executor, 2))
        done = gate.open(executor)
        assert done == len(list(tmp_path.rglob("*.task"))) == (2 if kind == "inline" else 3)
        again, _ = run_trial(plan, WORDS, "val", executor, order=1)  # finished tasks are cached
    fresh, _ = run_trial(plan, WORDS, "val", inline(worker, plan, tmp_path / "fresh"))
    assert again.average == fresh.average


@both_executors
def test_a_pretraining_computed_as_an_input_is_charged_when_it_is_requested(small, tmp_path, kind):
    plan = plan_of(small)
    (task,) = plan.tasks(CONFIGS["pretrained"], "val")["digits", 0]
    with executing(kind, small, plan, tmp_path, workers=1) as executor:
        found = dict(executor.results([task, task.pretrain], 1))
    assert set(found[task].seconds) == {"features", "adapt"}
    assert set(found[task.pretrain].seconds) == {"pretrain"}


# ------------------------------------------------------------ joining


def shard_with_result(start, stop, *, seed=None):
    rows = pack_predictions(predictions(stop - start, seed=start if seed is None else seed))
    return evaluation(start=start, stop=stop), TaskResult(predictions=rows)


@pytest.mark.parametrize(
    "parts",
    [
        [shard_with_result(0, 64)],
        [shard_with_result(64, 130)],
        [shard_with_result(0, 64), shard_with_result(128, 130)],
        [shard_with_result(0, 64), shard_with_result(64, 130), shard_with_result(64, 130, seed=5)],
        [shard_with_result(0, 64), shard_with_result(0, 64, seed=5), shard_with_result(64, 130)],
        [shard_with_result(0, 64), shard_with_result(64, 131)],
    ],
    ids=["the last is missing", "the first", "the middle", "one twice", "the first twice", "one too long"],
)
def test_a_missing_or_doubled_shard_is_refused(parts):
    with pytest.raises(ValueError, match=r"dtd: \d+ predictions of 130 samples"):
        join_shards(parts, range(0, 130))


def test_shards_with_a_repeated_sample_are_refused():
    parts = [shard_with_result(0, 64, seed=1), shard_with_result(64, 128, seed=1)]
    with pytest.raises(InputError, match="appears more than once"):
        join_shards(parts, range(0, 128))


def test_a_summary_counts_each_image_once_over_all_seeds():
    parts = [
        DatasetResult(dataset=dataset_info(name), seed=seed, predictions=predictions(size, seed=seed), prompt=None)
        for seed in (0, 1, 2)
        for name, size in (("dtd", 40), ("pets", 25))
    ]
    done = [
        TaskResult(seconds={"adapt": 1.5, "features": 1.0}, worker_seconds=4.0),
        TaskResult(seconds={"adapt": 2.0}, worker_seconds=3.0),
    ]
    found = summarize(parts, done)
    assert found.samples == 65
    assert dict(found.seconds) == {"adapt": 3.5, "features": 1.0}
    assert found.worker_seconds == 7.0
    assert set(found.deviation) == set(found.average)


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        ("float('inf')", "metric mine (mine.py): must return a finite number (inf)"),
        ("1e200", "metric mine is 1e+200, beyond 1e+100; return a smaller number"),
    ],
)
def test_a_number_of_a_plugin_that_no_record_can_hold_is_named_with_its_dataset(number, problem):
    code = f"from fpp_sweep import metric\n@metric(goal='min')\ndef mine(predictions):\n    return {number}\n"
    file = PluginFile(name="mine", path="", text=code, digest="m" * 16)
    part = DatasetResult(dataset=dataset_info("pets"), seed=0, predictions=predictions(20), prompt=None)
    plugins.load([file])
    try:
        with pytest.raises(InputError, match=f"^{re.escape(f'pets: {problem}')}$"):
            summarize([part], [])
    finally:
        plugins.unload(file)


# ------------------------------------------------------------ values of objectives


MEASURED = SplitResult(
    average={"accuracy": 61.0, "ece": 4.0, "nll": math.nan},
    datasets={"dtd": {"accuracy": 44.0, "ece": math.inf}, "pets": {"accuracy": 78.0, "ece": 3.0}},
    deviation={},
    samples=100,
    seconds={},  # all results were cached
    worker_seconds=0.0,
    costs={"dtd": {"pretrain": 2.0, "adapt": 1.5}, "pets": {"adapt": 0.5, "features": 1.0}},
    by_seed={"0": {}, "1": {}},
)


@pytest.mark.parametrize(
    ("metric", "value"), [("accuracy", 61.0), ("ece", 4.0), ("ece/pets", 3.0), ("accuracy/dtd", 44.0), ("seconds", 8.0)]
)
def test_an_objective_is_an_average_a_datasets_value_or_a_cost(metric, value):
    assert measured_value(MEASURED, metric) == value


def test_an_objective_that_was_not_measured_lists_the_metrics_that_were():
    with pytest.raises(InputError, match=r"objective 'ece/cars': was not measured; the result has accuracy, ece, nll"):
        measured_value(MEASURED, "ece/cars")


@pytest.mark.parametrize(("metric", "message"), [("nll", "nll is nan"), ("ece/dtd", "ece/dtd is inf")])
def test_a_number_that_is_not_finite_is_an_error(metric, message):
    with pytest.raises(FloatingPointError, match=message):
        measured_value(MEASURED, metric)


# ------------------------------------------------------------ files


def test_artifacts_contain_the_trials_results(small, tmp_path):
    from PIL import Image
    from pyarrow import parquet
    from safetensors import safe_open

    plan = plan_of(small, datasets=NAMES, seeds=(0, 1), columns=("logits",))
    _, parts = run_trial(plan, CONFIGS["pretrained"], "val", inline(small, plan, tmp_path / "tasks"))
    parts[0] = replace(parts[0], predictions=replace(parts[0].predictions, columns={"seen": parts[0].predictions.nll}))
    folder = tmp_path / "artifacts"
    write_artifacts(folder, parts, "val", f"trial-0003, val: {CTPT}")
    stems = [f"{name}.seed{seed}" for name in NAMES for seed in (0, 1)]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(
        [f"prompts/{stem}.safetensors" for stem in stems]
        + [f"val/{stem}.predictions.parquet" for stem in stems]
        + ["val/reliability.png", "val/block_stats.npz"]
    )
    block_stats = read_block_stats(folder, "val")
    assert list(block_stats) == [(part.dataset.name, part.seed) for part in parts]
    for part in parts:
        assert metric_value("ece", block_stats[part.dataset.name, part.seed]) == score(part.predictions)["ece"]
        stem = f"{part.dataset.name}.seed{part.seed}"
        table = parquet.read_table(folder / "val" / f"{stem}.predictions.parquet").to_pydict()
        assert tuple(table["id"]) == part.predictions.ids
        assert table["confidence"] == part.predictions.confidence.tolist()
        assert table["label_name"] == [part.dataset.classes[label] for label in part.predictions.labels]
        ((name, values),) = part.predictions.columns.items()
        assert (list(table)[-1], table[name]) == (name, values.tolist())
        assert (folder / "prompts" / f"{stem}.safetensors").read_bytes() == part.prompt
        with safe_open(folder / "prompts" / f"{stem}.safetensors", framework="pt") as file:
            assert torch.equal(file.get_tensor("context"), from_bytes(small.clip, part.prompt).context)
            assert (file.metadata()["dataset"], file.metadata()["seed"]) == (part.dataset.name, str(part.seed))
    with Image.open(folder / "val" / "reliability.png") as picture:
        picture.load()
        assert min(picture.size) > 200
