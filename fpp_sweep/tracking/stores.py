"""MLflow stores: their addresses, the checks before a sweep starts, and clients.

MLflow is used through an explicit client and address, and only `connect` imports it, because the import takes seconds.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.files import exclusive_lock, user_path, written_whole
from fpp_sweep.spec.messages import printable, runnable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "fpp_sweep"
ARTIFACTS = "mlartifacts"  # the folder beside an SQLite file
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow guesses the kind of work
DATABASES = ("postgresql", "mysql", "mssql")  # with or without a +driver
# a name or password before an @, or a word such as `password` in the query
SECRET = re.compile(r"://[^/]*:.*@|^https?://.*@|\?.*(pass|pwd|token|secret|key)[^&]*=", re.IGNORECASE)
CHECK_SECONDS = 8  # for a store to answer at the start of a sweep; a server on two busy cores needed 3
ERROR_LENGTH = 250  # characters of MLflow's own message
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "5",  # with 0, 2, 4, 8 and 16 seconds between them; MLflow's default is 7
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a sweep writes its own lines to the terminal
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # errors are reported in one line; set it to see MLflow's own
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@dataclass(frozen=True, slots=True)
class Store:
    """An MLflow store with the experiment of all sweeps."""

    uri: str
    client: MlflowClient
    experiment: str  # MLflow's id


# Addresses.


def absolute(uri: str) -> str:
    """Return an address that means the same store in every working folder; refuse one that holds a password."""
    _check_form(uri)
    file = sqlite_file(uri)
    if file is None:
        return uri
    return f"sqlite:///{file}"


def uri_of_new_sweep(requested: str | None) -> str:
    """Return the requested store, or else the one that the user has named for all programs that use MLflow."""
    return absolute(requested or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI)


def uri_of_folder(folder: SweepFolder, requested: str | None, *, flag: str) -> str:
    """Return the store that a sweep's folder is written to: the requested one, or else the user's default.

    A folder from elsewhere must not choose where its user's files and tokens go: raise InputError if the sweep's record
    names another store than the default and none is requested.
    """
    uri = uri_of_new_sweep(requested)
    recorded = folder.info().tracking_uri
    if requested or not recorded or absolute(recorded) == uri:
        return uri
    command = f"{flag} {shlex.quote(recorded)}"
    raise InputError(f"{folder.path}: its MLflow is {recorded}, not {uri}; name the one to write to, such as {command}")


def sqlite_file(uri: str) -> Path | None:
    """Return the absolute path of an SQLite address's file; None for another kind of address.

    >>> sqlite_file("sqlite:////data/mlflow.db")
    PosixPath('/data/mlflow.db')
    """
    name = uri.removeprefix("sqlite:///")
    if name in (uri, ""):
        return None
    return Path(os.path.abspath(user_path(name)))


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def run_links(store: Store, run_id: str) -> list[str]:
    """Return the lines that lead to a run on MLflow's page; for a database, first the command that serves the page."""
    page = f"/#/experiments/{store.experiment}/runs/{run_id}?workflowType=machine_learning"
    if is_server(store.uri):
        return [f"{store.uri.rstrip('/')}{page}"]
    command = runnable(f"mlflow ui --backend-store-uri {shlex.quote(store.uri)}")
    return [command, f"http://127.0.0.1:5000{page}"]


def one_line(error: BaseException) -> str:
    """Return an error's cause in one line.

    >>> one_line(ValueError("no\\nsuch thing"))
    'no such thing'
    >>> one_line(OSError("Max retries exceeded (Caused by NewConnectionError('x: [Errno 111] Connection refused'))"))
    '[Errno 111] Connection refused'
    """
    text = printable(message_in_one_line(error))
    if "Caused by " in text:  # the text before it is the address and the settings of MLflow's retries
        text = text.rpartition(": ")[2].rstrip("'\")")
    if len(text) > ERROR_LENGTH and not isinstance(error, InputError):
        text = f"{text[:ERROR_LENGTH]}..."
    return text


# Checks.


def check_address(uri: str) -> None:
    """Raise InputError for an address that cannot be used, as far as that shows without importing MLflow."""
    _check_form(uri)
    file = sqlite_file(uri)
    if file is not None:
        _check_file(uri, file)
    elif is_server(uri):
        _check_server(uri)


