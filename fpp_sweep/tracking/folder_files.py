"""Files of a sweep's folder as MLflow gets them: artifacts, and texts and JSON that become parts of runs.

No link is followed out of the folder, as its maker may be another person.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.files import open_own, read_own

MAX_JSON_BYTES = 2**28  # limit for a JSON file of the folder
# limit for an artifact, which a store on another disk copies; logits of 50,000 images and 1,000 classes take 200 MiB
MAX_ARTIFACT_BYTES = 2**29


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The files below a subfolder of a sweep's folder."""

    files: Mapping[str, Path] = field(default_factory=dict)  # by name of the artifact
    left_out: frozenset[str] = frozenset()  # paths of links, and of files that are larger than MAX_ARTIFACT_BYTES


def find_artifacts(folder: SweepFolder, subfolder: Path, prefix: str = "") -> Artifacts:
    """Return the files below a subfolder as artifacts whose names begin with a prefix; no link is followed."""
    files: dict[str, Path] = {}
    left_out: set[str] = set()
    for entry in _files_below(subfolder):
        path = Path(entry)
        if entry.is_symlink():  # such as one to sweep.json, which may hold a password
            left_out.add(str(path.relative_to(folder.path)))
            continue
        size = _file_size(path)
        if size is None:
            continue
        if size > MAX_ARTIFACT_BYTES:
            left_out.add(str(path.relative_to(folder.path)))
        else:
            files[f"{prefix}{path.relative_to(subfolder).as_posix()}"] = path
    return Artifacts(dict(sorted(files.items())), frozenset(left_out))


def _files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries of a folder and its subfolders, except folders and files that are being written."""
    waiting = [folder]  # folders, which may be nested deeper than calls can be
    while waiting:
        for entry in _entries_of(waiting.pop()):
            is_being_written = entry.name.startswith(".")
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry))
            elif not is_being_written:
                yield entry


def _entries_of(directory: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, which know their kinds; none if the folder cannot be listed."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _file_size(path: Path) -> int | None:
    """Return the size of a regular file; None for anything else, and for a file that is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_size


def read_beginning(folder: Path, file: Path, max_bytes: int) -> str:
    """Return the beginning of a folder's own file; an empty text if it is missing or not text."""
    try:
        with open_own(file) as stream:
            return stream.read(max_bytes).decode(errors="ignore")
    except OSError:
        return ""


def read_json(folder: Path, file: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file is missing, damaged or holds something else."""
    try:
        document = json.loads(read_own(file, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
