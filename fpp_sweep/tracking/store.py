"""MLflow: is it there, and bring one run to what it should be.

MLflow is used through an explicit client and URI; nothing here depends on, or changes, its global state. A server that
does not answer costs seconds: MLflow's own defaults would retry for four minutes.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import math
import os
import posixpath
import re
import shlex
import shutil
import sqlite3
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.errors import InputError
from fpp_sweep.tracking.desired import ID_TAG, PARENT_TAG, SWEEP_TAG, DesiredRun, Point, safe_name, shortened

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "fpp_sweep"
# the kind of work, which MLflow otherwise guesses from what is in it
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
SERVERS = ("http://", "https://")
DATABASES = ("postgresql", "mysql", "mssql")  # with or without a +driver
CHECK_SECONDS = 8  # for a store to answer at the start of a sweep; a server on two busy cores was seen to need 3
PAGE = 100  # runs asked for at once: a page of a thousand took a busy server longer than the time-out below
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the shipper tries again by itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the terminal is the sweep's
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # what goes wrong is told in one line; set it to see MLflow's own words
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nobody is told about our sweeps
}
STALE_TAGS = ("reason", "feasible")  # of an earlier attempt, when the record no longer has them


def check_store(uri: str, *, experiment: str = EXPERIMENT) -> None:
    """Refuse a store that cannot be used, in seconds; create or migrate an SQLite file, once, before others open it."""
    _check_scheme(uri)
    path = sqlite_file(uri)
    if path is not None:
        _check_sqlite(path)
        with _alone(path):
            _migrated(absolute(uri), path)
            _experiment(connect(uri), uri, experiment)
        return
    try:
        if is_server(uri):
            _check_answer(uri)
        _load()
        _within(CHECK_SECONDS, lambda: _experiment(connect(uri), uri, experiment))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"MLflow at {shown(uri)} cannot be used ({one_line(error)}); start it, or leave --tracking-uri out "
            f"to write {DEFAULT_URI}"
        ) from error


def absolute(uri: str) -> str:
    """The same store from any working folder."""
    path = sqlite_file(uri)
    return uri if path is None else f"sqlite:///{path}"


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite URI, absolute.

    >>> sqlite_file("sqlite:////data/mlflow.db")
    PosixPath('/data/mlflow.db')
    """
    name = uri.removeprefix("sqlite:///")
    return Path(os.path.abspath(name)) if name != uri and name else None


def is_server(uri: str) -> bool:
    return uri.startswith(SERVERS)


def shown(uri: str) -> str:
    """A URI that may be printed.

    >>> shown("postgresql://me:secret@db/mlflow")
    'postgresql://me:***@db/mlflow'
    """
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", uri)


def ui_command(uri: str) -> str:
    """How to look at the store: a command, or the server's address."""
    if is_server(uri):
        return shown(uri)
    return f"mlflow ui --backend-store-uri {shlex.quote(shown(absolute(uri)))}"


def run_url(uri: str, experiment_id: str, run_id: str) -> str:
    """A run's page on a server."""
    return f"{shown(uri).rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def one_line(error: BaseException, limit: int = 200) -> str:
    """What went wrong, without addresses of objects and nested repetitions.

    >>> one_line(ValueError("no\\nsuch thing"))
    'no such thing'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    for refused in ("Connection refused", "Name or service not known", "Temporary failure in name resolution"):
        if refused in text:
            return refused.lower()
    return "no answer in time" if "timed out" in text.lower() else shortened(shown(text), limit)


def connect(uri: str) -> MlflowClient:
    """A client of its own."""
    _load()
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=absolute(uri), registry_uri=absolute(uri))


def _load() -> None:
    """MLflow in surroundings of our choice, where the user has made none; takes seconds the first time."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    with warnings.catch_warnings():  # it uses what the libraries below it are about to drop
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("mlflow.tracking")
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


@dataclass(slots=True)
class Known:
    """A run that MLflow has."""

    run_id: str
    deleted: bool


