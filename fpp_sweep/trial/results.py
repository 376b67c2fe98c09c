"""What comes of a task: a value that travels between processes and is kept on disk, or a failure that says where."""

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
from fpp_sweep.spec.errors import InputError

OF_THE_MACHINE = MemoryError, OSError, RuntimeError  # the last are torch's: CUDA, cuDNN, oneDNN, loaders that die


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskResult:
    """What came of a task."""

    prompt: bytes | None = None  # a safetensors file, of a PretrainTask
    predictions: Predictions | None = None  # of an EvalTask; none if no image could be read
    state: bytes | None = None  # of a stateful method after the last sample: a safetensors file
    skipped: tuple[Skipped, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage; empty where the work was at hand
    spent: Mapping[str, float] = field(default_factory=dict)  # by stage, when it was computed, whoever asked for it
    features: Mapping[str, float] = field(default_factory=dict)  # computed for it: `images`, and seconds by step
    device: str = ""  # where that was
    held: float = 0.0  # seconds that a worker was held for it
    worker: str = ""  # which one, where it was computed now
    adapters: tuple[str, ...] = ()  # keys of the adapters that the worker holds afterwards

    def at_hand(self, columns: tuple[str, ...]) -> TaskResult:
        """The same as a result that took no time, with these optional columns of the predictions and no others."""
        predictions = self.predictions
        if predictions is not None and set(predictions.columns) != set(columns):
            predictions = replace(predictions, columns={name: predictions.columns[name] for name in columns})
        return replace(self, predictions=predictions, seconds={}, features={}, held=0.0)


class TaskFailed(Exception):
    """A task has no result: the reason is one line, the details are a traceback.

    Between processes it travels as a value; whoever waits for the result raises it.
    """

    def __init__(self, reason: str, details: str = "", elsewhere: bool = False) -> None:
        super().__init__(reason, details, elsewhere)
        self.reason = reason
        self.details = details
        self.elsewhere = elsewhere  # another worker might do better: memory, a GPU, a disk

    def __str__(self) -> str:
        return self.reason

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> TaskFailed:
        """An exception as a failure that says where it happened; a user's slip is told as it is."""
        line = " ".join(str(error).split()) or "no message"
        cause = line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"
        details, elsewhere = "".join(traceback.format_exception(error)), isinstance(error, OF_THE_MACHINE)
        return cls(f"{where}: {cause}" if where else cause, details, elsewhere)


def pack(result: TaskResult) -> bytes:
    """A result as the bytes of a safetensors file; who waited for it, and how long, is left out."""
    arrays: dict[str, Any] = {
        "skipped": _text([asdict(sample) for sample in result.skipped]),
        "cost": _text({"spent": dict(result.spent), "device": result.device}),
    }
    for name in ("prompt", "state"):
        if (data := getattr(result, name)) is not None:
            arrays[name] = np.frombuffer(data, np.uint8)
    if result.predictions is not None:
        columns = {item.name: getattr(result.predictions, item.name) for item in fields(result.predictions)}
        bins, extra = columns.pop("class_bins"), columns.pop("columns")
        arrays |= columns | {"ids": _text(columns["ids"])}
        arrays |= {f"bins_{item.name}": getattr(bins, item.name) for item in fields(bins)}
        arrays |= {f"column_{name}": values for name, values in extra.items()}
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def unpack(data: bytes) -> TaskResult:
    """What `pack` was given; it took no time to get."""
    arrays: dict[str, Any] = load(data)
    skipped = tuple(Skipped(**sample) for sample in json.loads(arrays.pop("skipped").tobytes()))
    cost = json.loads(arrays.pop("cost").tobytes())
    prompt, state = (arrays.pop(name).tobytes() if name in arrays else None for name in ("prompt", "state"))
    predictions = None
    if arrays:
        bins, extra = _taken(arrays, "bins_"), _taken(arrays, "column_")
        ids = tuple(json.loads(arrays.pop("ids").tobytes()))
        predictions = Predictions(ids=ids, class_bins=ClassBins(**bins), columns=extra, **arrays)
    return TaskResult(prompt=prompt, predictions=predictions, state=state, skipped=skipped, **cost)


def _text(value: Any) -> Any:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _taken(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays of that prefix, without it; they are removed."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}
