"""docs/findings.md from a reproduction on the embedded model: `python -m tools.findings reproductions/tiny`.

python -m fpp_sweep.reproduce --table all
python -m tools.findings reproductions/tiny > docs/findings.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.cells import Table, recalled
from fpp_sweep.reproduce.experiments import AVERAGE, find, shipped
from fpp_sweep.reproduce.output import ours

INTRODUCTION = """\
# What the paper claims, on the embedded model

Made by `python -m tools.findings` from `python -m fpp_sweep.reproduce --table all` on {date}:
{ran}. Every setting is as shipped; nothing was tuned on these images.
This is a small CLIP on drawn pictures: agreement is no replication, and disagreement no refutation.

A verdict is on our own numbers alone. Accuracy and (debiased) ECE: the difference on the same images for all seeds, ±
1.96 standard deviations over resampled images and seeds. Other columns: two standard deviations over seeds. *Holds*:
better than every row that the sentence names, beyond that; *does not hold*: worse than one of them, beyond that; *not
told apart*: neither. Behind the verdict, how much better the row is than each of the others, in the column's unit.

| verdict | sentences |
| --- | --- |
{counts}

[theory.md](theory.md) has the paper's analysis; [claims.md](claims.md) an earlier run with 400 images of each of seven
datasets.
"""


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("tools.findings", __doc__ or "")
    options.add_argument("folder", type=Path)
    folder = options.parse_args(argv).folder
    names = [name for name in shipped() if not find(name).theory and (folder / name / "sweep.json").is_file()]
    tables = {name: recalled(SweepFolder(folder / name)) for name in names}
    print("\n".join(page(tables, SweepFolder(folder / names[0]).info().created)))


def page(tables: dict[str, Table], began: float) -> Iterator[str]:
    judged = [claim for table in tables.values() for claim in table.judged]
    counts = Counter(claim.verdict.partition(";")[0] for claim in judged)
    lines = "\n".join(f"| {verdict} | {count} |" for verdict, count in counts.most_common())
    ran = next(iter(tables.values())).ran[0]
    yield INTRODUCTION.format(date=datetime.fromtimestamp(began, UTC).date(), ran=ran, counts=lines)
    for name, table in tables.items():
        yield from _section(name, table)


def _section(name: str, table: Table) -> Iterator[str]:
    experiment = table.experiment
    yield f"## {experiment.title}\n"
    yield f"{experiment.question} `python -m fpp_sweep.reproduce --table {name}`\n"
    place = AVERAGE if AVERAGE in table.places else table.places[0]
    shown = experiment.columns
    yield f"| {place} | {' | '.join(column.heading for column in shown)} |"
    yield f"|{' --- |' * (len(shown) + 1)}"
    for row in table.rows:
        cells = [ours(table.of(row, column, place), column) for column in shown]
        if any(cells):
            yield f"| {row.title} | {' | '.join(cells)} |"
    yield ""
    if table.judged:
        yield "| sentence | verdict | how much better |\n| --- | --- | --- |"
        yield from (f"| {claim.says} | {claim.verdict} | {claim.numbers} |" for claim in table.judged)
        yield ""


if __name__ == "__main__":
    run(main)
