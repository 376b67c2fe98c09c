"""Results of tasks by key: on disk, where all processes and later runs find them, or in memory for one run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from fpp_sweep.files import written_whole
from fpp_sweep.keys import TaskKeys
from fpp_sweep.tasks import EvalTask, Task
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
    for key in keys.serving(task):
        if (known := store.get(key)) is not None:
            return known.at_hand(columns)
    return None


class MemoryStore(dict[str, TaskResult]):
    """Results of one run; what is at hand takes no time."""

    def put(self, key: str, result: TaskResult) -> None:
        self[key] = result


class TaskStore:
    """Results on disk; files appear whole, so whoever finds one may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> TaskResult | None:
        """What was computed before; a file that is damaged or another's is computed again."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        seal, data = content[:SEAL], content[SEAL:]
        try:
            return unpack(data) if seal == _seal(key, data) else None
        except Exception:  # whatever another program has sealed
            return None

    def put(self, key: str, result: TaskResult) -> None:
        data = pack(result)
        with written_whole(self._path(key)) as partial:
            partial.write_bytes(_seal(key, data) + data)

    def _path(self, key: str) -> Path:
        return self.root / key[:2] / f"{key}.task"


def _seal(key: str, data: bytes) -> bytes:
    return hashlib.sha256(f"{FORMAT} {key}\n".encode() + data).digest()
