"""Proxies in front of an MLflow server: one asks for authentication, one makes a share of the requests fail."""

from __future__ import annotations

import base64
import random
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = int | Literal["drop", "lost"] | None  # a status; no answer; an error after the request was carried out


@contextmanager
def proxy(server: str, choose_fault: Callable[[BaseHTTPRequestHandler], Fault]) -> Iterator[str]:
    """Forward requests, apart from those that `choose_fault` makes fail; yield the proxy's HOST:PORT."""

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
def authenticating_proxy(server: str, *, token: str = "", user: str = "", password: str = "") -> Iterator[str]:
    """Refuse requests without the token, or without the name and the password."""
    expected = f"Bearer {token}" if token else "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def choose_fault(request: BaseHTTPRequestHandler) -> Fault:
        return None if request.headers.get("Authorization") == expected else 401

    with proxy(server, choose_fault) as address:
        yield address


@contextmanager
def faulty_proxy(server: str, *, share: float, seed: int, faults: list[Fault]) -> Iterator[str]:
    """Make a share of the requests fail in four ways, drawn from the seed; the faults are added to the list."""
    draw = random.Random(seed)

    def choose_fault(_: BaseHTTPRequestHandler) -> Fault:
        if draw.random() >= share:
            return None
        fault: Fault = draw.choice([500, 503, "drop", "lost"])
        faults.append(fault)
        return fault

    with proxy(server, choose_fault) as address:
        yield address
