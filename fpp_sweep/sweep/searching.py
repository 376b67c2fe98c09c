"""The searcher of a sweep, and the run of Ray Tune that it directs."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryDirectory

from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.search.job import TrialContext
from fpp_sweep.search.searcher import ChangeListener, SweepSearcher, run_tune
from fpp_sweep.space.space import Space
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.sweep.opening import OpenedSweep
from fpp_sweep.workers.status import StatusPoller


def new_searcher(
    space: Space, record: SweepRecord, opened: OpenedSweep, poller: StatusPoller, listeners: Sequence[ChangeListener]
) -> SweepSearcher:
    """Return the searcher of a space; its listeners are called when a trial starts or ends."""
    return SweepSearcher(
        space,
        record,
        plan=opened.plan,
        has_final_stage=bool(opened.later_plans),
        poller=poller,
        gpus_per_worker=opened.workers.gpus_per_worker,
        listeners=listeners,
    )


def context_of(folder: SweepFolder, space: Space, opened: OpenedSweep, plugins: tuple[PluginFile, ...]) -> TrialContext:
    """Return what all jobs of a space have in common."""
    return TrialContext(
        folder=folder,
        executor=opened.workers.pool,
        plan=opened.plan,
        later_plans=opened.later_plans,
        space=space,
        plugins=plugins,
    )


def run_jobs(searcher: SweepSearcher, context: TrialContext) -> None:
    """Run the baselines, and trials until the searcher has no more."""
    searcher.prepare_jobs()
    with TemporaryDirectory(prefix="fpp_sweep-", ignore_cleanup_errors=True) as tune_folder:
        run_tune(searcher, context, tune_folder)  # nothing reads Tune's own records
