"""Delivery of a sweep to MLflow, from its folder: once, or by a thread of the driver.

MLflow keeps the digest of each run as the last tag that is written. A run without it, or with another one, is written
again, and a value that MLflow has already changes nothing. So a delivery may be killed or fail at any step: the next
one writes what is missing.
"""

from __future__ import annotations

import posixpath
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.messages import command_line, plural, runnable
from fpp_sweep.tracking.runs import ID_TAG, OPTIONAL_TAGS, RUN_ID, SWEEP_TAG, DesiredRun, desired_runs
from fpp_sweep.tracking.stores import Store, one_line, open_store, run_links

if TYPE_CHECKING:
    from mlflow.entities import Run

PARENT_TAG = "mlflow.parentRunId"  # makes a run the child of another one
DIGEST_TAG = "fpp_sweep.digest"  # digests of the values and of the artifacts of a run that is complete in MLflow
CHANGED_TAG = "changed_params"  # MLflow never changes a param
CHANGES_LENGTH = 500  # characters of this tag
SEARCH_PAGE = 100  # runs in one request; a busy server took longer than a minute for a page of 1,000
MIN_REST = 1.0  # seconds between two deliveries of the thread, so that a burst of changes is one delivery
REST_FACTOR = 5.0  # a rest is at least so many times as long as the delivery before it


@dataclass(slots=True)
class Delivered:
    """The outcome of a delivery."""

    updated: int = 0  # runs that were created or changed
    created: int = 0  # runs that MLflow did not have
    links: list[str] = field(default_factory=list)  # lines that lead to the sweep's run


def deliver(folder: SweepFolder, uri: str, statistics: SweepStatistics | None = None) -> Delivered:
    """Write what MLflow lacks of a sweep; a repeated call writes nothing.

    Statistics, which take seconds, are computed unless those of the last report are passed. Raise InputError for a
    folder or store that cannot be used, and MachineError if the store stops to answer or refuses a value or artifact.
    """
    runs = desired_runs(folder, statistics)  # a damaged record is found before the store is opened
    store = open_store(uri)
    delivered = Delivered()
    try:
        _write_runs(store, runs, delivered)
    except Exception as error:  # MLflow, its libraries and a disk raise many
        counts = f"{plural(delivered.updated, 'run')} written"
        raise MachineError(f"MLflow at {uri}: {one_line(error)}; {counts}, the rest waits for another sync") from error
    return delivered


def deliver_or_explain(folder: SweepFolder, uri: str, statistics: SweepStatistics) -> Sequence[str]:
    """Deliver, and return the links to the sweep's run; if that fails, print the command that does it later."""
    try:
        return deliver(folder, uri, statistics).links
    except Exception as error:  # MLflow is not reachable; the folder has everything
        print_later_delivery(folder, uri, one_line(error))
        return ()


def print_later_delivery(folder: SweepFolder, uri: str, problem: str) -> None:
    """Print why MLflow is behind, and which command brings it up to date."""
    command = runnable(command_line("sync", [str(folder.path), "--into", uri]))
    print(f"MLflow is behind ({problem}); bring it up to date later with:\n    {command}", file=sys.stderr)


# One delivery.


def _write_runs(store: Store, runs: Sequence[DesiredRun], delivered: Delivered) -> None:
    """Write the values of all runs, then the artifacts: a store that refuses artifacts has all values."""
    sweep = runs[0].id
    in_mlflow = _runs_in_mlflow(store, sweep)
    parent = ""  # MLflow's id of the sweep's run, which comes first
    changed = []
    for run in runs:
        current = in_mlflow.get(run.id)
        if current is None:
            tags = _tags(run, "", parent)
            current = store.client.create_run(store.experiment, milliseconds(run.started), tags, run.name)
            delivered.created += 1
        digests = f"{run.values_digest} {parent} {run.files_digest}"
        if current.data.tags.get(DIGEST_TAG) != digests:
            _write_values(store, current, run, parent)
            changed.append((run, current, digests))
            delivered.updated += 1
        parent = parent or current.info.run_id
    delivered.links = run_links(store, parent)
    for run, current, digests in changed:
        files_digest = current.data.tags.get(DIGEST_TAG, "").rpartition(" ")[2]
        if files_digest != run.files_digest:
            for name, content in run.files.items():
                _upload(store, current, name, content)
        store.client.set_tag(current.info.run_id, DIGEST_TAG, digests)
    if delivered.created:
        _runs_in_mlflow(store, sweep)  # deletes what a creation without an answer, sent again, has made twice