def _check_form(uri: str) -> None:
    if SECRET.search(uri):
        raise InputError(
            "tracking URI: it contains a name or password, which would be stored with the sweep; set "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, and give a server's address without them"
        )
    if sqlite_file(uri) is not None or is_server(uri):
        return
    if uri.partition(":")[0].partition("+")[0] not in DATABASES:
        address = "" if ":" in uri else f" {uri}"  # an address in an unknown form may hold a password
        raise InputError(
            f"tracking URI{address}: not a database or server (MLflow no longer writes to folders); "
            "give sqlite:///FILE, http(s)://HOST:PORT, or a postgresql, mysql or mssql URI"
        )


def _check_file(uri: str, file: Path) -> None:
    """Refuse a file that cannot be written; nothing is written here."""
    folder = file.resolve().parent
    if not folder.is_dir():
        raise InputError(f"tracking URI {uri}: the folder {folder} does not exist; create it")
    if not os.access(folder, os.W_OK | os.X_OK):  # MLflow writes a journal and artifacts beside the file
        raise InputError(f"tracking URI {uri}: the folder {folder} cannot be written; allow it, or name another file")
    problem = ""
    if file.is_file():
        try:
            file.open("r+b").close()  # SQLite would open a protected file for reading only
            with closing(sqlite3.connect(file, timeout=CHECK_SECONDS)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.rollback()
        except (OSError, sqlite3.Error) as error:
            problem = str(error)
    elif os.path.lexists(file.resolve()):
        problem = "not a regular file"  # SQLite would wait for ever at a pipe
    if problem:
        raise InputError(f"tracking URI {uri}: not usable as MLflow's database ({problem}); give another file")


def _check_server(uri: str) -> None:
    """Refuse an address where no server answers. Any answer will do: a proxy may hide this page.

    MLflow's client uses the library `requests`, too, so the check goes through the same proxies.
    """
    import requests  # start-up time: most commands check a file

    try:
        requests.get(f"{uri.rstrip('/')}/health", timeout=CHECK_SECONDS, stream=True, allow_redirects=False).close()
    except requests.exceptions.SSLError:
        return  # it answers, and MLflow may have been given its certificate
    except requests.exceptions.RequestException as error:
        raise _unusable(uri, error) from error


def _unusable(uri: str, error: Exception) -> InputError:
    advice = f"start it, or give another URI, such as {DEFAULT_URI}"
    if re.search(r"\b(401|403)\b", str(error)):  # a status, not digits of a port
        advice = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    elif not is_server(uri):
        advice = "follow MLflow's advice, or give another database"
    return InputError(f"MLflow at {uri} cannot be used ({one_line(error)}); {advice}")


# Clients.


def open_store(uri: str) -> Store:
    """Return a store, whose database and experiment are created if they are missing; InputError if it is unusable."""
    check_address(uri)
    try:
        file = sqlite_file(uri)
        if file is not None:
            _create_database(file.resolve())
        client = connect(uri)
        return Store(uri, client, _experiment(client, file))
    except InputError:
        raise
    except Exception as error:  # MLflow and its libraries raise many
        raise _unusable(uri, error) from error


def connect(uri: str) -> MlflowClient:
    """Return MLflow's client, with our settings where the user has set none."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])
    with warnings.catch_warnings():  # warnings of the libraries that MLflow imports
        warnings.simplefilter("ignore", DeprecationWarning)
        from mlflow.tracking import MlflowClient  # start-up time: takes seconds

        return MlflowClient(tracking_uri=uri)


def _create_database(file: Path) -> None:
    """Let MLflow make a database under another name, and rename it: MLflow cannot use one with some of its tables."""
    if file.exists():
        return
    with exclusive_lock(file.with_name(f".{file.name}.lock"), wait=True):
        if not file.exists():  # another process may have made it meanwhile
            with written_whole(file) as partial:
                connect(f"sqlite:///{partial}")


def _experiment(client: MlflowClient, file: Path | None) -> str:
    """Return the id of the experiment, created if it is missing; the artifacts of an SQLite file lie beside it."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        location = None
        if file is not None:
            location = (file.parent / ARTIFACTS / EXPERIMENT).as_uri()
        return str(client.create_experiment(EXPERIMENT, location, EXPERIMENT_TAGS))
    if experiment.lifecycle_stage != "active":
        raise InputError(f"MLflow's experiment {EXPERIMENT!r} was deleted; restore it, or delete it for good")
    return str(experiment.experiment_id)
