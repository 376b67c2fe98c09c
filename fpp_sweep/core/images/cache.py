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
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import LockHeldError, exclusive_lock, folder_lock, user_path, written_whole

MANIFEST = "manifest.json"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def default_cache() -> Path:
    """Return `$FPP_SWEEP_CACHE`, or `~/.cache/fpp_sweep`."""
    folder = os.environ.get("FPP_SWEEP_CACHE")
    if folder:
        return user_path(folder)
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
        with ExitStack() as lock:
            try:
                lock.enter_context(exclusive_lock(path, wait=blocking))
            except LockHeldError:
                yield False
                return
            except OSError as error:
                raise unwritable(path, error) from error
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)

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
    with ExitStack() as lock:
        while not _hold(folder, lock):
            lock.close()
        yield Entry(folder)


def _hold(folder: Path, lock: ExitStack) -> bool:
    """Create a folder and hold a shared lock on it until `lock` is closed; return False if it was pruned meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock.enter_context(folder_lock(folder, shared=True))
    except FileNotFoundError:  # pruned between the two lines
        return False
    except OSError as error:  # also a file system without locks
        raise unwritable(folder, error) from error


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yield True if no process fills an entry; then no process can start to fill it within the block."""
    with ExitStack() as lock:
        try:
            free = lock.enter_context(folder_lock(folder, shared=False))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unwritable(folder, error) from error
        yield free


def unwritable(path: Path, error: OSError, *, chunk: int = 0, chunks: int = 0) -> InputError:
    """Return the error that a failed write to the cache means; `chunks` of `chunk` bytes were still to be written."""
    if error.errno in _NO_SPACE:
        needed = ""
        if chunk:
            needed = f", {readable_size(chunk)} are needed now and about {readable_size(chunk * chunks)} in all"
        advice = "free some with `fpp-sweep cache prune`, or keep the cache elsewhere with --set work.cache=DIR"
        return InputError(f"{path}: no space left for features{needed}; {advice}")
    reason = error.strerror or str(error)
    return InputError(
        f"{path}: the feature cache cannot be used ({reason}); keep it elsewhere with --set work.cache=DIR"
    )


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
