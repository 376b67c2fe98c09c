"""What goes to a worker and what comes back: plain values, small enough to travel, with nothing heavy to import."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.files import written_whole
from fpp_sweep.trial.tasks import EvalTask, PretrainTask, split

if TYPE_CHECKING:
    from fpp_sweep.core.metrics import Predictions

Task = PretrainTask | EvalTask

FORMAT = "fpp_sweep unit 1"
SEAL = 32  # bytes of a SHA-256, before what it is of
SHARD_SAMPLES = 1024  # images of a shard unless the space says otherwise: minutes on a CPU, seconds on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker opens when it starts."""

    model: str
    data_root: str | None = None
    dataset_file: str | None = None
    limit: int | None = None  # images per dataset; none: all, of the embedded ones EMBEDDED_LIMIT
    cache: str | None = None
    device: str = "auto"
    threads: int = 1  # of torch
    compile: bool = False
    folder: str | None = None  # what relative paths are relative to


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a worker holds, and where."""

    name: str
    digest: str
    embedding_scale: float
    device: str
    node: str
    pid: int
    seconds: float  # to load it


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """One split of a dataset without its images."""

    name: str
    split: str
    group: str
    classes: tuple[str, ...]
    size: int
    digest: str  # of names and labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a worker found when it looked at everything that a sweep names."""

    notes: tuple[str, ...]
    prompts: Mapping[str, str]  # digests of prompts that are files


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Done:
    """What became of a task."""

    prompt: bytes | None = None  # a safetensors file, of a PretrainTask
    predictions: Predictions | None = None  # of an EvalTask; none if no image could be read
    skipped: int = 0  # images that could not be read
    seconds: Mapping[str, float]  # by stage; empty where the work was at hand
    held: float = 0.0  # seconds that a worker was held for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no result."""

    reason: str  # one line
    details: str = ""  # a traceback


class TaskFailedError(Exception):
    """A unit of work that a trial needs has failed for good."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def shards(task: EvalTask, wanted: int | None) -> list[EvalTask]:
    """A task in the pieces asked for, else in pieces of a fixed size, whatever the number of workers.

    >>> from fpp_sweep.config import TrialConfig
    >>> task = EvalTask(config=TrialConfig(), dataset="dtd", split="test", seed=0, start=0, stop=200)
    >>> len(shards(task, None)), len(shards(task, 3)), len(shards(task, 100))
    (1, 3, 4)
    """
    return split(task, wanted or -(-(task.stop - task.start) // SHARD_SAMPLES))


def cost(task: Task, classes: int) -> float:
    """Texts that go through the tower, roughly: what orders work by size."""
    if isinstance(task, PretrainTask):
        return task.config.fpp.steps * (2 + task.config.fpp.draws) * classes
    passes = 1 if task.config.method == "zero_shot" else 1 + 2 * task.config.adapt.steps
    return (task.stop - task.start) * passes * classes


@dataclass(frozen=True, slots=True)
class Names:
    """Keys of work in one sweep: the same task means the same result for one model and the same data only."""

    model: str  # digest
    datasets: Mapping[tuple[str, str], DatasetFacts]  # by name and split

    def key(self, task: Task) -> str:
        if isinstance(task, EvalTask):
            facts = self.datasets[task.dataset, task.split]
            data = facts.digest
        else:  # pretraining looks at the class names only
            facts = next(each for (name, _), each in sorted(self.datasets.items()) if name == task.dataset)
            data = ""
        text = json.dumps([self.model, facts.group, facts.classes, data, task.key()])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def cost(self, task: Task) -> float:
        classes = next(len(facts.classes) for (name, _), facts in self.datasets.items() if name == task.dataset)
        return cost(task, classes)


class UnitStore:
    """Finished work on disk by key; entries appear whole, so whoever finds one may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> Done | None:
        """What was done before; a file that is damaged or another's is work to be done again."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        seal, data = content[:SEAL], content[SEAL:]
        return unpack(data) if seal == _seal(key, data) else None

    def put(self, key: str, done: Done) -> None:
        data = pack(done)
        with written_whole(self._path(key)) as partial:
            partial.write_bytes(_seal(key, data) + data)

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / f"{key}.unit"


def _seal(key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{FORMAT} {key}\n".encode() + data).digest()


def pack(done: Done) -> bytes:
    """A result without its times, as the bytes of an .npz file without pickles."""
    import numpy as np

    arrays: dict[str, Any] = {"skipped": np.int64(done.skipped)}
    if done.prompt is not None:
        arrays["prompt"] = np.frombuffer(done.prompt, np.uint8)
    if done.predictions is not None:
        columns = {each.name: getattr(done.predictions, each.name) for each in fields(done.predictions)}
        bins = columns.pop("class_bins")
        ids = json.dumps(columns.pop("ids")).encode()
        arrays |= columns | {"ids": np.frombuffer(ids, np.uint8)}
        arrays |= {f"bins_{each.name}": getattr(bins, each.name) for each in fields(bins)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unpack(data: bytes) -> Done:
    """What `pack` was given; it took no time to get."""
    import numpy as np

    from fpp_sweep.core.metrics import ClassBins, Predictions

    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file)
    skipped = int(arrays.pop("skipped"))
    prompt = arrays.pop("prompt").tobytes() if "prompt" in arrays else None
    predictions = None
    if arrays:
        bins = {name: arrays.pop(name) for name in list(arrays) if name.startswith("bins_")}
        class_bins = ClassBins(**{name.removeprefix("bins_"): values for name, values in bins.items()})
        ids = tuple(json.loads(arrays.pop("ids").tobytes()))
        predictions = Predictions(ids=ids, class_bins=class_bins, **arrays)
    return Done(prompt=prompt, predictions=predictions, skipped=skipped, seconds={})
