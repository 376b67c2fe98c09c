"""Outcomes of tasks: results, which travel between processes and are stored by key, and failures."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors.numpy import load, save

from fpp_sweep.core.metrics import ClassBins, Predictions
from fpp_sweep.spec.errors import ChangedDataError, DeviceError, readable_message
from fpp_sweep.spec.files import MANIFEST, read_own, safetensors_metadata, write_json, written_whole
from fpp_sweep.spec.keys import TaskKeys, digest
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.tasks import Task

# torch raises RuntimeError for CUDA, cuDNN, oneDNN and dead loaders
MACHINE_ERRORS = MemoryError, OSError, RuntimeError, DeviceError, ChangedDataError
PARTS = ("prompt", "predictions", "state")  # the bytes in a stored result, each a safetensors file
BIN_PREFIX, COLUMN_PREFIX = "bins_", "column_"  # prefixes of the names of arrays in packed predictions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskResult:
    """Result of a task, and what it cost.

    Its parts are bytes: the scheduler stores a computed result and passes it on without spending time on the content.
    """

    prompt: bytes | None = None  # result of a PretrainTask: a safetensors file
    predictions: bytes | None = None  # result of an EvalTask, see `pack_predictions`
    state: bytes | None = None  # state of a stateful method after the last sample: a safetensors file
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage; empty for a cached result
    spent: Mapping[str, float] = field(default_factory=dict)  # by stage, when the result was computed
    features: Mapping[str, float] = field(default_factory=dict)  # image features: `images`, and seconds by step
    worker_seconds: float = 0.0  # from the start of the task to its end
    worker: str = ""  # the worker that computed the result in this run
    adapters: tuple[str, ...] = ()  # keys of the adapters that the worker holds afterwards

    def read_predictions(self) -> Predictions:
        """Return the predictions of an EvalTask."""
        assert self.predictions is not None, "a pretraining has none"
        return unpack_predictions(self.predictions)

    def from_cache(self) -> TaskResult:
        """Return a result that took no time."""
        return replace(self, seconds={}, features={}, worker_seconds=0.0)


class TaskFailed(Exception):
    """Failure of a task: a reason of one line, and details such as a traceback.

    Between processes a failure travels as a value. The process that waits for the result raises it.
    """

    def __init__(self, reason: str, details: str = "", retry_elsewhere: bool = False) -> None:
        super().__init__(reason, details, retry_elsewhere)
        self.reason = reason
        self.details = details
        self.retry_elsewhere = retry_elsewhere  # another worker might succeed: memory, a GPU, a disk

    def __str__(self) -> str:
        return self.reason

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> TaskFailed:
        """Describe an exception in one line that begins with `where`; a failure is returned as it is."""
        if isinstance(error, TaskFailed):
            return error
        reason = readable_message(error)
        if where:
            reason = f"{where}: {reason}"
        details = "".join(traceback.format_exception(error))
        return cls(reason, details, retry_elsewhere=isinstance(error, MACHINE_ERRORS))


def pack(result: TaskResult) -> bytes:
    """Return a result as the bytes of a safetensors file, without what it cost the trial that requested it."""
    parts = {}
    for name in PARTS:
        part = getattr(result, name)
        if part is not None:
            parts[name] = np.frombuffer(part, np.uint8)
    return save(parts, {"spent": json.dumps(dict(result.spent))})


def unpack(data: bytes) -> TaskResult:
    """Return the result that `pack` was given, as one that took no time; raise an error for other data."""
    parts: dict[str, Any] = {name: part.tobytes() for name, part in load(data).items()}
    return TaskResult(**parts, spent=json.loads(safetensors_metadata(data)["spent"]))


# ------------------------------------------------------------ predictions


def pack_predictions(predictions: Predictions) -> bytes:
    """Return predictions as the bytes of a safetensors file."""
    arrays = _field_values(predictions)
    arrays["ids"] = np.frombuffer(json.dumps(predictions.ids).encode(), np.uint8)
    for name, values in _field_values(arrays.pop("class_bins")).items():
        arrays[BIN_PREFIX + name] = values
    for name, values in arrays.pop("columns").items():
        arrays[COLUMN_PREFIX + name] = values
    for name, values in arrays.items():
        if values.dtype == np.int64:
            values = values.astype(np.int32)  # labels and counts of bins are half of a file else
        arrays[name] = np.ascontiguousarray(values)
    return save(arrays)


def _field_values(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary, without copies."""
    return {item.name: getattr(value, item.name) for item in fields(value)}


def unpack_predictions(data: bytes) -> Predictions:
    """Return the predictions that `pack_predictions` was given."""
    arrays: dict[str, Any] = load(data)
    for name, values in arrays.items():
        if values.dtype == np.int32:
            arrays[name] = values.astype(np.int64)
    ids = tuple(json.loads(arrays.pop("ids").tobytes()))
    bins = ClassBins(**_pop_prefixed(arrays, BIN_PREFIX))
    columns = _pop_prefixed(arrays, COLUMN_PREFIX)
    return Predictions(ids=ids, class_bins=bins, columns=columns, **arrays)


def _pop_prefixed(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the arrays whose names have the prefix, and return them without it."""
    popped = {}
    for name in list(arrays):
        if name.startswith(prefix):
            popped[name.removeprefix(prefix)] = arrays.pop(name)
    return popped


FORMAT = "fpp_sweep task 8"
SEAL = 32  # bytes of the SHA-256 in front of the content


class Store(Protocol):
    """A collection of results by key."""

    def get(self, key: str) -> TaskResult | None: ...

    def put(self, key: str, result: TaskResult) -> None: ...


def find_cached(store: Store, keys: TaskKeys, task: Task) -> TaskResult | None:
    """Return the stored result of a task."""
    result = store.get(keys.of(task))
    if result is None:
        return None
    return result.from_cache()


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
        """Store a result."""
        data = pack(result)
        file = file_of(self.root, key)
        with written_whole(file, survives_power_failure=False) as partial:  # the seal shows whether it did
            partial.write_bytes(_seal(key, data) + data)
        if self.shared is not None:
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
        if result.predictions is not None:
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
