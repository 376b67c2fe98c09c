"""A trial over a pool is the trial that one process runs, to the last bit; and nothing is lost or counted twice."""

import asyncio
import math
from dataclasses import asdict, replace

import pytest
import torch
from fpp_sweep.trial.bench import Bench
from fpp_sweep.trial.tasks import PretrainTask

from fpp_sweep.config import preset
from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.core.prompt import from_bytes
from fpp_sweep.errors import InputError
from fpp_sweep.records.records import SplitResult
from fpp_sweep.trial.inline import InlineExecutor
from fpp_sweep.trial.results import Done, Failure, Names, TaskFailedError, UnitStore, WorkerSpec
from fpp_sweep.trial.trial import Piece, Plan, joined, measured, run_trial, summary, tasks_of, write_artifacts
from fpp_sweep.trial.worker import Worker
from fpp_sweep.workers.keeper import Keeper
from tests.trial.made import evaluation, facts, predictions, same_predictions

IMAGES = 150  # more than two batches, so that there are three shards
SMALL = 20
QUICK = {"views.count": 4, "fpp.steps": 2, "fpp.draws": 1}
WORDS = preset("tiny").replace({**QUICK, "prompt": "a photo of a", "method": "tpt"})
CONFIGS = {
    "pretrained": WORDS.replace({"prompt": "fpp", "method": "ctpt"}),
    "words": WORDS,
    "zero-shot": WORDS.replace({"method": "zero_shot"}),
}
NAMES = ("digits", "scenes")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def worker(cache):
    """A worker on the embedded model; it sets torch's threads, which are set back."""
    threads = torch.get_num_threads()
    yield Worker(WorkerSpec(model="tiny", limit=IMAGES, cache=str(cache), device="cpu", threads=1))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def small(cache):
    threads = torch.get_num_threads()
    yield Worker(WorkerSpec(model="tiny", limit=SMALL, cache=str(cache), device="cpu", threads=1))
    torch.set_num_threads(threads)


def plan_of(worker, *, datasets=("digits",), seeds=(0,), shards=None, parts=("val",)):
    return Plan(
        datasets={part: tuple(worker.describe(datasets, part)) for part in parts}, seeds=tuple(seeds), shards=shards
    )


def names_of(worker, plan):
    return Names(
        worker.facts().digest, {(each.name, each.split): each for part in plan.datasets.values() for each in part}
    )


def executor(worker, plan, folder):
    return InlineExecutor(worker, names_of(worker, plan), UnitStore(folder))


def in_one_process(worker, config, dataset, *, seed=0, part="val"):
    bench = Bench(clip=worker.clip, cache=FeatureCache(worker.cache.root), show=False)
    data = open_dataset(dataset, part).head(worker.spec.limit)
    return bench.run(config, [data], seed).datasets[dataset]


# ------------------------------------------------------------ the same as in one process


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_number_of_shards_gives_what_one_process_gives(worker, tmp_path, config):
    alone = in_one_process(worker, config, "digits")
    for shards in (None, 1, 2, 3):
        plan = plan_of(worker, shards=shards)
        found, (piece,) = run_trial(plan, config, "val", executor(worker, plan, tmp_path / str(shards)).results)
        assert len(tasks_of(plan, config, "val")["digits", 0]) == (shards or 1)
        assert same_predictions(piece.predictions, alone.predictions)
        metrics = asdict(alone.metrics)
        assert found.samples == metrics.pop("samples") == IMAGES
        assert dict(found.average) == dict(found.datasets["digits"]) == metrics
        assert found.deviation == {}
        if config.prompt == "fpp":
            assert torch.equal(from_bytes(worker.clip, piece.prompt).context, alone.prompt.context)
        else:
            assert piece.prompt is None


def test_averages_are_over_datasets_and_deviations_over_seeds(small, tmp_path):
    plan = plan_of(small, datasets=NAMES, seeds=(0, 1))
    found, pieces = run_trial(plan, CONFIGS["words"], "val", executor(small, plan, tmp_path).results)
    alone = {
        (name, seed): in_one_process(small, CONFIGS["words"], name, seed=seed).metrics
        for name in NAMES
        for seed in (0, 1)
    }
    assert [(piece.facts.name, piece.seed) for piece in pieces] == [(n, s) for s in (0, 1) for n in NAMES]
    assert alone["digits", 0] != alone["digits", 1]
    for metric in ("accuracy", "ece", "nll"):
        of = {key: getattr(each, metric) for key, each in alone.items()}
        by_seed = [(of["digits", seed] + of["scenes", seed]) / 2 for seed in (0, 1)]
        assert found.datasets["digits"][metric] == pytest.approx((of["digits", 0] + of["digits", 1]) / 2, rel=1e-12)
        assert found.average[metric] == pytest.approx(sum(by_seed) / 2, rel=1e-12)
        # two values: the standard deviation is their distance over the root of two
        assert found.deviation[metric] == pytest.approx(abs(by_seed[0] - by_seed[1]) / math.sqrt(2), rel=1e-9)
    assert found.samples == 2 * SMALL


