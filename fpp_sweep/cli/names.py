"""Sweeps and reproductions by name: every command that takes a folder takes its name as well."""

from __future__ import annotations

from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError, unknown

SWEEPS = Path("sweeps")  # where `tune` and `evaluate` write unless --out says otherwise
REPRODUCTIONS = Path("reproductions")  # where `reproduce` writes
REPRODUCTION_FILE = "reproduction.json"


def find_sweep(word: str) -> SweepFolder:
    """Return a sweep by the path of its folder, or by its name in `sweeps`."""
    folder = _existing_sweep(word)
    if folder is not None:
        return folder
    names = [path.name for path in sweeps_below(SWEEPS)]
    if _is_path(word) or not names:
        return SweepFolder.open(Path(word))  # raises InputError, which names the path
    raise unknown("sweep", word, names)


def is_sweep_or_path(word: str) -> bool:
    """Return whether a word names a sweep, or can only be meant as the path of one."""
    return _existing_sweep(word) is not None or _is_path(word)


def _existing_sweep(word: str) -> SweepFolder | None:
    for path in (Path(word), SWEEPS / word):
        folder = SweepFolder(path)
        if folder.begun:
            return folder
    return None


def find_folder(word: str) -> Path:
    """Return the folder of a sweep, of a reproduction or of several sweeps, by its path or its name."""
    for path in (Path(word), SWEEPS / word, REPRODUCTIONS / word):
        if SweepFolder(path).begun or is_reproduction(path) or sweeps_below(path):
            return path
    names = [path.name for path in sweeps_below(SWEEPS)]
    names += [path.parent.name for path in REPRODUCTIONS.glob(f"*/{REPRODUCTION_FILE}")]
    if _is_path(word) or not names:
        raise InputError(
            f"{word}: neither a sweep (it has no sweep.json), nor a reproduction (no {REPRODUCTION_FILE}), nor a "
            "folder of sweeps; give such a folder, or a name in sweeps/ or reproductions/"
        )
    raise unknown("sweep", word, names)


def sweeps_below(root: Path) -> list[Path]:
    """Return the folders of the sweeps directly below a folder, by name."""
    return sorted({path.parent for path in root.glob("*/sweep.json*")})


def is_reproduction(path: Path) -> bool:
    return (path / REPRODUCTION_FILE).is_file()


def _is_path(word: str) -> bool:
    return "/" in word or Path(word).exists()
