"""Checks of the model and the datasets that a sweep would use; the model classifies a sample of each split."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from scipy import special

from fpp_sweep.checks.datasets import survey_dataset
from fpp_sweep.checks.findings import Finding, run_check
from fpp_sweep.checks.machine import check_machine
from fpp_sweep.core.datasets import BadImageError, Dataset, custom_datasets, expand, resolve
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.released import preset_for
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.spec.tasks import BATCH, EvalTask

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker

# Guessing reaches a number of hits more rarely than this if the number is not called guessing.
GUESSING_PROBABILITY = 0.001
WEIGHTS = "name weights that this machine can read with --model"
DATASET = "correct the dataset's name, folder or split file, or leave it out; doctor --datasets lists what splits lack"
FILES = "replace these files; doctor --verify lists all damaged ones"
ACCURACY = "check that images, labels and class names belong together, and the model fits"
PLAN = "correct the method, prompt, dataset or plugin that is named there"


def check_all(
    spec: WorkerSpec,
    datasets: Sequence[str],
    splits: Sequence[str],
    check_plan: Callable[[Worker], Finding] | None,
    on_cluster: bool,
) -> list[Finding]:
    """Return what is found on this machine, and of the model and its predictions if datasets are given."""
    findings = check_machine(spec, on_cluster)
    if datasets:
        findings += check_data(spec, datasets, splits, check_plan)
    return findings


def check_data(
    spec: WorkerSpec,
    datasets: Sequence[str],
    splits: Sequence[str],
    check_plan: Callable[[Worker], Finding] | None = None,
) -> list[Finding]:
    """Return what is found of the weights, of each dataset, and of the plan of the sweep.

    If the datasets' names or the model cannot be read, the other checks do not run; the plan needs all datasets.
    """
    from fpp_sweep.trial.worker import Worker  # loads torch

    try:
        names = expand(datasets, custom_datasets(datasets, spec.dataset_file))
    except InputError as error:
        return [Finding("wrong", str(error), DATASET, subject="datasets")]
    with tempfile.TemporaryDirectory() as cache:
        on_cpu = replace(spec, cache=cache, device="cpu", precisions=())  # which may lack the sweep's precisions
        try:
            worker = Worker(on_cpu)
            digest = worker.model_info().digest[:12]
        except Exception as error:
            return [Finding("wrong", message_in_one_line(error), WEIGHTS, subject="weights")]
        findings = [Finding("ok", digest, must_match=digest, subject="weights")]
        are_datasets_open = True
        for name in names:
            dataset = run_check(f"dataset {name}", DATASET, partial(check_dataset, worker, name, splits))
            findings.append(dataset)
            if dataset.state == "wrong":
                are_datasets_open = False
            else:
                findings += _check_predictions(worker, name, splits)
        if check_plan is not None and are_datasets_open:
            findings.append(run_check("plan of the sweep", PLAN, partial(check_plan, worker)))
    return findings


def _check_predictions(worker: Worker, name: str, splits: Sequence[str]) -> list[Finding]:
    """Return what is found of a dataset's files and, if they can be read, of predictions for them."""
    findings = [run_check(f"files of {name}", FILES, partial(check_files, worker, name, splits))]
    if findings[0].state == "wrong":
        return findings
    for split in splits:
        accuracy = partial(check_accuracy, worker, name, split)
        findings.append(run_check(f"accuracy on {name}, {split}", ACCURACY, accuracy))
    return findings


def check_dataset(worker: Worker, name: str, splits: Sequence[str]) -> Finding:
    """Require splits with images, none of which is in two splits; note what else `doctor --datasets` reports."""
    spec = worker.spec
    name, dataset = resolve(name, custom_datasets(spec.datasets, spec.dataset_file))
    survey = survey_dataset(name, dataset, spec.data_root, splits)
    faults, notes = list(survey.faults()), list(survey.notes())
    if faults:
        return Finding("wrong", "; ".join(faults))
    counts = " and ".join(f"{len(survey.splits[split].ids)} {split}" for split in splits)
    digest = " ".join(worker.datasets.samples_digest(name, split) for split in splits)
    if notes:
        return Finding("note", "; ".join([f"{counts} images", *notes]), "correct the dataset, or go on", digest)
    return Finding("ok", f"{counts} images", must_match=digest)


def check_files(worker: Worker, name: str, splits: Sequence[str]) -> Finding:
    """Require that images of each split can be opened: those that are classified afterwards."""
    n_opened, problems = 0, []
    for split in splits:
        dataset = worker.datasets.open(name, split)
        for sample in dataset.ids[: sample_size(dataset)]:
            n_opened += 1
            try:
                dataset.source.image(sample)
            except (BadImageError, OSError) as error:
                problems.append(message_in_one_line(error))
    text = f"{plural(n_opened, 'image')} opened"
    if not problems:
        return Finding("ok", text)
    return Finding("wrong", f"{text}, {len(problems)} cannot be read: {problems[0]}")


def check_accuracy(worker: Worker, name: str, split: str) -> Finding:
    """Require more correct zero-shot predictions than guessing gives, if there are enough images to tell."""
    dataset = worker.datasets.open(name, split)
    config = preset(preset_for("auto", worker.spec.model)).replace({"method": "zero_shot", "prompt": "a photo of a"})
    task = EvalTask(config=config, dataset=name, split=split, seed=0, start=0, stop=sample_size(dataset))
    predictions = worker.run(task, []).read_predictions()
    correct, n_images = int((predictions.predicted == predictions.labels).sum()), len(predictions.labels)
    n_classes = len(dataset.classes)
    text = f"{correct} of {n_images} images classified correctly, {n_images / n_classes:.0f} by guessing"
    if not looks_like_guessing(correct, n_images, n_classes):
        return Finding("ok", text)
    if n_images < images_to_tell(n_classes):
        return Finding("note", f"{text}; {images_to_tell(n_classes)} images would tell")
    return Finding("wrong", text)


def sample_size(dataset: Dataset) -> int:
    """Return how many of a split's first images are opened and classified; the order of images is random."""
    return min(len(dataset), images_to_tell(len(dataset.classes)))


def images_to_tell(n_classes: int) -> int:
    """Return the number of images that tells guessing from a model that is right a third of the way to all images.

    Such a model does not look like guessing in at least 95 % of the samples.

    >>> images_to_tell(2), images_to_tell(100)
    (200, 64)
    """
    return max(BATCH, 400 // n_classes)


def looks_like_guessing(correct: int, n_images: int, n_classes: int) -> bool:
    """Return True if guessing among the classes may well give this many correct predictions or more.

    >>> looks_like_guessing(1, 64, 100), looks_like_guessing(15, 64, 100)
    (True, False)
    """
    if correct == 0:
        return True
    return bool(special.bdtrc(correct - 1, n_images, 1 / n_classes) > GUESSING_PROBABILITY)
