"""Logs in a sweep's folder: one for each trial and one for each worker, with a line for each start and end."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from fpp_sweep.spec.files import no_link
from fpp_sweep.spec.messages import printable


def write_line(file: Path, text: str, details: str = "") -> None:
    """Append a line with the time, and the details below, such as a traceback; ignore an error of the disk."""
    lines = [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {printable(text)}", *map(printable, details.splitlines())]
    content = "\n".join(lines) + "\n"
    with suppress(OSError), _open_at_end(file) as log:
        log.write(content.encode())


def _open_at_end(file: Path) -> FileIO:
    """Open a log without a buffer, which is four times as fast for a line; make its folder if that is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return open(file, "ab", buffering=0, opener=no_link)
