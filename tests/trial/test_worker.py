"""A worker's descriptions of data and model, its failures, memory and adapters; test_trial.py tests its results."""

import json
import platform
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fpp_sweep.core.compute import MemoryBudget
from fpp_sweep.core.images.features import tower_bytes_per_view
from fpp_sweep.core.prompt import from_words, prompt_bytes
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import TextSource, WorkerSpec
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.trial import worker as worker_module
from fpp_sweep.trial.results import TaskFailed
from fpp_sweep.trial.worker import Worker
from tests.kit.datasets import jpeg, write_image
from tests.kit.names import ZERO_SHOT
from tests.kit.tasks import evaluation
from tests.kit.workers import plan_of

LISTING = [["1.jpg", 0, "cat"], ["2.jpg", 1, "dog"], ["3.jpg", 1, "dog"]]
SPLITS = {"train": LISTING, "val": LISTING, "test": [["1.jpg", 0, "cat"], ["2.jpg", 0, "cat"], ["3.jpg", 1, "dog"]]}
FILE = "pets_of_mine: {layout: split_json, images: images, split_file: split.json}"


def write_dataset(folder, splits=SPLITS, file=FILE):
    for name, _, _ in splits["test"]:
        write_image(folder / "images" / name, jpeg((int(name.partition(".")[0]) % 256, 0, 0)))
    (folder / "split.json").write_text(json.dumps(splits))
    (folder / "mine.yaml").write_text(file)
    return str(folder / "mine.yaml")


@pytest.fixture(scope="module")
def pets_worker(make_worker, tmp_path_factory):
    """A worker on a dataset whose splits have the same images; one label of the test split differs."""
    return make_worker(dataset_file=write_dataset(tmp_path_factory.mktemp("data")))


def test_other_labels_change_a_datasets_digest(pets_worker):
    digests = {split: pets_worker.describe(["pets_of_mine"], split)[0].digest for split in SPLITS}
    assert digests["train"] == digests["val"] != digests["test"]


def test_other_views_change_a_datasets_digest(make_worker, tmp_path):
    digests = set()
    for number, more in enumerate(("", ", flip: false", ", augmix: false")):
        (tmp_path / str(number)).mkdir()
        file = write_dataset(tmp_path / str(number), file=FILE.replace("}", f"{more}}}"))
        digests.add(make_worker(dataset_file=file).describe(["pets_of_mine"], "val")[0].digest)
    assert len(digests) == 3


def test_a_workers_arithmetic_names_the_settings_that_change_last_bits(make_worker):
    arithmetics = {
        make_worker(**spec).model_info().arithmetic for spec in ({}, {"threads": 2}, {"float32_cache": True})
    }
    assert len(arithmetics) == 3


# ------------------------------------------------------------ failures


@pytest.mark.parametrize("error", [RuntimeError("CUDA error:\ndevice-side assert triggered"), KeyError("x")], ids=repr)
def test_a_failure_names_samples_machine_and_worker_then_the_cause(pets_worker, monkeypatch, error):
    def broken_evaluate(*how, **options):
        raise error

    monkeypatch.setattr(worker_module, "evaluate", broken_evaluate)
    task = evaluation(dataset="pets_of_mine", split="test", stop=3, **{"views.count": 2})
    with pytest.raises(TaskFailed) as failure:
        pets_worker.run(task, [])
    where, _, cause = failure.value.reason.partition(": ")
    assert where == f"pets_of_mine, test samples 0..3, seed 0, {pets_worker.model_info().where}"
    assert platform.node() in where
    assert cause == f"{type(error).__name__}: {' '.join(str(error).split())}"
    assert "in broken_evaluate\n    raise error" in failure.value.details


def refused(worker, keys, task):
    """Return the reason of a task's failure, which another machine might not have."""
    with pytest.raises(TaskFailed) as failure:
        worker.run(task, [], "", keys.data_of(task))
    assert failure.value.retry_elsewhere
    return failure.value.reason


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: write_dataset(folder, file=FILE.replace("}", ", classes: {cat: tabby}}")),
        lambda folder: write_dataset(folder, {**SPLITS, "test": SPLITS["test"][:2]}),
    ],
)
def test_a_task_is_refused_by_a_worker_that_finds_other_data_than_the_run_began_with(make_worker, tmp_path, change):
    first = make_worker(dataset_file=write_dataset(tmp_path))
    keys = TaskKeys(first.model_info(), {("pets_of_mine", "test"): first.describe(["pets_of_mine"], "test")[0]})
    task = evaluation(dataset="pets_of_mine", split="test", stop=2, method=ZERO_SHOT)
    assert first.run(task, [], "", keys.data_of(task)).read_predictions()
    change(tmp_path)
    later = make_worker(dataset_file=str(tmp_path / "mine.yaml"))  # such as one that replaces a worker that has died
    problem = "pets_of_mine: its class names, images or labels here are not those that the run began with"
    assert problem in refused(later, keys, task)
    assert first.run(task, [], "", keys.data_of(task)).read_predictions()  # it has opened the data before


def test_a_pretraining_is_refused_by_a_worker_that_finds_other_class_names(make_worker, tmp_path):
    first = make_worker(dataset_file=write_dataset(tmp_path))
    keys = TaskKeys(first.model_info(), {("pets_of_mine", "test"): first.describe(["pets_of_mine"], "test")[0]})
    task = PretrainTask(config=TrialConfig().replace({"fpp.steps": 1}), dataset="pets_of_mine", seed=0)
    assert first.run(task, [], "", keys.data_of(task)).prompt
    write_dataset(tmp_path, file=FILE.replace("}", ", classes: {cat: tabby}}"))
    later = make_worker(dataset_file=str(tmp_path / "mine.yaml"))
    assert "pets_of_mine: its class names here are not those" in refused(later, keys, task)


