"""Stores: refused addresses, creation and upgrade of SQLite files, and one-line texts of addresses and errors."""

import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests

from fpp_sweep.cli.command import run
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import runnable
from fpp_sweep.tracking import DEFAULT_URI, check_store, uri
from fpp_sweep.tracking.uri import (
    check_address,
    connect,
    is_permanent,
    one_line,
    server_version,
    store_identity,
    ui_command,
)
from tests.kit.stores import free_port, proxy, rows

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("kind", ["refused", "hanging"])
def test_a_server_that_does_not_answer_is_refused_before_mlflow_is_imported(kind, monkeypatch):
    """The check comes first because MLflow itself would retry for minutes."""
    monkeypatch.setattr(uri, "load_mlflow", lambda: pytest.fail("MLflow was imported"))
    monkeypatch.setattr(uri, "CHECK_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # the socket accepts connections and never answers
        port = hanging.getsockname()[1] if kind == "hanging" else free_port()
        with pytest.raises(InputError, match="cannot be used") as refusal:
            check_store(f"http://127.0.0.1:{port}")
    assert "\n" not in str(refusal.value)
    assert ("connection refused" if kind == "refused" else "no answer in time") in str(refusal.value)


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def port_of_a_server():
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(("exceptions", "is_reached"), [("127.0.0.0/8", True), ("127.0.0.1", True), ("", False)])
def test_a_server_is_reached_as_mlflows_client_would_reach_it(monkeypatch, port_of_a_server, exceptions, is_reached):
    """The proxy is dead; a range of addresses may be left out of it."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", exceptions)
    address = f"http://127.0.0.1:{port_of_a_server}"
    if is_reached:
        check_address(address)
        return
    with pytest.raises(InputError, match="cannot be used"):
        check_address(address)


def test_a_server_that_has_no_version_is_none_of_mlflow(monkeypatch, port_of_a_server):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match=r"does not report its version \(HTTP 404 Not Found"):
        server_version(f"http://127.0.0.1:{port_of_a_server}")


def test_a_server_whose_certificate_is_unknown_here_answers(monkeypatch):
    def refuse_certificate(*_, **__):
        raise requests.exceptions.SSLError("self-signed certificate")

    monkeypatch.setattr(requests, "get", refuse_certificate)
    check_address("https://example.invalid")  # MLflow may have been given the certificate


@pytest.mark.parametrize("address", ["mlruns", "file:///tmp/mlruns", "ftp://x", "sqlite:///", "databricks"])
def test_a_store_of_another_kind_is_refused(address):
    with pytest.raises(InputError, match="give sqlite:///FILE"):
        check_store(address)


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    (tmp_path / "notes.db").write_text("no database" * 100)
    for file in (tmp_path / "notes.db", tmp_path):
        with pytest.raises(InputError, match="not usable as MLflow's database"):
            check_store(f"sqlite:///{file}")


@pytest.mark.parametrize("check", [check_address, lambda address: uri._prepare_database(address, Path("mlflow.db"))])
def test_a_file_that_another_program_holds_is_not_to_be_replaced_by_another_one(tmp_path, database, monkeypatch, check):
    monkeypatch.setattr(uri, "CHECK_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect(database, isolation_level=None)) as other_program:
        other_program.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match=r"database is locked.*; another program, .* the command later$"):
            check(f"sqlite:///{database}")


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_the_user_is_no_server_to_start(status):
    with (
        proxy("http://127.0.0.1:1", lambda _: status) as address,
        pytest.raises(InputError, match=rf"cannot be used \(HTTP {status} .*; set MLFLOW_TRACKING_USERNAME and "),
    ):
        check_store(f"http://{address}")


def test_an_address_of_anything_but_a_file_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "device").symlink_to("/dev/full")
    (tmp_path / "loop").symlink_to("loop")
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    for path in before:
        with pytest.raises(
            InputError, match=r"not usable as MLflow's database \(.*not a regular file.*\); give another"
        ):
            check_address(f"sqlite:///{path}")
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("target", ["missing", "empty"])
def test_tables_are_created_at_the_target_of_a_link(tmp_path, target):
    (tmp_path / "other").mkdir()
    file = tmp_path / "other" / "real.db"
    if target == "empty":
        file.touch()
    (tmp_path / "mlflow.db").symlink_to("other/real.db")
    check_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert os.readlink(tmp_path / "mlflow.db") == "other/real.db"
    assert (uri.EXPERIMENT,) in rows(file, "select name from experiments")


def test_a_link_to_a_database_in_a_folder_that_does_not_exist_is_refused(tmp_path):
    (tmp_path / "mlflow.db").symlink_to("missing/real.db")
    with pytest.raises(InputError, match=r"the folder .*/missing does not exist; create it"):
        check_address(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_database_in_a_folder_that_does_not_exist_is_refused_and_nothing_is_created(tmp_path):
    with pytest.raises(InputError, match=r"the folder .*/missing does not exist; create it"):
        check_store(f"sqlite:///{tmp_path}/missing/mlflow.db")
    assert list(tmp_path.iterdir()) == []


def test_an_address_is_checked_without_importing_mlflow(tmp_path):
    code = (
        "import sys\nfrom fpp_sweep.tracking.uri import check_address\n"
        f"check_address('sqlite:///{tmp_path}/mlflow.db')\nassert 'mlflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert list(tmp_path.iterdir()) == []  # it makes no file, as `doctor` may not
    with pytest.raises(InputError, match="connection refused"):
        check_address(f"http://127.0.0.1:{free_port()}")


def test_a_database_of_a_newer_mlflow_is_refused_before_mlflow_is_loaded(database):
    check_address(f"sqlite:///{database}")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update alembic_version set version_num = 'abcdef012345'")
    with pytest.raises(InputError, match=r"newer MLflow .* \(revision abcdef012345\); update MLflow"):
        check_address(f"sqlite:///{database}")


def test_two_processes_do_not_prepare_one_database_at_once(tmp_path, empty_database, caplog):
    """The second one waits until the first one has released the lock of the file."""
    path = Path(shutil.copyfile(empty_database, tmp_path / "mlflow.db"))
    hold = "import sys; from pathlib import Path; from fpp_sweep.tracking.uri import _one_process_at_a_time\n"
    hold += f"with _one_process_at_a_time(Path({str(path)!r})): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "held\n"
        waiting = EndsProcessWhenWaitedFor(first)
        logger = logging.getLogger("filelock")
        logger.addHandler(waiting)
        try:
            with caplog.at_level(logging.DEBUG, logger="filelock"):
                check_store(f"sqlite:///{path}")
        finally:
            logger.removeHandler(waiting)
            first.stdin.close()
    assert waiting.n_waits >= 1


class EndsProcessWhenWaitedFor(logging.Handler):
    """A handler of the log of locks that ends the process which holds a lock as soon as this process waits for it."""

    def __init__(self, process):
        super().__init__()
        self.process = process
        self.n_waits = 0

    def emit(self, record):
        if "waiting" in record.getMessage():
            self.n_waits += 1
            self.process.stdin.close()


def create_older_database(path: Path) -> str:
    """Create the tables that MLflow had before its latest migration, and a run; return their version."""
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config, create_sqlalchemy_engine
    from mlflow.store.tracking.dbmodels.initial_models import Base

    engine = create_sqlalchemy_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    config = _get_alembic_config(f"sqlite:///{path}")
    scripts = ScriptDirectory.from_config(config)
    version = str(scripts.get_revision(str(scripts.get_current_head())).down_revision)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    engine.dispose()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("insert into runs (run_uuid, name, lifecycle_stage) values ('a1', 'precious', 'active')")
    return version


def test_a_database_of_an_older_mlflow_is_backed_up_with_its_rows_before_it_is_upgraded(tmp_path):
    path = tmp_path / "mlflow.db"
    version = create_older_database(path)
    check_store(f"sqlite:///{path}")
    (backup,) = tmp_path.glob("*.backup")
    assert backup.name.startswith(f"mlflow.db.{version}.")
    assert rows(backup, "select version_num from alembic_version") == [(version,)]
    assert rows(backup, "select run_uuid, name from runs") == [("a1", "precious")]
    assert rows(path, "select version_num from alembic_version") != [(version,)]
    assert rows(path, "select run_uuid, name from runs") == [("a1", "precious")]
    check_store(f"sqlite:///{path}")
    assert list(tmp_path.glob("*.backup")) == [backup]  # an upgraded database gets no second backup


def test_a_failed_upgrade_leaves_its_backup_and_the_next_one_does_not_replace_it(tmp_path, monkeypatch):
    path = tmp_path / "mlflow.db"
    create_older_database(path)

    def upgrade_that_fails(_):
        raise sqlite3.OperationalError("the disk is full")

    monkeypatch.setattr("mlflow.store.db.utils._upgrade_db", upgrade_that_fails)
    for minute in (1, 2):
        monkeypatch.setattr(uri, "datetime", FixedClock(minute))
        with pytest.raises(InputError, match="the disk is full"):
            check_store(f"sqlite:///{path}")
    assert len(list(tmp_path.glob("*.backup"))) == 2


class FixedClock:
    """A substitute for the class `datetime` that is fixed at a given minute."""

    def __init__(self, minute):
        self.minute = minute

    def now(self):
        import datetime

        return datetime.datetime(2026, 11, 20, 12, self.minute)


# This program loads MLflow once. For every number that it reads, it forks a process that is killed after the creation
# of that many tables, and prints the status of that process. At 0, the process is not killed.
CREATE_PROGRAM = """
import os, signal, sys
from sqlalchemy import Engine, event
from fpp_sweep.cli.command import run
from fpp_sweep.tracking import check_store
from fpp_sweep.tracking.uri import load_mlflow
load_mlflow()
tables = 0

def step(connection, cursor, statement, *_):
    global tables
    tables += "CREATE TABLE" in statement
    if tables == last:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "after_cursor_execute", step)
