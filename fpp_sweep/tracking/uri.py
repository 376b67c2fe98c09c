"""MLflow stores: their addresses, their clients, and the checks before a sweep starts.

MLflow is used through an explicit client and URI: nothing here depends on MLflow's global state or changes it. Only
`load_mlflow` imports MLflow, because the import takes seconds. With MLflow's defaults, a server that does not answer
would cost minutes; with the settings below it costs seconds.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import sqlite3
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.files import NotAFileError, exclusive_lock, user_path, written_whole
from fpp_sweep.spec.masking import masked
from fpp_sweep.spec.messages import printable, runnable
from fpp_sweep.tracking.desired import shortened

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "fpp_sweep"
ARTIFACTS = "mlartifacts"  # the folder beside an SQLite file
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow guesses the kind of work
SERVERS = ("http://", "https://")
DATABASES = ("postgresql", "mysql", "mssql")  # with or without a +driver
# all but printable ASCII, and the characters with a meaning of their own in an address
NOT_ALLOWED_IN_PASSWORD = re.compile(r"[^!-~]|[][/?#@\\]")
CHECK_SECONDS = 8  # for a store to answer at the start of a sweep; a server on two busy cores needed 3
CHECK_PAUSE = 0.5  # seconds between two attempts of that check
RETRIED_STATUSES = (408, 409, 425, 429, 499)  # client errors of HTTP that may pass by themselves
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # sync.py retries, and limits the time that all requests may take
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a sweep writes its own lines to the terminal
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # errors are reported in one line; set it to see MLflow's own
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


# Addresses.


def absolute(uri: str) -> str:
    """Return a URI that means the same store in every working folder."""
    path = sqlite_file(uri)
    return uri if path is None else f"sqlite:///{path}"


def uri_of_new_sweep(requested: str | None) -> str:
    """Return the requested store, or else the one that the user has named for all programs that use MLflow."""
    if requested:
        return absolute(requested)
    named = os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    try:
        _check_form(named)
    except InputError as error:
        raise InputError(f"MLFLOW_TRACKING_URI: {error}; or name a store with --tracking-uri") from None
    return absolute(named)


def sqlite_file(uri: str) -> Path | None:
    """Return the absolute path of an SQLite URI's file; None for another kind of URI.

    >>> sqlite_file("sqlite:////data/mlflow.db")
    PosixPath('/data/mlflow.db')
    """
    name = uri.removeprefix("sqlite:///")
    if name in (uri, ""):
        return None
    return Path(os.path.abspath(user_path(name)))


def is_server(uri: str) -> bool:
    return uri.startswith(SERVERS)


def ui_command(uri: str) -> str:
    """Return the command that serves MLflow's page for a database."""
    return runnable(f"mlflow ui --backend-store-uri {shlex.quote(masked(absolute(uri)))}")


def page_address(uri: str) -> str:
    """Return the address of MLflow's page without secrets; for a database, the address that `ui_command` serves."""
    if not is_server(uri):
        return "http://127.0.0.1:5000"
    return masked(uri).replace("***@", "").removesuffix("?***").rstrip("/")


def store_identity(uri: str) -> str:
    """Return a name of the store without secrets. A database file that was deleted and created again has another."""
    path = sqlite_file(uri)
    if path is None:
        return masked(uri)
    try:
        return f"{absolute(uri)} (inode {path.stat().st_ino})"
    except OSError:
        return f"{absolute(uri)} (missing)"


# Stores that this user has used before. A sweep's folder from elsewhere may name any other store, and so choose who
# gets the user's files, passwords and tokens, or which file is written.


def was_used_before(uri: str) -> bool:
    return _uri_digest(uri) in _used_stores()


def remember_store(uri: str) -> None:
    """Add a store to the user's list; without a writable home, the store is asked for again next time."""
    if was_used_before(uri):
        return
    file = _used_stores_file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o600)
        with file.open("a") as stores:
            stores.write(f"{_uri_digest(uri)}\n")


