"""Synchronisation of MLflow with a sweep's folder: a thread that follows the folder, and a call that returns when done.

Both make passes (`folder_sync.py`) until MLflow shows what the folder holds. The other functions answer from the
folder's `mlflow_sync.json`, without MLflow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.masking import masked
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.spec.progress import Bar
from fpp_sweep.tracking.desired import SWEEP_KEY, milliseconds, sweep_id
from fpp_sweep.tracking.folder_sync import Failure, FolderSync, SweepRuns, SyncResult
from fpp_sweep.tracking.sync_state import SyncState, fingerprint, real_path
from fpp_sweep.tracking.uri import (
    DEFAULT_URI,
    absolute,
    is_server,
    one_line,
    page_address,
    sqlite_file,
    store_identity,
    ui_command,
    was_used_before,
)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts; a pause is twice as long as the one before
MIN_REST = 1.0  # seconds between two successful passes, so that a burst of changes is one pass
REST_FACTOR = 5.0  # a rest is at least so many times as long as the pass before it, so passes take a sixth of the time
RETRY_SECONDS = 30.0  # without any progress, after which `sync_folder` gives up


@dataclass(frozen=True, slots=True)
class SyncStatus:
    """The state of a background synchronisation."""

    updated: int  # runs written since the start
    error: str | None  # the last failure, in one line


class Backoff:
    """Pauses between attempts that double until there is progress."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def reset(self) -> None:
        self._next = FIRST_PAUSE

    def pause(self) -> float:
        """Return the seconds of the next pause, and double the one after."""
        pause = self._next
        self._next = min(2 * pause, LONGEST_PAUSE)
        return pause


def rest_after(pass_seconds: float) -> float:
    """Return the seconds between a pass that succeeded and the next one.

    >>> rest_after(0.1), rest_after(2.0)
    (1.0, 10.0)
    """
    return max(MIN_REST, REST_FACTOR * pass_seconds)


