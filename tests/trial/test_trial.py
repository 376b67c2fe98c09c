"""A trial is the same to the last bit whoever computes it and however it is cut; nothing is lost or counted twice."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.images.chunks import Skipped
from fpp_sweep.core.metrics import score
from fpp_sweep.core.prompt import from_bytes
from fpp_sweep.records.records import SplitResult
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, views_for
from fpp_sweep.statistics.block_stats import metric_value
from fpp_sweep.trial.artifacts import read_sums, write_artifacts
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.running import evaluate, make_adapter, make_prompt
from fpp_sweep.trial.trial import (
    DatasetResult,
    Plan,
    StoppingPolicy,
    TrialStopped,
    joined,
    measured,
    run_trial,
    summary,
)
from tests.names import CTPT, OTPT, PLAIN, TPT
from tests.toys import metric_row, registered
from tests.trial.conftest import Gate, executing, inline, plan_of
from tests.trial.made import evaluation, facts, predictions, same_predictions

IMAGES, SMALL = 150, 20  # of the two workers
QUICK = {"views.count": 4, "fpp.steps": 2, "fpp.draws": 1}
WORDS = preset("tiny").replace({**QUICK, "prompt": "a photo of a", "method": TPT})
CONFIGS = {
    "pretrained": WORDS.replace({"prompt": "fpp", "method": CTPT}),
    "words": WORDS,
    "zero-shot": WORDS.replace({"method": PLAIN}),
}
NAMES = ("digits", "scenes")

both_executors = pytest.mark.parametrize("kind", ["inline", "kept"])


def alone(worker, config, dataset, *, seed=0, split="val"):
    """A dataset's predictions and prompt without tasks, shards or keys."""
    data = open_dataset(dataset, split).head(worker.spec.limit)
    prompt = make_prompt(worker.clip, PretrainTask(config=config, dataset=dataset, seed=seed), data)
    features = worker.cache.features(worker.clip, data, views_for(config), seed)
    whole = EvalTask(config=config, dataset=dataset, split=split, seed=seed, start=0, stop=len(data))
    made, _ = evaluate(worker.clip, whole, data, features, make_adapter(worker.clip, config, data, prompt))
    return made, prompt


# ------------------------------------------------------------ the same in one piece and in many


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_number_of_shards_gives_what_the_whole_gives(worker, tmp_path, config):
    whole, prompt = alone(worker, config, "digits")
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
    by = {(name, seed): score(alone(small, CONFIGS["words"], name, seed=seed)[0]) for name in NAMES for seed in (0, 1)}
    assert [(part.facts.name, part.seed) for part in parts] == [(n, s) for s in (0, 1) for n in NAMES]
    assert by["digits", 0] != by["digits", 1]
    for metric in ("accuracy", "ece", "nll"):
        of = {key: numbers[metric] for key, numbers in by.items()}
        by_seed = [(of["digits", seed] + of["scenes", seed]) / 2 for seed in (0, 1)]
        assert found.datasets["digits"][metric] == pytest.approx((of["digits", 0] + of["digits", 1]) / 2, rel=1e-12)
        assert found.average[metric] == pytest.approx(sum(by_seed) / 2, rel=1e-12)
        # two values: the standard deviation is their distance over the root of two
        assert found.deviation[metric] == pytest.approx(abs(by_seed[0] - by_seed[1]) / math.sqrt(2), rel=1e-9)
    assert found.samples == 2 * SMALL


def test_the_test_split_is_another_one(small, tmp_path):
    plan = plan_of(small, splits=("val", "test"))
    executor = inline(small, plan, tmp_path)
    (val,), (test,) = (run_trial(plan, CONFIGS["words"], split, executor)[1] for split in ("val", "test"))
    assert same_predictions(test.predictions, alone(small, CONFIGS["words"], "digits", split="test")[0])
    assert val.predictions.ids != test.predictions.ids


