"""Entries of the cache of image features and finished tasks: their sizes and ages, and how they are removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fpp_sweep.cli import terminal_width
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import MANIFEST, MAX_HANDWRITTEN_BYTES, read_own
from fpp_sweep.spec.messages import printable, readable_size

TASKS = "tasks"  # folder of the results that all sweeps share
FEATURES = "features"
ENTRY_NAME = "[0-9a-f]{16}"
HEADINGS = ("entry", "model", "dataset", "seed", "views", "type", "size", "used")
MANIFEST_KEYS = ("model", "dataset", "split", "seed", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A folder of the cache: features of one dataset, or finished tasks."""

    folder: Path
    manifest: dict[str, Any]  # empty if it cannot be read
    files: tuple[Path, ...]
    size: int  # bytes
    last_used: float  # seconds since 1970

    @property
    def holds_tasks(self) -> bool:
        return self.folder.parent.name == TASKS

    def cells(self, now: float) -> list[str]:
        """Return the entry's row below `HEADINGS`."""
        use = [readable_size(self.size), age_text(now - self.last_used)]
        if self.holds_tasks:
            return [self.folder.name, "", "", "", f"{len(self.files)} finished tasks of sweeps", "", *use]
        values = {key: str(self.manifest.get(key, "?")) for key in MANIFEST_KEYS}
        dataset = f"{values['dataset']}/{values['split']}"
        return [self.folder.name, values["model"], dataset, values["seed"], self._views(), values["dtype"], *use]

    def _views(self) -> str:
        if not self.manifest:
            return "no readable manifest"
        area = f"{self.manifest.get('min_area')}-{self.manifest.get('max_area')}"
        words = [f"{self.manifest.get('count')} of area {area}"]
        words += [kind for kind in ("augmix", "flip") if self.manifest.get(kind)]
        return " ".join(words)


def find_entries(root: Path) -> list[CacheEntry]:
    """Return the entries of a cache, the longest unused first.

    An entry that is a link is left out, since it may lead anywhere.
    """
    if not root.is_dir():
        raise InputError(f"{root}: there is no cache here; give its folder with --cache")
    entries = []
    for kind in (FEATURES, TASKS):
        folder_of_kind = root / kind
        if not folder_of_kind.is_dir():
            continue
        for folder in folders_in(folder_of_kind):
            if re.fullmatch(ENTRY_NAME, folder.name):
                with suppress(FileNotFoundError):  # removed meanwhile
                    entries.append(read_entry(folder))
    return sorted(entries, key=lambda entry: entry.last_used)


def read_entry(folder: Path) -> CacheEntry:
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_own(path, MAX_HANDWRITTEN_BYTES))
        last_used = path.stat().st_mtime
    except (OSError, ValueError, RecursionError):
        manifest, last_used = {}, folder.stat().st_mtime
    if not isinstance(manifest, dict):
        manifest = {}
    if folder.parent.name == TASKS:
        files = []
        for subfolder in folders_in(folder):
            files += files_in(subfolder)
        last_used = max((modified_time(file) for file in files), default=last_used)
    else:
        files = files_in(folder)
    return CacheEntry(folder=folder, manifest=manifest, files=tuple(files), size=total_size(files), last_used=last_used)


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without links to folders."""
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder, sorted, without links and without pipes, which could block a reader."""
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if entry.is_file(follow_symlinks=False))


def entry_table(root: Path, entries: Sequence[CacheEntry]) -> str:
    """Return a row for each entry, and the sum below."""
    now = time.time()
    total = 0
    rows = []
    for entry in entries:
        rows.append(entry.cells(now))
        total += entry.size
    table = Table.of_strings(HEADINGS, rows, text_columns=range(len(HEADINGS)))
    return f"{to_text(table, terminal_width())}\n{printable(root)}: {len(entries)} entries, {readable_size(total)}"


def unused_parts(entries: Iterable[CacheEntry], age: float) -> list[CacheEntry]:
    """Return what was not used for `age` seconds: single files of finished tasks, else whole entries."""
    now = time.time()
    parts = []
    for entry in entries:
        if not entry.holds_tasks and now - entry.last_used > age:
            parts.append(entry)
        old_files = tuple(file for file in entry.files if now - modified_time(file) > age)
        if entry.holds_tasks and old_files:
            parts.append(replace(entry, files=old_files, size=total_size(old_files)))
    return parts


def remove_entries(entries: Iterable[CacheEntry]) -> None:
    """Remove entries; a run that is filling one writes its further chunks in a new folder of the same name."""
    for entry in entries:
        try:
            for file in entry.files:
                file.unlink(missing_ok=True)
            if not entry.holds_tasks:  # a sweep that needs a removed result has it in its own folder or computes it
                shutil.rmtree(entry.folder)
        except FileNotFoundError:  # another prune has removed it meanwhile
            continue
        except OSError as error:
            raise InputError(f"{entry.folder}: cannot be removed ({error.strerror})") from error


def modified_time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # removed meanwhile
        return time.time()


def total_size(files: Iterable[Path]) -> int:
    size = 0
    for file in files:
        with suppress(FileNotFoundError):  # a lock or a partial file that has been removed meanwhile
            size += file.stat().st_size
    return size


def age_text(seconds: float) -> str:
    """Return such as `3 d ago`.

    >>> age_text(3 * 86400 + 7)
    '3 d ago'
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"