def _used_stores() -> list[str]:
    try:
        return _used_stores_file().read_text().split()
    except OSError:
        return []


def _used_stores_file() -> Path:
    """Return the file with the digests of used stores, one on each line."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(config, "fpp_sweep", "stores")


def _uri_digest(uri: str) -> str:
    return hashlib.sha256(absolute(uri).encode()).hexdigest()


# Errors.


def one_line(error: BaseException, limit: int = 200) -> str:
    """Return an error's cause in one line without secrets; for HTTP it begins with status and reason.

    >>> one_line(ValueError("no\\nsuch thing"))
    'no such thing'
    >>> one_line(ValueError("request failed with error code 503 != 200"))
    'HTTP 503 Service Unavailable: request failed with error code 503 != 200'
    >>> one_line(OSError(28, "No space left on device"))
    "no space left on the disk of MLflow's artifacts, or of temporary files; make room"
    """
    text = message_in_one_line(error)
    if isinstance(error, InputError):  # our own text, whose end says what to do
        return printable(text)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return "no space left on the disk of MLflow's artifacts, or of temporary files; make room"
    status = http_status(error)
    if status is not None and "Max retries exceeded" in text:  # the rest of the text is about MLflow's own retries
        return f"HTTP {status} {_phrase(status)}"
    if status is not None:
        return shortened(printable(f"HTTP {status} {_phrase(status)}: {text}"), limit)
    for reason in ("Connection refused", "Name or service not known", "Temporary failure in name resolution"):
        if reason in text:
            return reason.lower()
    if "API request to" in text and "Read timed out" in text:  # by MLflow's client, such as of a large file
        return "no answer in time; a larger MLFLOW_HTTP_REQUEST_TIMEOUT waits longer (seconds)"
    if "timed out" in text.lower():
        return "no answer in time"
    if "Connection aborted" in text:
        return "the connection was closed without an answer"
    return shortened(printable(text), limit)


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status that an error of MLflow reports; None if no server answered."""
    response = getattr(error, "response", None)  # errors of the library `requests`, which uploads artifacts, have one
    if response is not None:
        return int(response.status_code)
    if type(error).__name__ == "RestException":  # a server's answer, as MLflow passes it on
        return int(error.get_http_status_code())  # type: ignore[attr-defined]
    match = re.search(r"error code (\d{3}) |too many (\d{3}) error responses", str(error))
    if match is None:
        return None
    return int(match[1] or match[2])


def is_permanent(error: BaseException) -> bool:
    """Return whether the same request would fail again: bad input, or one of HTTP's client errors."""
    if isinstance(error, InputError):
        return True
    status = http_status(error)
    if status is None and hasattr(error, "error_code"):  # raised by MLflow's own code, without a server
        status = error.get_http_status_code()  # type: ignore[attr-defined]
    return status is not None and 400 <= status < 500 and status not in RETRIED_STATUSES


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # not a standard status
        return "error"


# Clients.


def load_mlflow() -> ModuleType:
    """Import MLflow, with our settings where the user has set none, and return the module of its clients."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    with warnings.catch_warnings():  # warnings of the libraries that MLflow imports
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
        return importlib.import_module("mlflow.tracking")


def connect(uri: str) -> MlflowClient:
    client: MlflowClient = load_mlflow().MlflowClient(tracking_uri=absolute(uri))
    return client


def find_or_create_experiment(client: MlflowClient, uri: str) -> str:
    """Return the id of our experiment, created if it is missing; raise InputError if it cannot be written to.

    The artifacts of an SQLite file lie beside it. Their path is absolute: MLflow resolves relative ones when it stores
    them.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        root = artifact_root(uri)
        location = None if root is None else (root / EXPERIMENT).as_uri()
        try:
            return str(client.create_experiment(EXPERIMENT, location, EXPERIMENT_TAGS))
        except Exception:  # another sweep may have created it meanwhile
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        address = shlex.quote(masked(absolute(uri)))
        restore = runnable(f"mlflow experiments restore --experiment-id {experiment.experiment_id}")
        raise InputError(
            f"MLflow's experiment {EXPERIMENT!r} was deleted; bring it back: MLFLOW_TRACKING_URI={address} {restore}"
        )
    artifact_folder(uri, experiment.artifact_location)  # refuses a folder that is not the store's own
    return str(experiment.experiment_id)


