"""The feature cache on disk: which folders and files there are, and who may touch them when.

    <root>/features/<entry>/manifest.json    what the entry holds, for people and for the cache command
    <root>/features/<entry>/00003-<samples>.safetensors
    <root>/features/<entry>/00003.lock       while a process computes shard 3; the kernel frees a dead one's
    <root>/features/<entry>/.00003-<samples>.safetensors.<...>.partial    being written; a dead process's if not locked

An entry's name says how features are computed, a shard's which samples it holds: a run on a dataset's first samples
and one on all of them share every whole shard. A process that fills an entry holds a shared lock on its folder, so
that pruning leaves it alone; a shard that is only mapped may be unlinked at any time.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.core.images.chunks import FORMAT, SUFFIX, Contents, DamagedShard, Shard
from fpp_sweep.errors import InputError
from fpp_sweep.files import written_whole

MANIFEST = "manifest.json"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def default_cache() -> Path:
    """`$FPP_SWEEP_CACHE`, or `~/.cache/fpp_sweep`."""
    named = os.environ.get("FPP_SWEEP_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fpp_sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryKey:
    """Everything that a sample's features depend on, apart from the sample.

    Threads and images per batch are left out: they move last bits only, far below half precision.
    """

    image_digest: str
    dataset: str
    split: str
    count: int
    min_area: float
    max_area: float
    augmix: bool
    flip: bool
    seed: int
    dtype: str
    compute: str  # precision of the image tower: a GPU fills half-precision entries in half precision
    views_version: int

    def name(self) -> str:
        text = json.dumps([FORMAT, dataclasses.asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder of shards."""

    folder: Path

    def path(self, index: int, samples: NDArray[np.uint8]) -> Path:
        """A shard's file is named by its place and by a digest of its samples."""
        digest = hashlib.sha256(samples.tobytes()).hexdigest()[:16]
        return self.folder / f"{index:05d}-{digest}{SUFFIX}"

    def find(self, index: int, samples: NDArray[np.uint8], *, partial: bool) -> tuple[Shard | None, list[str]]:
        """The shard with these samples, and a line for each damaged file met.

        The samples of a partial shard may also be the first of one that a longer run has written.
        """
        damaged = []
        longer = sorted(self._of(index)) if partial else []
        for path in dict.fromkeys([self.path(index, samples), *longer]):
            try:
                shard = Shard(path)
            except FileNotFoundError:
                continue
            except DamagedShard as error:
                damaged.append(f"{path}: {error}; its features are computed again")
                continue
            if np.array_equal(shard.samples[: len(samples)], samples):
                return shard, damaged
        return None, damaged

    def write(self, index: int, contents: Contents, *, left: int) -> Shard:
        """Put a shard in its place, whole, with `left` shards still to come; the caller holds its lock.

        Files that hold only its first samples, or nothing readable, go.
        """
        path = self.path(index, contents.samples)
        data = contents.serialise()
        try:
            with written_whole(path) as partial:
                partial.write_bytes(data)
        except OSError as error:
            raise unwritable(self.folder, error, shard=len(data), shards=1 + left) from error
        for other in set(self._of(index)) - {path}:
            if _is_superseded(other, contents.samples):
                other.unlink(missing_ok=True)
        return Shard(path)

    @contextmanager
    def lock(self, index: int, *, blocking: bool) -> Iterator[bool]:
        """Hold a shard's lock while it is computed; yields whether it was got."""
        path = self.folder / f"{index:05d}.lock"
        while (descriptor := _flock(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, blocking)) is not None:
            if _is_at(descriptor, path):
                break
            os.close(descriptor)  # whoever had it before has removed the file we waited for
        if descriptor is None:
            yield False
            return
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def describe(self, facts: Mapping[str, object]) -> None:
        """Write the manifest unless it is there; the time of its last change is that of the entry's last use."""
        path = self.folder / MANIFEST
        if path.exists():
            with suppress(OSError):  # a cache of somebody else's, or a read-only one
                os.utime(path)
            return
        created = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = json.dumps({"format": FORMAT, **facts, "created": created}, indent=1)
        try:
            with written_whole(path) as partial:
                partial.write_text(f"{manifest}\n")
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def clean(self) -> None:
        """Remove what dead processes were writing: temporary files whose shard nobody holds."""
        for partial in self.folder.glob(".[0-9]*-*.partial"):
            index = int(partial.name[1:].partition("-")[0])
            with self.lock(index, blocking=False) as held:
                if held:
                    partial.unlink(missing_ok=True)

    def _of(self, index: int) -> Iterator[Path]:
        return self.folder.glob(f"{index:05d}-*{SUFFIX}")


@contextmanager
def open_entry(root: Path, key: EntryKey) -> Iterator[Entry]:
    """The folder of an entry, made where needed, and kept from being pruned."""
    folder = root / "features" / key.name()
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        with suppress(FileNotFoundError):  # pruned in between
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
    """Whether nobody fills an entry; if so, nobody starts to."""
    descriptor = _flock(folder, os.O_RDONLY, fcntl.LOCK_EX, blocking=False)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def unwritable(where: Path, error: OSError, *, shard: int = 0, shards: int = 0) -> InputError:
    """What a failed write to the cache means to its user; `shards` of `shard` bytes are still to be written."""
    if error.errno in _NO_SPACE:
        needed = f", {readable_size(shard)} are needed now and about {readable_size(shard * shards)} in all"
        return InputError(
            f"{where}: no space left for features{needed if shard else ''};"
            " free some with `python -m fpp_sweep.cache prune`, or keep the cache elsewhere with --cache"
        )
    reason = error.strerror or str(error)
    return InputError(f"{where}: the feature cache cannot be used ({reason}); keep it elsewhere with --cache")


def readable_size(size: float) -> str:
    """A number of bytes in three digits or so.

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
    """A descriptor that holds the lock until it is closed, or the process dies; None if another has it."""
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
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_superseded(path: Path, samples: NDArray[np.uint8]) -> bool:
    """Whether a shard holds only the first of these samples, or nothing readable."""
    try:
        shorter = Shard(path).samples
    except (DamagedShard, FileNotFoundError):
        return True
    return len(shorter) < len(samples) and np.array_equal(shorter, samples[: len(shorter)])
