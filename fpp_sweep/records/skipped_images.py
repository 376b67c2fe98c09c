"""Images that a trial left out because they cannot be read, as a file among its artifacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
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
    """Return such as `skipped dtd: 3 images, such as ...` for each dataset."""
    images_by_dataset: dict[str, dict[str, SkippedImage]] = {}  # each seed leaves out the same images
    for image in read_skipped(folder, trial, split):
        images_by_dataset.setdefault(str(image["dataset"]), {})[str(image["image"])] = image
    lines = []
    for dataset, images in images_by_dataset.items():
        reason = next(iter(images.values()))["reason"]
        lines.append(f"skipped {dataset}: {plural(len(images), 'image')}, such as {reason}")
    return lines
