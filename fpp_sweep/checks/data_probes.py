"""Probes of the model and the datasets that a sweep would use; their readings are plain values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpp_sweep.checks.datasets import repeated_names, shared_images
from fpp_sweep.checks.guessing import images_needed
from fpp_sweep.checks.probes import Readings, gpus, node_readings, run_probes
from fpp_sweep.core.datasets import DATASETS, BadImageError, Dataset, custom_datasets, expand
from fpp_sweep.space.published import preset_for
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import message_in_one_line
from fpp_sweep.spec.specs import DatasetInfo, WorkerSpec
from fpp_sweep.spec.tasks import BATCH, EvalTask

if TYPE_CHECKING:
    from fpp_sweep.core.metrics import Predictions
    from fpp_sweep.trial.results import TaskResult
    from fpp_sweep.trial.worker import Worker

SAMPLED_IMAGES = 32  # images of each split that are opened
DIGEST_LENGTH = 12  # hexadecimal digits of a digest in a reading


# returns a reading of the whole sweep; its `final_split` is the split of the final stage, such as `val:20`, or empty
SweepCheck = Callable[["Worker"], dict[str, Any]]


def all_readings(
    spec: WorkerSpec,
    token_key: str | None,
    datasets: Sequence[str],
    splits: Sequence[str],
    check_sweep: SweepCheck | None = None,
) -> Readings:
    """Return all readings of this machine, and of the model and its predictions if datasets are given."""
    readings = node_readings(spec, token_key)
    if spec.device != "cpu":
        readings |= run_probes({"GPUs": gpus})
    if datasets:
        readings |= data_readings(spec, datasets, splits, check_sweep)
    return readings


def data_readings(
    spec: WorkerSpec, datasets: Sequence[str], splits: Sequence[str], check_sweep: SweepCheck | None = None
) -> Readings:
    """Return readings of the weights, of each split of each dataset, and of the whole sweep.

    A probe that fails has the reading {"failed": the reason}. If the dataset file or the model cannot be read, the
    other probes do not run.
    """
    from fpp_sweep.trial.worker import Worker  # loads torch

    try:
        names = expand(datasets, custom_datasets(datasets, spec.dataset_file))
    except Exception as error:
        return {"dataset file": {"failed": str(error)}}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            worker = Worker(_spec_of_probes(spec, scratch))
            readings: Readings = {"weights": worker.model_info().digest[:DIGEST_LENGTH]}
        except Exception as error:
            return {"weights": {"failed": str(error)}}
        plan: Readings = {}
        if check_sweep is not None:
            plan = run_probes({"plan of the sweep": lambda: check_sweep(worker)})
        final_split = plan.get("plan of the sweep", {}).get("final_split", "")
        may_skip = spec.on_bad_image == "skip"
        for name in names:
            readings |= _dataset_readings(worker, name, splits, final_split, may_skip=may_skip)
    return readings | plan


def _dataset_readings(
    worker: Worker, name: str, splits: Sequence[str], final_split: str, *, may_skip: bool
) -> Readings:
    """Return the readings of each split of a dataset, and of the splits that can be opened beside each other."""
    readings: Readings = {}
    wholes = []
    for split in splits:
        opened_split = split
        if final_split.startswith(f"{split}:"):  # it has more images of the split
            opened_split = final_split
        try:
            whole = worker.datasets.whole(name, split)
            readings |= _split_readings(worker, whole, opened_split, may_skip=may_skip)
            wholes.append(whole)
        except Exception as error:
            readings[f"dataset {name}, {split}"] = {"failed": str(error)}
    return readings | _readings_of_splits(wholes)


def _spec_of_probes(spec: WorkerSpec, cache: str) -> WorkerSpec:
    """Return a worker for the CPU, without the sweep's precisions, which this machine's CPU may lack and its GPU have.

    An image that cannot be read does not stop the worker: it belongs to the reading of the files.
    """
    return replace(spec, cache=cache, device="cpu", precisions=(), on_bad_image="skip")


def _split_readings(worker: Worker, whole: Dataset, opened_split: str, *, may_skip: bool) -> Readings:
    """Return the readings of a split; `whole` is the split without --limit, which would leave classes without images.

    Its files are opened from the images that the sweep reads of `opened_split`. Zero-shot accuracy shows whether
    images, labels and class names belong together.
    """
    (info,) = worker.describe([whole.name], whole.split)
    opened = worker.datasets.open(whole.name, opened_split)
    problem_by_image = open_sample(opened)
    accuracy: dict[str, Any]
    try:
        result = _classify_first_images(worker, info)
        for sample in result.skipped:
            problem_by_image.setdefault(sample.sample_id, sample.reason)
        accuracy = count_hits(result.read_predictions()) | {"classes": len(info.classes)}
    except Exception as error:
        accuracy = {"failed": message_in_one_line(error)}
    problems = [problem for problem in problem_by_image.values() if problem]
    files = {"opened": len(problem_by_image), "images": len(opened), "problems": problems, "may_skip": may_skip}
    split = f"{whole.name}, {whole.split}"
    return {
        f"dataset {split}": info.digest[:DIGEST_LENGTH],
        f"images of {split}": info.images,
        f"classes of {split}": class_counts(whole),
        f"files of {split}": files,
        f"accuracy on {split}": accuracy,
    }


def _readings_of_splits(splits: Sequence[Dataset]) -> Readings:
    """Return the readings of a dataset's splits beside each other: of a user's own, or of a published one."""
    readings: Readings = {}
    for split in splits:
        if split.group == "custom":
            readings[f"names of {split.name}"] = repeated_names(split.classes)
            readings[f"splits of {split.name}"] = shared_images({other.split: other.ids for other in splits})
        elif split.split == "test" and DATASETS[split.name].test_size is not None:
            sizes = {"images": len(split), "published": DATASETS[split.name].test_size}
            readings[f"size of {split.name}, test"] = sizes
    return readings


def class_counts(dataset: Dataset) -> dict[str, Any]:
    """Return the number of classes, and the names of those without images."""
    present = set(dataset.labels.tolist())
    empty = [name for label, name in enumerate(dataset.classes) if label not in present]
    return {"classes": len(dataset.classes), "empty": empty}


def open_sample(dataset: Dataset) -> dict[str, str]:
    """Open images in equal steps through the split; return by image why it cannot be read, empty if it can."""
    count = min(SAMPLED_IMAGES, len(dataset.ids))
    problem_by_image = {}
    for number in range(count):
        sample = dataset.ids[number * len(dataset.ids) // count]
        problem_by_image[sample] = ""
        try:
            dataset.source.image(sample)
        except (BadImageError, OSError) as error:
            problem_by_image[sample] = message_in_one_line(error)
    return problem_by_image


def _classify_first_images(worker: Worker, info: DatasetInfo) -> TaskResult:
    """Return the zero-shot predictions of as many images as tell a model that fits from guessing."""
    config = preset(preset_for("auto", worker.spec.model)).replace({"method": "zero_shot", "prompt": "a photo of a"})
    count = min(info.size, max(BATCH, images_needed(len(info.classes))))
    task = EvalTask(config=config, dataset=info.name, split=info.split, seed=0, start=0, stop=count)
    return worker.run(task, [])


def count_hits(predictions: Predictions | None) -> dict[str, int]:
    """Return how many predictions are correct, of how many; None if no image could be read."""
    if predictions is None:
        return {"correct": 0, "images": 0}
    correct = int((predictions.predicted == predictions.labels).sum())
    return {"correct": correct, "images": len(predictions.labels)}
