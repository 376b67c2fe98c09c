"""What a sweep looks like now, or one of its trials, or what sweeps there are: from their folders alone.

python -m fpp_sweep list [FOLDER]                  the sweeps of a folder, such as sweeps/: state, progress, front
python -m fpp_sweep.show sweeps/NAME               how it stands: front, baselines, failures, what to open
python -m fpp_sweep.show sweeps/NAME trial-0007    its settings, numbers, log and prompts, and how to repeat it
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_metric, format_setting, format_values, front_of, values_of
from fpp_sweep.records.records import SplitResult, TrialRecord
from fpp_sweep.space.validation import as_mapping
from fpp_sweep.spec.errors import InputError, escaped
from fpp_sweep.spec.messages import plural, printable
from fpp_sweep.spec.process import sleep_when_idle
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.sweep.state import last_change, state_text

LOG = 5  # lines of a trial's log


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("fpp_sweep.show", __doc__ or "")
    options.add_argument("folder", type=Path, metavar="SWEEP", help="a sweep's folder, such as sweeps/perturb-20261120")
    options.add_argument("trial", nargs="?", metavar="TRIAL", help="such as trial-0007 or baseline-tpt")
    args = options.parse_args(argv)
    sleep_when_idle()
    folder = SweepFolder.open(args.folder)
    print("\n".join(of_sweep(folder) if args.trial is None else of_trial(folder, args.trial)))


def list_sweeps(argv: Sequence[str] | None = None) -> None:
    options = parser("fpp_sweep list", "The sweeps of a folder: state, progress, and the front in brief.")
    options.add_argument("folder", type=Path, nargs="?", default=Path("sweeps"), help="of sweeps; default: sweeps")
    root = options.parse_args(argv).folder
    found = sorted({path.parent for path in root.glob("*/sweep.json*")})
    if not found:
        raise InputError(f"{root} has no sweeps; give the folder that --out named, which is `sweeps` by default")
    print(table(["sweep", "state", "trials", "front", "changed"], (row(SweepFolder(path)) for path in found)))


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
    otherwise = "".join(f", {trials.count(state)} {state}" for state in ("failed", "stopped") if state in trials)
    progress = f"{trials.count('complete')}{f'/{total}' if total else ''}{otherwise}"
    knees = [member for member in front.members if "knee" in front.marks[member.name]]
    knee = "".join(f", knee {format_values(info.objectives, values_of(member))}" for member in knees)
    return name, state_text(folder, info), progress, f"{plural(len(front.members), 'trial')}{knee}", changed


def of_sweep(folder: SweepFolder) -> Iterator[str]:
    from fpp_sweep.sweep.heading import heading
    from fpp_sweep.sweep.summary import summary_lines

    info = folder.info()
    yield from heading(folder, info.space, info.objectives, info.search_split)
    yield f"changed   {duration(time.time() - last_change(folder))} ago\n"
    yield from summary_lines(folder)


def of_trial(folder: SweepFolder, name: str) -> Iterator[str]:
    from fpp_sweep.sweep.repeat import repeat_command

    record = folder.known_trial(name)
    yield from map(printable, facts(folder, record))
    for split, result in record.results.items():
        yield f"\n{numbers(split, result)}"
    yield printable(f"repeat      {repeat_command(folder, folder.info(), record)}")


def facts(folder: SweepFolder, record: TrialRecord) -> Iterator[str]:
    """What is on record of it but for its numbers."""
    took = f", {duration(record.finished - record.started)}" if record.finished and record.started else ""
    begun = f", begun {datetime.fromtimestamp(record.started):%Y-%m-%d %H:%M:%S}" if record.started else ""
    yield f"{record.name}  {record.state}{begun}{took}, attempt {record.attempt}, {record.origin}, config {record.key}"
    if record.reason:
        yield f"reason      {record.reason}"
    for key, value in (record.params or record.config).items():
        yield f"    {key} = {format_setting(value)}"
    expected = "" if record.state == "complete" else f", as expected after {record.fidelity:.0%} of the images"
    for name in record.broken:
        yield f"breaks      {name}, by {record.constraints[name]:.4g}{expected}"
    files = folder.inside(folder.artifacts(record.name))
    yield from (f"prompt      {path}" for path in sorted(folder.inside(files / "prompts").glob("*")))
    log = folder.inside(files / "log.txt")
    if log.is_file():
        yield f"log         {log}"
        yield from (f"    {line}" for line in log.read_text("utf-8", "replace").splitlines()[-LOG:])


def numbers(split: str, result: SplitResult) -> str:
    """A row for each dataset and their average."""
    rows = (*result.datasets.items(), ("average", result.average))
    cells = ([name, *(format_metric(metric, values.get(metric)) for metric in result.average)] for name, values in rows)
    return table([split, *result.average], cells, numeric=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: bool = False) -> str:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        made.add_column(Text(escaped(head)), justify="right" if numeric and place else "left")
    for cells in rows:
        made.add_row(*(Text(escaped(cell)) for cell in cells))
    return Screen(sys.stdout).text([made]).rstrip("\n")


if __name__ == "__main__":
    run(main)