@pytest.mark.parametrize("config", [CONFIGS["pretrained"], CONFIGS["zero-shot"]], ids=["pretrained", "zero-shot"])
def test_the_keeper_comes_to_what_one_worker_comes_to(worker, tmp_path, config):
    plan = plan_of(worker, datasets=NAMES, seeds=(0, 1), shards=3, columns=("logits",))
    runs = []
    for kind in ("inline", "kept"):
        with executing(kind, worker, plan, tmp_path / kind) as executor:
            runs.append(run_trial(plan, config, "val", executor))
    (one, parts), (other, others) = runs
    assert (one.average, one.datasets, one.samples) == (other.average, other.datasets, other.samples)
    assert one.seconds.keys() == other.seconds.keys()
    for part, its_other in zip(parts, others, strict=True):
        assert same_predictions(part.predictions, its_other.predictions)
        assert part.skipped == its_other.skipped
        if config.prompt == "fpp":  # a prompt's file tells the seconds that it took, too
            contexts = [from_bytes(worker.clip, each.prompt).context for each in (part, its_other)]
            assert torch.equal(*contexts)


@both_executors
def test_a_failure_says_where_and_why_in_one_line(small, tmp_path, kind):
    plan, where = plan_of(small), f"digits, val samples 0..{SMALL}, seed 0, {small.facts().where}"
    config = WORDS.replace({"prompt": str(tmp_path / "none.safetensors")})
    with executing(kind, small, plan, tmp_path) as executor, pytest.raises(TaskFailed) as failure:
        run_trial(plan, config, "val", executor)
    assert failure.value.reason == f"{where}: prompt file {config.prompt} does not exist"
    assert "in from_file\n" in failure.value.details


@both_executors
def test_a_trial_pays_for_what_it_had_done_and_not_for_what_was_at_hand(small, tmp_path, kind):
    plan = plan_of(small, seeds=(0, 1))
    with executing(kind, small, plan, tmp_path, workers=1) as executor:
        paid, _ = run_trial(plan, CONFIGS["pretrained"], "val", executor, order=1)
        again, _ = run_trial(plan, CONFIGS["pretrained"], "val", executor, order=2)
        other, _ = run_trial(plan, CONFIGS["pretrained"].replace({"method": OTPT}), "val", executor, order=3)
    assert set(paid.seconds) == {"pretrain", "features", "adapt"}
    assert min(paid.seconds.values()) > 0
    assert paid.device_seconds >= sum(paid.seconds.values()) * 0.99
    assert (dict(again.seconds), again.device_seconds, dict(again.features)) == ({}, 0.0, {})
    assert again.average == paid.average
    assert set(other.seconds) == {"features", "adapt"}  # their prompts are the same


def test_tasks_are_the_shards_of_every_dataset_and_seed(worker):
    plan = plan_of(worker, datasets=NAMES, seeds=(3, 5), shards=3)
    cut = plan.tasks(WORDS, "val")
    assert list(cut) == [("digits", 3), ("scenes", 3), ("digits", 5), ("scenes", 5)]
    for (dataset, seed), tasks in cut.items():
        assert {(task.dataset, task.seed, task.split) for task in tasks} == {(dataset, seed, "val")}
        assert [(task.start, task.stop) for task in tasks] == [(0, 64), (64, 128), (128, IMAGES)]


# ------------------------------------------------------------ columns

PLAN = Plan(datasets={"val": (facts("dtd", size=200),)}, seeds=(0,))


def test_columns_are_asked_for_by_the_plan_or_by_a_metric_and_by_nobody_else():
    def asked(**options):
        (tasks,) = replace(PLAN, **options).tasks(WORDS, "val").values()
        return {task.columns for task in tasks}

    assert asked() == {()}
    assert asked(columns=("logits",)) == {("logits",)}
    with registered(metric_row(), metric_row("other", columns=("logits", "a"))):
        assert asked(columns=("b",)) == {("a", "b", "logits")}
    assert asked() == {()}


