"""One pass of the synchronisation of MLflow with a sweep's folder.

A pass compares the runs that MLflow should show with what was written before, and writes the difference. There is no
queue: after an outage or a kill, the next pass finds what is missing. `mlflow_sync.json` in the folder remembers
digests of what was written. It only saves work; without it everything is compared with MLflow again.

Changes are noticed at four levels:

- stamp: size and time of a file
- version: stamp of a record's file, with its tags from the front; only a thorough pass compares equal versions again
- digest: hash of a run as MLflow should show it, and of the stamps of its artifacts
- fingerprint: hash of all files of the folder; if it is equal, `is_synced` need not ask MLflow

`FolderSync` compares a folder with what was written; `SweepRuns` reads and writes the runs of one sweep in MLflow.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import posixpath
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import LockHeldError, exclusive_lock, written_whole
from fpp_sweep.spec.masking import masked
from fpp_sweep.spec.messages import plural
from fpp_sweep.tracking.desired import (
    CHANGES_LIMIT,
    ID_TAG,
    IN_PROGRESS,
    OPTIONAL_TAGS,
    PARENT_GROUP,
    PARENT_TAG,
    SWEEP_KEY,
    SWEEP_TAG,
    DesiredRun,
    FrontDocument,
    Point,
    milliseconds,
    safe_name,
    shortened,
    sweep_id,
    sweep_run,
    trial_run,
)
from fpp_sweep.tracking.folder_files import Artifacts, find_artifacts
from fpp_sweep.tracking.sync_state import (
    STATE_FILE,
    Stamp,
    SyncState,
    WrittenRun,
    file_stamp,
    file_stamps,
    fingerprint,
    real_path,
)
from fpp_sweep.tracking.uri import (
    absolute,
    artifact_folder,
    connect,
    find_or_create_experiment,
    is_permanent,
    one_line,
    store_identity,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

LOCK_FILE = "mlflow_sync.lock"
SAVE_EVERY = 1.0  # seconds; writing the state after each of 2,000 runs would cost minutes
SEARCH_PAGE = 100  # runs in one request; a busy server took longer than the time-out for a page of 1,000

_Version = tuple[Stamp, dict[str, str]]  # version of a record: its file's stamp, and its tags from the front


@dataclass(slots=True)
class SyncResult:
    """Counts and names of what `sync_folder` changed."""

    updated: int = 0  # runs that were created or changed
    created: int = 0  # runs that MLflow did not have
    restored: list[str] = field(default_factory=list)  # names of runs that were deleted in MLflow
    left_out: set[str] = field(default_factory=set)  # artifacts that are links out of the folder, or too large


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that could not be written, or a store that did not answer."""

    key: str  # `DesiredRun.key` of the run; empty if the store did not answer
    cause: str
    is_permanent: bool  # True if the same request would fail again

    def __str__(self) -> str:
        if not self.key:
            return self.cause
        return f"{self.key}: {self.cause}"


# --- one folder: what was written, and what differs -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Change:
    """A run that differs from what was written."""

    run: DesiredRun
    files: Mapping[str, Path]  # name of an artifact -> its file
    digest: str  # digest of the run and the stamps of its files

    @property
    def contents(self) -> dict[str, str | Path]:
        """The texts and files that are the run's artifacts, by name."""
        return {**self.run.texts, **self.files}


