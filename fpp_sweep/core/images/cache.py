"""The feature cache on disk: its folders, its locks, and the messages if it cannot be written.

    <root>/features/<entry>/manifest.json    the settings of the entry, for people and for the cache command
    <root>/features/<entry>/00003-<samples>.safetensors    chunk 3, see chunks.py
    <root>/features/<entry>/00003.lock       while a process computes chunk 3; the kernel frees a dead process's lock

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

    def write(self, name: str, data: bytes) -> Path:
        """Write a file, whole or not at all, and return its path."""
        path = self.folder / name
        try:
            with written_whole(path) as partial:
                partial.write_bytes(data)
        except OSError as error:
            raise unwritable(self.folder, error) from error
        return path

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
        self.write(MANIFEST, f"{manifest}\n".encode())


@contextmanager
def open_entry(root: Path, name: str) -> Iterator[Entry]:
    """Open the folder of an entry, create it if it is missing, and protect it from being pruned."""
    folder = root / "features" / name
    with ExitStack() as lock:
        held = False
        while not held:  # else it was pruned between the two lines
            lock.close()
            with suppress(FileNotFoundError), _cache_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                held = lock.enter_context(folder_lock(folder, shared=True))
        yield Entry(folder)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yield True if no process fills an entry; then no process can start to fill it within the block."""
    with ExitStack() as lock:
        with _cache_errors(folder):
            free = lock.enter_context(folder_lock(folder, shared=False))
        yield free


@contextmanager
def _cache_errors(path: Path) -> Iterator[None]:
    """Raise the InputError that an error of the system means, unless a file is missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:  # also a file system without locks
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> InputError:
    """Return the error that a failed write to the cache means."""
    advice = "keep the cache elsewhere with --set work.cache=DIR"
    if error.errno in _NO_SPACE:
        return InputError(f"{path}: no space left for features; free some with `fpp-sweep cache prune`, or {advice}")
    return InputError(f"{path}: the feature cache cannot be used ({error.strerror or error}); {advice}")


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