def test_a_metric_gets_the_columns_that_its_row_names(small, tmp_path):
    plan = plan_of(small)
    with registered(metric_row()):
        found, (part,) = run_trial(plan, CONFIGS["words"], "val", inline(small, plan, tmp_path))
    logits = part.predictions.columns["logits"]
    largest = torch.from_numpy(logits).topk(2).values
    assert found.average["margin"] == pytest.approx(float((largest[:, 0] - largest[:, 1]).mean()), rel=1e-5)


# ------------------------------------------------------------ what a driver decides


def shards_of(plan, config):
    return [task for tasks in plan.tasks(config, "val").values() for task in tasks]


class Toy(StoppingPolicy):
    """Begins the last first, keeps a book of what has ended, and stops after so many."""

    def __init__(self, stop_after=None):
        self.ended, self.stop_after = [], stop_after

    def ordered(self, plan, tasks):
        return list(reversed(super().ordered(plan, tasks)))

    def stops(self, task, result):
        self.ended.append(task)
        return "behind the others" if len(self.ended) == self.stop_after else None


def test_the_largest_tasks_are_the_first_unless_a_driver_says_otherwise():
    sizes = {"small": (64, "abc"), "large": (640, "abc"), "few": (640, "ab")}
    described = tuple(facts(name, size=size, classes=tuple(classes)) for name, (size, classes) in sizes.items())
    plan = replace(PLAN, datasets={"val": described})
    tasks = shards_of(plan, WORDS)
    assert [task.dataset for task in StoppingPolicy().ordered(plan, tasks)] == ["large", "few", "small"]
    assert StoppingPolicy().stops(tasks[0], TaskResult()) is None


@both_executors
def test_tasks_are_begun_in_the_drivers_order_each_after_its_pretraining(worker, tmp_path, monkeypatch, kind):
    plan, driver, events = plan_of(worker, seeds=(0, 1), shards=3), Toy(), []
    run = worker.run
    monkeypatch.setattr(worker, "run", lambda task, *how: events.append(task) or run(task, *how))
    with executing(kind, worker, plan, tmp_path, workers=1) as executor:
        run_trial(plan, CONFIGS["pretrained"], "val", executor, driver=driver)
    wanted = driver.ordered(plan, shards_of(plan, CONFIGS["pretrained"]))
    shards = [task for task in events if isinstance(task, EvalTask)]
    assert len(events) == len(set(events)) == 8
    assert all(events.index(task.pretrain) < events.index(task) for task in shards)
    if kind == "inline":  # a keeper begins what is ready while one that needs a prompt waits for it
        assert shards == wanted
        assert driver.ended == events[:-1]  # nobody asks after the last


def test_results_are_handed_over_as_they_end(worker, tmp_path):
    plan, driver, begun, last_begun = plan_of(worker, shards=3), Toy(), [], asyncio.Event()

    async def around(task, what):
        if what == "begins":
            begun.append(task.start)
        if task.start == 128 and what == "ends":  # the first of the driver's order takes the longest
            await last_begun.wait()
        if task.start == 0:
            last_begun.set()

    with executing("kept", worker, plan, tmp_path, workers=2, around=around) as executor:
        run_trial(plan, WORDS, "val", executor, driver=driver)
    assert (sorted(begun[:2]), begun[2]) == ([64, 128], 0)
    assert driver.ended[0].start == 64


@both_executors
def test_a_driver_that_stops_a_trial_keeps_what_was_done_and_lets_nothing_else_begin(worker, tmp_path, kind):
    plan, gate = plan_of(worker, seeds=(0, 1), shards=3), Gate(2)
    with executing(kind, worker, plan, tmp_path, workers=1, around=gate) as executor:
        with pytest.raises(TrialStopped) as stopped:  # which holds the trial's frame, and so the results
            run_trial(plan, WORDS, "val", executor, driver=Toy(stop_after=2))
        assert str(stopped.value) == "behind the others"
        done = gate.open(executor)
        assert done == len(list(tmp_path.rglob("*.task"))) == (2 if kind == "inline" else 3)
        again, _ = run_trial(plan, WORDS, "val", executor, order=1)  # what was done is at hand
    fresh, _ = run_trial(plan, WORDS, "val", inline(worker, plan, tmp_path / "fresh"))
    assert again.average == fresh.average


