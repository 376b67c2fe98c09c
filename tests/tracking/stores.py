"""MLflow stores for tests: an SQLite file read back without MLflow, and a real server on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.waiting import LONG, wait_for


def rows(database: Path, query: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all that the sweeps' active runs consist of, by the runs' names rather than MLflow's random ids."""
    active = "from runs join {0} t on t.run_uuid = runs.run_uuid where lifecycle_stage = 'active'"
    return {
        "runs": rows(database, "select name, status, start_time, end_time from runs where lifecycle_stage = 'active'"),
        "params": rows(database, f"select name, t.key, t.value {active.format('params')}"),
        "metrics": rows(database, f"select name, t.key, t.value, step, timestamp {active.format('metrics')}"),
        "latest": rows(database, f"select name, t.key, t.value, step {active.format('latest_metrics')}"),
        "tags": rows(
            database, f"select name, t.key, t.value {active.format('tags')} and t.key != 'mlflow.parentRunId'"
        ),
    }


def as_sets(tables: dict[str, list[tuple[object, ...]]]) -> dict[str, set[tuple[object, ...]]]:
    for name, table_rows in tables.items():
        assert len(table_rows) == len(set(table_rows)), f"{name} has a row twice"
    return {name: set(table_rows) for name, table_rows in tables.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real MLflow server over an SQLite file; can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "server.db"
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.database}"]
        command += ["--artifacts-destination", str(self.folder / "server_artifacts")]
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        )
        log.close()
        wait_for(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=LONG):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """End all its processes, as a crash does."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def server(folder: Path, template: Path) -> Iterator[Server]:
    """Yield a server whose tables exist, before its start."""
    mlflow = Server(folder)
    shutil.copyfile(template, mlflow.database)
    try:
        yield mlflow
    finally:
        mlflow.kill()