def artifact_root(uri: str) -> Path | None:
    """Return the folder for the artifacts of an SQLite file, which is beside it; None for another store.

    Raise InputError for a link to another folder: nothing shows whether the user or a sender has made it.
    """
    path = sqlite_file(uri)
    if path is None:
        return None
    try:
        return path.parent / ARTIFACTS
    except InputError as error:
        advice = "give a database on the other disk, such as sqlite:////DISK/mlflow.db: its artifacts lie beside it"
        raise InputError(f"{error}, or {advice}") from None


def artifact_folder(uri: str, artifact_uri: str) -> Path | None:
    """Return the folder of an artifact address; None if the artifacts are not on this machine.

    Raise InputError if an SQLite file names another folder than its own: a file from elsewhere must not choose where
    artifacts are written.
    """
    parts = urlsplit(artifact_uri)
    folder = None
    if parts.scheme == "file" and not (parts.netloc or parts.query or parts.fragment):
        folder = Path(unquote(parts.path))
    root = artifact_root(uri)
    if root is None:
        return folder
    if folder is None or not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
        raise InputError(  # the address is last: `masked` may remove what follows it
            f"{sqlite_file(uri)}: does not keep artifacts in {ARTIFACTS}/ beside it (it was moved, or comes from "
            f"elsewhere); give another file, such as sqlite:///new.db. They would go to {masked(artifact_uri)}"
        )
    return folder


def server_version(uri: str) -> str:
    """Return a server's MLflow version, asked for with the password or token that MLflow itself would use."""
    load_mlflow()
    rest: Any = importlib.import_module("mlflow.utils.rest_utils")
    credentials: Any = importlib.import_module("mlflow.utils.credentials")
    try:
        answer = rest.http_request(credentials.get_default_host_creds(uri), "/version", "GET")
        answer.raise_for_status()
    except Exception as error:
        raise InputError(f"MLflow at {masked(uri)} does not report its version ({one_line(error)})") from error
    return str(answer.text)


# Checks.


def check_store(uri: str) -> None:
    """Raise InputError for a store that cannot be used; create or migrate an SQLite file first."""
    check_address(uri)
    load_mlflow()
    path = sqlite_file(uri)
    if path is None:
        _wait_for_experiment(uri)
    else:
        file = Path(os.path.realpath(path))  # the tables are created at the target of a link
        with _one_process_at_a_time(file):
            _prepare_database(uri, file)
    remember_store(uri)


def check_address(uri: str) -> None:
    """Raise InputError for an address that cannot be used, as far as that shows without importing MLflow."""
    _check_form(uri)
    path = sqlite_file(uri)
    if path is not None:
        _check_file(path)
    elif is_server(uri):
        _check_server(uri)


