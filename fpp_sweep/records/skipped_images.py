"""Images that a trial left out because they cannot be read, as a file among its artifacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import write_json
from fpp_sweep.spec.messages import plural

FILE = "skipped.json"  # beside the predictions of a split
TYPES = {"dataset": str, "seed": int, "image": str, "reason": str}
MAX_FILE_BYTES = 2**25

SkippedImage = dict[str, str | int]  # with the keys of `TYPES`


def write_skipped(folder: Path, images: Sequence[SkippedImage]) -> None:
    """Write the images that were left out; without any, there is no file."""
    if images:
        write_json(folder / FILE, list(images))
    else:
        (folder / FILE).unlink(missing_ok=True)


def read_skipped(folder: SweepFolder, trial: str, split: str) -> list[SkippedImage]:
    """Return the images that a trial left out on a split; none if the file is absent or damaged.

    Raise InputError for a file outside the sweep's folder, which a link or the name of the split may lead to.
    """
    images = []
    try:
        for image in json.loads(folder.read_artifact(trial, f"{split}/{FILE}", MAX_FILE_BYTES)):
            skipped = {}
            for key, kind in TYPES.items():
                if not isinstance(image[key], kind):
                    return []
                skipped[key] = image[key]
            images.append(skipped)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
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
            try:
                images += read_skipped(folder, record.name, split)
            except InputError:  # a link, which the command that shows this trial names
                continue
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