@pytest.mark.parametrize("kind", ["templates", "prompt"])
def test_a_task_is_refused_if_its_file_of_texts_has_changed_since_the_run_began(make_worker, tmp_path, kind):
    worker = make_worker()
    if kind == "templates":
        file = tmp_path / "mine.json"
        file.write_text('["a photo of a {}."]')
        settings, source = {"adapt.templates": str(file)}, TextSource(prompt="", templates=str(file))
        other = b'["a picture of a {}."]'
    else:
        file = tmp_path / "mine.safetensors"
        file.write_bytes(prompt_bytes(from_words(worker.clip, "a photo of a"), worker.clip, {}))
        settings, source = {"prompt": str(file)}, TextSource(prompt=str(file))
        other = prompt_bytes(from_words(worker.clip, "a picture of a"), worker.clip, {})
    datasets = plan_of(worker).datasets_by_key()
    prompts = worker.check([source], list(datasets.values())).prompts
    keys = TaskKeys(worker.model_info(), datasets, prompts)
    method = "zero_shot_ensemble" if kind == "templates" else ZERO_SHOT
    task = evaluation(dataset="digits", stop=2, method=method, **settings)
    assert worker.run(task, [], "", keys.data_of(task)).read_predictions()
    file.write_bytes(other)
    assert f"{file}: is not the file that the run began with" in refused(worker, keys, task)


def test_a_model_that_cannot_be_loaded_fails_the_task(monkeypatch):
    loads = []

    def load(name, device):
        loads.append(name)
        raise MemoryError("no room")

    monkeypatch.setattr(worker_module, "load", load)
    with pytest.raises(TaskFailed, match=r"^dtd, pretraining, seed 0, worker \d+ on .*: MemoryError: no room"):
        Worker(WorkerSpec(model="tiny")).run(evaluation(prompt="fpp").pretrain, [])
    assert loads == ["tiny"]


def test_the_cost_of_image_features_belongs_to_the_task_that_computed_them(make_worker, tmp_path):
    worker, task = make_worker(limit=20, cache=str(tmp_path)), evaluation(dataset="digits", stop=20, method="zero_shot")
    cost = worker.run(task, []).features
    assert cost["images"] == 20
    assert cost["tower"] > 0
    assert worker.run(task, []).features == {}


@pytest.mark.parametrize(
    ("model", "device", "share", "loaders_setting", "loaders"),
    [
        ("ViT-B-16", "cuda", 1.0, None, 15),
        ("ViT-B-16", "cuda", 0.25, None, 3),
        ("ViT-B-16", "cuda", 0.05, None, 1),
        ("ViT-B-16", "cuda", 1.0, 0, 0),
        ("ViT-B-16", "cpu", 1.0, None, 0),
        ("tiny", "cuda", 1.0, None, 0),
    ],
)
def test_the_number_of_processes_that_read_images_fits_the_share_of_the_machine(
    model, device, share, loaders_setting, loaders, monkeypatch
):
    monkeypatch.setattr("fpp_sweep.spec.process.cores", lambda: 16)
    worker = Worker(WorkerSpec(model=model, machine_share=share, loaders=loaders_setting))
    worker.model.clip = SimpleNamespace(name=model, device=torch.device(device))
    assert worker.model.image_readers == loaders


class LimitedTower(torch.nn.Module):
    """An image tower that needs more memory than any machine has for more than `max_images` images."""

    def __init__(self, tower, max_images):
        super().__init__()
        self.tower, self.max_images = tower, max_images

    def forward(self, pixels):
        torch.empty((1 << 50) if len(pixels) > self.max_images else 1)
        return self.tower(pixels)


@pytest.mark.parametrize("max_images", [3, 0])
def test_batches_are_halved_when_memory_runs_out_until_one_view_does_not_fit(make_worker, tmp_path, max_images):
    worker = make_worker(limit=8, cache=str(tmp_path))
    worker.model.clip = replace(worker.clip, visual=LimitedTower(worker.clip.visual, max_images))
    task = evaluation(dataset="digits", stop=8, **{"views.count": 2})
    if max_images:
        assert len(worker.run(task, []).read_predictions()) == 8
        return
    message = r"digits, val samples 0\.\.8.*: MemoryError: out of memory .* [0-9.]+ GiB are free on cpu; use a larger"
    with pytest.raises(TaskFailed, match=message) as failure:
        worker.run(task, [])
    assert failure.value.retry_elsewhere
    assert "\n" not in failure.value.reason


def test_memory_limits_the_number_of_views_in_one_call_of_the_tower(make_worker, tmp_path):
    worker = make_worker(limit=8, cache=str(tmp_path))
    bytes_per_view = tower_bytes_per_view(worker.clip)
    room = MemoryBudget(device=4 * 3 * bytes_per_view)  # a quarter of the memory holds three views
    clip = replace(worker.clip, visual=LimitedTower(worker.clip.visual, 3), text=replace(worker.clip.text, memory=room))
    worker.model.clip = clip
    predictions = worker.run(evaluation(dataset="digits", stop=8, **{"views.count": 2}), []).read_predictions()
    expected = make_worker(limit=8, cache=str(tmp_path / "whole")).run(
        evaluation(dataset="digits", stop=8, **{"views.count": 2}), []
    )
    assert abs(predictions.confidence - expected.read_predictions().confidence).max() < 1e-5
