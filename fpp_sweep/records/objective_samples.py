"""A trial's objectives on resampled images, in a file among its artifacts.

The support of the front needs them of some 200 trials, and nothing else of most of these. A trial writes them when it
ends, because reading them takes an eighth of the time of computing them from block statistics. A trial with several
seeds has no such file: the variance of seeds is estimated from its metrics on each dataset, too.

The file holds digests of the checksums in the trial's block statistics. If these change, or one of their files is lost,
the samples are computed again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import files_inside, read_inside, read_last_bytes_inside, write_json
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, seeds_of
from fpp_sweep.statistics.bootstrap import (
    N_RESAMPLES,
    NO_MAP,
    MetricSamples,
    RecordSamples,
    StatsByMap,
    image_digests,
    sample_record,
)

FILE = "objective_samples.json"
VERSION = 1  # to be raised when the code computes other samples; a test holds their digest
MAX_BYTES = 2**20
NUMBERS = "<f8"  # stored in base64, since numbers of JSON take many times as long to read
END_BYTES = 2**10  # a file of block statistics ends with the directory of its arrays, which has about 400 bytes
BLOCK_STATS_FILES = "block_stats*.npz"  # the method itself has one, and each post-hoc map has one


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRecord:
    """The resampled metrics of one record, and the images that they were measured on."""

    samples: RecordSamples
    images: Mapping[str, int]  # number of images, by dataset
    digests: Mapping[str, bytes]  # digest of the images, by dataset
    accuracies: Mapping[DatasetSeed, float]  # in the block statistics


def resampled_objectives(objectives: Sequence[str]) -> list[str]:
    """Return the metrics of objectives that can be resampled.

    >>> resampled_objectives(["accuracy", "mce", "ece/dtd"])
    ['accuracy', 'ece/dtd']
    """
    return [metric for metric in objectives if catalogue.parts_of(metric).stem in BLOCKWISE_METRICS]


def write_objective_samples(folder: Path, split: str, tables: StatsByMap, objectives: Sequence[str]) -> None:
    """Write the objectives' samples of a trial with one seed, after its block statistics, among its artifacts."""
    table = tables[NO_MAP]
    digests = image_digests(table)
    if len(seeds_of(table)) > 1 or digests is None:
        return
    averages = [catalogue.parts_of(metric).of_average for metric in resampled_objectives(objectives)]
    samples = sample_record("", tables, split, list(dict.fromkeys(averages)))
    metrics = {}
    for metric in objectives:
        if metric in samples.metrics:
            metrics[metric] = _document(samples.metrics[metric])
    images = {}
    for (dataset, _), stats in sorted(table.items()):
        correct = int(stats.correct.sum())
        images[dataset] = {"count": stats.total, "correct": correct, "digest": digests[dataset].hex()}
    document = {
        "version": VERSION,
        "split": split,
        "seed": seeds_of(table)[0],
        "block_stats": _ends_of_block_stats(folder, split),
        "images": images,
        "metrics": metrics,
    }
    write_json(folder / split / FILE, document)


def _ends_of_block_stats(folder: Path, split: str) -> dict[str, str]:
    """Return a digest of the end of each file of block statistics, which has the checksums of the file's arrays."""
    ends = {}
    for path in files_inside(folder, folder / split, BLOCK_STATS_FILES):
        ends[path.name] = hashlib.sha256(read_last_bytes_inside(folder, path, END_BYTES)).hexdigest()
    return ends


def _document(samples: MetricSamples) -> dict[str, object]:
    return {
        "values": base64.b64encode(samples.by_seed[0].astype(NUMBERS).tobytes()).decode(),
        "points_per_image": samples.points_per_image,
        "blocks": samples.blocks,
        "rarer_answers": samples.rarer_answers,
        "calibrated_bias": samples.calibrated_bias,
        "residual_bias": samples.residual_bias,
    }


def read_objective_samples(
    folder: Path, split: str, name: str, objectives: Sequence[str], *, deterministic: bool
) -> MeasuredRecord | None:
    """Return what `write_objective_samples` wrote into the folder of a trial's artifacts.

    Return None if the file is absent, damaged, of other code, of other block statistics, or without one of the
    objectives: the samples must then be computed.
    """
    try:
        document = json.loads(read_inside(folder, folder / split / FILE, MAX_BYTES))
        if (document["version"], document["split"]) != (VERSION, split):
            return None
        if document["block_stats"] != _ends_of_block_stats(folder, split):
            return None
        metrics = {metric: _samples_of(document["metrics"][metric]) for metric in objectives}
        seed = int(document["seed"])
        samples = RecordSamples(name, (seed,), deterministic, metrics)
        images = {}
        digests = {}
        accuracies = {}
        for dataset, facts in document["images"].items():
            images[dataset] = int(facts["count"])
            digests[dataset] = bytes.fromhex(facts["digest"])
            accuracies[dataset, seed] = 100 * int(facts["correct"]) / images[dataset]
    except (InputError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None
    return MeasuredRecord(samples, images, digests, accuracies)


def _samples_of(document: Any) -> MetricSamples:
    """Return the samples of a metric; raise an error if the document is not as `_document` returns it."""
    values = np.frombuffer(base64.b64decode(document["values"], validate=True), NUMBERS)[None]
    if values.shape != (1, 1 + N_RESAMPLES):
        raise ValueError("another number of resamples")
    samples = MetricSamples(
        by_seed=values,
        points_per_image=float(document["points_per_image"]),
        blocks=int(document["blocks"]),
        rarer_answers=int(document["rarer_answers"]),
        calibrated_bias=float(document["calibrated_bias"]),
        residual_bias=float(document["residual_bias"]),
    )
    scalars = [samples.points_per_image, samples.calibrated_bias, samples.residual_bias]
    if not (np.isfinite(values).all() and np.isfinite(scalars).all()):
        raise ValueError("a number is not finite")
    return samples
