"""Files that appear whole or not at all, and locks that go with their process."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from fpp_sweep.spec.errors import InputError

MAX_HANDWRITTEN_BYTES = 2**20  # limit for a handwritten file; PyYAML takes seconds for that much
MAX_OWN_BYTES = 2**30  # limit for a file that this package wrote; the largest hold predictions of all images
MANIFEST = "manifest.json"  # in each entry of the cache: what it holds
MAX_NAME = 100  # characters of the name of a folder or a record; a file's name has further words, and at most 255 bytes
FILE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")
MAX_OWNER_BYTES = 40  # limit for a lock file, which holds the owner's process id

# ------------------------------------------------------------ writing


@contextmanager
def written_whole(path: Path, *, survives_power_failure: bool = True) -> Iterator[Path]:
    """Yield a temporary name to write to; the file takes its final name, atomically, only if the block succeeds.

    A file that need not survive a power failure is not waited for: its reader must notice missing content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}.partial")
    try:
        with _errors_naming(path):
            yield partial
            if survives_power_failure:
                with partial.open("rb") as file:
                    os.fsync(file.fileno())
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)  # `replace` leaves it if both names are hard links to one file


@contextmanager
def _errors_naming(path: Path) -> Iterator[None]:
    """Let the errors of the block, which writes to a file, name the file: the error of a failed write does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document; raise ValueError for a number that is not finite, which JSON does not have."""
    with written_whole(path) as partial:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


# ------------------------------------------------------------ reading


class FileTooLargeError(OSError):
    """A file that is larger than its reader allows: damaged, or made to do harm."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {max_bytes / 2**20:g} MiB", str(path))


class NotAFileError(OSError):
    """A folder, a named pipe or a device where a file is expected."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file", str(path))


def read_at_most(path: Path, max_bytes: int = MAX_HANDWRITTEN_BYTES) -> bytes:
    """Return a file's content; raise FileTooLargeError if it is longer, whatever size the file system reports.

    Raise NotAFileError for a named pipe, too: without a writer, reading it would wait for ever. A shell's own pipes,
    such as `/dev/fd/63` for `<(command)`, have a writer.
    """
    if path.is_fifo() and not path.is_relative_to("/dev"):
        raise NotAFileError(path)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FileTooLargeError(path, max_bytes)
    return content


def safetensors_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata in the contents of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + size]).get("__metadata__", {}))


def user_path(text: str | Path) -> Path:
    """Return a path that a user wrote, with the home folder for `~`: no shell replaces it in a file or in quotes."""
    return Path(os.path.expanduser(text))


def default_cache() -> Path:
    """Return `$FPP_SWEEP_CACHE`, or `~/.cache/fpp_sweep`."""
    folder = os.environ.get("FPP_SWEEP_CACHE")
    if folder:
        return user_path(folder)
    return Path.home() / ".cache" / "fpp_sweep"


def existing_part(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists: there a process would begin to make the path."""
    absolute = path.absolute()
    for part in (absolute, *absolute.parents):
        if os.path.lexists(part):  # a broken link exists: no folder of its name can be made
            return part
    return absolute


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return size, time and inode of a file, which change whenever `written_whole` replaces it."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


# ------------------------------------------------------------ names of folders, and lists of datasets


def listed_names(texts: Iterable[str]) -> list[str]:
    """Return the names of datasets in lists with commas; the path of a folder (`NAME=FOLDER`) can have none.

    >>> listed_names(["dtd, pets", "mine=photos,other=more"])
    ['dtd', 'pets', 'mine=photos', 'other=more']
    """
    names = []
    for text in texts:
        for word in text.split(","):
            if word.strip():
                names.append(word.strip())
    return names


def require_folder_name(name: str) -> None:
    """Raise InputError unless the value of --name can name a folder."""
    if not FILE_NAME.fullmatch(name):
        wanted = "begin with a letter or digit, and use letters, digits, dots, dashes and underscores only"
        raise InputError(f"--name {name!r}: names a folder; {wanted}, at most {MAX_NAME}")


# ------------------------------------------------------------ files of a folder that another person may have made


def open_own(path: Path) -> BinaryIO:
    """Open a file that this package wrote; raise OSError for a link, a folder, a device or a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFileError(path)
    return os.fdopen(descriptor, "rb")


def read_own(path: Path, max_bytes: int = MAX_OWN_BYTES) -> bytes:
    """Return the content of a file that this package wrote; raise as `open_own`, and FileTooLargeError."""
    with open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise FileTooLargeError(path, max_bytes)
        return file.read()


def read_end(path: Path, max_bytes: int) -> str:
    """Return the last lines of a text that this package wrote; raise as `open_own`."""
    with open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - max_bytes))
        return file.read(max_bytes).decode("utf-8", "replace")


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder whose names match, sorted; none if the folder does not exist."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(folder / name for name in names if fnmatchcase(name, pattern))


# ------------------------------------------------------------ locks


class LockHeldError(Exception):
    """A lock that another process holds; the message names that process."""


@contextmanager
def exclusive_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a file, which is created if it is missing and then holds this process's id.

    The kernel frees the lock when the process ends, however it ends. Raise LockHeldError if another holds the lock and
    `wait` is false, and OSError if the file cannot be created or locked, or is a link of any kind.
    """
    from filelock import FileLock, Timeout  # start-up time: most commands lock nothing

    # a soft lock, filelock's substitute on file systems without locks, would outlive a killed process
    lock = FileLock(path, blocking=wait, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise LockHeldError(_lock_owner(path)) from None
    try:
        with _errors_naming(path), open(path, "w", opener=no_link) as file:
            file.write(str(os.getpid()))
        yield
    finally:
        lock.release()


def _lock_owner(path: Path) -> str:
    """Return the process that holds a lock, as a message names it."""
    with suppress(OSError), open(path, errors="replace", opener=no_link) as file:
        owner = file.read(MAX_OWNER_BYTES).strip()
        if owner:
            return f"process {owner}"
    return "another process"


def no_link(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=no_link)`: no link, and no pipe without a reader, which would block."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
