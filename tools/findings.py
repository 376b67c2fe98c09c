"""Write docs/findings.md from a reproduction on the embedded model.

python -m fpp_sweep.reproduce --table all
python -m tools.findings reproductions/tiny > docs/findings.md
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.claims import judge_claims
from fpp_sweep.reproduce.experiment_files import find, shipped
from fpp_sweep.reproduce.output import ours
from fpp_sweep.reproduce.tables import ResultTable, table_of
from fpp_sweep.spec.errors import InputError

INTRODUCTION = """\
# The paper's claims on the embedded model

A toy model cannot decide whether the paper is right: this page shows what the methods do to a small, over-confident
CLIP on drawn pictures, so agreement is no replication, and disagreement no refutation.

Written by `python -m tools.findings` from `python -m fpp_sweep.reproduce --table all` on {date}:
{ran}. Every setting is as shipped; nothing was tuned on these images. [theory.md](theory.md) has the paper's analysis.

**Verdicts** are about our own numbers. Accuracy and ECE are compared on the same images, with the variance of seeds.
Other columns are compared by seed, on these images. A difference counts if its p-value is below 0.05 after Holm's
correction over all comparisons of a table's claims ([evidence.md](evidence.md)); such gains are marked *. A claim
*holds* if it is so for every row that it names. It *does not hold* if a difference counts against it, and is
*undecided* otherwise. Gains are in the column's unit, with the half-width of their 95 % interval, not corrected; rows
of one seed have no interval.

Tables that are not here: {missing}. Tables `init` and `natural_shifts` need checkpoints and photographs.

| verdict | claims |
| --- | --- |
{counts}
"""


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("tools.findings", __doc__ or "")
    options.add_argument("folder", type=Path)
    folder = options.parse_args(argv).folder
    tables = {}
    for name in shipped():
        sweep = SweepFolder(folder / name)
        if find(name).theory or not sweep.info_file.is_file() or sweep.info().state != "finished":
            continue
        tables[name] = table_of(find(name), SweepFolder(folder / name), {})
    if not tables:
        raise InputError(f"{folder}: no table of a reproduction has finished here")
    created = SweepFolder(folder / next(iter(tables))).info().created
    print("\n".join(page(tables, created)))


def page(tables: Mapping[str, ResultTable], created: float) -> Iterator[str]:
    """Yield the lines of the page."""
    verdicts: Counter[str] = Counter()
    for table in tables.values():
        verdicts.update(claim.verdict.partition(";")[0] for claim in judge_claims(table))
    counts = "\n".join(f"| {verdict} | {count} |" for verdict, count in verdicts.most_common())
    ran = next(iter(tables.values())).run_notes[0]
    date = datetime.fromtimestamp(created, UTC).date()
    missing = [name for name in shipped() if name not in tables and not find(name).theory]
    yield INTRODUCTION.format(date=date, ran=ran, counts=counts, missing=", ".join(missing) or "none")
    for name, table in tables.items():
        yield from _section(name, table)


def _section(name: str, table: ResultTable) -> Iterator[str]:
    experiment = table.experiment
    yield f"## {experiment.title}\n"
    yield f"{experiment.question} `python -m fpp_sweep.reproduce --table {name}`\n"
    headings = [column.heading for column in experiment.columns]
    yield f"| {table.main_scope} | {' | '.join(headings)} |"
    yield f"|{' --- |' * (len(headings) + 1)}"
    for row in table.rows:
        cells = [ours(table.cell(row, column, table.main_scope), column) for column in experiment.columns]
        if any(cells):
            yield f"| {row.title} | {' | '.join(cells)} |"
    yield ""
    claims = judge_claims(table)
    if claims:
        yield "| claim | verdict | gain |\n| --- | --- | --- |"
        for claim in claims:
            yield f"| {claim.says} | {claim.verdict} | {claim.numbers} |"
        yield ""


if __name__ == "__main__":
    run(main)