for line in sys.stdin:
    last = int(line) or -1
    child = os.fork()
    if child == 0:
        run(lambda: check_store(sys.argv[1]))
    print(os.waitpid(child, 0)[1], flush=True)
"""
KILLED_AT = (20, 40)


@pytest.mark.nightly
@pytest.mark.slow
def test_after_a_kill_during_the_creation_of_tables_the_next_start_creates_them(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", CREATE_PROGRAM, f"sqlite:///{tmp_path}/mlflow.db"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, errors = process.communicate("".join(f"{tables}\n" for tables in KILLED_AT) + "0\n0\n")
    assert out.split() == [*("9" for _ in KILLED_AT), "0", "0"], errors
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"mlflow.db", ".mlflow.db.lock"}


def test_a_call_that_never_returns_does_not_keep_the_process_alive():
    before = set(threading.enumerate())
    forever = threading.Event()
    with pytest.raises(TimeoutError):
        uri._with_timeout(0.0, forever.wait)
    (left,) = set(threading.enumerate()) - before
    forever.set()
    left.join()
    assert left.daemon


def test_the_command_that_serves_the_page_works_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ui_command(DEFAULT_URI) == runnable(f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db")
    command = runnable("mlflow ui --backend-store-uri 'sqlite:////data/my runs.db'")
    assert ui_command("sqlite:////data/my runs.db") == command


def test_environment_variables_that_the_user_set_stay(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    connect("http://127.0.0.1:1")
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


@pytest.mark.parametrize("name", ["a?b", "a%20b", "mode?mode=ro"])
def test_a_file_that_mlflow_would_read_as_another_one_is_refused_before_anything_is_made(tmp_path, monkeypatch, name):
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    for address in (DEFAULT_URI, f"sqlite:///{folder}/mlflow.db"):
        with pytest.raises(InputError, match=r"a path with \? or a percent code cannot be used; give another file"):
            check_store(address)
    assert [*tmp_path.rglob("*")] == [folder]


@pytest.mark.parametrize("name", ["100% sure", "a#b"])
def test_a_file_with_other_special_characters_is_used(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    check_store(f"sqlite:///{folder}/mlflow.db")
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ['it\'s a "test"', "a (:b)"])
def test_a_store_is_created_in_any_working_folder(tmp_path, monkeypatch, name):
    """MLflow itself would write the folder's name into SQL, where a quote or a colon ends in an error."""
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    check_store(DEFAULT_URI)
    experiments = rows(Path("mlflow.db"), "select name from experiments order by experiment_id")
    assert experiments == [("Default",), (uri.EXPERIMENT,)]


