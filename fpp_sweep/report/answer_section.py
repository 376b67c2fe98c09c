"""The answer of a sweep: one sentence, a table of differences to the baselines, and the recommended settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fpp_sweep.records.front import format_setting
from fpp_sweep.report.document import Block, Section, Text
from fpp_sweep.report.table import Cell, CellStyle, Column, Row, Table
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.messages import plural

SIGNIFICANT = "*"
STYLES: Mapping[str, CellStyle] = {"+": "good", "-": "bad", "": ""}


class Difference(Protocol):
    """A finalist minus a baseline in one metric."""

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def mark(self) -> str:
        """`+` if the finalist is shown to be better, `-` if worse, else empty; after Holm's correction."""


class Answer(Protocol):
    """A sweep's recommendation, with the differences that it rests on."""

    sentence: str
    reason: str
    split: str
    seeds: int
    images: Mapping[str, int]
    finalists: Sequence[str]
    baselines: Sequence[str]
    metrics: Sequence[str]
    settings: Mapping[str, Mapping[str, Any]]

    def difference(self, finalist: str, baseline: str, metric: str) -> Difference | None: ...


def answer_section(answer: Answer) -> Section:
    """Return the section that stands on top of a page."""
    blocks: list[Block] = [Text(answer.sentence, "lead")]
    if answer.reason:
        blocks.append(Text(answer.reason))
    blocks.append(difference_table(answer))
    blocks.append(settings_table(answer))
    return Section("Answer", blocks, anchor="answer")


def difference_table(answer: Answer) -> Table:
    """Return finalists minus baselines: a row for each finalist and metric, a column for each baseline.

    The last column has the largest half width of the row's 95 % intervals. A narrow terminal leaves it out.
    """
    columns = [Column("finalist", is_text=True), Column("metric", is_text=True)]
    columns += [Column(label_of(baseline)) for baseline in answer.baselines]
    columns.append(Column("±", drop_rank=1))
    rows = []
    for finalist in answer.finalists:
        for index, metric in enumerate(answer.metrics):
            differences = [answer.difference(finalist, baseline, metric) for baseline in answer.baselines]
            cells = [Cell(label_of(finalist) if index == 0 else ""), Cell(metric)]
            cells += [_difference_cell(metric, difference) for difference in differences]
            half_widths = [difference.high - difference.value for difference in differences if difference is not None]
            cells.append(Cell(f"{max(half_widths):.{_decimals(metric)}f}" if half_widths else ""))
            rows.append(Row(cells, trial=finalist if index == 0 else "", starts_group=index == 0 and bool(rows)))
    title = f"Finalists minus baselines on {answer.split}"
    return Table(title=title, columns=columns, rows=rows, notes=_notes(answer), sortable=False)


def _notes(answer: Answer) -> list[str]:
    n_differences = 0
    for finalist in answer.finalists:
        for baseline in answer.baselines:
            for metric in answer.metrics:
                if answer.difference(finalist, baseline, metric) is not None:
                    n_differences += 1
    sizes = sorted({min(answer.images.values()), max(answer.images.values())})
    seeds = "one seed" if answer.seeds == 1 else f"{answer.seeds} seeds"
    return [
        f"{SIGNIFICANT} significant at 5 % after Holm's correction for {n_differences} comparisons",
        "±: half width of the 95 % interval of a single comparison",
        f"{seeds}, {plural(len(answer.images), 'dataset')} of {' to '.join(str(size) for size in sizes)} images",
    ]


def _difference_cell(metric: str, difference: Difference | None) -> Cell:
    if difference is None:
        return Cell("")
    mark = SIGNIFICANT if difference.mark else ""
    return Cell(f"{difference.value:+.{_decimals(metric)}f}", mark=mark, style=STYLES[difference.mark])


def _decimals(metric: str) -> int:
    return max(1, catalogue.metric(metric.partition("/")[0]).decimals - 1)


def settings_table(answer: Answer) -> Table:
    """Return the searched settings of each finalist."""
    keys: dict[str, None] = {}
    for settings in answer.settings.values():
        keys.update(dict.fromkeys(settings))
    columns = [Column("finalist", is_text=True), *(Column(key) for key in keys)]
    rows = []
    for finalist, settings in answer.settings.items():
        cells = [Cell(label_of(finalist))]
        cells += [Cell(format_setting(settings[key]) if key in settings else "") for key in keys]
        rows.append(Row(cells, trial=finalist))
    return Table(title="Settings", columns=columns, rows=rows if keys else [])


def label_of(name: str) -> str:
    """Return a record's name as tables show it.

    >>> label_of("baseline-tpt"), label_of("trial-0002")
    ('tpt', 'trial-0002')
    """
    return name.removeprefix("baseline-")
