"""The folder of a new sweep, or of one to be resumed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Options

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"


def sweep_folder(space: Space, options: Options) -> SweepFolder:
    """Return the folder of a new sweep, or of the sweep to be resumed."""
    root = Path(options.root)
    if options.resume:
        return SweepFolder.open(root / options.name if options.name else _newest_sweep(root, space.name))
    name = options.name or f"{space.name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    if not re.fullmatch(NAME, name):
        raise InputError(f"--name {name!r}: letters, digits, dots, dashes and underscores only; it names a folder")
    folder = SweepFolder(root / name)
    if folder.begun or folder.study_file.exists():
        raise InputError(f"sweep {root / name} exists; --resume continues it, another --name begins a new one")
    _require_writable(root)
    return folder


def _require_writable(root: Path) -> None:
    """Raise InputError unless the folder can be made and written; leave no new folder to a command that is refused."""
    new = [path for path in (root, *root.parents) if not path.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {root}: {error.strerror}; name a folder that can be written") from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise InputError(f"--out {root}: the folder cannot be written; name one that can")
    with suppress(OSError):  # another command may have used the new folder meanwhile
        for path in new:
            path.rmdir()


def _newest_sweep(root: Path, name: str) -> Path:
    """Return the folder of the space's sweep that was begun last."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}")
    folders = sorted(path.parent for path in root.glob("*/sweep.json*") if pattern.fullmatch(path.parent.name))
    if not folders:
        raise InputError(f"nothing to resume: {root} has no sweep {name}-<time>; name one with --name")
    return folders[-1]
