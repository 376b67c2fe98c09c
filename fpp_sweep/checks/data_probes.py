"""Probes of the model, the datasets and the plugins that a sweep would use; their readings are plain values."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fpp_sweep.checks.guessing import images_needed
from fpp_sweep.checks.probes import Readings, gpus, node_readings, run_probes
from fpp_sweep.core.datasets import BadImageError, Dataset, custom_datasets, expand
from fpp_sweep.core.metric_contract import check_metric
from fpp_sweep.space.published import preset_for
from fpp_sweep.spec import catalogue, keys
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.specs import TextSource, WorkerSpec
from fpp_sweep.spec.tasks import BATCH, EvalTask

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker

SAMPLED_IMAGES = 32  # images of each split that are opened
DIGEST_LENGTH = 12  # hexadecimal digits of a digest in a reading


class Choices(NamedTuple):
    """The methods, prompts and templates that the trials of a sweep may use."""

    methods: tuple[str, ...]
    prompts: tuple[TextSource, ...]
    plugin_seconds: float  # time limit for the check of a plugin


NO_CHOICES = Choices((), (), 0.0)


def all_readings(
    spec: WorkerSpec, token_key: str | None, datasets: Sequence[str], splits: Sequence[str], choices: Choices
) -> Readings:
    """Return all readings of this machine, and of the model and its predictions if datasets are given."""
    readings = node_readings(spec, token_key)
    readings |= run_probes({"GPUs": gpus})
    if datasets:
        readings |= data_readings(spec, datasets, splits, choices)
    return readings


def data_readings(
    spec: WorkerSpec, datasets: Sequence[str], splits: Sequence[str], choices: Choices = NO_CHOICES
) -> Readings:
    """Return readings of the weights, of each split of each dataset, and of the methods, prompts and plugins.

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
            worker = Worker(replace(spec, cache=scratch, device="cpu", compile=False))
            readings: Readings = {"weights": worker.model_info().digest[:DIGEST_LENGTH]}
        except Exception as error:
            return {"weights": {"failed": str(error)}}
        for name in names:
            for split in splits:
                try:
                    readings |= _split_readings(worker, name, split)
                    if split == splits[0]:
                        readings[f"accuracy on {name}"] = _zero_shot_hits(worker, name, split)
                except Exception as error:
                    readings[f"dataset {name}, {split}"] = {"failed": str(error)}
        if choices.methods:
            readings |= run_probes({"methods and prompts": lambda: try_choices(worker, choices)})
    return readings


def try_choices(worker: Worker, choices: Choices) -> dict[str, Any]:
    """Try methods, prompts and plugins on made-up samples; raise InputError for the first that cannot be used."""
    for row in catalogue.METRICS.values():
        if row.digest:
            check_metric(row, choices.plugin_seconds)
    validation = worker.check(choices.methods, choices.prompts, datasets=(), seconds=choices.plugin_seconds)
    return {"methods": len(choices.methods), "prompts": len(choices.prompts), "notes": list(validation.notes)}


def _split_readings(worker: Worker, name: str, split: str) -> Readings:
    (info,) = worker.describe([name], split)
    dataset = worker.datasets.whole(name, split)  # not cut by --limit, which would leave classes without images
    return {
        f"dataset {name}, {split}": keys.digest(info.digest, info.classes, length=DIGEST_LENGTH),
        f"images of {name}, {split}": info.images,
        f"classes of {name}, {split}": class_counts(dataset),
        f"files of {name}, {split}": open_sample(dataset),
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
            problems.append(" ".join(str(error).split()))
    return {"opened": count, "images": len(dataset.ids), "problems": problems}


def _zero_shot_hits(worker: Worker, name: str, split: str) -> dict[str, int]:
    """Return how many of the first images zero-shot classifies correctly."""
    (info,) = worker.describe([name], split)
    config = preset(preset_for("auto", worker.spec.model)).replace({"method": "zero_shot", "prompt": "a photo of a"})
    count = min(info.size, max(BATCH, images_needed(len(info.classes))))
    task = EvalTask(config=config, dataset=name, split=split, seed=0, start=0, stop=count)
    predictions = worker.run(task, []).predictions
    correct = 0
    if predictions is not None:
        correct = int((predictions.predicted == predictions.labels).sum())
    return {"correct": correct, "images": count, "classes": len(info.classes)}