def test_a_driver_is_not_asked_whether_to_stop_when_all_is_done(small, tmp_path):
    plan = plan_of(small)
    run_trial(plan, WORDS, "val", inline(small, plan, tmp_path), driver=Toy(stop_after=1))


@both_executors
def test_results_that_are_closed_give_up_what_has_not_begun_and_keep_what_has(worker, tmp_path, kind):
    plan, gate = plan_of(worker, seeds=(0, 1), shards=3), Gate(1)
    tasks = shards_of(plan, WORDS)
    with executing(kind, worker, plan, tmp_path, workers=1, around=gate) as executor:
        results = executor.results(tasks, 1)
        first, _ = next(results)
        results.close()
        done = gate.open(executor)
    assert first == tasks[0]
    assert done == len(list(tmp_path.rglob("*.task"))) == (1 if kind == "inline" else 2)


@both_executors
def test_what_others_need_is_paid_for_when_it_is_asked_for_later(small, tmp_path, kind):
    """An evaluation before its own pretraining, as a driver may have it."""
    plan = plan_of(small)
    (task,) = plan.tasks(CONFIGS["pretrained"], "val")["digits", 0]
    with executing(kind, small, plan, tmp_path, workers=1) as executor:
        found = dict(executor.results([task, task.pretrain], 1))
    assert set(found[task].seconds) == {"features", "adapt"}
    assert set(found[task.pretrain].seconds) == {"pretrain"}


# ------------------------------------------------------------ joining


def part(start, stop, *, skipped=0, seed=None):
    """A shard with its result, some of its images not read."""
    size = stop - start - skipped
    made = predictions(size, seed=start if seed is None else seed) if size else None
    lost = tuple(Skipped(sample_id=f"{start + number}", reason="cut off") for number in range(skipped))
    return evaluation(start=start, stop=stop), TaskResult(predictions=made, skipped=lost)


def test_shards_join_in_their_order_whatever_order_they_come_in():
    first, second, third = part(0, 64), part(64, 128), part(128, 130)
    whole = joined([third, first, second], 130)
    assert whole.ids == first[1].predictions.ids + second[1].predictions.ids + third[1].predictions.ids


def test_skipped_images_are_missing_and_accounted_for():
    whole = joined([part(0, 64, skipped=3), part(64, 128, skipped=64), part(128, 130)], 130)
    assert len(whole) == 61 + 2


@pytest.mark.parametrize(
    "parts",
    [
        [part(0, 64)],
        [part(64, 130)],
        [part(0, 64), part(128, 130)],
        [part(0, 64), part(64, 130), part(64, 130, seed=5)],
        [part(0, 64), part(0, 64, seed=5), part(64, 130)],
        [part(0, 64), part(64, 131)],
    ],
    ids=["the last is missing", "the first", "the middle", "one twice", "the first twice", "one too long"],
)
def test_a_missing_or_doubled_shard_is_refused(parts):
    with pytest.raises(ValueError, match=r"dtd: shards .* are not its 130 samples, each once"):
        joined(parts, 130)


@pytest.mark.parametrize(("lost", "count"), [(0, 63), (2, 65)])
def test_a_shard_that_lacks_samples_without_saying_so_is_refused(lost, count):
    task, result = part(0, 64, skipped=lost)
    wrong = replace(result, predictions=predictions(63))
    with pytest.raises(ValueError, match=rf"dtd: samples 0\.\.64 came back as {count}"):
        joined([(task, wrong)], 64)