class BackgroundSync:
    """A thread that keeps MLflow up to date. Call `nudge` after a change of the folder; `nudge` never waits."""

    def __init__(self, folder: SweepFolder, uri: str) -> None:
        self._sync = FolderSync(folder, uri, restore=False)
        self._status = SyncStatus(updated=0, error=None)
        self._wake = threading.Event()  # the folder may have changed
        self._closing = threading.Event()  # the thread ends once everything is written
        self._given_up = threading.Event()  # the thread ends now: `close` has waited for long enough
        self._thread = threading.Thread(target=self._work, name="mlflow-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        self._wake.set()

    def status(self) -> SyncStatus:
        return self._status

    def close(self, timeout: float) -> int:
        """Wait `timeout` seconds at most until everything is written; return the number of runs that are left."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._given_up.set()
        return len(self._sync.pending(thorough=True))

    def _work(self) -> None:
        """Make passes until `close`: after each change of the folder, and again after a failure that may pass.

        The first and the last pass are thorough.
        """
        backoff = Backoff()
        is_first = True
        while not self._given_up.is_set():
            is_last = self._closing.is_set()
            self._wake.clear()
            began = time.monotonic()
            is_finished = self._attempt(thorough=is_first or is_last)
            is_first = False
            if is_finished and is_last:
                break
            if is_finished:
                backoff.reset()
                self._closing.wait(rest_after(time.monotonic() - began))
                self._wake.wait()  # `close` sets this event, too
            elif is_last:
                self._given_up.wait(FIRST_PAUSE)  # `close` is waiting: short pauses until it gives up
            else:
                self._closing.wait(backoff.pause())  # `close` ends a pause, for one more attempt at once
        self._sync.disconnect()

    def _attempt(self, *, thorough: bool) -> bool:
        """Make one pass; return False if another attempt may succeed."""
        try:
            failures = self._sync.make_pass(thorough=thorough, stop=self._given_up.is_set, on_update=self._count)
        except Exception as error:  # errors of the folder, its disk or the lock: the sweep goes on
            self._sync.disconnect()
            failures = [Failure("", one_line(error), is_permanent=False)]
        error_text = None
        if failures:
            error_text = str(failures[-1])
        self._status = replace(self._status, error=error_text)
        return all(failure.is_permanent for failure in failures)

    def _count(self, _pending: int) -> None:
        """Count a run that was written."""
        self._status = replace(self._status, updated=self._status.updated + 1)


def sync_folder(
    folder: SweepFolder,
    uri: str,
    *,
    retry_for: float = RETRY_SECONDS,
    show_progress: bool = False,
    verify: bool = False,
) -> SyncResult:
    """Bring MLflow up to date now, and restore runs that were deleted there.

    Requests that may succeed later are repeated, with pauses, until there is no progress for `retry_for` seconds. With
    `verify`, also what was written before is compared with MLflow, and with the names and sizes of its artifacts.
    """
    sync = FolderSync(folder, uri, restore=True, verify=verify)
    try:
        with Bar("MLflow", 0, "runs", shown=show_progress) as bar:
            failures = _pass_until_done(sync, retry_for, bar)
    finally:
        sync.disconnect()
    if failures:
        left = len(sync.pending(thorough=True))
        counts = f"{sync.result.updated} runs written, {left} left for another sync"
        message = f"MLflow at {masked(uri)}: {failures[0]}; {counts}"
        if all(failure.is_permanent for failure in failures):
            raise InputError(message)
        raise MachineError(message)
    return sync.result


def _pass_until_done(sync: FolderSync, retry_for: float, bar: Bar) -> list[Failure]:
    """Make passes until only permanent failures are left, or for `retry_for` seconds without progress.

    Return the failures of the last pass.
    """

    def on_update(pending: int) -> None:
        bar.total = sync.result.updated + pending
        bar.advance()

    backoff = Backoff()
    last_progress = time.monotonic()
    while True:
        writes_before = sync.writes
        failures = sync.make_pass(thorough=True, stop=_never, on_update=on_update)
        if all(failure.is_permanent for failure in failures):
            return failures
        if sync.writes > writes_before:
            backoff.reset()
            last_progress = time.monotonic()
        pause = backoff.pause()
        seconds_left = last_progress + retry_for - time.monotonic()
        if pause > seconds_left:
            return failures
        bar.note(
            f"MLflow: {failures[0]}; {sync.result.updated} runs written, next attempt in {pause:.0f} s, "
            f"for {seconds_left:.0f} s more without progress"
        )
        time.sleep(pause)


def _never() -> bool:
    return False


def upload_group_files(folder: SweepFolder, uri: str, files: Sequence[Path]) -> None:
    """Upload files as artifacts of the group's run: the parent of the runs of all sweeps of a reproduction.

    `folder` is the folder of any of these sweeps.
    """
    info = folder.info()
    runs = SweepRuns(absolute(uri), sweep_id(info), known_run_ids=(), result=SyncResult())
    run = runs.group_run(info.group, milliseconds(info.created))
    for path in files:
        runs.upload(run, path.name, path)
    runs.client.set_terminated(run.run_id)


def mlflow_links(folder: SweepFolder, uri: str) -> list[str]:
    """Return lines that tell a user how to see the sweep's run.

    For a server this is the address. Another store has no server yet: the command that starts one comes first. If the
    database is missing, it is the command that copies the sweep to a database.
    """
    state = SyncState.read(folder)
    path = sqlite_file(uri)
    if path is not None and state.runs and not path.is_file():
        command = runnable(command_line("sync", [str(folder.path), "--into", DEFAULT_URI]))
        return [f"{path} does not exist; this copies the sweep to a database of yours:", command]
    links = []
    if not is_server(uri):
        links.append(ui_command(uri))
    sweep = state.runs.get(SWEEP_KEY)
    if sweep is not None and state.store == store_identity(uri):
        links.append(f"{page_address(uri)}/#/experiments/{state.experiment}/runs/{sweep.run_id}")
    elif is_server(uri):
        links.append(page_address(uri))
    return links


def trusted_uri(folder: SweepFolder, recorded: str, *, flag: str = "--tracking-uri") -> str:
    """Return the store that a sweep's record names, or else the one that the user has named for this folder.

    Raise InputError if the user has to name a store with the flag. A folder from elsewhere must not choose where its
    user's files, passwords and tokens go, and a copy of a folder must not write to the runs of the original.
    """
    state = SyncState.read(folder)
    uri = absolute(recorded or state.uri or DEFAULT_URI)
    problem = _why_not_trusted(folder, uri, state)
    if problem is None:
        return uri
    if state.uri and _why_not_trusted(folder, state.uri, state) is None:
        return state.uri
    raise InputError(f"{folder.path}: {problem}; say where it should go: {flag} {DEFAULT_URI}, or another URI")


def _why_not_trusted(folder: SweepFolder, uri: str, state: SyncState) -> str | None:
    """Return why a folder's files must not go to a store that the user has not named just now; None if they may."""
    if uri != absolute(DEFAULT_URI) and not was_used_before(uri):
        return f"you have not used its MLflow, {masked(uri)}, before"
    owner = state.folders.get(store_identity(uri))
    if owner not in (None, real_path(folder)):
        return f"its runs in MLflow at {masked(uri)} belong to the folder {owner}"
    return None


def last_uri(folder: SweepFolder, recorded: str) -> str:
    """Return the store that this folder was last written to, or else the recorded one."""
    state = SyncState.read(folder)
    if state.uri and state.folders.get(state.store) == real_path(folder):
        return state.uri
    return recorded


def is_synced(folder: SweepFolder, uri: str) -> bool:
    """Return whether the folder is unchanged since all of it was written to this store; MLflow is not asked."""
    state = SyncState.read(folder)
    return state.store == store_identity(uri) and state.fingerprint == fingerprint(folder)
