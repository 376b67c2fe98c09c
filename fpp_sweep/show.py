"""What a sweep looks like now, or one of its trials, from the sweep's folder alone.

python -m fpp_sweep.show sweeps/NAME               how it stands: front, baselines, failures, what to open
python -m fpp_sweep.show sweeps/NAME trial-0007    its settings, numbers, log and prompts, and how to repeat it
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from fpp_sweep.cli import parser, printable, run
from fpp_sweep.errors import escaped, unknown
from fpp_sweep.progress import Screen, duration
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_metric, format_setting
from fpp_sweep.records.records import SplitResult, TrialRecord

LOG = 5  # lines of a trial's log


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    folder = SweepFolder.open(args.folder)
    if args.trial is None:
        show_sweep(folder)
    else:
        show_trial(folder, args.trial)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("fpp_sweep.show", __doc__ or "")
    options.add_argument("folder", type=Path, metavar="SWEEP", help="a sweep's folder, such as sweeps/perturb-20261120")
    options.add_argument("trial", nargs="?", metavar="TRIAL", help="such as trial-0007 or baseline-tpt")
    return options.parse_args(argv)


def show_sweep(folder: SweepFolder) -> None:
    from fpp_sweep.sweep.display import heading
    from fpp_sweep.sweep.ending import ending
    from fpp_sweep.sweep.handle import last_change

    info = folder.info()
    print("\n".join(heading(folder, info.space, info.objectives, info.search_split)))
    if info.state == "running":
        print(f"changed   {duration(time.time() - last_change(folder))} ago")
    print("\n".join(["", *ending(folder)]))


def show_trial(folder: SweepFolder, name: str) -> None:
    from fpp_sweep.sweep.ending import once_more

    names = [file.stem for file in folder.trial_files()]
    if name not in names:
        raise unknown(f"trial of {folder.path.name}", name, names)
    record = folder.trial(name)
    print("\n".join(map(printable, facts(folder, record))))
    for split, result in record.results.items():
        print(f"\n{numbers(split, result)}", end="")
    print(f"\nonce more   {once_more(folder, folder.info(), record)}")


def facts(folder: SweepFolder, record: TrialRecord) -> Iterator[str]:
    """What is on record of it but for its numbers."""
    took = f", {duration(record.finished - record.started)}" if record.finished and record.started else ""
    begun = f", begun {datetime.fromtimestamp(record.started):%Y-%m-%d %H:%M:%S}" if record.started else ""
    yield f"{record.name}  {record.state}{begun}{took}, attempt {record.attempt}, {record.origin}, config {record.key}"
    if record.reason:
        yield f"reason      {record.reason}"
    for key, value in (record.params or record.config).items():
        yield f"    {key} = {format_setting(value)}"
    for name in record.broken:
        yield f"breaks      {name}, by {record.constraints[name]:.4g}"
    files = folder.artifacts(record.name)
    yield from (f"prompt      {path}" for path in sorted(files.glob("prompts/*")))
    if (log := files / "log.txt").is_file():
        yield f"log         {log}"
        yield from (f"    {line}" for line in log.read_text("utf-8", "replace").splitlines()[-LOG:])


def numbers(split: str, result: SplitResult) -> str:
    """A row for each dataset and their average."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column(split)
    for metric in result.average:
        table.add_column(escaped(metric), justify="right")
    for name, values in (*result.datasets.items(), ("average", result.average)):
        cells = (format_metric(metric, values.get(metric)) for metric in result.average)
        table.add_row(Text(escaped(name)), *map(Text, cells))
    return Screen(sys.stdout).text([table])


if __name__ == "__main__":
    run(main)
