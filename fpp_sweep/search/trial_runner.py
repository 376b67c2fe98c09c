"""The process of trials under Ray Tune."""

from __future__ import annotations

from typing import Any

from ray import tune

from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import MachineError

ABORT_REASON = "abort_reason"  # key of a result of Tune: why no trial can go on


class TrialRunner(tune.Trainable):
    """A trainable that runs one job at a time; it holds no model, and is kept for the next job."""

    def setup(self, config: dict[str, Any], context: TrialContext) -> None:  # type: ignore[override]
        self._context = context
        self._job = config
        plugins.load(context.plugins)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._job = new_config
        return True

    def step(self) -> dict[str, Any]:
        try:
            run_job(self._context, **self._job)
        except OSError as error:
            return {"done": True, ABORT_REASON: str(MachineError.of(error))}
        return {"done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save nothing: results are on disk, task by task."""
