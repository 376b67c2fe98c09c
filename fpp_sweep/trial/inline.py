"""Units of work in this process, one after the other: the keeper and its workers come to the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpp_sweep.trial.results import Done, Names, Task, UnitStore
from fpp_sweep.trial.tasks import EvalTask, PretrainTask
from fpp_sweep.trial.worker import Worker


@dataclass(frozen=True, slots=True)
class InlineExecutor:
    """One worker, and what has been done before."""

    worker: Worker
    names: Names
    store: UnitStore

    def results(self, tasks: Sequence[Task], order: int = 0) -> list[Done]:
        """What becomes of these tasks, in their order; the first that goes wrong raises."""
        pretrainings = [task for task in tasks if isinstance(task, PretrainTask)]  # each pays for itself
        done = {task: self._result(task) for task in dict.fromkeys([*pretrainings, *tasks])}
        return [done[task] for task in tasks]

    def _result(self, task: Task) -> Done:
        key = self.names.key(task)
        done = self.store.get(key)
        if done is None:
            prompt = None
            if isinstance(task, EvalTask) and task.config.prompt == "fpp":
                prompt = self._result(task.pretrain).prompt
            done = self.worker.run(task, prompt)
            self.store.put(key, done)
        return done
