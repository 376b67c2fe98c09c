"""Run the trials of a space in this process, one after the other, without Ray: a sweep without a search.

The folder, its records and its report are those of any sweep, so that every command can read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ENDED, SweepInfo, TrialRecord
from fpp_sweep.report import write_report
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import Search
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import note, plural
from fpp_sweep.spec.process import set_thread_defaults, terminable
from fpp_sweep.sweep.api import InterruptedSweep, Options, Sweep
from fpp_sweep.sweep.folders import sweep_folder
from fpp_sweep.sweep.listed_trials import write_listed_trials
from fpp_sweep.sweep.preflight import check_before_start
from fpp_sweep.sweep.resume import require_same, undo_if_refused
from fpp_sweep.sweep.sweep_info import new_info, resumed_info
from fpp_sweep.tracking import absolute, check_store, sync_folder, trusted_uri

TrialCallback = Callable[[SweepFolder, TrialRecord], None]

NEED_RAY = ("wall_clock", "gpu_hours", "concurrency", "patience", "race", "notify")  # keys of `search`


def run_locally(space: Space, options: Options | None = None, on_trial: TrialCallback | None = None) -> Sweep:
    """Run all listed points of a space, or resume that; `on_trial` is called with each ended trial.

    MLflow is brought up to date at the end if the options or the space name a store. An interrupted run can be resumed.
    """
    options = options or Options()
    set_thread_defaults()
    plugins.load(options.plugins)
    _require_listed(space)
    check_before_start(space, options)
    folder = sweep_folder(space, options)
    with folder.locked(), terminable():
        known = None
        if options.resume:
            known = _known_info(space, options, folder)
        uri = _tracking_uri(space, options, folder, known)
        with undo_if_refused(folder, known), _ended_in_order(folder):
            folder.write_info(_info_at_start(space, options, folder, known, uri))
            if uri:
                check_store(uri)
            context = _open(space, folder, options)
            _run_trials(context, write_listed_trials(space, folder), space.search, on_trial)
        write_report(folder, pages=True)
        if uri:
            sync_folder(folder, uri)
    return Sweep(folder)


def _require_listed(space: Space) -> None:
    """Raise InputError if the space asks for a search, or for something that only workers on Ray do."""
    if space.search.sampler != "grid":
        raise InputError(f"sampler {space.search.sampler} needs workers on Ray; give --workers", "search.sampler")
    if space.work.baselines:
        raise InputError("baselines need workers on Ray; give --workers", "work.baselines")
    defaults = Search()
    for key in NEED_RAY:
        if getattr(space.search, key) != getattr(defaults, key):
            raise InputError("needs workers on Ray; give --workers, or leave the key out", f"search.{key}")


def _known_info(space: Space, options: Options, folder: SweepFolder) -> SweepInfo:
    """Return the record of the sweep to be resumed; raise InputError if the space has changed."""
    info, problem = folder.load_info_or_copy()
    if problem is not None:
        note(problem)
    require_same(info, space, options, folder)
    return info


def _info_at_start(
    space: Space, options: Options, folder: SweepFolder, known: SweepInfo | None, tracking_uri: str
) -> SweepInfo:
    if known is None:
        return new_info(space, options, folder, tracking_uri)
    return resumed_info(known, space, tracking_uri)


def _tracking_uri(space: Space, options: Options, folder: SweepFolder, known: SweepInfo | None) -> str:
    """Return the MLflow store that was asked for; without one nothing is delivered until `sync` is called."""
    uri = options.tracking_uri or space.work.tracking_uri
    if uri is not None:
        return absolute(uri)
    if known is not None and known.tracking_uri:
        return trusted_uri(folder, known.tracking_uri)
    return ""


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


@contextmanager
def _ended_in_order(folder: SweepFolder) -> Iterator[None]:
    """Record how the sweep ended and how long it took, whatever happens within."""
    began = time.monotonic()
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # as far as the disk allows
            _write_interruption(folder, began)
        if isinstance(error, KeyboardInterrupt):
            raise InterruptedSweep from None
        if isinstance(error, OSError):
            raise MachineError.of(error) from error
        raise
    states = {record.state for record in folder.trials()}
    if "complete" in states:
        _write_end(folder, "finished", began)
    else:
        _write_end(folder, "failed", began)


def _write_interruption(folder: SweepFolder, began: float) -> None:
    for record in folder.trials():
        if record.state == "running":
            interrupted = replace(record, state="interrupted", reason="the sweep was interrupted", finished=time.time())
            folder.write_trial(interrupted)
    _write_end(folder, "interrupted", began)


def _write_end(folder: SweepFolder, state: Literal["finished", "failed", "interrupted"], began: float) -> None:
    info = folder.info()
    spent = info.spent + time.monotonic() - began
    finished = None
    if state != "interrupted":
        finished = time.time()
    folder.write_info(replace(info, state=state, finished=finished, spent=spent))


def _run_trials(context: TrialContext, names: list[str], search: Search, on_trial: TrialCallback | None) -> None:
    """Run the trials that have not ended, up to `search.max_failures` failures in a row."""
    failures = 0
    for order, name in enumerate(names):
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
        run_job(context, name=name, split=search.split, order=order)
        record = context.folder.trial(name)
        failures += 1
        if record.state != "failed":
            failures = 0
        if on_trial is not None:
            on_trial(context.folder, record)
