"""Probes of the model and the datasets that a sweep would use; their readings are plain values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fpp_sweep.checks.guessing import images_needed
from fpp_sweep.checks.probes import Readings, gpus, node_readings, run_probes
from fpp_sweep.core.datasets import BadImageError, Dataset, custom_datasets, expand
from fpp_sweep.space.published import preset_for
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import message_in_one_line
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.spec.tasks import BATCH, EvalTask

if TYPE_CHECKING:
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
    workers: int = 1,
) -> Readings:
    """Return all readings of this machine, and of the model and its predictions if datasets are given."""
    readings = node_readings(spec, token_key, workers)
    readings |= run_probes({"GPUs": gpus})
    if datasets:
        readings |= data_readings(spec, datasets, splits, check_sweep)
    return readings


def data_readings(
    spec: WorkerSpec, datasets: Sequence[str], splits: Sequence[str], check_sweep: SweepCheck | None = None
) -> Readings:
    """Return readings of the weights, of each split of each dataset, and of the whole sweep.

    Zero-shot accuracy on the first split shows whether class names and labels belong together. A probe that fails has
    the reading {"failed": the reason}. If the dataset file or the model cannot be
    read, the other probes do not run.
    """
    from fpp_sweep.trial.worker import Worker  # loads torch

    try:
        names = expand(datasets, custom_datasets(datasets, spec.dataset_file))
    except Exception as error:
        return {"dataset file": {"failed": str(error)}}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            # without the precisions of the sweep, which this machine's CPU may lack and its GPU have
            worker = Worker(replace(spec, cache=scratch, device="cpu", precisions=(), compile=False))
            readings: Readings = {"weights": worker.model_info().digest[:DIGEST_LENGTH]}
        except Exception as error:
            return {"weights": {"failed": str(error)}}
        plan: Readings = {}
        if check_sweep is not None:
            plan = run_probes({"plan of the sweep": lambda: check_sweep(worker)})
        final_split = plan.get("plan of the sweep", {}).get("final_split", "")
        for name in names:
            for split in splits:
                opened_split = split
                if final_split.startswith(f"{split}:"):  # it has more images of the split
                    opened_split = final_split
                try:
                    readings |= _split_readings(worker, name, split, opened_split)
                    if split == splits[0]:
                        readings[f"accuracy on {name}"] = _zero_shot_hits(worker, name, split)
                except Exception as error:
                    readings[f"dataset {name}, {split}"] = {"failed": str(error)}
    return readings | plan


def _split_readings(worker: Worker, name: str, split: str, opened_split: str) -> Readings:
    """Return the readings of a split; files are opened from the images that the sweep reads of `opened_split`."""
    (info,) = worker.describe([name], split)
    whole = worker.datasets.whole(name, split)  # --limit would leave classes without images
    files = open_sample(worker.datasets.open(name, opened_split)) | {"may_skip": worker.spec.on_bad_image == "skip"}
    return {
        f"dataset {name}, {split}": keys.digest(info.digest, info.classes, length=DIGEST_LENGTH),
        f"images of {name}, {split}": info.images,
        f"classes of {name}, {split}": class_counts(whole),
        f"files of {name}, {split}": files,
    }


def class_counts(dataset: Dataset) -> dict[str, Any]:
    """Return the number of classes, and the names of those without images."""
    present = set(dataset.labels.tolist())
    empty = [name for label, name in enumerate(dataset.classes) if label not in present]
    return {"classes": len(dataset.classes), "empty": empty}


def open_sample(dataset: Dataset) -> dict[str, Any]:
    """Open images in equal steps through the split; return how many were opened, and the errors."""
    count = min(SAMPLED_IMAGES, len(dataset.ids))
    problems = []
    for number in range(count):
        position = number * len(dataset.ids) // count
        try:
            dataset.source.image(dataset.ids[position])
        except (BadImageError, OSError) as error:
            problems.append(message_in_one_line(error))
    return {"opened": count, "images": len(dataset.ids), "problems": problems}


def _zero_shot_hits(worker: Worker, name: str, split: str) -> dict[str, int]:
    """Return how many of the first images zero-shot classifies correctly; images that are left out do not count."""
    (info,) = worker.describe([name], split)
    config = preset(preset_for("auto", worker.spec.model)).replace({"method": "zero_shot", "prompt": "a photo of a"})
    count = min(info.size, max(BATCH, images_needed(len(info.classes))))
    task = EvalTask(config=config, dataset=name, split=split, seed=0, start=0, stop=count)
    predictions = worker.run(task, []).predictions
    correct = images = 0
    if predictions is not None:
        correct = int((predictions.predicted == predictions.labels).sum())
        images = len(predictions.labels)
    return {"correct": correct, "images": images, "classes": len(info.classes)}
