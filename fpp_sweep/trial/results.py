"""Outcomes of tasks: results, which travel between processes and are stored on disk, and failures."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fpp_sweep.core.images.chunks import Skipped
from fpp_sweep.core.metrics import ClassBins, Predictions
from fpp_sweep.spec.errors import DeviceError, readable_message
from fpp_sweep.spec.messages import masked, masked_lines

# torch raises RuntimeError for CUDA, cuDNN, oneDNN and dead loaders
MACHINE_ERRORS = MemoryError, OSError, RuntimeError, DeviceError
SMALL_INTEGERS = (np.int8, np.int16, np.int32)
SHRUNK = "shrunk"  # array in a stored result: the names of the arrays that were int64 before they were stored
BIN_PREFIX, COLUMN_PREFIX = "bins_", "column_"  # prefixes of the names of arrays in a stored result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskResult:
    """Result of a task, and what it cost."""

    prompt: bytes | None = None  # result of a PretrainTask: a safetensors file
    predictions: Predictions | None = None  # result of an EvalTask; None if no image could be read
    state: bytes | None = None  # state of a stateful method after the last sample: a safetensors file
    skipped: tuple[Skipped, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage; empty for a cached result
    spent: Mapping[str, float] = field(default_factory=dict)  # by stage, when the result was computed
    features: Mapping[str, float] = field(default_factory=dict)  # image features: `images`, and seconds by step
    device: str = ""  # the device that computed the result
    worker_seconds: float = 0.0  # from the start of the task to its end
    worker: str = ""  # the worker that computed the result in this run
    adapters: tuple[str, ...] = ()  # keys of the adapters that the worker holds afterwards
    notes: tuple[str, ...] = ()  # the worker's sentences for the user

    def from_cache(self, columns: tuple[str, ...]) -> TaskResult:
        """Return a result that took no time, with only these optional columns of the predictions."""
        predictions = self.predictions
        if predictions is not None and set(predictions.columns) != set(columns):
            kept_columns = {}
            for name in columns:
                kept_columns[name] = predictions.columns[name]
            predictions = replace(predictions, columns=kept_columns)
        return replace(self, predictions=predictions, seconds={}, features={}, worker_seconds=0.0, notes=())


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
        return cls(masked(reason), masked_lines(details), retry_elsewhere=isinstance(error, MACHINE_ERRORS))


def pack(result: TaskResult) -> bytes:
    """Return a result as the bytes of a safetensors file, without what it cost the trial that requested it."""
    arrays: dict[str, Any] = {
        "skipped": _json_array([asdict(sample) for sample in result.skipped]),
        "cost": _json_array({"spent": dict(result.spent), "device": result.device}),
    }
    if result.prompt is not None:
        arrays["prompt"] = np.frombuffer(result.prompt, np.uint8)
    if result.state is not None:
        arrays["state"] = np.frombuffer(result.state, np.uint8)
    if result.predictions is not None:
        arrays |= _prediction_arrays(result.predictions)
    shrunk = []
    for name, array in arrays.items():
        smaller = _shrunk(array)
        if smaller.dtype != array.dtype:
            shrunk.append(name)
        arrays[name] = np.ascontiguousarray(smaller)
    arrays[SHRUNK] = _json_array(shrunk)
    return save(arrays)


def _shrunk(array: Any) -> Any:
    """Return int64 numbers in the smallest type that holds them: labels and counts of bins are half of a file else."""
    if array.dtype != np.int64 or not array.size:
        return array
    low, high = array.min(), array.max()
    for kind in SMALL_INTEGERS:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return array.astype(kind)
    return array


def _prediction_arrays(predictions: Predictions) -> dict[str, Any]:
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


def unpack(data: bytes) -> TaskResult:
    """Return the result that `pack` was given, as one that took no time."""
    arrays: dict[str, Any] = load(data)
    for name in _json_of(arrays.pop(SHRUNK)):
        arrays[name] = arrays[name].astype(np.int64)
    skipped = tuple(Skipped(**sample) for sample in _json_of(arrays.pop("skipped")))
    cost = _json_of(arrays.pop("cost"))
    prompt = state = predictions = None
    if "prompt" in arrays:
        prompt = arrays.pop("prompt").tobytes()
    if "state" in arrays:
        state = arrays.pop("state").tobytes()
    if arrays:
        ids = tuple(_json_of(arrays.pop("ids")))
        bins = ClassBins(**_pop_prefixed(arrays, BIN_PREFIX))
        columns = _pop_prefixed(arrays, COLUMN_PREFIX)
        predictions = Predictions(ids=ids, class_bins=bins, columns=columns, **arrays)
    return TaskResult(prompt=prompt, predictions=predictions, state=state, skipped=skipped, **cost)


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
