"""Run the trials of a space in this process, one after the other, without Ray: a sweep without a search.

The folder, its records and its report are those of any sweep, so that every command can read them.
"""

from __future__ import annotations

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from fpp_sweep.search.job import TrialContext
from fpp_sweep.space.space import Space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.process import set_thread_defaults, terminable
from fpp_sweep.sweep.api import Options, Sweep
from fpp_sweep.sweep.folders import sweep_folder
from fpp_sweep.sweep.local_trials import TrialCallback, recording_end, require_listed, run_trials
from fpp_sweep.sweep.preflight import check_before_start
from fpp_sweep.sweep.recording import SweepRecorder
from fpp_sweep.sweep.resume import undo_if_refused
from fpp_sweep.sweep.start import begin, local_start
from fpp_sweep.tracking import check_store, sync_folder


def run_locally(space: Space, options: Options | None = None, on_trial: TrialCallback | None = None) -> Sweep:
    """Run all listed points of a space, or resume that; `on_trial` is called with each ended trial.

    MLflow is brought up to date at the end if the options or the space name a store. An interrupted run can be resumed.
    """
    options = options or Options()
    set_thread_defaults()
    plugins.load(options.plugins)
    require_listed(space)
    check_before_start(space, options)
    folder = sweep_folder(space, options)
    with folder.locked(), terminable():
        start = local_start(space, options, folder)
        with undo_if_refused(folder, start.info_before), recording_end(SweepRecorder(folder, start.info)):
            begin(folder, start)
            if start.tracking_uri:
                check_store(start.tracking_uri)
            run_trials(_open(space, folder, options), space, on_trial)
        write_report(folder, pages=True)
        if start.tracking_uri:
            sync_folder(folder, start.tracking_uri)
    return Sweep(folder)


def _open(space: Space, folder: SweepFolder, options: Options) -> TrialContext:
    from fpp_sweep.sweep.local_worker import open_locally  # loads torch, after all names were checked

    plan, executor = open_locally(space, folder, options.plugins)
    return TrialContext(
        folder=folder,
        executor=executor,
        plan=plan,
        objectives=space.objectives,
        constraints=space.constraints,
        search_split=space.search.split,
        plugins=options.plugins,
    )