def test_an_experiment_that_mlflow_cannot_read_is_reported_in_one_line(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("alter table experiments rename column artifact_location to elsewhere")
    with pytest.raises(InputError, match=r"mlflow.db: MLflow cannot use this database \(.*\); update MLflow"):
        check_store(f"sqlite:///{database}")


def test_a_missing_driver_of_a_database_is_named():
    with pytest.raises(InputError, match=r"mssql://\*\*\*@db/mlflow .*; install the Python module pyodbc, or give"):
        check_store("mssql://me:pass@db/mlflow")


def test_the_advice_about_a_reserved_character_is_printed(capsys):
    with pytest.raises(SystemExit):
        run(lambda: check_address("postgresql://me:pa/ss@db/mlflow"))
    assert capsys.readouterr().err == (
        "error: tracking URI postgresql://***@db/mlflow: reserved characters in the name or password; "
        "write each as its percent code, such as %2F for /\n"
    )


@pytest.mark.parametrize("config", ["", "their config"])
def test_used_stores_are_listed_in_the_users_folder_for_settings(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", config and str(tmp_path / config))
    folder = tmp_path / (config or "home/.config")
    assert not uri.was_used_before("http://host:5000")
    uri.remember_store("http://host:5000")
    assert uri.was_used_before("http://host:5000")
    assert not uri.was_used_before("http://host:5001")
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file == folder / "fpp_sweep" / "stores"
    assert file.stat().st_mode & 0o077 == 0


def test_a_database_that_was_created_again_is_another_store(tmp_path):
    path = tmp_path / "mlflow.db"
    address = f"sqlite:///{path}"
    path.touch()
    before = store_identity(address)
    path.rename(tmp_path / "old.db")
    assert store_identity(address) != before
    path.touch()
    assert store_identity(address) != before
    assert store_identity("http://me:S3cret@host") == "http://***@host"


def errors_of_mlflow():
    """Return rows of an error, its text in one line, and True if the same request would fail again."""
    import requests
    from mlflow.exceptions import MlflowException, RestException

    def answer(status):
        response = requests.Response()
        response.status_code = status
        return response

    refused = "failed with exception HTTPConnectionPool(host='h'): Max retries exceeded (Caused by {})"
    slow = "API request to http://h/x failed with exception HTTPConnectionPool(host='h'): Read timed out."
    return [
        (requests.HTTPError("for url: x", response=answer(503)), "HTTP 503 Service Unavailable: for url: x", False),
        (requests.HTTPError("for url: x", response=answer(403)), "HTTP 403 Forbidden: for url: x", True),
        (MlflowException(slow), "no answer in time; a larger MLFLOW_HTTP_REQUEST_TIMEOUT waits", False),
        (requests.HTTPError("for url: x", response=answer(429)), "HTTP 429 Too Many Requests: for url: x", False),
        (requests.HTTPError("for url: x", response=answer(599)), "HTTP 599 error: for url: x", False),
        (MlflowException("failed with error code 401 != 200"), "HTTP 401 Unauthorized: failed with", True),
        (MlflowException(refused.format("too many 500 error responses")), "HTTP 500 Internal Server Error", False),
        (MlflowException(refused.format("Connection refused")), "connection refused", False),
        (MlflowException(refused.format("Read timed out.")), "no answer in time", False),
        (MlflowException("('Connection aborted.', x)"), "the connection was closed without an answer", False),
        (RestException({"error_code": "BAD_REQUEST", "message": "no"}), "HTTP 400 Bad Request: BAD_REQUEST: no", True),
        (RestException({"error_code": "INTERNAL_ERROR", "message": "no"}), "HTTP 500 Internal Server", False),
        (
            MlflowException.invalid_parameter_value("Invalid name"),
            "Invalid name",
            True,
        ),  # an error of a database has no HTTP status
        (OSError("No space left"), "No space left", False),
        (InputError("the experiment was deleted"), "the experiment was deleted", True),
    ]


def test_an_error_becomes_one_line_and_permanent_errors_are_recognised():
    for error, line, is_expected_permanent in errors_of_mlflow():
        assert one_line(error).startswith(line)
        assert is_permanent(error) == is_expected_permanent, error


def test_a_store_is_refused_at_once_only_for_a_permanent_error(uri, monkeypatch):  # the fixture `uri`, not the module
    from mlflow.exceptions import MlflowException

    from fpp_sweep.tracking import uri as module

    attempts = []

    def fails_twice(*_):
        attempts.append(1)
        if len(attempts) < 3:
            raise MlflowException("failed with error code 503 != 200")

    monkeypatch.setattr(module, "find_or_create_experiment", fails_twice)
    monkeypatch.setattr(module, "CHECK_PAUSE", 0.001)
    module._wait_for_experiment(uri)
    assert len(attempts) == 3
    attempts.clear()
    monkeypatch.setattr(module, "is_permanent", lambda _: True)
    with pytest.raises(InputError, match="HTTP 503 Service Unavailable"):
        module._wait_for_experiment(uri)
    assert len(attempts) == 1