def test_the_same_sample_in_two_shards_is_refused():
    with pytest.raises(InputError, match="appears more than once"):
        joined([part(0, 64, seed=1), part(64, 128, seed=1)], 128)


def test_a_dataset_of_which_nothing_can_be_read_is_refused():
    with pytest.raises(InputError, match="dtd: none of its 70 images can be read, such as cut off"):
        joined([part(0, 64, skipped=64), part(64, 70, skipped=6)], 70)


def test_a_sum_counts_each_image_once_whatever_the_number_of_seeds():
    parts = [
        DatasetResult(facts=facts(name), seed=seed, predictions=predictions(size, seed=seed), prompt=None)
        for seed in (0, 1, 2)
        for name, size in (("dtd", 40), ("pets", 25))
    ]
    done = [TaskResult(seconds={"adapt": 1.5, "features": 1.0}, held=4.0), TaskResult(seconds={"adapt": 2.0}, held=3.0)]
    found = summary(parts, done)
    assert found.samples == 65
    assert dict(found.seconds) == {"adapt": 3.5, "features": 1.0}
    assert found.device_seconds == 7.0
    assert set(found.deviation) == set(found.average)


# ------------------------------------------------------------ what an objective reads


FOUND = SplitResult(
    average={"accuracy": 61.0, "ece": 4.0, "nll": math.nan},
    datasets={"dtd": {"accuracy": 44.0, "ece": math.inf}, "pets": {"accuracy": 78.0, "ece": 3.0}},
    deviation={},
    samples=100,
    seconds={"adapt": 3.5, "features": 1.0},
    device_seconds=7.0,
)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("accuracy", 61.0),
        ("ece", 4.0),
        ("ece/pets", 3.0),
        ("accuracy/dtd", 44.0),
        ("seconds", 4.5),
        ("device_seconds", 7.0),
    ],
)
def test_an_objective_is_an_average_or_a_datasets_or_what_the_trial_took(metric, value):
    assert measured(FOUND, metric) == value


def test_an_objective_on_a_dataset_that_is_not_there_names_those_that_are():
    with pytest.raises(InputError, match=r"objective 'ece/cars': the sweep has no dataset 'cars'; it has dtd, pets"):
        measured(FOUND, "ece/cars")


@pytest.mark.parametrize(("metric", "told"), [("nll", "nll is nan"), ("ece/dtd", "ece/dtd is inf")])
def test_a_number_that_is_none_is_an_error_and_no_value(metric, told):
    with pytest.raises(FloatingPointError, match=told):
        measured(FOUND, metric)


# ------------------------------------------------------------ files


def test_artifacts_are_readable_and_right(small, tmp_path):
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
    sums = read_sums(folder, "val")
    assert list(sums) == [(each.facts.name, each.seed) for each in parts]
    for each in parts:
        assert metric_value("ece", sums[each.facts.name, each.seed]) == score(each.predictions)["ece"]
        stem = f"{each.facts.name}.seed{each.seed}"
        table = parquet.read_table(folder / "val" / f"{stem}.predictions.parquet").to_pydict()
        assert tuple(table["id"]) == each.predictions.ids
        assert table["confidence"] == each.predictions.confidence.tolist()
        assert table["label_name"] == [each.facts.classes[label] for label in each.predictions.labels]
        ((name, values),) = each.predictions.columns.items()
        assert (list(table)[-1], table[name]) == (name, values.tolist())
        assert (folder / "prompts" / f"{stem}.safetensors").read_bytes() == each.prompt
        with safe_open(folder / "prompts" / f"{stem}.safetensors", framework="pt") as file:
            assert torch.equal(file.get_tensor("context"), from_bytes(small.clip, each.prompt).context)
            assert (file.metadata()["dataset"], file.metadata()["seed"]) == (each.facts.name, str(each.seed))
    with Image.open(folder / "val" / "reliability.png") as picture:
        picture.load()
        assert min(picture.size) > 200
