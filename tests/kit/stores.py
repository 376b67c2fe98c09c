"""MLflow stores: an SQLite file read without MLflow, a real server on loopback, and proxies that fail on purpose."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from tests.kit.waiting import LONG, wait_for


def rows(database: Path, query: str, *values: object) -> list[tuple[object, ...]]:
    """Return the rows of a query of the database."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all data of the sweeps' active runs by table; the runs have their names and not MLflow's random ids."""
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
    """Return each table's rows as a set; fail if a table has a row twice."""
    for name, table_rows in tables.items():
        assert len(table_rows) == len(set(table_rows)), f"{name} has a row twice"
    return {name: set(table_rows) for name, table_rows in tables.items()}


def free_port() -> int:
    """Return a port of loopback at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real MLflow server over an SQLite file, which can be killed and started again."""

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
        """Kill all processes of the server, as a crash does."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def server(folder: Path, template: Path) -> Iterator[Server]:
    """Yield a server that is not started; its database is a copy of `template`, which has MLflow's tables."""
    mlflow = Server(folder)
    shutil.copyfile(template, mlflow.database)
    try:
        yield mlflow
    finally:
        mlflow.kill()


# ------------------------------------------------------------ proxies

# an HTTP status; "drop": no answer; "lost": an error although the server carried out the request; an event: the request
# is carried out, and its answer waits for the event; None: no fault
Fault = int | Literal["drop", "lost"] | threading.Event | None


@contextmanager
def proxy(server: str, choose_fault: Callable[[BaseHTTPRequestHandler], Fault]) -> Iterator[str]:
    """Forward requests to the server, or answer with the fault of `choose_fault`; yield the proxy's HOST:PORT."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = choose_fault(self)
            if fault == "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
            elif isinstance(fault, int):
                self._send(fault, b"a fault of the proxy")
            else:
                status, content = self._forward(body)
                if fault == "lost":
                    status, content = 500, b"the answer was lost"
                if isinstance(fault, threading.Event):
                    fault.wait(LONG)
                with suppress(OSError):  # the client has given up
                    self._send(status, content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def _forward(self, body: bytes) -> tuple[int, bytes]:
            headers = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
            request = urllib.request.Request(f"{server}{self.path}", body or None, headers, method=self.command)
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()


@contextmanager
def faulty_proxy(server: str, *, share: float, seed: int, faults: list[Fault]) -> Iterator[str]:
    """Yield the HOST:PORT of a proxy that lets a share of the requests fail, and that appends each fault to the list.

    A random generator with the seed chooses the requests and, for each, one of four faults.
    """
    draw = random.Random(seed)

    def choose_fault(_: BaseHTTPRequestHandler) -> Fault:
        if draw.random() >= share:
            return None
        fault: Fault = draw.choice([500, 503, "drop", "lost"])
        faults.append(fault)
        return fault

    with proxy(server, choose_fault) as address:
        yield address
