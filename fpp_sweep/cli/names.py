"""Sweeps and reproductions by name: every command that takes a folder takes its name as well."""

from __future__ import annotations

import os
from pathlib import Path

from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path

SWEEPS = Path("sweeps")  # where `tune` and `evaluate` write unless --out says otherwise
REPRODUCTIONS = Path("reproductions")  # where `reproduce` writes
SWEEP_FILE = "sweep.json"  # in the folder of every sweep
REPRODUCTION_FILE = "reproduction.json"


def find_sweep(word: str) -> Path:
    """Return the folder of a sweep, from its path or its name in `sweeps`."""
    for path in (user_path(word), SWEEPS / word):
        if is_sweep(path):
            return path
    names = [path.name for path in sweeps_below(SWEEPS)]
    if names and not _is_path(word):
        raise unknown("sweep", word, names)
    if os.path.exists(user_path(word)):
        raise InputError(f"{word} is not a sweep's folder (it has no {SWEEP_FILE}); `show` lists the sweeps")
    raise InputError(f"{word}: there is no such sweep; `show` lists the sweeps")


def find_folder(word: str) -> Path:
    """Return the folder of a sweep, of a reproduction or of several sweeps, from its path or its name."""
    for path in (user_path(word), SWEEPS / word, REPRODUCTIONS / word):
        if is_sweep(path) or is_reproduction(path) or sweeps_below(path):
            return path
    names = [path.name for path in sweeps_below(SWEEPS)]
    names += [path.parent.name for path in REPRODUCTIONS.glob(f"*/{REPRODUCTION_FILE}")]
    if "/" in word and not os.path.lexists(user_path(word)):
        raise InputError(f"{word}: does not exist; `show` lists the sweeps")
    if _is_path(word) or not names:
        raise InputError(
            f"{word}: neither a sweep (it has no {SWEEP_FILE}), nor a reproduction (no {REPRODUCTION_FILE}), nor a "
            "folder of sweeps; give such a folder, or a name in sweeps/ or reproductions/"
        )
    raise unknown("sweep", word, names)


def is_sweep(path: Path) -> bool:
    return os.path.isfile(path / SWEEP_FILE)


def is_sweep_or_path(word: str) -> bool:
    """Return whether a word names a sweep, or can only be meant as the path of one."""
    return is_sweep(SWEEPS / word) or _is_path(word)


def is_reproduction(path: Path) -> bool:
    return os.path.isfile(path / REPRODUCTION_FILE)


def sweeps_below(root: Path) -> list[Path]:
    """Return the folders of the sweeps directly below a folder, by name."""
    if not os.path.isdir(root):  # a word that is too long for a path, for example
        return []
    return sorted({path.parent for path in root.glob(f"*/{SWEEP_FILE}")})


def _is_path(word: str) -> bool:
    return "/" in word or os.path.exists(word)
