"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from fpp_sweep.spec.errors import InputError

WRITTEN_BY_HAND = 2**20  # bytes, and more than anybody does; PyYAML takes seconds for so many


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to; the file takes its final name, atomically, only if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:  # a write says what went wrong, but not where
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def require_inside(folder: Path, path: Path) -> Path:
    """Return the path; raise InputError if a link on the way to it leads out of the folder."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise InputError(f"{path}: a link leads out of {folder}; remove the link")
    return path


def no_link(path: str | Path, flags: int) -> int:
    """An opener of a file that may be made; of a link to one, an OSError."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def read_at_most(path: Path, most: int = WRITTEN_BY_HAND) -> bytes:
    """A file's content; an OSError where there are more bytes than that, whatever size the file has on record."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most / 2**20:g} MiB")
    return content


def stamp_of(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written: files here are replaced, never edited."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def set_aside(path: Path) -> str:
    """Keep a damaged file under another name, which is told."""
    return path.rename(path.with_name(f"{path.name}.damaged-{datetime.now():%Y%m%d-%H%M%S-%f}")).name


def write_json(path: Path, document: Any, mode: int = 0o666) -> None:
    """A JSON document; numbers that are not finite are refused, since other readers than Python's refuse them."""
    with written_whole(path) as partial:
        partial.touch(mode)
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