def _check_form(uri: str) -> None:
    path = sqlite_file(uri)
    if path is not None:
        if "?" in str(path) or unquote(str(path)) != str(path):  # MLflow would open another file
            problem = "a path with ? or a percent code cannot be used"
            raise InputError(f"tracking URI sqlite:///{path}: {problem}; give another file")
        return
    scheme = uri.partition(":")[0].partition("+")[0]
    if not is_server(uri) and scheme not in DATABASES:
        address = ""
        if ":" not in uri:  # an address in an unknown form may hold a secret that cannot be masked
            address = f" {masked(uri)}"
        raise InputError(
            f"tracking URI{address}: not a database or server (MLflow no longer writes to folders); "
            "give sqlite:///FILE, http(s)://HOST:PORT, or a postgresql, mysql or mssql URI"
        )
    if "***" in uri:
        raise InputError(f"tracking URI {masked(uri)}: its secret is masked; give the secret, too")
    after_scheme = uri.partition("://")[2]
    name_and_password = after_scheme.rpartition("@")[0]
    if NOT_ALLOWED_IN_PASSWORD.search(name_and_password):
        # the advice has no @ as its example: `masked`, which prints the line, would remove all text before it
        advice = "write each as its percent code, such as %2F for /"
        raise InputError(f"tracking URI {masked(uri)}: reserved characters in the name or password; {advice}")


def _check_file(path: Path) -> None:
    """Refuse a file that cannot be written; MLflow itself would retry for minutes. Nothing is written or made here."""
    file = Path(os.path.realpath(path))
    if not file.parent.is_dir():
        raise InputError(f"tracking URI sqlite:///{path}: the folder {file.parent} does not exist; create it")
    revision = None
    try:
        if file.is_file():
            revision = _revision_of_writable(file)
        elif os.path.lexists(file):  # a device, or a pipe, at which SQLite would wait for ever
            raise NotAFileError(file)
        else:
            tempfile.TemporaryFile(dir=file.parent).close()
    except (OSError, sqlite3.Error) as error:
        problem = f"not usable as MLflow's database ({one_line(error)})"
        advice = _advice_for_file(error, "give another file")
        raise InputError(f"tracking URI sqlite:///{path}: {problem}; {advice}") from error
    if not _is_known_revision(revision):
        problem = f"a newer MLflow has written this database (revision {revision})"
        raise InputError(f"tracking URI sqlite:///{path}: {problem}; update MLflow, or give another file")


def _advice_for_file(error: Exception, advice: str) -> str:
    """Return the advice, or another one if the file is only in use: another file would split the user's runs."""
    if "database is locked" in str(error):
        return "another program, such as a backup, holds it; end that program, or repeat the command later"
    return advice


