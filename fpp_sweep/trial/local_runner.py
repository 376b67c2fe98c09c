"""Tasks in this process, one after the other: the meaning that the pool of workers is held to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.store import MemoryStore, Store, find
from fpp_sweep.trial.worker import Worker


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """One worker, and what has been computed before."""

    worker: Worker
    keys: TaskKeys
    store: Store = field(default_factory=MemoryStore)

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """Tasks with their results, as they end; the first that goes wrong raises."""
        new: dict[str, TaskResult] = {}  # computed because another task needs it, and not yet handed over
        for task in tasks:
            result = self._result(task, new)
            yield task, new.pop(self.keys.of(task), result)

    def _result(self, task: Task, new: dict[str, TaskResult]) -> TaskResult:
        key = self.keys.of(task)
        if (known := find(self.store, self.keys, task)) is not None:
            return known
        needs = [self._result(needed, new) for needed in task.needs]
        adapter = self.keys.of_adapter(task) if isinstance(task, EvalTask) else ""
        new[key] = self.worker.run(task, needs, adapter)
        try:
            self.store.put(key, new[key])
        except OSError as error:  # a full disk says nothing about the trial
            raise MachineError.of(error) from error
        return new[key]