def _runs_in_mlflow(store: Store, sweep: str) -> dict[str, Run]:
    """Return the runs that MLflow has of a sweep, by `DesiredRun.id`, and delete those that it has twice.

    MLflow's client repeats a request that gets no answer in time, so a slow server may create a run twice.
    """
    found: list[Run] = []
    query, token = f"tags.`{SWEEP_TAG}` = '{sweep}'", None
    while token != "":  # the last page has no token
        page = store.client.search_runs([store.experiment], query, max_results=SEARCH_PAGE, page_token=token)
        found += page
        token = page.token or ""
    by_id: dict[str, Run] = {}
    for run in sorted(found, key=lambda run: DIGEST_TAG not in run.data.tags):  # complete runs stay
        identity = run.data.tags[ID_TAG]
        if identity in by_id:
            store.client.delete_run(run.info.run_id)
        else:
            by_id[identity] = run
    return by_id


def _tags(run: DesiredRun, run_id: str, parent: str) -> dict[str, str]:
    tags = {key: value.replace(RUN_ID, run_id) for key, value in run.tags.items()}
    if parent:
        tags[PARENT_TAG] = parent
    return tags


def _write_values(store: Store, current: Run, run: DesiredRun, parent: str) -> None:
    """Write the params, metrics and tags, then the name and the state."""
    from mlflow.entities import Metric, Param, RunTag  # start-up time

    client, run_id, known = store.client, current.info.run_id, current.data
    metrics = [Metric(point.key, point.value, milliseconds(point.time), point.step) for point in run.points]
    for key, value in run.metrics.items():
        if known.metrics.get(key) != value:  # MLflow shows the value with the latest time
            measured = time.time() if key in known.metrics else run.finished or run.started
            metrics.append(Metric(key, value, milliseconds(measured), 0))
    tags = _tags(run, run_id, parent)
    params, changes = [], []
    for key, text in run.params.items():
        if key not in known.params:
            params.append(Param(key, text))
        elif known.params[key] != text:
            changes.append(f"{key}: {known.params[key]} -> {text}")
    if changes:
        tags[CHANGED_TAG] = "; ".join(changes)[:CHANGES_LENGTH]
    client.log_batch(run_id, metrics, params, [RunTag(key, value) for key, value in tags.items()])
    for key in OPTIONAL_TAGS:
        if key in known.tags and key not in tags:
            client.delete_tag(run_id, key)
    client.update_run(run_id, run.status if run.is_in_progress else None, run.name)
    if not run.is_in_progress:
        client.set_terminated(run_id, run.status, milliseconds(run.finished or time.time()))


def milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _upload(store: Store, current: Run, name: str, content: str | Path) -> None:
    """Store a text or a file as an artifact of a run."""
    if isinstance(content, str):
        store.client.log_text(current.info.run_id, content, name)
        return
    with suppress(FileNotFoundError):  # a report has replaced the file meanwhile, which is delivered next
        store.client.log_artifact(current.info.run_id, str(content), posixpath.dirname(name) or None)


# The thread of the driver.


class DeliveryThread:
    """A thread that delivers after each change of the folder; it delays nothing, and reports an error once."""

    def __init__(self, folder: SweepFolder, uri: str, on_error: Callable[[str], None]) -> None:
        self.links: Sequence[str] = ()
        self._folder, self._uri, self._on_error = folder, uri, on_error
        self._statistics: SweepStatistics | None = None  # those of the last report
        self._error: str | None = None  # of the last delivery, in one line
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self, statistics: SweepStatistics | None) -> None:
        """Deliver soon, with the statistics of a report that was written."""
        self._statistics = statistics or self._statistics
        self._changed.set()

    def close(self, timeout: float) -> str | None:
        """Wait `timeout` seconds at most for the last delivery; return what went wrong."""
        self._closing.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._thread.is_alive():
            return self._error or "it was too slow"
        return self._error

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._changed.wait()
            self._changed.clear()
            is_last = self._closing.is_set()
            began = time.monotonic()
            self._attempt()
            self._closing.wait(max(MIN_REST, REST_FACTOR * (time.monotonic() - began)))

    def _attempt(self) -> None:
        error_before, self._error = self._error, None
        try:
            self.links = deliver(self._folder, self._uri, self._statistics).links
        except Exception as error:  # of the folder, the disk or MLflow: the sweep goes on
            self._error = one_line(error)
            if error_before is None:
                self._on_error(f"MLflow is behind: {self._error}")
