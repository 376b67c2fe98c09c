"""Results of tasks by key: on disk, where all processes and later runs find them, or in memory for one run."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fpp_sweep.spec.files import MANIFEST, read_own, write_json, written_whole
from fpp_sweep.spec.keys import TaskKeys, digest
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.results import TaskResult, pack, unpack

FORMAT = "fpp_sweep task 6"
SEAL = 32  # bytes of the SHA-256 in front of the content


class Store(Protocol):
    """A collection of results by key."""

    def get(self, key: str) -> TaskResult | None: ...

    def put(self, key: str, result: TaskResult) -> None: ...


def find_cached(store: Store, keys: TaskKeys, task: Task) -> TaskResult | None:
    """Return the stored result of a task, or of the same task with more optional columns."""
    for number, key in enumerate(keys.compatible_keys(task)):
        result = store.get(key)
        if result is None:
            continue
        has_more_columns = number > 0  # the first key is the task's own
        if has_more_columns and isinstance(task, EvalTask):
            result = result.with_columns(task.columns)
        return result.from_cache()
    return None


class MemoryStore(dict[str, TaskResult]):
    """Results of one run."""

    def put(self, key: str, result: TaskResult) -> None:
        self[key] = result


class TaskStore:
    """Results on disk. Files appear complete, so a reader may use any file that exists.

    All sweeps of a machine use the results in the folder `shared`, which holds further names (hard links) of the files
    where the disk allows it. Nothing is lost if that folder cannot be read or written, or is removed.
    """

    def __init__(self, root: Path, shared: Path | None = None) -> None:
        self.root, self.shared = root, shared

    def get(self, key: str) -> TaskResult | None:
        """Return the stored result; None if there is none, or the file is damaged or belongs to another key."""
        result = _read(self.root, key)
        if result is not None or self.shared is None:
            return result
        result = _read(self.shared, key)
        if result is not None:
            shared_file = file_of(self.shared, key)
            with suppress(OSError):
                _link(shared_file, file_of(self.root, key))
            with suppress(OSError):  # a file of another user
                os.utime(shared_file)  # pruning removes the files that were not used for the longest time
        return result

    def put(self, key: str, result: TaskResult) -> None:
        """Store a result; one with skipped images is not shared: other sweeps may refuse unreadable images."""
        data = pack(result)
        file = file_of(self.root, key)
        with written_whole(file, survives_power_failure=False) as partial:  # the seal shows whether it did
            partial.write_bytes(_seal(key, data) + data)
        if self.shared is not None and not result.skipped:
            with suppress(OSError):  # the disk is full
                _link(file, file_of(self.shared, key))


def file_of(root: Path, key: str) -> Path:
    """Return the path of a result."""
    return root / key[:2] / f"{key}.task"


def _read(root: Path, key: str) -> TaskResult | None:
    try:
        content = read_own(file_of(root, key))
    except OSError:
        return None
    seal, data = content[:SEAL], content[SEAL:]
    if seal != _seal(key, data):
        return None
    try:
        result = unpack(data)
        result.read_predictions()
    except Exception:  # another program may have sealed any content
        return None
    return result


def _link(file: Path, target: Path) -> None:
    """Make the file appear, complete, under a second name; as a copy if the target is on another disk."""
    with written_whole(target, survives_power_failure=False) as partial:
        try:
            os.link(file, partial)
        except OSError:
            shutil.copyfile(file, partial)


def folder_for(shared: Path, model: ModelInfo) -> Path:
    """Return the folder of shared results that were computed with the same code, libraries and hardware.

    These change the last bits of a result and are not part of its key.
    """
    folder = shared / digest(FORMAT, model.made_with, length=16)
    with suppress(OSError):
        if not (folder / MANIFEST).exists():
            write_json(folder / MANIFEST, {"format": FORMAT, "made_with": model.made_with})
    return folder


def _seal(key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{FORMAT} {key}\n".encode() + data).digest()