def _size_of(content: str | Path) -> int | None:
    """Return the bytes of an artifact's text or file; None for a file that was replaced meanwhile."""
    if isinstance(content, str):
        return len(content.encode())
    with suppress(FileNotFoundError):
        return content.stat().st_size
    return None


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The difference of a folder from what was written of it."""

    info: SweepInfo
    changes: Sequence[_Change]
    versions: dict[str, _Version]  # versions of all records, by name


class FolderSync:
    """The comparison of one folder with one store; one thread makes passes, any thread may call `pending`."""

    def __init__(self, folder: SweepFolder, uri: str, *, restore: bool, verify: bool = False) -> None:
        self.result = SyncResult()
        self.writes = 0  # changes that MLflow has taken; a pass that adds none has made no progress
        self._folder = folder
        self._uri = absolute(uri)
        self._restore = restore  # runs that the user deleted in MLflow are restored
        self._verify = verify  # everything is compared with MLflow again
        self._file = folder.path / STATE_FILE
        self._state = SyncState.read(folder)
        if verify:
            for written in self._state.runs.values():
                written.digest = ""
        self._saved = 0.0  # `time.monotonic()` when the state was last written
        self._versions: dict[str, _Version] = {}  # versions of the records compared since the connection was made
        self._mlflow_runs: SweepRuns | None = None  # None while there is no connection
        self._lock = ExitStack()  # holds the lock from the first pass until `disconnect`
        self._locked = False

    def pending(self, *, thorough: bool) -> list[_Change]:
        """Return the runs that differ; artifacts of unchanged records are checked only if thorough."""
        return list(self._compare(thorough=thorough).changes)

    def make_pass(self, *, thorough: bool, stop: Callable[[], bool], on_update: Callable[[int], None]) -> list[Failure]:
        """Write every run that differs; return the failures. A run that fails does not stop the others.

        The pass ends early if the store does not answer. `on_update` gets the number of runs that are left.
        """
        folder_fingerprint = fingerprint(self._folder) if thorough else ""
        self._lock_folder()
        try:
            if thorough and any(written.deleted for written in self._state.runs.values()):
                self._look_for_restored_runs()
            runs = self._connected()
        except InputError:
            raise
        except Exception as error:  # MLflow and its database raise many
            self.disconnect()
            return [Failure("", one_line(error), is_permanent(error))]
        comparison = self._compare(thorough=thorough)
        n_left = len(comparison.changes)
        failures: list[Failure] = []
        self._state.fingerprint = ""  # until all changes are written
        try:
            for change in comparison.changes:
                if stop():
                    return failures
                n_left -= 1
                failure = self._try_to_write(runs, comparison.info, change)
                if failure is None:
                    self.result.updated += 1
                    on_update(n_left)
                    continue
                failures.append(failure)
                comparison.versions.pop(change.run.key, None)  # so that the next pass compares the record again
                if not runs.answers():
                    self.disconnect()
                    return failures
            self._versions = comparison.versions
            self._state.fingerprint = "" if failures else folder_fingerprint
        finally:
            self._save(runs)
        return failures

    def disconnect(self) -> None:
        """Release the lock and the connection; the next pass asks MLflow again which runs it has."""
        self._mlflow_runs = None
        self._lock.close()
        self._locked = False

    def _lock_folder(self) -> None:
        """Take the lock, which ends with the process: two processes at once would create runs twice."""
        if self._locked:
            return
        file = self._folder.path / LOCK_FILE
        try:
            self._lock.enter_context(exclusive_lock(file, wait=False))
        except OSError as error:
            raise InputError(f"{file}: cannot be opened ({error.strerror}); delete it, or make it writable") from error
        except LockHeldError as error:  # its text names the process that holds the lock
            name = self._folder.path.name
            raise InputError(f"{name} is being synchronised with MLflow by {error}; wait for it") from None
        self._locked = True

    def _connected(self) -> SweepRuns:
        """Return the runs that MLflow has; connect first if there is no connection."""
        if self._mlflow_runs is None:
            known_run_ids = {written.run_id for written in self._state.runs.values()}
            runs = SweepRuns(self._uri, sweep_id(self._folder.info()), known_run_ids, self.result)
            self._forget_missing(runs)
            self._mlflow_runs = runs
        return self._mlflow_runs

    def _look_for_restored_runs(self) -> None:
        """Connect anew, which shows the runs that the user has restored; keep the connection if that is refused.

        MLflow refuses a new connection while the experiment is deleted.
        """
        connected_before = self._mlflow_runs
        self._mlflow_runs = None
        try:
            self._connected()
        except InputError:
            self._mlflow_runs = connected_before

    def _forget_missing(self, runs: SweepRuns) -> None:
        """Forget runs that this store does not have, or that were or will be restored, so that they are written."""
        self._versions = {}
        by_run_id = {mlflow_run.run_id: mlflow_run for mlflow_run in runs.by_id.values()}
        for key, written in list(self._state.runs.items()):
            mlflow_run = by_run_id.get(written.run_id)
            if mlflow_run is None or self._will_be_restored(mlflow_run):
                del self._state.runs[key]
                continue
            user_has_restored = written.deleted and not mlflow_run.deleted
            if user_has_restored:
                del self._state.runs[key]

    def _will_be_restored(self, mlflow_run: _MlflowRun) -> bool:
        """Return True for a run that the user has deleted; without `restore` it stays deleted."""
        return mlflow_run.deleted and self._restore

    def _compare(self, *, thorough: bool) -> _Comparison:
        """Compare the folder with what was written.

        Unless thorough, records whose version equals that of the last pass are skipped.
        """
        info = self._folder.info()
        front = FrontDocument.read(self._folder)
        records = []
        candidates: list[tuple[DesiredRun, Artifacts]] = []
        versions: dict[str, _Version] = {}
        for file in self._folder.trial_files():
            name = file.stem
            versions[name] = file_stamp(file), front.tags_of(name)  # before the record is read, which may change then
            record = self._folder.trial(name)
            records.append(record)
            if record.state == "waiting" and not record.started:
                continue  # MLflow never changes the start of a run, so a run begins with its trial
            if thorough or self._versions.get(name) != versions[name]:
                artifacts = find_artifacts(self._folder, self._folder.path / "artifacts" / name)
                candidates.append((trial_run(info, record, front), artifacts))
        report = find_artifacts(self._folder, self._folder.path / "report", "report/")
        candidates.append((sweep_run(info, records, front), report))
        changes = []
        for run, artifacts in candidates:
            self.result.left_out |= artifacts.left_out
            described = repr((run, file_stamps(artifacts.files)))
            digest = hashlib.sha256(described.encode(errors="surrogatepass")).hexdigest()
            written = self._state.runs.get(run.key)
            if written is None or written.digest != digest:
                changes.append(_Change(run, artifacts.files, digest))
        return _Comparison(info, changes, versions)

    def _try_to_write(self, runs: SweepRuns, info: SweepInfo, change: _Change) -> Failure | None:
        """Write a run and return None, or else the failure. A run that was kept from an earlier read is read again."""
        try:
            return self._write(runs, info, change)
        except Exception as error:  # MLflow, its database and a disk raise many
            if runs.forget(change.run):  # the user may have deleted the run since the earlier read
                return self._try_to_write(runs, info, change)
            return Failure(change.run.key, one_line(error), is_permanent(error))

    def _write(self, runs: SweepRuns, info: SweepInfo, change: _Change) -> Failure | None:
        """Write a run with its artifacts; return a failure if the store refuses some of these.

        The state keeps each upload that succeeded, so that a retry skips it.
        """
        run = change.run
        group = None
        if run.key == SWEEP_KEY:
            group = self._group_run(runs, info)
            parent = _id_of(group)
        else:
            parent = self._sweep_run_id(runs, info)
        current = runs.open(run, parent, restore=self._restore)
        if current is None:  # the user has deleted the run; count it as written, so that it stays deleted
            self._state.runs[run.key] = WrittenRun(runs.by_id[run.id].run_id, change.digest, deleted=True)
            return None
        written = self._state.runs.get(run.key)
        if written is None or written.run_id != current.run_id:
            written = WrittenRun(current.run_id)
            self._state.runs[run.key] = written
        if runs.write(current, run, parent):
            self.writes += 1
        if self._verify:
            stored_sizes = runs.artifact_sizes(current)
            for name, content in change.contents.items():
                if stored_sizes.get(safe_name(name)) != _size_of(content):
                    written.files.pop(name, None)  # so that it is uploaded again
        refused = self._upload_artifacts(runs, current, change, written.files)
        runs.set_status(current, run)
        if group is not None and (run.is_in_progress or group.is_in_progress):
            runs.set_state(group, run)  # the group runs while one of its sweeps does, and ends with it
        if refused:
            name, cause = next(iter(refused.items()))
            counts = plural(len(refused), "artifact")
            return Failure(run.key, f"{counts} refused, such as {name}: {cause}", is_permanent=True)
        written.digest = change.digest
        self.writes += 1
        if time.monotonic() - self._saved > SAVE_EVERY:
            self._save(runs)
        return None

    def _upload_artifacts(
        self, runs: SweepRuns, current: CurrentRun, change: _Change, uploaded: dict[str, Any]
    ) -> dict[str, str]:
        """Upload artifacts that differ from `uploaded`, and add each one to it.

        Return those that the store refuses, such as one too large for a proxy, with the cause.
        """
        refused: dict[str, str] = {}
        for name, content in change.contents.items():
            try:
                self._upload_if_changed(runs, current, name, content, uploaded)
            except Exception as error:  # MLflow and a disk raise many
                was_replaced = isinstance(content, Path) and not content.exists()
                if was_replaced:  # the next pass compares it again
                    continue
                if not is_permanent(error):
                    raise
                refused[name] = one_line(error)
        return refused

    def _upload_if_changed(
        self, runs: SweepRuns, current: CurrentRun, name: str, content: str | Path, uploaded: dict[str, Any]
    ) -> None:
        """Upload a text or a file unless `uploaded` has the digest or the stamp of this version."""
        if isinstance(content, str):
            digest = hashlib.sha256(content.encode()).hexdigest()
            if uploaded.get(name) == digest:
                return
            runs.write_text(current, name, content)
            uploaded[name] = digest
        else:
            stamp = list(file_stamp(content))  # a list, as JSON returns it
            if uploaded.get(name) == stamp:
                return
            runs.upload(current, name, content)
            uploaded[name] = stamp
        self.writes += 1

    def _sweep_run_id(self, runs: SweepRuns, info: SweepInfo) -> str:
        """Return the id of the sweep's run; create it without content if a trial's run is written first."""
        mlflow_run = runs.by_id.get(sweep_id(info))
        if mlflow_run is not None and not self._will_be_restored(mlflow_run):
            return mlflow_run.run_id
        parent = _id_of(self._group_run(runs, info))
        created = runs.open(sweep_run(info, []), parent, restore=self._restore)
        assert created is not None  # `open` returns None for a run that stays deleted, which returned above
        return created.run_id

    def _group_run(self, runs: SweepRuns, info: SweepInfo) -> CurrentRun | None:
        """Return the run above the sweep's, for a sweep that is part of a reproduction."""
        if not info.group:
            return None
        return runs.group_run(info.group, milliseconds(info.created))

    def _save(self, runs: SweepRuns) -> None:
        self._saved = time.monotonic()
        self._state.experiment = runs.experiment_id
        self._state.store = store_identity(self._uri)
        self._state.uri = self._uri if masked(self._uri) == self._uri else ""
        self._state.folders[self._state.store] = real_path(self._folder)
        self._state.write(self._file)