def _revision_of_writable(path: Path) -> str | None:
    """Return the revision of MLflow's tables; raise an error if the file cannot be written."""
    with closing(sqlite3.connect(path, timeout=CHECK_SECONDS)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.rollback()
        return _revision(database)


def _revision(database: sqlite3.Connection) -> str | None:
    """Return the revision of MLflow's tables; None for a database without them."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        return None
    row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _is_known_revision(revision: str | None) -> bool:
    """Return whether the installed MLflow has a migration to a revision; MLflow is not loaded, which takes seconds."""
    package = importlib.util.find_spec("mlflow")
    if revision is None or package is None or not package.submodule_search_locations:
        return True
    migrations = Path(package.submodule_search_locations[0]) / "store" / "db_migrations" / "versions"
    names = [path.name for path in migrations.glob("*.py")]
    return not names or any(name.startswith(f"{revision}_") for name in names)


def _check_server(uri: str) -> None:
    """Refuse an address where nothing answers. Any answer will do: a proxy may hide this page.

    MLflow's client uses requests, too, so the check goes through the same proxies.
    """
    requests: Any = importlib.import_module("requests")  # start-up time: most commands check a file
    address = f"{page_address(uri)}/health"  # the page needs no name and password
    try:
        requests.get(address, timeout=CHECK_SECONDS, stream=True, allow_redirects=False).close()
    except requests.exceptions.SSLError:
        return  # it answers, and MLflow may have been given its certificate
    except requests.exceptions.RequestException as error:
        if "Connection aborted" not in str(error):  # something was there, and closed the connection
            raise _unusable(uri, error) from error


def _wait_for_experiment(uri: str) -> None:
    """Find or create the experiment; repeat attempts that may succeed later, for CHECK_SECONDS."""
    deadline = time.monotonic() + CHECK_SECONDS
    while True:
        try:
            _with_timeout(deadline - time.monotonic(), lambda: find_or_create_experiment(connect(uri), uri))
            return
        except InputError:
            raise
        except Exception as error:
            if is_permanent(error) or time.monotonic() + CHECK_PAUSE > deadline:
                raise _unusable(uri, error) from error
        time.sleep(CHECK_PAUSE)


def _unusable(uri: str, error: Exception) -> InputError:
    advice = f"start it, or give another URI, such as {DEFAULT_URI}"
    if isinstance(error, ModuleNotFoundError):  # the driver of a database is not installed
        advice = f"install the Python module {error.name}, or give another URI, such as {DEFAULT_URI}"
    elif http_status(error) in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        variables = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        advice = f"set {variables}, of a user who may write there"
    return InputError(f"MLflow at {masked(uri)} cannot be used ({one_line(error)}); {advice}")


def _with_timeout(seconds: float, call: Callable[[], object]) -> None:
    """Make a call and wait at most that long; a call that never returns stays in its daemon thread."""
    outcome: Future[object] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    wait([outcome], seconds)
    if not outcome.done():
        raise TimeoutError(f"timed out after {seconds:.0f} s")
    outcome.result()  # raises the error of the call


# The SQLite file.


@contextmanager
def _one_process_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock: two processes that create the tables at once leave a file that MLflow cannot open."""
    with exclusive_lock(path.with_name(f".{path.name}.lock"), wait=True):
        yield


def _prepare_database(uri: str, path: Path) -> None:
    """Create tables and experiments in a new or empty file; upgrade those of an older MLflow, after a backup."""
    database_utils: Any = importlib.import_module("mlflow.store.db.utils")
    engine = database_utils.create_sqlalchemy_engine(absolute(uri))
    try:
        if not path.exists() or path.stat().st_size == 0:
            _create_tables(path, database_utils)
        version = database_utils._get_schema_version(engine)
        if version not in (None, database_utils._get_latest_schema_revision()):
            _back_up(path, version)
            database_utils._upgrade_db(engine)
        _create_default_experiment(uri)
        find_or_create_experiment(connect(uri), uri)
    except (InputError, OSError):  # our own advice, and errors of the disk
        raise
    except Exception as error:  # MLflow and its libraries for databases raise many
        problem = f"MLflow cannot use this database ({one_line(error)})"
        advice = _advice_for_file(error, "update MLflow if a newer one wrote it, or give another file")
        raise InputError(f"{path}: {problem}; {advice}") from error
    finally:
        engine.dispose()


def _create_tables(path: Path, database_utils: Any) -> None:
    """Create all tables in a new file and then rename the file: MLflow cannot use a file with some of its tables."""
    folder = path.with_name(f".{path.name}.new")
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
    folder.mkdir()
    engine = database_utils.create_sqlalchemy_engine(f"sqlite:///{folder / path.name}")
    try:
        database_utils._initialize_tables(engine)
    finally:
        engine.dispose()
    (folder / path.name).replace(path)
    folder.rmdir()


def _create_default_experiment(uri: str) -> None:
    """Let MLflow create its own first experiment in a file without any, beside ours.

    MLflow's client would create it in the working folder, and write that name into SQL without quoting it.
    """
    root = artifact_root(uri)
    if root is not None:
        stores: Any = importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
        stores.SqlAlchemyStore(absolute(uri), root.as_uri())


def _back_up(path: Path, version: str) -> None:
    """Copy the database under a new name: a backup that exists may be of the same version before a failed upgrade."""
    backup = path.with_name(f"{path.name}.{version}.{datetime.now():%Y%m%d-%H%M%S}.backup")
    with (
        written_whole(backup) as partial,
        closing(sqlite3.connect(path)) as database,
        closing(sqlite3.connect(partial)) as copy,
    ):
        database.backup(copy)
