"""Results of tasks by key: on disk, where all processes and later runs find them, or in memory for one run."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fpp_sweep.core.images.cache import MANIFEST
from fpp_sweep.spec.files import write_json, written_whole
from fpp_sweep.spec.keys import TaskKeys, digest
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.results import TaskResult, pack, unpack

FORMAT = "fpp_sweep task 4"
SEAL = 32  # bytes of a SHA-256, in front of what it is of


class Store(Protocol):
    """Where results are kept."""

    def get(self, key: str) -> TaskResult | None: ...

    def put(self, key: str, result: TaskResult) -> None: ...


def find(store: Store, keys: TaskKeys, task: Task) -> TaskResult | None:
    """What was computed before; one with more optional columns than are asked for serves, too."""
    columns = task.columns if isinstance(task, EvalTask) else ()
    for key in keys.compatible_keys(task):
        if (known := store.get(key)) is not None:
            return known.at_hand(columns)
    return None


class MemoryStore(dict[str, TaskResult]):
    """Results of one run; what is at hand takes no time."""

    def put(self, key: str, result: TaskResult) -> None:
        self[key] = result


class TaskStore:
    """Results on disk; files appear whole, so whoever finds one may use it.

    What is in `shared` is there for every sweep of this machine, as a further name of the file where the disk allows
    it. Nothing is lost where that folder cannot be read or written, or is removed.
    """

    def __init__(self, root: Path, shared: Path | None = None) -> None:
        self.root, self.shared = root, shared

    def get(self, key: str) -> TaskResult | None:
        """What was computed before; a file that is damaged or another's is computed again."""
        if (known := _read(file_of(self.root, key))) is not None or self.shared is None:
            return known
        there = file_of(self.shared, key)
        if (known := _read(there)) is not None:
            with suppress(OSError):
                os.utime(there)  # so that it is not pruned
                _link(there, file_of(self.root, key))
        return known

    def put(self, key: str, result: TaskResult) -> None:
        """What a sweep that skips images could not see is no result for others."""
        data, file = pack(result), file_of(self.root, key)
        with written_whole(file) as partial:
            partial.write_bytes(_seal(key, data) + data)
        if self.shared is not None and not result.skipped:
            with suppress(OSError):
                _link(file, file_of(self.shared, key))


def file_of(root: Path, key: str) -> Path:
    return root / key[:2] / f"{key}.task"


def is_whole(file: Path) -> bool:
    return _read(file) is not None


def _read(file: Path) -> TaskResult | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    seal, data = content[:SEAL], content[SEAL:]
    try:
        return unpack(data) if seal == _seal(file.stem, data) else None
    except Exception:  # whatever another program has sealed
        return None


def _link(file: Path, other: Path) -> None:
    """The same file at another place, whole at any time; a copy where that is on another disk."""
    with written_whole(other) as partial:
        try:
            os.link(file, partial)
        except OSError:
            shutil.copyfile(file, partial)


def folder_for(shared: Path, model: ModelInfo) -> Path:
    """Where results are that were made with the same: what moves last bits and is no part of a key."""
    folder = shared / digest(FORMAT, model.made_with, length=16)
    with suppress(OSError):
        if not (folder / MANIFEST).exists():
            write_json(folder / MANIFEST, {"format": FORMAT, "made_with": model.made_with})
    return folder


def _seal(key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{FORMAT} {key}\n".encode() + data).digest()
