"""The feature cache on disk: one file for each chunk of a dataset's samples.

    <root>/features/<entry>/manifest.json    the settings of the entry, for people and for the cache command
    <root>/features/<entry>/00003-<samples>.safetensors    the features of chunk 3
    <root>/features/<entry>/00003.lock       while a process computes chunk 3; the kernel frees a dead process's lock

An entry's name says how features are computed (keys.FeatureKey), a chunk's name which samples it holds. So a run on a
dataset's first samples and a run on all of them share every full chunk. Any file may be removed at any time: a chunk
that is open stays readable, and a run that fills an entry makes its folder again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import MANIFEST, written_whole

CHUNK = 64  # samples: 4 MB on disk at 64 views of 512 half-precision numbers, and what a killed run loses at most
UNREADABLE = SafetensorError, OSError, ValueError, KeyError, TypeError  # errors of `read_chunk` for damaged files

_open: Any = safe_open  # it has no types


def read_chunk(path: Path) -> Any:
    """Map features (n, views, D), read where they are indexed, of a file that may be removed afterwards.

    Raise one of UNREADABLE for wrong contents.
    """
    return _open(path, framework="np").get_slice("features")


def write_chunk(path: Path, features: NDArray[Any]) -> None:
    with usable(path.parent), written_whole(path) as partial:
        partial.write_bytes(save({"features": features}))


def chunk_name(number: int, samples: Iterable[tuple[str, str]]) -> str:
    """Return the name of the file of a dataset's chunk `number`, from sample ids and fingerprints of their images."""
    digest = hashlib.sha256(json.dumps(list(samples)).encode()).hexdigest()
    return f"{number:05d}-{digest[:16]}.safetensors"


def describe(entry: Path, settings: Mapping[str, object]) -> None:
    """Write the manifest of an entry, or note this use of the entry in the manifest's modification time."""
    path = entry / MANIFEST
    if path.exists():
        with suppress(OSError):  # another user's cache, or a read-only one
            os.utime(path)
        return
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = json.dumps({"format": keys.FEATURES, **settings, "created": created}, indent=1)
    with usable(entry), written_whole(path) as partial:
        partial.write_text(f"{manifest}\n")


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raise the InputError that an error of the system means: a full or read-only disk, or one without locks."""
    advice = "keep the cache elsewhere with --set work.cache=DIR"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            prune = "free some with `fpp-sweep cache prune`"
            raise InputError(f"{path}: no space left for features; {prune}, or {advice}") from error
        reason = error.strerror or error
        raise InputError(f"{path}: the feature cache cannot be used ({reason}); {advice}") from error
