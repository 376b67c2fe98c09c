"""Logs of a sweep's folder, a line for whatever begins and ends: one for each trial, one for each worker."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fpp_sweep.spec.files import no_link
from fpp_sweep.spec.messages import printable


def write_line(file: Path, text: str, details: str = "") -> None:
    """At the log's end, with the time, and a traceback below; what cannot be written is lost, and harms nothing."""
    lines = [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {printable(text)}", *map(printable, details.splitlines())]
    with suppress(OSError):
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8", opener=no_link) as log:
            log.write("\n".join(lines) + "\n")
