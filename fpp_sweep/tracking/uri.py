"""Where MLflow is, and whether it can be used: its addresses, a client, and what is checked before a sweep starts.

MLflow is used through an explicit client and URI; nothing here depends on, or changes, its global state. A server that
does not answer costs seconds: with MLflow's defaults it would be minutes. MLflow is imported by `load` only.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import re
import shlex
import shutil
import sqlite3
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import exclusive_lock
from fpp_sweep.spec.messages import masked, printable
from fpp_sweep.tracking.desired import shortened

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "fpp_sweep"
# the kind of work, which MLflow otherwise guesses from what is in it
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
SERVERS = ("http://", "https://")
DATABASES = ("postgresql", "mysql", "mssql")  # with or without a +driver
CHECK_SECONDS = 8  # for a store to answer at the start of a sweep; a server on two busy cores was seen to need 3
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the shipper tries again by itself
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the terminal is the sweep's
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # errors are reported in one line; set it to see MLflow's own
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def check_store(uri: str, *, experiment: str = EXPERIMENT) -> None:
    """Refuse a store that cannot be used, in seconds; create or migrate an SQLite file, once, before others open it."""
    _check_scheme(uri)
    path = sqlite_file(uri)
    if path is not None:
        _check_sqlite(path)
        # two processes that create the tables at once leave a file that MLflow cannot open
        with exclusive_lock(path.with_name(f".{path.name}.lock"), wait=True):
            _migrate(absolute(uri), path)
            experiment_id(connect(uri), uri, experiment)
        _remember(uri)
        return
    try:
        if is_server(uri):
            _check_answer(uri)
        load()
        _with_timeout(CHECK_SECONDS, lambda: experiment_id(connect(uri), uri, experiment))
    except InputError:
        raise
    except Exception as error:
        raise _unusable(uri, error) from error
    _remember(uri)


def _unusable(uri: str, error: Exception) -> InputError:
    remedy = f"start it, or leave --tracking-uri out to write {DEFAULT_URI}"
    return InputError(f"MLflow at {masked(uri)} cannot be used ({one_line(error)}); {remedy}")


def check_address(uri: str) -> None:
    """Raise InputError if a store cannot be reached or written, as far as can be told without importing MLflow."""
    _check_scheme(uri)
    path = sqlite_file(uri)
    if path is not None:
        _check_sqlite(path)
    elif is_server(uri):
        try:
            _check_answer(uri)
        except OSError as error:
            raise _unusable(uri, error) from error


def recorded(uri: str) -> str:
    """A folder's own store, if it is the default one here or one that this user has used before.

    A folder from elsewhere must not choose who gets its user's files, passwords and tokens, or which file is written.
    """
    uri = absolute(uri or DEFAULT_URI)
    if uri != absolute(DEFAULT_URI) and _digest(uri) not in _remembered():
        raise InputError(
            f"its MLflow, {masked(uri)}, is not one that you have used; where should it go? give --tracking-uri URI"
        )
    return uri


def _remember(uri: str) -> None:
    with suppress(OSError):  # without a home of one's own it is asked for again
        if _digest(uri) not in _remembered():
            _stores().parent.mkdir(parents=True, exist_ok=True)
            _stores().touch(0o600)
            with _stores().open("a") as file:
                file.write(f"{_digest(uri)}\n")


def _remembered() -> list[str]:
    with suppress(OSError):
        return _stores().read_text().split()
    return []


def _stores() -> Path:
    """Digests of the stores that this user has used, each on a line."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "fpp_sweep", "stores")


def _digest(uri: str) -> str:
    return hashlib.sha256(absolute(uri).encode()).hexdigest()


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


def ui_command(uri: str) -> str:
    """How to look at the store: a command, or the server's address."""
    if is_server(uri):
        return _page(uri)
    return f"mlflow ui --backend-store-uri {shlex.quote(masked(absolute(uri)))}"


def view_url(uri: str, experiment_id: str, key: str) -> str:
    """The runs of a sweep, as a view that was stored; without a server, where `ui_command` starts one."""
    page = _page(uri) if is_server(uri) else "http://127.0.0.1:5000"
    return f"{page}/#/experiments/{experiment_id}/runs?viewStateShareKey={key}&compareRunsMode=CHART"


def _page(server: str) -> str:
    """A server's address for a browser, which asks for the password."""
    return masked(server).replace("***@", "").removesuffix("?***").rstrip("/")


