"""Stores: refused addresses and databases, and secrets that are never printed."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.cli import run
from fpp_sweep.spec.errors import InputError
from fpp_sweep.tracking import stores
from fpp_sweep.tracking.stores import (
    DEFAULT_URI,
    EXPERIMENT,
    absolute,
    check_address,
    open_store,
    uri_of_folder,
    uri_of_new_sweep,
)
from fpp_sweep.tune import main as tune
from tests.kit.records import build_sweep
from tests.kit.stores import free_port, proxy, rows

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("kind", ["refused", "hanging"])
def test_a_server_that_does_not_answer_is_refused_in_one_line_before_mlflow_is_loaded(kind, monkeypatch):
    monkeypatch.setattr(stores, "connect", lambda _: pytest.fail("MLflow was loaded"))
    monkeypatch.setattr(stores, "CHECK_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # the socket accepts connections and never answers
        port = hanging.getsockname()[1] if kind == "hanging" else free_port()
        with pytest.raises(InputError, match=r"cannot be used.*; start it") as refusal:
            open_store(f"http://127.0.0.1:{port}")
    assert "\n" not in str(refusal.value)
    assert ("Connection refused" if kind == "refused" else "timed out") in str(refusal.value)


def test_a_server_that_refuses_the_user_is_no_server_to_start():
    with (
        proxy("http://127.0.0.1:1", lambda _: 401) as address,
        pytest.raises(InputError, match=r"cannot be used \(.*401.*; set MLFLOW_TRACKING_USERNAME and "),
    ):
        open_store(f"http://{address}")


@pytest.mark.parametrize("address", ["mlruns", "file:///tmp/mlruns", "ftp://x", "sqlite:///", "databricks"])
def test_a_store_of_another_kind_is_refused(address):
    with pytest.raises(InputError, match="give sqlite:///FILE"):
        open_store(address)


# Databases in a file.


def test_what_is_no_database_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "notes.db").write_text("no database" * 100)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    for path in before:
        with pytest.raises(InputError, match=r"not usable as MLflow's database \(.*\); give another file"):
            check_address(f"sqlite:///{path}")
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_a_database_in_a_folder_that_does_not_exist_is_refused_and_nothing_is_created(tmp_path):
    (tmp_path / "link.db").symlink_to("missing/real.db")
    for name in ("missing/mlflow.db", "link.db"):
        with pytest.raises(InputError, match=r"the folder .*/missing does not exist; create it"):
            open_store(f"sqlite:///{tmp_path}/{name}")
    assert [path.name for path in tmp_path.iterdir()] == ["link.db"]


def test_a_database_that_another_program_holds_or_another_mlflow_wrote_is_refused(tmp_path, database, uri, monkeypatch):
    monkeypatch.setattr(stores, "CHECK_SECONDS", 0.01)
    with closing(sqlite3.connect(database, isolation_level=None)) as other_program:
        other_program.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match="database is locked"):
            check_address(uri)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("update alembic_version set version_num = 'abcdef012345'")
    with pytest.raises(InputError, match=r"out-of-date database schema .*abcdef012345.*mlflow db upgrade"):
        open_store(uri)


def test_a_deleted_experiment_is_named(uri):
    store = open_store(uri)
    store.client.delete_experiment(store.experiment)
    with pytest.raises(InputError, match="experiment 'fpp_sweep' was deleted; restore it"):
        open_store(uri)


# This program loads MLflow once. For every number that it reads, it forks a process that is killed after the creation
# of that many tables, and prints the status of that process. At 0, the process is not killed.
CREATE_PROGRAM = """
import os, signal, sys
from sqlalchemy import Engine, event
from fpp_sweep.tracking.stores import open_store
from fpp_sweep.tracking.stores import connect
connect("sqlite://")
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
        open_store(sys.argv[1])
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_after_a_kill_during_the_creation_of_tables_the_next_start_creates_them(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "mlflow.db").symlink_to("other/real.db")  # the tables are created at the target of a link
    command = [sys.executable, "-c", CREATE_PROGRAM, f"sqlite:///{tmp_path}/mlflow.db"]
    done = subprocess.run(command, cwd=ROOT, input="20\n40\n0\n0\n", capture_output=True, text=True)
    assert done.stdout.split() == [str(signal.SIGKILL.value)] * 2 + ["0", "0"], done.stderr
    assert (EXPERIMENT,) in rows(tmp_path / "other" / "real.db", "select name from experiments")


# Which store.


def test_a_folder_does_not_choose_another_store_than_the_users_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    default = absolute(DEFAULT_URI)
    for recorded in ("", DEFAULT_URI, default):
        folder.write_info(replace(folder.info(), tracking_uri=recorded))
        assert uri_of_folder(folder, None, flag="--into") == default
    for recorded in ("http://host:5000", "sqlite:////home/sender/mlflow.db"):
        folder.write_info(replace(folder.info(), tracking_uri=recorded))
        with pytest.raises(InputError, match=f"its MLflow is {recorded}, .*, such as --into {recorded}"):
            uri_of_folder(folder, None, flag="--into")
        assert uri_of_folder(folder, recorded, flag="--into") == recorded
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////home/sender/mlflow.db")
    assert uri_of_folder(folder, None, flag="--into") == "sqlite:////home/sender/mlflow.db"


# Secrets.


@pytest.mark.parametrize(
    "address",
    [
        "http://me:S3cret@host:5000",
        "https://S3cret@host",
        "postgresql://me:S3/c@r?e#t@db/mlflow",
        "mysql+pymysql://db/x?user=me&password=S3cret&ssl=1",
        "ftp://me:S3cret@host",
        "me:S3cret@db",
    ],
)
def test_an_address_with_a_password_is_refused_and_never_printed(address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    folder.write_info(replace(folder.info(), tracking_uri=address))
    for attempt in (
        lambda: open_store(address),
        lambda: uri_of_new_sweep(address),
        lambda: uri_of_folder(folder, None, flag="--into"),
        lambda: tune(["--space", "smoke", "--tracking-uri", address]),
        lambda: tune(["--space", "smoke", "--set", f"work.tracking_uri={address}"]),
    ):
        with pytest.raises(SystemExit):
            run(attempt)
        printed = "".join(capsys.readouterr())
        assert "tracking URI" in printed.splitlines()[-1]
        assert not any(part in printed for part in ("S3", "cret", "c@r"))
    assert not (tmp_path / "sweeps").exists()