def test_the_test_split_is_another_one(small, tmp_path):
    plan = plan_of(small, parts=("val", "test"))
    execute = executor(small, plan, tmp_path).results
    (val,), (test,) = (run_trial(plan, CONFIGS["words"], part, execute)[1] for part in ("val", "test"))
    assert same_predictions(
        test.predictions, in_one_process(small, CONFIGS["words"], "digits", part="test").predictions
    )
    assert val.predictions.ids != test.predictions.ids


class InProcess:
    """The keeper's hand around a worker in this process."""

    def __init__(self, worker):
        self.worker = worker
        self.facts = worker.facts()

    async def run(self, task, prompt):
        try:
            return self.worker.run(task, prompt)
        except Exception as error:
            return Failure(reason=str(error))

    async def gone(self):
        await asyncio.Event().wait()

    def kill(self):
        pass


def kept(worker, names, folder, tasks, workers=2):
    async def hire():
        return InProcess(worker)

    async def work():
        keeper = Keeper(
            hire=hire, wanted=lambda: workers, names=names, store=UnitStore(folder), attempts=1, timeout=60.0
        )
        staff = asyncio.create_task(keeper.staff())
        try:
            async with asyncio.timeout(60):
                return await keeper.results(tasks, 1)
        finally:
            for each in (staff, *keeper._employed):
                each.cancel()
            await asyncio.gather(staff, *keeper._employed, return_exceptions=True)

    return asyncio.run(work())


@pytest.mark.parametrize("config", [CONFIGS["pretrained"], CONFIGS["zero-shot"]], ids=["pretrained", "zero-shot"])
def test_the_keeper_comes_to_what_one_worker_comes_to(small, tmp_path, config):
    plan = plan_of(small, datasets=NAMES, seeds=(0, 1))
    shards = [task for tasks in tasks_of(plan, config, "val").values() for task in tasks]
    tasks = [*shards, *([shard.pretrain for shard in shards] if config.prompt == "fpp" else [])]
    names = names_of(small, plan)
    inline = InlineExecutor(small, names, UnitStore(tmp_path / "inline")).results(tasks)
    for task, one, other in zip(tasks, inline, kept(small, names, tmp_path / "kept", tasks), strict=True):
        assert same_predictions(one.predictions, other.predictions), task
        assert one.skipped == other.skipped
        assert set(one.seconds) == set(other.seconds)
        assert (one.prompt is None) == (other.prompt is None)
        if one.prompt is not None:  # its file tells the seconds that it took, too
            contexts = [from_bytes(small.clip, each.prompt).context for each in (one, other)]
            assert torch.equal(*contexts)


def test_a_prompt_that_is_not_there_fails_the_trial_with_its_reason(small, tmp_path):
    plan = plan_of(small)
    config = WORDS.replace({"prompt": str(tmp_path / "none.safetensors")})
    names = names_of(small, plan)
    with pytest.raises(TaskFailedError, match=r"none\.safetensors does not exist"):
        run_trial(plan, config, "val", lambda tasks: kept(small, names, tmp_path, tasks))
    with pytest.raises(InputError, match=r"none\.safetensors does not exist"):
        run_trial(plan, config, "val", executor(small, plan, tmp_path).results)


def test_a_pretrained_prompt_must_be_given(small):
    (task,) = tasks_of(plan_of(small), CONFIGS["pretrained"], "val")["digits", 0]
    with pytest.raises(ValueError, match="digits: a pretrained prompt is needed, and none was given"):
        small.run(task)