def one_line(error: BaseException, limit: int = 200) -> str:
    """An error in one line, without passwords.

    >>> one_line(ValueError("no\\nsuch thing"))
    'no such thing'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    for reason in ("Connection refused", "Name or service not known", "Temporary failure in name resolution"):
        if reason in text:
            return reason.lower()
    return "no answer in time" if "timed out" in text.lower() else shortened(printable(text), limit)


def connect(uri: str) -> MlflowClient:
    """A client of its own."""
    load()
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=absolute(uri), registry_uri=absolute(uri))


def load() -> None:
    """Import MLflow, with our settings where the user has none; takes seconds the first time."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    with warnings.catch_warnings():  # of the libraries below it
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("mlflow.tracking")
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


def experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    """The experiment's id; created once, with artifacts beside an SQLite file wherever the command is started."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        path = sqlite_file(uri)
        folder = None if path is None else (path.parent / "mlartifacts" / name).as_uri()
        try:
            return str(client.create_experiment(name, folder, EXPERIMENT_TAGS))
        except MlflowException:  # another sweep was faster
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        address = shlex.quote(masked(absolute(uri)))
        raise InputError(
            f"MLflow's experiment {name!r} was deleted; bring it back: mlflow experiments restore "
            f"--experiment-id {experiment.experiment_id} (with MLFLOW_TRACKING_URI={address})"
        )
    return str(experiment.experiment_id)


def _check_scheme(uri: str) -> None:
    scheme = uri.partition(":")[0].partition("+")[0]
    if sqlite_file(uri) is None and not is_server(uri) and scheme not in DATABASES:
        raise InputError(
            "--tracking-uri: give sqlite:///FILE, http(s)://HOST:PORT, or a postgresql, mysql "
            "or mssql URI (MLflow no longer writes to folders)"
        )

    hidden = uri.partition("://")[2].rpartition("@")[0]
    if sqlite_file(uri) is None and ("***" in uri or re.search(r"[^!-~]|[][/?#@\\]", hidden)):
        told = "give what is left out here" if "***" in uri else "write / as %2F, @ as %40 and so on before the last @"
        raise InputError(f"--tracking-uri {masked(uri)}: {told}")


def _check_answer(uri: str) -> None:
    """Refuse an address where nothing answers, before the seconds that loading MLflow takes."""
    try:
        # without a name or password, which urllib does not understand: a refusal is an answer
        with urllib.request.urlopen(f"{_page(uri)}/health", timeout=CHECK_SECONDS):
            pass
    except urllib.error.HTTPError as error:  # an answer: MLflow may be behind something that hides this page
        error.close()


def version_at(uri: str) -> str:
    """A server's MLflow, asked for as MLflow itself does: with the password or token that it would use."""
    load()
    rest: Any = importlib.import_module("mlflow.utils.rest_utils")
    credentials: Any = importlib.import_module("mlflow.utils.credentials")
    try:
        answer = rest.http_request(credentials.get_default_host_creds(uri), "/version", "GET")
        answer.raise_for_status()
    except Exception as error:
        raise InputError(f"MLflow at {masked(uri)} does not tell its version ({one_line(error)})") from error
    return str(answer.text)


def _check_sqlite(path: Path) -> None:
    """Refuse a file that cannot be written, before MLflow, which would try for minutes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=CHECK_SECONDS)) as database:
            database.execute("PRAGMA user_version")
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"--tracking-uri {path}: not usable as MLflow's database ({one_line(error)})") from error


def _migrate(uri: str, path: Path) -> None:
    """The tables of this version of MLflow; an older version's file is copied first."""
    load()
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    utils: Any = importlib.import_module("mlflow.store.db.utils")
    engine = utils.create_sqlalchemy_engine(uri)
    try:
        if not path.stat().st_size:
            _create(path, utils)
        version = utils._get_schema_version(engine)
        if version is None or version == utils._get_latest_schema_revision():
            return  # MLflow creates what is missing when it is opened
        backup = path.with_name(f"{path.name}.{version}.backup")
        with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(backup)) as copy:
            old.backup(copy)
        utils._upgrade_db(engine)
    except (CommandError, MlflowException, SQLAlchemyError, sqlite3.Error) as error:
        raise InputError(f"{path}: MLflow cannot use this database ({one_line(error)}); give another one") from error
    finally:
        engine.dispose()


def _create(path: Path, utils: Any) -> None:
    """All tables, or none where this process is killed meanwhile: MLflow cannot go on with a part of them."""
    folder = path.with_name(f".{path.name}.new")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir()
    engine = utils.create_sqlalchemy_engine(f"sqlite:///{folder / path.name}")
    try:
        utils._initialize_tables(engine)
    finally:
        engine.dispose()
    (folder / path.name).replace(path)
    folder.rmdir()


def _with_timeout(seconds: float, call: Callable[[], Any]) -> None:
    """Call, but wait no longer than this; a call that never returns is left in its daemon thread."""
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