class Store:
    """One sweep's runs in MLflow."""

    def __init__(self, uri: str, experiment: str, sweep: str, known_runs: Container[str]) -> None:
        self.client = connect(uri)
        self.experiment_id = _experiment(self.client, uri, experiment)
        self.created = 0
        self.restored: list[str] = []
        self._sweep = sweep
        self._history: dict[tuple[str, str], dict[int, tuple[int, float]]] = {}  # (run, key) -> step -> time, value
        self.runs = self._find(known_runs)

    def alive(self) -> bool:
        """Does it answer at all?"""
        try:
            self.client.get_experiment(self.experiment_id)
        except Exception:
            return False
        return True

    def bring(self, run: DesiredRun, parent: str | None, *, restore: bool) -> str | None:
        """Create the run or change what differs; its id, or nothing if a user deleted it and it stays so."""
        known = self.runs.get(run.id)
        if known is not None and known.deleted:
            if not restore:
                return None
            self.client.restore_run(known.run_id)
            known.deleted = False
            self.restored.append(run.name)
        tags = {**run.tags, **({PARENT_TAG: parent} if parent else {})}
        if known is None:
            now = self.client.create_run(self.experiment_id, run.started, tags, run.name)
            self.runs[run.id] = Known(now.info.run_id, deleted=False)
            self.created += 1
        else:
            now = self.client.get_run(known.run_id)
        self._write(now, run, tags)
        return str(now.info.run_id)

    def end(self, run_id: str, run: DesiredRun) -> None:
        """Set the status, after all else has arrived."""
        info = self.client.get_run(run_id).info
        if run.status == "RUNNING":
            if info.status != run.status:
                self.client.update_run(run_id, status=run.status)
        elif (info.status, info.end_time) != (run.status, run.finished):
            self.client.set_terminated(run_id, run.status, run.finished)

    def upload(self, run_id: str, name: str, path: Path) -> None:
        """A file as the artifact `name`."""
        safe = safe_name(name)
        with tempfile.TemporaryDirectory() as scratch:
            source = path
            if posixpath.basename(safe) != path.name:  # MLflow takes the artifact's name from the file
                source = Path(scratch) / posixpath.basename(safe)
                shutil.copyfile(path, source)
            self.client.log_artifact(run_id, str(source), posixpath.dirname(safe) or None)

    def write_text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, text, name)

    def _write(self, now: Run, run: DesiredRun, tags: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        have = now.data
        changed = {key: value for key, value in run.params.items() if have.params.get(key, value) != value}
        if changed:  # a param is written once and for all
            told = "; ".join(f"{key}: {have.params[key]} -> {value}" for key, value in changed.items())
            tags = {**tags, "changed_params": shortened(told, 500)}
        new_tags = [RunTag(key, value) for key, value in tags.items() if have.tags.get(key) != value]
        params = [Param(key, value) for key, value in run.params.items() if key not in have.params]
        points = self._new_points(now.info.run_id, run.points, have.metrics)
        metrics = [Metric(point.key, point.value, point.time, point.step) for point in points]
        self.client.log_batch(now.info.run_id, metrics, params, new_tags)
        for point in points:
            self._history.get((now.info.run_id, point.key), {})[point.step] = (point.time, point.value)
        for key in STALE_TAGS:
            if key in have.tags and key not in tags:
                self.client.delete_tag(now.info.run_id, key)
        if now.info.run_name != run.name:
            self.client.update_run(now.info.run_id, name=run.name)

    def _new_points(self, run_id: str, points: Sequence[Point], latest: Mapping[str, float]) -> list[Point]:
        """Those that MLflow lacks; one whose value changed is later than what it replaces, at the same step."""
        new = []
        lengths: dict[str, int] = {}
        for point in points:
            lengths[point.key] = lengths.get(point.key, 0) + 1
        for point in points:
            if point.key not in latest:
                new.append(point)
            elif lengths[point.key] > 1 or not _equal(latest[point.key], point.value):
                time, value = self._points(run_id, point.key).get(point.step, (None, math.nan))
                if not _equal(value, point.value):
                    moved = point.time if time is None else max(point.time, time + 1)
                    new.append(Point(point.key, point.value, point.step, moved))
        return new

    def _points(self, run_id: str, key: str) -> dict[int, tuple[int, float]]:
        """A metric's last time and value at each step."""
        if (run_id, key) not in self._history:
            history = self.client.get_metric_history(run_id, key)
            ordered = sorted(history, key=lambda each: (each.step, each.timestamp))
            self._history[run_id, key] = {each.step: (each.timestamp, each.value) for each in ordered}
        return self._history[run_id, key]

    def _find(self, known_runs: Container[str]) -> dict[str, Known]:
        """All runs of the sweep by their identity.

        Of two with the same one (a server slow to answer was asked again) one stays: what was written to already.
        """

        def rank(run: Run) -> tuple[bool, bool, int]:
            return run.info.lifecycle_stage != "active", run.info.run_id not in known_runs, run.info.start_time

        runs: dict[str, Known] = {}
        for run in sorted(self._search(), key=rank):
            known = Known(run.info.run_id, deleted=run.info.lifecycle_stage != "active")
            if runs.setdefault(run.data.tags[ID_TAG], known) is not known and not known.deleted:
                self.client.delete_run(known.run_id)
        return runs

    def _search(self) -> Iterator[Run]:
        from mlflow.entities import ViewType

        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                f"tags.`{SWEEP_TAG}` = '{self._sweep}'",
                ViewType.ALL,
                PAGE,
                ["start_time ASC"],
                token,
            )
            yield from page
            token = page.token
            if not token:
                return


