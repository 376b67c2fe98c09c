"""The folder of a new sweep, or of one to be resumed."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

from fpp_sweep.cli import find_sweep, is_sweep, sweeps_below
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.names import require_folder_name
from fpp_sweep.sweep.api import Options


def sweep_folder(space: Space, options: Options) -> SweepFolder:
    """Return the folder of a new sweep, or of the sweep to be resumed."""
    if options.resume:
        return resumed_folder(options, space.name)
    root = user_path(options.root)
    if not options.name:
        return _new_folder(root, space.name)
    require_folder_name(options.name)
    folder = SweepFolder(root / options.name)
    if folder.has_sweep:
        raise InputError(f"sweep {root / options.name} exists; --resume continues it, another --name begins a new one")
    _require_unused(folder)
    require_writable(root)
    return folder


def _new_folder(root: Path, name: str) -> SweepFolder:
    """Create the empty folder `NAME-TIME`; if another command has taken this second, the folder of the next free one.

    A script may begin several sweeps at once.
    """
    second = datetime.now()
    require_folder_name(_name_at(name, second))
    require_writable(root)
    while True:
        path = root / _name_at(name, second)
        try:
            path.mkdir(parents=True)  # another command that is refused may remove an empty root at any time
        except FileExistsError:
            second += timedelta(seconds=1)
        except OSError as error:
            raise InputError(f"--out {root}: {error.strerror}; name a folder that can be written") from error
        else:
            return SweepFolder(path)


def _name_at(name: str, second: datetime) -> str:
    return f"{name}-{second:%Y%m%d-%H%M%S}"


def _require_unused(folder: SweepFolder) -> None:
    """Raise InputError if a folder holds anything but the lock of a sweep that was killed before it had a record."""
    remedy = "begin the sweep with another --name"
    if not os.path.lexists(folder.path):
        return
    try:
        others = [path.name for path in folder.path.iterdir() if path != folder.lock_file]
    except OSError as error:
        raise InputError(f"{folder.path}: {error.strerror}; {remedy}") from None
    if others:
        raise InputError(f"{folder.path}: the folder is not empty ({min(others)}); {remedy}")


def require_writable(root: Path) -> None:
    """Raise InputError for a folder that cannot be written or created, or that is part of a sweep.

    The folder is created with the first sweep in it. A sweep deletes and rewrites files in its folder.
    """
    resolved = Path(os.path.realpath(root))
    for folder in (resolved, *resolved.parents):
        if is_sweep(folder):
            raise InputError(f"--out {root}: lies in the folder of the sweep {folder}; name a folder outside it")
    existing = root.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"--out {root}: {existing} is not a folder; name a folder that can be written")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--out {root}: the folder cannot be written; name one that can")


def resumed_folder(options: Options, space_name: str = "") -> SweepFolder:
    """Return the folder of the sweep to be resumed: the one of the name, or else the last one of the space's name."""
    root = user_path(options.root)
    if not options.name:
        return SweepFolder(_last_sweep(root, space_name))
    if is_sweep(root / options.name):
        return SweepFolder(root / options.name)
    return SweepFolder(find_sweep(options.name))


def _last_sweep(root: Path, name: str) -> Path:
    """Return the folder of the sweep that was begun last, of any space or of one with this name."""
    pattern = re.compile(rf"{re.escape(name) or '.+'}-(\d{{8}}-\d{{6}})")
    by_time = {}
    for path in sweeps_below(root):
        named_by_time = pattern.fullmatch(path.name)
        if named_by_time:
            by_time[named_by_time[1]] = path
    if not by_time:
        raise InputError(
            f"nothing to resume: {root} has no sweep {name or 'SPACE'}-<time>; name one, as in --resume NAME"
        )
    return by_time[max(by_time)]
