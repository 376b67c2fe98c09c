"""Outcomes of tasks: results, which travel between processes and are stored on disk, and failures."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fpp_sweep.core.images.cache import Skipped
from fpp_sweep.core.metrics import ClassBins, Predictions
from fpp_sweep.spec.errors import ChangedDataError, DeviceError, readable_message

# torch raises RuntimeError for CUDA, cuDNN, oneDNN and dead loaders
MACHINE_ERRORS = MemoryError, OSError, RuntimeError, DeviceError, ChangedDataError
PARTS = ("prompt", "predictions", "state")  # the bytes in a stored result, each a safetensors file
SMALL_INTEGERS = (np.int8, np.int16, np.int32)
SHRUNK = "shrunk"  # array in packed predictions: the names of the arrays that were int64 before
BIN_PREFIX, COLUMN_PREFIX = "bins_", "column_"  # prefixes of the names of arrays in packed predictions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskResult:
    """Result of a task, and what it cost.

    Its parts are bytes: the scheduler stores a computed result and passes it on without spending time on the content.
    """

    prompt: bytes | None = None  # result of a PretrainTask: a safetensors file
    predictions: bytes | None = None  # result of an EvalTask, see `pack_predictions`; None if no image could be read
    state: bytes | None = None  # state of a stateful method after the last sample: a safetensors file
    skipped: tuple[Skipped, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage; empty for a cached result
    spent: Mapping[str, float] = field(default_factory=dict)  # by stage, when the result was computed
    features: Mapping[str, float] = field(default_factory=dict)  # image features: `images`, and seconds by step
    device: str = ""  # the device that computed the result
    worker_seconds: float = 0.0  # from the start of the task to its end
    worker: str = ""  # the worker that computed the result in this run
    adapters: tuple[str, ...] = ()  # keys of the adapters that the worker holds afterwards

    def read_predictions(self) -> Predictions | None:
        """Return the predictions; None if there are none."""
        if self.predictions is None:
            return None
        return unpack_predictions(self.predictions)

    def from_cache(self) -> TaskResult:
        """Return a result that took no time."""
        return replace(self, seconds={}, features={}, worker_seconds=0.0)

    def with_columns(self, names: tuple[str, ...]) -> TaskResult:
        """Return a result with only these of the predictions' optional columns."""
        predictions = self.read_predictions()
        if predictions is None:
            return self
        kept_columns = {}
        for name in names:
            kept_columns[name] = predictions.columns[name]
        return replace(self, predictions=pack_predictions(replace(predictions, columns=kept_columns)))


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
    """Return a result as the bytes of a file, without what it cost the trial that requested it.

    The first line is a JSON object that names the size of each part; the parts follow.
    """
    parts = {}
    for name in PARTS:
        part = getattr(result, name)
        if part is not None:
            parts[name] = part
    header = {
        "sizes": {name: len(part) for name, part in parts.items()},
        "skipped": [asdict(sample) for sample in result.skipped],
        "spent": dict(result.spent),
        "device": result.device,
    }
    return b"".join([json.dumps(header).encode(), b"\n", *parts.values()])


def unpack(data: bytes) -> TaskResult:
    """Return the result that `pack` was given, as one that took no time; raise an error for other data."""
    header_size = data.index(b"\n") + 1
    header = json.loads(data[:header_size])
    parts = {}
    start = header_size
    for name, size in header["sizes"].items():
        parts[name] = data[start : start + size]
        start += size
    if start != len(data):
        raise ValueError(f"{len(data)} bytes instead of {start}")
    return TaskResult(
        prompt=parts.get("prompt"),
        predictions=parts.get("predictions"),
        state=parts.get("state"),
        skipped=tuple(Skipped(**sample) for sample in header["skipped"]),
        spent=header["spent"],
        device=header["device"],
    )


# ------------------------------------------------------------ predictions


def pack_predictions(predictions: Predictions) -> bytes:
    """Return predictions as the bytes of a safetensors file."""
    arrays = _arrays_of(predictions)
    shrunk = []
    for name, array in arrays.items():
        smaller = _shrunk(array)
        if smaller.dtype != array.dtype:
            shrunk.append(name)
        arrays[name] = np.ascontiguousarray(smaller)
    arrays[SHRUNK] = _json_array(shrunk)
    return save(arrays)


def _arrays_of(predictions: Predictions) -> dict[str, Any]:
    arrays = _field_values(predictions)
    bins = arrays.pop("class_bins")
    columns = arrays.pop("columns")
    arrays["ids"] = _json_array(arrays["ids"])
    for name, values in _field_values(bins).items():
        arrays[BIN_PREFIX + name] = values
    for name, values in columns.items():
        arrays[COLUMN_PREFIX + name] = values
    return arrays


def _field_values(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary, without copies."""
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _shrunk(array: Any) -> Any:
    """Return int64 numbers in the smallest type that holds them: labels and counts of bins are half of a file else."""
    if array.dtype != np.int64 or not array.size:
        return array
    low, high = array.min(), array.max()
    for kind in SMALL_INTEGERS:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def unpack_predictions(data: bytes) -> Predictions:
    """Return the predictions that `pack_predictions` was given."""
    arrays: dict[str, Any] = load(data)
    for name in _json_of(arrays.pop(SHRUNK)):
        arrays[name] = arrays[name].astype(np.int64)
    ids = tuple(_json_of(arrays.pop("ids")))
    bins = ClassBins(**_pop_prefixed(arrays, BIN_PREFIX))
    columns = _pop_prefixed(arrays, COLUMN_PREFIX)
    return Predictions(ids=ids, class_bins=bins, columns=columns, **arrays)


def _json_array(value: Any) -> Any:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _json_of(array: Any) -> Any:
    return json.loads(array.tobytes())


def _pop_prefixed(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove the arrays whose names have the prefix, and return them without it."""
    popped = {}
    for name in list(arrays):
        if name.startswith(prefix):
            popped[name.removeprefix(prefix)] = arrays.pop(name)
    return popped