# --- one sweep in MLflow ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CurrentRun:
    """A run as MLflow shows it."""

    run_id: str
    name: str
    status: str
    finished: int | None  # milliseconds since 1970
    artifact_uri: str
    params: dict[str, str]
    metrics: dict[str, float]  # the latest values
    tags: dict[str, str]

    @classmethod
    def of(cls, run: Run) -> Self:
        info, data = run.info, run.data
        return cls(
            run_id=info.run_id,
            name=info.run_name,
            status=info.status,
            finished=info.end_time,
            artifact_uri=info.artifact_uri,
            params=dict(data.params),
            metrics=dict(data.metrics),
            tags=dict(data.tags),
        )

    @property
    def is_in_progress(self) -> bool:
        return self.status in IN_PROGRESS


def _id_of(run: CurrentRun | None) -> str | None:
    if run is None:
        return None
    return run.run_id


@dataclass(slots=True)
class _MlflowRun:
    """A run that MLflow has, perhaps marked as deleted."""

    run_id: str
    deleted: bool
    in_progress: CurrentRun | None = None  # kept until the run ends, so that it is not read before each write


class SweepRuns:
    """The runs of one sweep in MLflow.

    A `DesiredRun` is a run as it should be, a `CurrentRun` the same run as MLflow shows it.
    """

    def __init__(self, uri: str, sweep: str, known_run_ids: Container[str], result: SyncResult) -> None:
        self._uri = uri
        self.client = connect(uri)
        self._entities: Any = importlib.import_module("mlflow.entities")  # takes seconds; `connect` has loaded it
        self.experiment_id = find_or_create_experiment(self.client, uri)
        self._result = result  # counts what is created and restored
        self._unanswered: set[str] = set()  # ids of runs whose creation got no answer: MLflow may have created them
        self._logged: set[Point] = set()  # points of curves that were written since the connection was made
        self.by_id = self._existing_runs(sweep, known_run_ids)  # by `DesiredRun.id`, which is not MLflow's id of a run

    def answers(self) -> bool:
        """Return whether the store answers a request."""
        try:
            self.client.get_experiment(self.experiment_id)
        except Exception:
            return False
        return True

    def open(self, run: DesiredRun, parent: str | None, *, restore: bool) -> CurrentRun | None:
        """Return MLflow's run, created if it is missing; None for a run that was deleted and is not restored."""
        mlflow_run = self.by_id.get(run.id)
        if mlflow_run is None:
            return self._create(run, parent)
        if mlflow_run.in_progress is not None:
            return mlflow_run.in_progress
        current = self.client.get_run(mlflow_run.run_id)
        mlflow_run.deleted = current.info.lifecycle_stage != "active"  # the user may have deleted it meanwhile
        if not mlflow_run.deleted:
            return CurrentRun.of(current)
        if not restore:
            return None
        self.client.restore_run(mlflow_run.run_id)
        mlflow_run.deleted = False
        self._result.restored.append(run.name)
        return CurrentRun.of(self.client.get_run(mlflow_run.run_id))

    def forget(self, run: DesiredRun) -> bool:
        """Let `open` read the run again; return False if it would do so anyway."""
        mlflow_run = self.by_id.get(run.id)
        if mlflow_run is None or mlflow_run.in_progress is None:
            return False
        mlflow_run.in_progress = None
        return True

    def group_run(self, group: str, started: int) -> CurrentRun:
        """Return the run of a group of sweeps, created if it is missing; `started` is in milliseconds since 1970.

        `group` is the id of a reproduction: its name, an @ and the time of its creation.
        """
        for run in self._search(f"tags.`{ID_TAG}` = '{group}'"):
            if run.info.lifecycle_stage == "active":
                return CurrentRun.of(run)
        tags = {ID_TAG: group, "kind": PARENT_GROUP}
        name = group.partition("@")[0]
        return CurrentRun.of(self.client.create_run(self.experiment_id, started, tags, name))

    def write(self, current: CurrentRun, run: DesiredRun, parent: str | None) -> bool:
        """Write the params, metrics, tags and name that differ; return False if none does."""
        tags = _with_parent(run.tags, parent)
        new_params = []
        changes = []
        for key, value in sorted(run.params.items()):
            if key not in current.params:
                new_params.append(self._entities.Param(key, value))
            elif current.params[key] != value:  # MLflow never changes a param
                changes.append(f"{key}: {current.params[key]} -> {value}")
        if changes:
            tags["changed_params"] = shortened("; ".join(changes), CHANGES_LIMIT)
        new_tags = []
        for key, value in tags.items():
            if current.tags.get(key) != value:
                new_tags.append(self._entities.RunTag(key, value))
        new_metrics = self._new_metrics(run, current.metrics)
        differs = bool(new_metrics or new_params or new_tags) or current.name != run.name
        self.client.log_batch(current.run_id, new_metrics, new_params, new_tags)
        self._logged.update(run.curves)
        current.params = {**run.params, **current.params}
        current.metrics |= run.metrics
        current.tags |= tags
        for key in OPTIONAL_TAGS:
            if key in current.tags and key not in tags:
                self.client.delete_tag(current.run_id, key)
                del current.tags[key]
        if current.name != run.name:
            self.client.update_run(current.run_id, name=run.name)
            current.name = run.name
        return differs

    def set_status(self, current: CurrentRun, run: DesiredRun) -> None:
        """Set the run's state; called last, after everything else has arrived."""
        self.set_state(current, run)
        self.by_id[run.id].in_progress = current if run.is_in_progress else None

    def set_state(self, current: CurrentRun, run: DesiredRun) -> None:
        """Give a run the status and the end time of `run`."""
        if run.is_in_progress:  # `set_terminated` would give the run an end time
            if current.status != run.status:
                self.client.update_run(current.run_id, status=run.status)
                current.status = run.status
        elif (current.status, current.finished) != (run.status, run.finished):
            self.client.set_terminated(current.run_id, run.status, run.finished)

    def write_text(self, current: CurrentRun, name: str, text: str) -> None:
        """Store a text as the artifact `name`; without MLflow's client if the artifacts are on this machine.

        The client would read the run again, and keep an object with queues for each run.
        """
        file = self._artifact_file(current, name)
        if file is None or not _write_file(text, file):
            self.client.log_text(current.run_id, text, name)

    def upload(self, current: CurrentRun, name: str, path: Path) -> None:
        """Store a file as the artifact `name`: as a hard link if the artifacts are on the same disk, else as a copy."""
        artifact = safe_name(name)
        file = self._artifact_file(current, artifact)
        if file is not None and _link_file(path, file):
            return
        with tempfile.TemporaryDirectory() as scratch:
            source = path
            if posixpath.basename(artifact) != path.name:  # MLflow takes the artifact's name from the file
                source = Path(scratch) / posixpath.basename(artifact)
                shutil.copyfile(path, source)
            self.client.log_artifact(current.run_id, str(source), posixpath.dirname(artifact) or None)

    def artifact_sizes(self, current: CurrentRun) -> dict[str, int | None]:
        """Return the bytes of all artifacts that MLflow has of a run, by name; None if the store does not know them."""
        sizes: dict[str, int | None] = {}
        waiting: list[str | None] = [None]  # folders; None is the one of the run
        while waiting:
            for artifact in self.client.list_artifacts(current.run_id, waiting.pop()):
                if artifact.is_dir:
                    waiting.append(artifact.path)
                else:
                    sizes[artifact.path] = artifact.file_size
        return sizes

    def _artifact_file(self, current: CurrentRun, artifact: str) -> Path | None:
        """Return the file of an artifact; None if artifacts are not on this machine."""
        folder = artifact_folder(self._uri, current.artifact_uri)
        if folder is None:
            return None
        return folder / artifact

    def _create(self, run: DesiredRun, parent: str | None) -> CurrentRun:
        """Create a run, unless an earlier request that got no answer has created it."""
        created = None
        if run.id in self._unanswered:
            created = next(self._search(f"tags.`{ID_TAG}` = '{run.id}'"), None)
        if created is None:
            self._unanswered.add(run.id)
            tags = _with_parent(run.tags, parent)
            created = self.client.create_run(self.experiment_id, run.started, tags, run.name)
        self._unanswered.discard(run.id)
        self._result.created += 1
        self.by_id[run.id] = _MlflowRun(created.info.run_id, deleted=False)
        return CurrentRun.of(created)

    def _new_metrics(self, run: DesiredRun, latest: Mapping[str, float]) -> list[Metric]:
        """Return the values that MLflow may lack.

        MLflow ignores a value that it has with the same step and time, so points of curves may be written again. It
        shows the value with the latest time, so a value that changed is written with the present time.
        """
        new_metric = self._entities.Metric
        metrics = []
        for key, value in run.metrics.items():
            if key not in latest:
                metrics.append(new_metric(key, value, run.measured_at, 0))
            elif latest[key] != value:
                metrics.append(new_metric(key, value, milliseconds(time.time()), 0))
        for point in run.curves:
            if point not in self._logged:
                metrics.append(new_metric(point.key, point.value, point.time, point.step))
        return metrics

    def _existing_runs(self, sweep: str, known_run_ids: Container[str]) -> dict[str, _MlflowRun]:
        """Return all runs of the sweep by `DesiredRun.id`.

        A slow server may leave duplicates. An active run is preferred, then one that this folder wrote, then the
        oldest. Other active runs are deleted.
        """

        def preference(run: Run) -> tuple[bool, bool, int]:
            info = run.info
            return info.lifecycle_stage != "active", info.run_id not in known_run_ids, info.start_time

        runs: dict[str, _MlflowRun] = {}
        for run in sorted(self._search(f"tags.`{SWEEP_TAG}` = '{sweep}'"), key=preference):
            identity = run.data.tags[ID_TAG]
            mlflow_run = _MlflowRun(run.info.run_id, deleted=run.info.lifecycle_stage != "active")
            if identity not in runs:
                runs[identity] = mlflow_run
            elif not mlflow_run.deleted:
                self.client.delete_run(mlflow_run.run_id)
        return runs

    def _search(self, query: str) -> Iterator[Run]:
        """Yield runs of the experiment, deleted runs included."""
        all_runs = self._entities.ViewType.ALL
        order = ["start_time ASC"]
        token = None
        while True:
            page = self.client.search_runs([self.experiment_id], query, all_runs, SEARCH_PAGE, order, token)
            yield from page
            token = page.token
            if not token:
                return


def _with_parent(tags: Mapping[str, str], parent: str | None) -> dict[str, str]:
    if parent is None:
        return dict(tags)
    return {**tags, PARENT_TAG: parent}


def _write_file(text: str, artifact: Path) -> bool:
    """Write the file of an artifact; return False if that is not possible."""
    try:
        with written_whole(artifact, survives_power_failure=False) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError:
        return False
    return True


def _link_file(path: Path, artifact: Path) -> bool:
    """Make a hard link, which needs no space on the disk; return False if the file system does not allow it.

    Files of a sweep are replaced and not edited, so the link keeps its contents.
    """
    try:
        with written_whole(artifact, survives_power_failure=False) as partial:
            os.link(os.path.realpath(path), partial)
    except OSError:
        return False
    return True
