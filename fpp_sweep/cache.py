"""The cache of image features and of finished tasks: lists what it holds, and removes what is no longer wanted.

python -m fpp_sweep.cache list
python -m fpp_sweep.cache prune --older-than 30d --yes
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fpp_sweep.cli.command import Parser, parser, run
from fpp_sweep.core.images.cache import MANIFEST, default_cache, readable_size, unused
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError, escaped

SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
TASKS = "tasks"  # the folder of what all sweeps have computed
BYTES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An entry of the cache as this command sees it."""

    folder: Path
    manifest: dict[str, Any]  # empty if it cannot be read
    files: tuple[Path, ...]
    size: int
    used: float  # time of the last use

    @property
    def of_tasks(self) -> bool:
        return self.folder.parent.name == TASKS

    @property
    def foreign(self) -> bool:
        """Whether its features are in a form that this version does not read."""
        return bool(self.manifest) and not self.of_tasks and self.manifest.get("format") != keys.FEATURES

    def unused_for(self, age: float, now: float) -> Listed | None:
        """What is to go by its age: of finished tasks each by its own, else all or nothing."""
        if not self.of_tasks:
            return self if now - self.used > age else None
        old = tuple(file for file in self.files if now - _time(file) > age)
        return replace(self, files=old, size=sum(map(_bytes, old))) if old else None

    def row(self, now: float) -> tuple[str, ...]:
        facts = self.manifest
        use = (readable_size(self.size), _age(now - self.used))
        if self.of_tasks:
            return self.folder.name, "", "", "", f"{len(self.files)} finished tasks of sweeps", "", *use
        if not facts:
            views = "no readable manifest"
        elif self.foreign:
            views = f"not used, of another format: {facts.get('format')}"
        else:
            kinds = [kind for kind in ("augmix", "flip") if facts.get(kind)]
            views = " ".join([f"{facts.get('count')} of area {facts.get('min_area')}-{facts.get('max_area')}", *kinds])
        known = {name: str(facts.get(name, "?")) for name in ("model", "dataset", "split", "seed", "dtype")}
        data = f"{known['dataset']}/{known['split']}"
        return self.folder.name, known["model"], data, known["seed"], views, known["dtype"], *use


COLUMNS = ("entry", "model", "dataset", "seed", "views", "type", "size", "used")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    root = args.cache or default_cache()
    entries = find_entries(root)
    if args.command == "list":
        show(root, entries)
    elif args.damaged:
        prune_damaged(select(entries, args.older_than, args.larger_than), args.yes)
    elif args.all or args.older_than is not None or args.larger_than is not None:
        prune(select(entries, args.older_than, args.larger_than), args.yes)
    else:
        raise InputError("prune: say what with --older-than, --larger-than, --damaged or --all")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.cache", "The cache of image features, and of the finished tasks of all sweeps.")
    commands = options.add_subparsers(dest="command", required=True)
    where = Parser(add_help=False)
    where.add_argument(
        "--cache", type=Path, metavar="DIR", help="its folder (default: $FPP_SWEEP_CACHE, or ~/.cache/fpp_sweep)"
    )
    commands.add_parser("list", parents=[where], help="show entries, sizes and ages")
    cut = commands.add_parser(
        "prune", parents=[where], help="remove entries; runs that read them go on", description=PRUNE
    )
    cut.add_argument("--older-than", type=_duration, metavar="AGE", help="not used for this long, such as 12h or 30d")
    cut.add_argument("--larger-than", type=_size, metavar="SIZE", help="such as 500MB or 2GB")
    cut.add_argument("--all", action="store_true", help="every entry")
    cut.add_argument("--damaged", action="store_true", help="only files that are damaged")
    cut.add_argument("--yes", action="store_true", help="do it; else it is only shown, or asked on a terminal")
    return options.parse_args(argv)


PRUNE = (
    "Conditions add up: an entry goes if it meets all of them. An entry that a run is filling stays. Of finished tasks "
    "those go that are old enough; a sweep keeps its own."
)


def find_entries(root: Path) -> list[Listed]:
    """The entries of the cache, the longest unused first."""
    if not root.is_dir():
        raise InputError(f"{root}: there is no cache here; another place can be given with --cache")
    found = (path for room in ("features", TASKS) for path in root.glob(f"{room}/*"))
    folders = [path for path in found if re.fullmatch("[0-9a-f]{16}", path.name) and path.is_dir()]
    entries = []
    for folder in folders:
        with suppress(FileNotFoundError):  # removed meanwhile
            entries.append(read_entry(folder))
    return sorted(entries, key=lambda entry: entry.used)


