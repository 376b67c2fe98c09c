"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


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


def write_json(path: Path, document: Any) -> None:
    """A JSON document; numbers that are not finite are refused, since other readers than Python's refuse them."""
    with written_whole(path) as partial:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
