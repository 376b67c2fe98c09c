"""The front with the baselines beside it, as one table for terminal, page, notebook, MLflow and `compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fpp_sweep.records.front import (
    Front,
    format_result,
    format_setting,
    is_number,
    metrics_shown,
    splits_of,
    values_by_setting,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.formatting import format_interval
from fpp_sweep.report.table import Cell, Column, Row, RowStyle, Table
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence

SETTING_LENGTH = 60  # characters of a setting's value
NAMED_ORIGINS = ("code", "paper", "point")  # origins that a reader looks for: trials that the space lists


def front_table(
    info: SweepInfo,
    front: Front,
    evidence: Evidence | None = None,
    *,
    splits: Sequence[str] | None = None,
    settings: bool = True,
    title: str = "",
) -> Table:
    """Return a row for each member of the front and each baseline.

    Columns are the metrics on each split with their intervals, the support for being on the front, remarks such as
    `knee`, and the searched settings, which a narrow terminal leaves out.

    >>> from fpp_sweep.records.front import front_of
    >>> from fpp_sweep.records.records import SplitResult
    >>> from fpp_sweep.report.table import to_text
    >>> from fpp_sweep.space.objectives import Objective
    >>> from fpp_sweep.spec.config import TrialConfig
    >>> goals = (Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min"))
    >>> info = SweepInfo(name="s", created=0, state="finished", space={}, objectives=goals, search_split="val", tags={})
    >>> numbers = {"average": {"accuracy": 71.0, "ece": 4.0}, "datasets": {}, "deviation": {}}
    >>> result = SplitResult(**numbers, samples=200, seconds={}, device_seconds=0)
    >>> done = {"kind": "trial", "state": "complete", "values": [71.0, 4.0], "config": TrialConfig().flat()}
    >>> trial = TrialRecord(name="a", results={"val": result}, **done)
    >>> print(to_text(front_table(info, front_of(info, [trial])), width=80))
           ---- val -----
    trial  accuracy   ece  remarks
    a         71.00  4.00  best accuracy, best ece, knee
    """
    if splits is None:
        splits = splits_of(info, front.compared)
    metrics = metrics_shown(info.objectives)
    searched = values_by_setting(front.members) if settings else {}
    columns = [Column("trial", is_text=True)]
    for split in splits:
        columns += [Column(metric, group=split) for metric in metrics]
    if evidence is not None:
        columns.append(Column("support", is_text=True))
    columns.append(Column("remarks", is_text=True))
    for key, values in searched.items():
        columns.append(Column(key, is_text=not all(is_number(value) for value in values), drop_rank=1))
    rows = []
    for record in front.compared:
        cells = [Cell(record.label)]
        for split in splits:
            cells += [metric_cell(record, split, metric, evidence) for metric in metrics]
        if evidence is not None:
            cells.append(Cell(evidence.standing(record.name)))
        cells.append(Cell(remarks(front, record)))
        cells += setting_cells(record, searched)
        rows.append(record_row(front, record, cells))
    return Table(title=title, columns=columns, rows=rows)


def dataset_table(info: SweepInfo, front: Front, evidence: Evidence | None, split: str) -> Table:
    """Return accuracy and ECE by dataset of the front's members and the baselines that have a result on a split."""
    records = [record for record in front.compared if split in record.results]
    datasets: dict[str, None] = {}
    for record in records:
        datasets.update(dict.fromkeys(record.results[split].datasets))
    metrics = (catalogue.ACCURACY, catalogue.ECE)
    columns = [Column("trial", is_text=True)]
    for dataset in datasets:
        columns += [Column(catalogue.metric(metric).heading, group=dataset) for metric in metrics]
    rows = []
    for record in records:
        cells = [Cell(record.label)]
        for dataset in datasets:
            cells += [metric_cell(record, split, f"{metric}/{dataset}", evidence) for metric in metrics]
        rows.append(record_row(front, record, cells))
    return Table(title=f"{split} split", columns=columns, rows=rows if datasets else [])


def metric_cell(record: TrialRecord, split: str, metric: str, evidence: Evidence | None) -> Cell:
    """Return a record's value of a metric on a split, or on a dataset (`ece/dtd`), with its interval if it has one."""
    return Cell(format_result(metric, record.results.get(split)), interval=interval_of(record, split, metric, evidence))


def interval_of(record: TrialRecord, split: str, metric: str, evidence: Evidence | None) -> str:
    """Return the interval of a record's value as text; empty if there is none."""
    if evidence is None or split not in evidence.splits:
        return ""
    interval = evidence.splits[split].interval(record.name, metric)
    if isinstance(interval, str):  # the reason why there is none
        return ""
    return format_interval(metric, interval)


def remarks(front: Front, record: TrialRecord) -> str:
    texts = front.remarks(record)
    if record.origin in NAMED_ORIGINS:
        texts.append(record.origin)
    return ", ".join(texts)


def setting_cells(record: TrialRecord, keys: Iterable[str]) -> list[Cell]:
    """Return a record's settings; those of a baseline come from its config, and settings that it ignores are empty."""
    values: dict[str, Any] = {**relevant(record.config), **record.params}
    cells = []
    for key in keys:
        text = format_setting(values[key])[:SETTING_LENGTH] if key in values else ""
        cells.append(Cell(text))
    return cells


def record_row(front: Front, record: TrialRecord, cells: Sequence[Cell]) -> Row:
    """Return a row that stands out if its record does; the first baseline is separated from the trials above."""
    style: RowStyle = ""
    if record.kind == "baseline":
        style = "baseline"
    elif front.marks.get(record.name):
        style = "best"
    first_baseline = bool(front.chosen) and bool(front.baselines) and record is front.baselines[0]
    return Row(cells, style=style, trial=record.name, starts_group=first_baseline)
