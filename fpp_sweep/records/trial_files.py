"""Files among a trial's artifacts that reports read: the images that were skipped, and reliability diagrams as numbers.

The trial writes the numbers of a diagram once: a page shows the diagrams of all trials, and the block statistics that
they follow from are a hundred times as large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fpp_sweep.core.metrics import BINS
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import write_json
from fpp_sweep.spec.messages import plural
from fpp_sweep.statistics.block_stats import BlockStats, StatsBySeed, bin_sums, datasets_of

SKIPPED = "skipped.json"  # beside the predictions of a split
RELIABILITY = "reliability.json"
MAX_BYTES = 2**25
PERMILLE = 1000
_BIN = r"1?\d \d+ \d+ \d+"
_DIAGRAM = re.compile(f"({_BIN}(,{_BIN})*)?", re.ASCII)
assert BINS == 20  # as in the pattern

SkippedImage = dict[str, str | int]  # dataset, seed, image and reason


def _read(folder: SweepFolder, trial: str, split: str, file: str) -> Any:
    """Return the document of a file; None if the file is absent, damaged or outside the folder."""
    try:
        return json.loads(folder.read_artifact(trial, f"{split}/{file}", MAX_BYTES))
    except (InputError, OSError, ValueError, RecursionError):
        return None


def write_skipped(folder: Path, images: Sequence[SkippedImage]) -> None:
    """Write the images that were left out; without any, there is no file."""
    if images:
        write_json(folder / SKIPPED, list(images))
    else:
        (folder / SKIPPED).unlink(missing_ok=True)


def read_skipped(folder: SweepFolder, trial: str, split: str) -> list[SkippedImage]:
    """Return the images that a trial left out on a split; none if the file is absent or damaged."""
    images: list[SkippedImage] = []
    try:
        for image in _read(folder, trial, split, SKIPPED) or []:
            skipped = {key: str(image[key]) for key in ("dataset", "image", "reason")}
            images.append({**skipped, "seed": int(image["seed"])})
    except (ValueError, TypeError, KeyError):
        return []
    return images


def skipped_lines(folder: SweepFolder, trial: str, split: str) -> list[str]:
    """Return a line for each dataset: `skipped dtd: 3 images, such as ...`."""
    lines = []
    for dataset, reasons in _reasons_by_dataset(read_skipped(folder, trial, split)).items():
        lines.append(f"skipped {dataset}: {plural(len(reasons), 'image')}, such as {next(iter(reasons.values()))}")
    return lines


def skipped_notes(folder: SweepFolder, records: Sequence[TrialRecord]) -> list[str]:
    """Return a sentence for each dataset on the images that the results of any of these records lack."""
    images = []
    for record in records:
        for split in record.results:
            images += read_skipped(folder, record.name, split)
    notes = []
    for dataset, reasons in _reasons_by_dataset(images).items():
        example = next(iter(reasons.values()))
        notes.append(
            f"{dataset}: {plural(len(reasons), 'image')} left out (work.on_bad_image: skip), such as {example}"
        )
    return notes


def _reasons_by_dataset(images: Sequence[SkippedImage]) -> dict[str, dict[str, str]]:
    """Return why each image was left out, by dataset and image: each seed leaves out the same images."""
    reasons: dict[str, dict[str, str]] = {}
    for image in images:
        reasons.setdefault(str(image["dataset"]), {})[str(image["image"])] = str(image["reason"])
    return reasons


def write_reliability(folder: Path, table: StatsBySeed) -> None:
    """Write the diagram of each dataset, over all seeds."""
    diagrams = {}
    for dataset in datasets_of(table):
        stats_of_seeds = []
        for (name, _), stats in table.items():
            if name == dataset:
                stats_of_seeds.append(stats)
        diagrams[dataset] = diagram_of(stats_of_seeds)
    write_json(folder / RELIABILITY, diagrams)


def diagram_of(stats_of_seeds: Sequence[BlockStats]) -> str:
    """Return the diagram of one dataset, as text that report/trial_sections.py reads.

    It has four numbers for each bin that has images: the bin's index, its images, the correct ones, and their mean
    confidence in permille. One text takes a fifth of the time of a list of numbers to read, to check and to write.
    """
    bins = []
    counts, hits, confidence_sums = np.sum([bin_sums(stats) for stats in stats_of_seeds], axis=0)
    for index, count in enumerate(counts):
        if count:
            mean_permille = round(PERMILLE * confidence_sums[index] / count)
            bins.append(f"{index} {count:.0f} {hits[index]:.0f} {mean_permille}")
    return ",".join(bins)


def read_reliability(folder: SweepFolder, trial: str, split: str) -> dict[str, str]:
    """Return a trial's diagrams by dataset; none if the file is absent, damaged or outside the folder."""
    document = _read(folder, trial, split, RELIABILITY)
    if not isinstance(document, dict) or not all(_is_diagram(text) for text in document.values()):
        return {}
    return document


def _is_diagram(text: object) -> bool:
    return isinstance(text, str) and _DIAGRAM.fullmatch(text) is not None
