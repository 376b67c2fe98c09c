"""A door before a server: authentication, and nothing else."""

from __future__ import annotations

import base64
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def door(server: str, *, token: str = "", user: str = "", password: str = "") -> Iterator[str]:
    """The door's HOST:PORT; it lets those in who know the token, or the name and the password."""
    wanted = f"Bearer {token}" if token else "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Door(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != wanted:
                return self._send(401, b"who are you?")
            kept = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
            request = urllib.request.Request(f"{server}{self.path}", body or None, kept, method=self.command)
            try:
                with urllib.request.urlopen(request) as answer:
                    self._send(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self._send(error.code, error.read())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
