"""The feature cache on disk: its folders, its locks, and what is said when it cannot be written.

    <root>/features/<entry>/manifest.json    what the entry holds, for people and for the cache command
    <root>/features/<entry>/00003-<samples>.safetensors    chunk 3, see chunks.py
    <root>/features/<entry>/00003.lock       while a process computes chunk 3; the kernel frees a dead process's lock
    <root>/features/<entry>/.00003-<samples>.safetensors.<...>.partial    being written, by whoever holds the lock

An entry's name says how features are computed (keys.FeatureKey), a chunk's name which samples it holds: a run on a
dataset's first samples and one on all of them share every full chunk. A process that fills an entry holds a shared lock
on its folder, which keeps the entry from being pruned. A chunk that is only read may be removed at any time: its map
stays valid.
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
    """`$FPP_SWEEP_CACHE`, or `~/.cache/fpp_sweep`."""
    folder = os.environ.get("FPP_SWEEP_CACHE")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "fpp_sweep"


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder of chunks."""

    folder: Path

    def write(self, path: Path, data: bytes, *, left: int) -> None:
        """Write a chunk's file, whole or not at all; the caller holds its lock and has `left` more chunks to write."""
        try:
            with written_whole(path) as partial:
                partial.write_bytes(data)
        except OSError as error:
            raise unwritable(self.folder, error, chunk=len(data), chunks=1 + left) from error

    @contextmanager
    def lock(self, number: int, *, blocking: bool) -> Iterator[bool]:
        """Hold the lock of a chunk while it is computed; yields False if another process has it."""
        path = self.folder / f"{number:05d}.lock"
        while (descriptor := _flock(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, blocking)) is not None:
            if _is_at(descriptor, path):
                break
            os.close(descriptor)  # its last holder has removed the file, and others may lock a new one
        if descriptor is None:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def describe(self, facts: Mapping[str, object]) -> None:
        """Write the manifest, or note this use of the entry in its modification time."""
        path = self.folder / MANIFEST
        if path.exists():
            with suppress(OSError):  # another user's cache, or a read-only one
                os.utime(path)
            return
        created = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = json.dumps({"format": keys.FEATURES, **facts, "created": created}, indent=1)
        try:
            with written_whole(path) as partial:
                partial.write_text(f"{manifest}\n")
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def clean(self) -> None:
        """Remove the partial files of dead processes: those of chunks that nobody has locked."""
        for partial in self.folder.glob(".[0-9]*-*.partial"):
            number = int(partial.name[1:].partition("-")[0])
            with self.lock(number, blocking=False) as held:
                if held:
                    partial.unlink(missing_ok=True)


@contextmanager
def open_entry(root: Path, name: str) -> Iterator[Entry]:
    """The folder of an entry, made if it is missing, and protected from being pruned."""
    folder = root / "features" / name
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        with suppress(FileNotFoundError):  # pruned between the two lines
            descriptor = _flock(folder, os.O_RDONLY, fcntl.LOCK_SH, blocking=True)
            assert descriptor is not None
            if _is_at(descriptor, folder):
                break
            os.close(descriptor)
    try:
        yield Entry(folder)
    finally:
        os.close(descriptor)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yields whether no process fills an entry; if so, none can begin to within the block."""
    descriptor = _flock(folder, os.O_RDONLY, fcntl.LOCK_EX, blocking=False)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def unwritable(path: Path, error: OSError, *, chunk: int = 0, chunks: int = 0) -> InputError:
    """What a failed write to the cache means to its user; `chunks` of `chunk` bytes are still to be written."""
    if error.errno in _NO_SPACE:
        needed = f", {readable_size(chunk)} are needed now and about {readable_size(chunk * chunks)} in all"
        return InputError(
            f"{path}: no space left for features{needed if chunk else ''};"
            " free some with `python -m fpp_sweep.cache prune`, or keep the cache elsewhere with --set work.cache=DIR"
        )
    reason = error.strerror or str(error)
    return InputError(f"{path}: the feature cache cannot be used ({reason}); keep it elsewhere with work.cache")


def readable_size(size: float) -> str:
    """A number of bytes, rounded to three digits or so.

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


def _flock(path: Path, flags: int, operation: int, blocking: bool) -> int | None:
    """A descriptor that holds the lock until it is closed or the process dies; None if another process has it."""
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        fcntl.flock(descriptor, operation | (0 if blocking else fcntl.LOCK_NB))
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
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
