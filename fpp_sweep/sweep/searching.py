"""The searcher of a sweep, and the run of Ray Tune that it directs."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.steering import Queue
from fpp_sweep.search.job import TrialContext
from fpp_sweep.search.searcher import ChangeListener, SweepSearcher, run_tune
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.space import Space
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.opening import OpenedSweep
from fpp_sweep.sweep.resume import reopen_failed_trials
from fpp_sweep.workers.status import StatusPoller


def new_searcher(
    space: Space, folder: SweepFolder, opened: OpenedSweep, poller: StatusPoller, listeners: Sequence[ChangeListener]
) -> SweepSearcher:
    """Return the searcher of a sweep's study; its listeners are called when a trial starts or ends."""
    info = folder.info()
    reopen_failed_trials(folder)
    study = SweepStudy(space, Queue.of(folder, info), folder.trials())
    return SweepSearcher(
        space,
        folder,
        study,
        plan=opened.plan,
        has_final_stage=bool(opened.later_plans),
        poller=poller,
        gpus_per_worker=opened.gpus_per_worker,
        listeners=listeners,
    )


def run_search(
    searcher: SweepSearcher, space: Space, folder: SweepFolder, opened: OpenedSweep, options: Options, tune_folder: str
) -> None:
    """Run trials until the searcher has no more; `tune_folder` is for Tune's own records, which nothing reads."""
    context = TrialContext(
        folder=folder,
        executor=opened.pool,
        plan=opened.plan,
        later_plans=opened.later_plans,
        objectives=space.objectives,
        constraints=space.constraints,
        search_split=space.search.split,
        gate=space.gate(),
        plugins=options.plugins,
    )
    run_tune(searcher, context, tune_folder)