def _equal(one: float, other: float) -> bool:
    """Do two stored values agree? A database may round the last digits."""
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=0.0)


def _experiment(client: MlflowClient, uri: str, name: str) -> str:
    """The experiment's id; created once, with artifacts beside an SQLite file wherever the command is started."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        path = sqlite_file(uri)
        folder = None if path is None else (path.parent / "mlartifacts" / name).as_uri()
        try:
            return str(client.create_experiment(name, folder, EXPERIMENT_TAGS))
        except MlflowException:  # another sweep was faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        raise InputError(
            f"MLflow's experiment {name!r} was deleted; bring it back: mlflow experiments restore "
            f"--experiment-id {found.experiment_id} (with MLFLOW_TRACKING_URI={shlex.quote(shown(absolute(uri)))})"
        )
    return str(found.experiment_id)


def _check_scheme(uri: str) -> None:
    scheme = uri.partition(":")[0].partition("+")[0]
    if sqlite_file(uri) is None and not is_server(uri) and scheme not in DATABASES:
        raise InputError(
            f"--tracking-uri {shown(uri)!r}: give sqlite:///FILE, http(s)://HOST:PORT, or a postgresql, mysql "
            "or mssql URI (MLflow no longer writes to folders)"
        )


def _check_answer(uri: str) -> None:
    """Does anything answer there? Asked before MLflow is loaded, so that the answer takes no longer than it must."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=CHECK_SECONDS):
            pass
    except urllib.error.HTTPError as error:  # an answer: MLflow may be behind something that hides this page
        error.close()


def _check_sqlite(path: Path) -> None:
    """Can the file be written? Asked before MLflow is, which would try for minutes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=CHECK_SECONDS)) as database:
            database.execute("PRAGMA user_version")
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"--tracking-uri {path}: not usable as MLflow's database ({one_line(error)})") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Only one process at a time: two that create the tables leave a file that no MLflow opens again."""
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _migrated(uri: str, path: Path) -> None:
    """The tables of this version of MLflow; an older version's file is copied first."""
    _load()
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException

    utils: Any = importlib.import_module("mlflow.store.db.utils")
    engine = utils.create_sqlalchemy_engine(uri)
    try:
        version = utils._get_schema_version(engine)
        if version is None or version == utils._get_latest_schema_revision():
            return  # MLflow creates what is missing when it is opened
        backup = path.with_name(f"{path.name}.{version}.backup")
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(backup)) as copy:
            old.backup(copy)
        utils._upgrade_db(engine)
    except (CommandError, MlflowException, sqlite3.Error) as error:
        raise InputError(f"{path}: MLflow cannot use this database ({one_line(error)}); give another one") from error
    finally:
        engine.dispose()


def _within(seconds: float, call: Callable[[], Any]) -> None:
    """Call, but do not wait longer; what never answers is left behind in its thread."""
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            call()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer in {seconds} s")
    if outcome[0] is not None:
        raise outcome[0]
