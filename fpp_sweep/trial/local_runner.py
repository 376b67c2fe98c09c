"""An executor in this process that computes one task after another: the reference for the pool of workers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.tasks import EvalTask, Task
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.store import MemoryStore, Store, find_cached
from fpp_sweep.trial.worker import Worker


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """One worker and a store of results; see trial.Executor."""

    worker: Worker
    keys: TaskKeys
    store: Store = field(default_factory=MemoryStore)

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """Yield tasks with their results in the given order; raise at the first failure."""
        unreported: dict[str, TaskResult] = {}  # results by key that were computed here and not yet yielded
        for task in tasks:
            result = self._result(task, unreported)
            # the task may have been computed before, as an input of another one; yield that result with its cost
            yield task, unreported.pop(self.keys.of(task), result)

    def _result(self, task: Task, unreported: dict[str, TaskResult]) -> TaskResult:
        """Return a task's result from the store, or compute it and the tasks that it needs."""
        cached = find_cached(self.store, self.keys, task)
        if cached is not None:
            return cached
        inputs = [self._result(needed, unreported) for needed in task.needs]
        adapter_key = ""
        if isinstance(task, EvalTask):
            adapter_key = self.keys.of_adapter(task)
        result = self.worker.run(task, inputs, adapter_key, self.keys.data_of(task))
        key = self.keys.of(task)
        unreported[key] = result
        try:
            self.store.put(key, result)
        except OSError as error:  # a full disk says nothing about the trial
            raise MachineError.of(error) from error
        return result
