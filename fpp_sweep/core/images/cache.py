"""The feature cache on disk: its folders, its locks, and the messages if it cannot be written.

    <root>/features/<entry>/manifest.json    the settings of the entry, for people and for the cache command
    <root>/features/<entry>/00003-<samples>.safetensors    chunk 3, see chunks.py
    <root>/features/<entry>/00003.lock       while a process computes chunk 3; the kernel frees a dead process's lock
    <root>/features/<entry>/.00003-<samples>.safetensors.<...>.partial    being written, by the holder of the lock

An entry's name says how features are computed (keys.FeatureKey), a chunk's name which samples it holds. So a run on a
dataset's first samples and a run on all of them share every full chunk. A process that fills an entry holds a shared
lock on its folder, which keeps the entry from being pruned. A chunk that is only read may be removed at any time: its
map stays valid.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole

MANIFEST = "manifest.json"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def default_cache() -> Path:
    """Return `$FPP_SWEEP_CACHE`, or `~/.cache/fpp_sweep`."""
    folder = os.environ.get("FPP_SWEEP_CACHE")
    if folder:
        return Path(folder).expanduser()
    return Path.home() / ".cache" / "fpp_sweep"


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder of chunks."""

    folder: Path

    def write(self, path: Path, data: bytes, *, left: int) -> None:
        """Write a chunk's file, whole or not at all; the caller holds its lock and will write `left` more chunks."""
        try:
            with written_whole(path) as partial:
                partial.write_bytes(data)
        except OSError as error:
            raise unwritable(self.folder, error, chunk=len(data), chunks=1 + left) from error

    @contextmanager
    def lock(self, number: int, *, blocking: bool) -> Iterator[bool]:
        """Hold the lock of a chunk while it is computed; yield False if another process has it."""
        path = self.folder / f"{number:05d}.lock"
        descriptor = _lock_at(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, blocking)
        if descriptor is None:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def describe(self, settings: Mapping[str, object]) -> None:
        """Write the manifest, or note this use of the entry in its modification time."""
        path = self.folder / MANIFEST
        if path.exists():
            with suppress(OSError):  # another user's cache, or a read-only one
                os.utime(path)
            return
        created = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = json.dumps({"format": keys.FEATURES, **settings, "created": created}, indent=1)
        try:
            with written_whole(path) as partial:
                partial.write_text(f"{manifest}\n")
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def clean(self) -> None:
        """Remove the partial files of dead processes, whose chunks are not locked."""
        for partial in self.folder.glob(".[0-9]*-*.partial"):
            number = int(partial.name[1:].partition("-")[0])
            with self.lock(number, blocking=False) as is_locked:
                if is_locked:
                    partial.unlink(missing_ok=True)


@contextmanager
def open_entry(root: Path, name: str) -> Iterator[Entry]:
    """Open the folder of an entry, create it if it is missing, and protect it from being pruned."""
    folder = root / "features" / name
    descriptor = None
    while descriptor is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        with suppress(FileNotFoundError):  # pruned between the two lines
            descriptor = _lock_at(folder, os.O_RDONLY, fcntl.LOCK_SH, blocking=True)
    try:
        yield Entry(folder)
    finally:
        os.close(descriptor)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yield True if no process fills an entry; then no process can start to fill it within the block."""
    descriptor = _flock(folder, os.O_RDONLY, fcntl.LOCK_EX, blocking=False)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def unwritable(path: Path, error: OSError, *, chunk: int = 0, chunks: int = 0) -> InputError:
    """Return the error that a failed write to the cache means; `chunks` of `chunk` bytes were still to be written."""
    if error.errno in _NO_SPACE:
        needed = ""
        if chunk:
            needed = f", {readable_size(chunk)} are needed now and about {readable_size(chunk * chunks)} in all"
        advice = "free some with `python -m fpp_sweep.cache prune`, or keep the cache elsewhere with --cache"
        return InputError(f"{path}: no space left for features{needed}; {advice}")
    reason = error.strerror or str(error)
    return InputError(f"{path}: the feature cache cannot be used ({reason}); keep it elsewhere with --cache")


def readable_size(size: float) -> str:
    """Return a number of bytes as text of about three digits.

    >>> readable_size(4_200_000)
    '4.2 MB'
    """
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def _lock_at(path: Path, flags: int, operation: int, blocking: bool) -> int | None:
    """Lock the file or folder that is at a path; try again if another process replaced it meanwhile."""
    while True:
        descriptor = _flock(path, flags, operation, blocking)
        if descriptor is None or _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # the last holder has removed the file, and another process may lock a new one


def _flock(path: Path, flags: int, operation: int, blocking: bool) -> int | None:
    """Return a descriptor that holds a lock until it is closed or the process dies; None if another process has it."""
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unwritable(path, error) from error
    if not blocking:
        operation |= fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):  # a file system without locks
            raise unwritable(path, error) from error
        raise
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