def test_a_trial_pays_for_what_it_had_done_and_not_for_what_was_at_hand(small, tmp_path):
    plan = plan_of(small, seeds=(0, 1))
    execute = executor(small, plan, tmp_path).results
    paid, _ = run_trial(plan, CONFIGS["pretrained"], "val", execute)
    again, _ = run_trial(plan, CONFIGS["pretrained"], "val", execute)
    assert set(paid.seconds) == {"pretrain", "features", "adapt"}
    assert min(paid.seconds.values()) > 0
    assert paid.device_seconds >= sum(paid.seconds.values()) * 0.99
    assert (dict(again.seconds), again.device_seconds) == ({}, 0.0)
    assert again.average == paid.average
    other, _ = run_trial(plan, CONFIGS["pretrained"].replace({"method": "otpt"}), "val", execute)
    assert set(other.seconds) == {"features", "adapt"}  # their prompts are the same


def test_tasks_are_the_shards_of_every_dataset_and_seed(worker):
    plan = plan_of(worker, datasets=NAMES, seeds=(3, 5), shards=3)
    cut = tasks_of(plan, WORDS, "val")
    assert list(cut) == [("digits", 3), ("scenes", 3), ("digits", 5), ("scenes", 5)]
    for (dataset, seed), tasks in cut.items():
        assert {(task.dataset, task.seed, task.split) for task in tasks} == {(dataset, seed, "val")}
        assert [(task.start, task.stop) for task in tasks] == [(0, 64), (64, 128), (128, IMAGES)]


# ------------------------------------------------------------ joining


def part(start, stop, *, skipped=0, seed=None):
    """A shard with its result, some of its images not read."""
    size = stop - start - skipped
    made = predictions(size, seed=start if seed is None else seed) if size else None
    return evaluation(start=start, stop=stop), Done(predictions=made, skipped=skipped, seconds={})


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


def test_a_shard_that_lacks_samples_without_saying_so_is_refused():
    task, done = part(0, 64)
    with pytest.raises(ValueError, match=r"dtd: samples 0\.\.64 came back as 63"):
        joined([(task, replace(done, predictions=predictions(63)))], 64)
    with pytest.raises(ValueError, match=r"came back as 65"):
        joined([(task, replace(done, skipped=1))], 64)


def test_the_same_sample_in_two_shards_is_refused():
    with pytest.raises(InputError, match="appears more than once"):
        joined([part(0, 64, seed=1), part(64, 128, seed=1)], 128)


def test_a_dataset_of_which_nothing_can_be_read_is_refused():
    with pytest.raises(InputError, match="dtd: none of its images can be read"):
        joined([part(0, 64, skipped=64), part(64, 70, skipped=6)], 70)


def test_a_sum_counts_each_image_once_whatever_the_number_of_seeds():
    pieces = [
        Piece(facts=facts(name), seed=seed, predictions=predictions(size, seed=seed), prompt=None)
        for seed in (0, 1, 2)
        for name, size in (("dtd", 40), ("pets", 25))
    ]
    done = [Done(seconds={"adapt": 1.5, "features": 1.0}, held=4.0), Done(seconds={"adapt": 2.0}, held=3.0)]
    found = summary(pieces, done)
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

    plan = plan_of(small, datasets=NAMES, seeds=(0, 1))
    _, pieces = run_trial(plan, CONFIGS["pretrained"], "val", executor(small, plan, tmp_path / "units").results)
    folder = tmp_path / "artifacts"
    write_artifacts(folder, pieces, "val", "trial-0003, val: ctpt")
    stems = [f"{name}.seed{seed}" for name in NAMES for seed in (0, 1)]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(
        [f"prompts/{stem}.safetensors" for stem in stems]
        + [f"val/{stem}.predictions.parquet" for stem in stems]
        + ["val/reliability.png"]
    )
    for piece in pieces:
        stem = f"{piece.facts.name}.seed{piece.seed}"
        table = parquet.read_table(folder / "val" / f"{stem}.predictions.parquet").to_pydict()
        assert tuple(table["id"]) == piece.predictions.ids
        assert table["confidence"] == piece.predictions.confidence.tolist()
        assert table["label_name"] == [piece.facts.classes[label] for label in piece.predictions.labels]
        with safe_open(folder / "prompts" / f"{stem}.safetensors", framework="pt") as file:
            task = PretrainTask(config=CONFIGS["pretrained"], dataset=piece.facts.name, seed=piece.seed)
            prompt = small.run(task).prompt
            assert torch.equal(file.get_tensor("context"), from_bytes(small.clip, prompt).context)
            assert (file.metadata()["dataset"], file.metadata()["seed"]) == (piece.facts.name, str(piece.seed))
    with Image.open(folder / "val" / "reliability.png") as picture:
        picture.load()
        assert min(picture.size) > 200