def read_entry(folder: Path) -> Listed:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        used = path.stat().st_mtime
    except (OSError, ValueError, RecursionError):
        manifest, used = {}, folder.stat().st_mtime
    of_tasks = folder.parent.name == TASKS
    files = tuple(sorted(folder.glob("*/*") if of_tasks else folder.iterdir()))
    used = max(map(_time, files), default=used) if of_tasks else used
    facts = manifest if isinstance(manifest, dict) else {}
    return Listed(folder=folder, manifest=facts, files=files, size=sum(map(_bytes, files)), used=used)


def select(entries: Iterable[Listed], age: float | None, size: float | None) -> list[Listed]:
    now = time.time()
    old = (entry if age is None else entry.unused_for(age, now) for entry in entries)
    return [entry for entry in old if entry and (size is None or entry.size > size)]


def show(root: Path, entries: Sequence[Listed]) -> None:
    now = time.time()
    rows = [COLUMNS, *(tuple(map(escaped, entry.row(now))) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{root}: {len(entries)} entries, {readable_size(sum(entry.size for entry in entries))}")


def prune(entries: Sequence[Listed], yes: bool) -> None:
    """Remove whole entries, but for those that a run is filling."""
    show_choice([(str(entry.folder), entry.size) for entry in entries])
    if not entries or not agreed(yes):
        return
    for entry in entries:
        try:
            with unused(entry.folder) as free:
                if entry.of_tasks:  # whoever wants one that is gone computes it, or has it in its sweep's folder
                    for file in entry.files:
                        file.unlink(missing_ok=True)
                elif free:
                    for file in entry.folder.iterdir():
                        file.unlink(missing_ok=True)
                    entry.folder.rmdir()
                else:
                    print(f"{entry.folder}: a run is filling it; left alone")
        except FileNotFoundError:  # another prune has removed it meanwhile
            continue
        except OSError as error:
            raise InputError(f"{entry.folder}: cannot be removed ({error.strerror})") from error


def prune_damaged(entries: Iterable[Listed], yes: bool) -> None:
    """Remove the files that do not hold what their checksum says; those of another format are not judged."""
    from fpp_sweep.core.images.chunks import SUFFIX, Chunk, DamagedChunk  # loads numpy, which nothing else here needs
    from fpp_sweep.trial.store import FORMAT, is_whole

    entries = list(entries)
    ours = (entry for entry in entries if entry.of_tasks and entry.manifest.get("format") == FORMAT)
    damaged = [file for entry in ours for file in entry.files if not is_whole(file)]
    for file in damaged:
        print(f"{file}: not a whole result of a task")
    files = (file for entry in entries if not (entry.foreign or entry.of_tasks) for file in entry.files)
    for file in (file for file in files if file.suffix == SUFFIX):
        try:
            Chunk.read(file)
        except FileNotFoundError:
            continue
        except DamagedChunk as error:
            print(f"{file}: {error}")
            damaged.append(file)
    show_choice([(str(file), _bytes(file)) for file in damaged])
    if damaged and agreed(yes):
        for file in damaged:
            file.unlink(missing_ok=True)


def show_choice(chosen: Sequence[tuple[str, int]]) -> None:
    for name, size in chosen:
        print(f"{readable_size(size):>9}  {name}")
    print(f"{len(chosen)} to remove, {readable_size(sum(size for _, size in chosen))}")


def agreed(yes: bool) -> bool:
    """Whether to go ahead: as the command line says, or the answer on a terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        print("nothing removed; repeat with --yes to remove them")
        return False
    return input("remove them? [y/N] ").strip().lower() in ("y", "yes")


def _duration(text: str) -> float:
    """Seconds.

    >>> _duration("30d")
    2592000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; such as 90m, 12h, 30d or 2w")
    return float(match[1]) * SECONDS[match[2]]


def _size(text: str) -> float:
    """Bytes.

    >>> _size("1.5GB")
    1500000000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; such as 500MB or 2GB")
    return float(match[1]) * BYTES[match[2]]


def _age(seconds: float) -> str:
    """
    >>> _age(3 * 86400 + 7)
    '3 d ago'
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # a lock or a partial file that is gone by now
        return 0


if __name__ == "__main__":
    run(main)
