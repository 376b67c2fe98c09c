"""Run the trials of a space in this process, one after the other, without Ray: a sweep without a search.

The folder, its records and its report are those of any sweep, so that every command can read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fpp_sweep.core.models.names import EMBEDDED
from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import ENDED, TrialRecord, trial_name, waiting_record
from fpp_sweep.report.writing import write_report
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.search.question import count_answered, reassess, unanswered, with_answer
from fpp_sweep.space.space import Space
from fpp_sweep.spec.messages import note, plural
from fpp_sweep.spec.process import cores, readers, set_thread_defaults, terminable
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import ModelInfo, PluginFile, WorkerSpec
from fpp_sweep.sweep.api import Options, Sweep, sweep_folder
from fpp_sweep.sweep.plan import check_before_local_start, make_plan, validate
from fpp_sweep.sweep.sweep_record import (
    Start,
    SweepRecorder,
    begin,
    errors_for_command,
    recording_end,
    removing_refused,
    start_of,
)
from fpp_sweep.sweep.worker_pool import shared_results_folder, worker_spec
from fpp_sweep.tracking.delivery import deliver_or_explain
from fpp_sweep.trial.results import TaskStore, folder_for

TrialCallback = Callable[[SweepFolder, TrialRecord], None]


def run_locally(space: Space, options: Options | None = None, on_trial: TrialCallback | None = None) -> Sweep:
    """Run all listed points of a space, or resume that; `on_trial` is called with each ended trial.

    MLflow is brought up to date at the end if the options or the space name a store. An interrupted run can be resumed.

    >>> from fpp_sweep import load_space
    >>> sweep = run_locally(load_space("paper_vs_code", ["work.baselines=[]"]), Options(name="grid"))  # doctest: +SKIP
    >>> [record.name for record in sweep.trials()]  # doctest: +SKIP
    ['trial-0000', 'trial-0001', 'trial-0002']
    """
    options = (options or Options()).with_store_of(space)
    check_before_local_start(space, options)
    return run_checked_locally(space, options, sweep_folder(space, options), on_trial)


def run_checked_locally(
    space: Space, options: Options, folder: SweepFolder, on_trial: TrialCallback | None = None
) -> Sweep:
    """Run or resume in a folder, as `run_locally` does, after the checks that need no worker."""
    set_thread_defaults()
    with folder.locked(), terminable(), errors_for_command(folder):
        with removing_refused(folder, options):
            start = start_of(space, options, folder, in_process=True)
            begin(start)
            context = open_locally(start)
        with recording_end(SweepRecorder(start.record)):
            _run_trials(context, start.space, on_trial)
            _answer_stops(start.record)
        statistics = write_report(folder, pages=True)
        links: Sequence[str] = ()
        if start.tracking_uri:
            links = deliver_or_explain(folder, start.tracking_uri, statistics)
    return Sweep(folder, tuple(links))


def _run_trials(context: TrialContext, space: Space, on_trial: TrialCallback | None) -> None:
    """Run the listed trials of a space that have not ended, up to `search.max_failures` failures in a row."""
    search = space.search
    failures = 0  # in a row
    for order, name in enumerate(_write_listed_trials(space, context.folder)):
        record = context.folder.trial(name)
        if record.state in ENDED:
            continue
        if search.max_failures is not None and failures >= search.max_failures:
            note(f"{plural(failures, 'trial')} in a row failed; the others are not begun")
            break
        attempt = record.attempt
        if record.started:
            attempt += 1
        started = replace(record, state="running", started=time.time(), attempt=attempt, reason=None, details=None)
        context.folder.write_trial(started)
        answered = count_answered(context.folder.commands(), context.folder.info().answers)
        run_job(context, name=name, split=search.split, order=order, answered=answered)
        record = context.folder.trial(name)
        if record.state == "failed":
            failures += 1
        else:
            failures = 0
        if on_trial is not None:
            on_trial(context.folder, record)


def _answer_stops(record: SweepRecord) -> None:
    """Answer the commands of `steer` that have stopped trials, or came too late."""
    for index, command in unanswered(record.folder.commands(), record.info.answers):
        if command.kind == "stop":  # the next start answers the others
            trial = record.folder.trial(command.words[0])
            if trial.state in ENDED:
                record.update(answers=with_answer(record.info.answers, index, trial.state))


def _write_listed_trials(space: Space, folder: SweepFolder) -> list[str]:
    """Write a record for each point that has none yet, and return the names of all of them in their order."""
    records = [record for record in reassess(folder, space, run_failed_again=True) if record.kind == "trial"]
    names_by_key = {record.key: record.name for record in records}
    number = max((record.number or 0 for record in records), default=-1)
    names = []
    for config, point in islice(space.points_by_config().items(), space.search.trials):
        name = trial_name(number + 1)
        new = waiting_record(name, "trial", config, number=number + 1, origin=point.origin, params=point.values)
        if new.key not in names_by_key:
            folder.write_trial(new)
            number += 1
        names.append(names_by_key.get(new.key, name))
    return names


def open_locally(start: Start) -> TrialContext:
    """Load the model, check all that the space names, and record both; raise InputError if something has changed."""
    from fpp_sweep.trial.worker import LocalExecutor, Worker  # loads torch, after all names were checked

    space, folder, plugins = start.space, start.record.folder, start.plugins
    worker = Worker(local_worker_spec(space, plugins), Bar)
    plan = make_plan(space, worker)
    model = worker.model_info()
    keys = start.accept(model, plan, validate(space, worker, plan))
    executor = LocalExecutor(worker, keys, TaskStore(folder.tasks, _shared_folder(space, plugins, model)))
    return TrialContext(folder=folder, executor=executor, plan=plan, space=space, plugins=plugins)


def local_worker_spec(space: Space, plugins: Sequence[PluginFile]) -> WorkerSpec:
    """Return what the worker of this process opens: unlike a worker on Ray, it has the whole machine."""
    work = space.work
    # operations of the embedded model are too small for a second thread, and its images for a second process
    is_embedded = work.model == EMBEDDED
    threads = work.threads
    if threads is None:
        threads = 1 if is_embedded else cores()
    loaders = work.loaders
    if loaders is None:
        loaders = 0 if is_embedded else readers()
    device = work.device
    if work.gpus_per_worker == 0:
        device = "cpu"
    on_ray = worker_spec(space, gpus=1.0)
    return replace(on_ray, device=device, threads=threads, loaders=loaders, device_share=1.0, plugins=tuple(plugins))


def _shared_folder(space: Space, plugins: Sequence[PluginFile], model: ModelInfo) -> Path | None:
    """Return the folder of results that sweeps on this machine share; results of plugins are not shared."""
    folder = shared_results_folder(space)
    if plugins or folder is None:
        return None
    return folder_for(folder, model)
