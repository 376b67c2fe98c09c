"""The sweeps of a folder: state, progress, and the front in brief.

python -m fpp_sweep.list           those in sweeps/
python -m fpp_sweep.list FOLDER    or elsewhere
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli import parser, plural, run
from fpp_sweep.errors import InputError, escaped
from fpp_sweep.progress import Screen, duration
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_values, front_of, values_of
from fpp_sweep.space.rules import as_mapping
from fpp_sweep.sweep.handle import last_change


def main(argv: Sequence[str] | None = None) -> None:
    root = parse(argv).folder
    found = sorted({path.parent for path in root.glob("*/sweep.json*")})
    if not found:
        raise InputError(f"{root} has no sweeps; give the folder that --out named, which is `sweeps` by default")
    from rich.table import Table
    from rich.text import Text

    table = Table("sweep", "state", "trials", "front", "changed", box=None, pad_edge=False)
    for path in found:
        table.add_row(*(Text(escaped(cell)) for cell in row(SweepFolder(path))))
    print(Screen(sys.stdout).text([table]), end="")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.list", __doc__ or "")
    options.add_argument("folder", type=Path, nargs="?", default=Path("sweeps"), help="of sweeps; default: sweeps")
    return options.parse_args(argv)


def row(folder: SweepFolder) -> tuple[str, ...]:
    """A sweep whose records cannot be read says so in its row."""
    name, changed = folder.path.name, f"{duration(time.time() - last_change(folder))} ago"
    try:
        info, records = folder.info(), folder.trials()
        total = as_mapping(info.space.get("search", {})).get("trials")
    except InputError as error:
        return name, "damaged", "", str(error), changed
    front = front_of(info, records)
    trials = [record.state for record in records if record.kind == "trial"]
    failed = f", {trials.count('failed')} failed" if "failed" in trials else ""
    progress = f"{trials.count('complete')}{f'/{total}' if total else ''}{failed}"
    knees = [member for member in front.members if "knee" in front.marks[member.name]]
    knee = "".join(f", knee {format_values(info.objectives, values_of(member))}" for member in knees)
    return name, info.state, progress, f"{plural(len(front.members), 'trial')}{knee}", changed


if __name__ == "__main__":
    run(main)
