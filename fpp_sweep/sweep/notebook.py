"""A sweep in a notebook: rows, predictions, figures and HTML, from its folder alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas  # type: ignore[import-untyped]

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import metrics_shown
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.document import Block, paragraphs
from fpp_sweep.report.front_table import front_table
from fpp_sweep.report.html import blocks_to_html
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.summary import front_notes, state_line
from fpp_sweep.trial.artifacts import dataset_and_seed, prediction_files, read_columns

if TYPE_CHECKING:
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

COPIED = ("name", "kind", "state", "origin", "reason")  # fields of a record that a row has


def sweep_statistics(folder: SweepFolder) -> SweepStatistics:
    """Return the answer of a sweep, with intervals and support."""
    return statistics_of(folder, folder.info(), folder.trials())


def rows(folder: SweepFolder) -> list[dict[str, Any]]:
    """Return all records as flat rows."""
    info, records = folder.info(), folder.trials()
    statistics = statistics_of(folder, info, records)
    return [record_row(info, record, statistics) for record in records]


def record_row(info: SweepInfo, record: TrialRecord, statistics: SweepStatistics) -> dict[str, Any]:
    """Return a record as a flat row."""
    row: dict[str, Any] = {name: getattr(record, name) for name in COPIED}
    row["marks"] = ", ".join(statistics.front.remarks(record))
    row["on_front"] = record in statistics.front.members
    row["duration"] = record.duration
    row |= record.params
    for split in record.results:
        prefix = "" if split == info.search_split else f"{split}/"
        for name, value in _numbers(info, record, split, statistics).items():
            row[f"{prefix}{name}"] = value
    return row


def _numbers(info: SweepInfo, record: TrialRecord, split: str, statistics: SweepStatistics) -> dict[str, float]:
    """Return a record's averages and costs on a split, its numbers by dataset, and the ends of its intervals."""
    result = record.results[split]
    numbers = dict(result.average)
    if not record.is_imported:
        numbers["seconds"] = result.work_seconds
    for dataset, values in result.datasets.items():
        for metric, value in values.items():
            numbers[f"{metric}/{dataset}"] = value
    for metric in metrics_shown(info):
        interval = statistics.interval(record, split, metric)
        if not isinstance(interval, str):
            numbers[f"{metric} low"] = interval.low
            numbers[f"{metric} high"] = interval.high
    return numbers


def predictions(folder: SweepFolder, name: str, split: str) -> pandas.DataFrame:
    """Return the predictions of a trial for all datasets and seeds of a split, one below the other."""
    files = prediction_files(folder.artifacts(name), split)
    if not files:
        state = folder.trial(name).state
        raise InputError(f"{name} of {folder.path.name} has no predictions on {split}; it is {state}")
    parts = []
    for file in files:
        dataset, seed = dataset_and_seed(file)
        table = read_columns(file, lambda _: True, remedy="delete it")
        parts.append(table.to_pandas().assign(dataset=dataset, seed=seed))
    return pandas.concat(parts, ignore_index=True)


def as_html(folder: SweepFolder) -> str:
    """Return the state of the sweep, its answer, and its front with the baselines."""
    info, records = folder.info(), folder.trials()
    statistics = statistics_of(folder, info, records)
    blocks: list[Block] = [*paragraphs([state_line(folder, info, records), *front_notes(info, statistics.front)])]
    blocks += paragraphs(statistics.notes, "warning")
    for section in answer_sections(statistics):
        blocks += section.blocks
    if statistics.front.compared:
        blocks.append(front_table(info, statistics.front, statistics))
    return blocks_to_html(blocks)


def figures(folder: SweepFolder) -> dict[str, Figure]:
    """Return the figures that have data, by name, in Plotly's own colours."""
    from plotly.graph_objects import Figure  # takes seconds

    from fpp_sweep.report.plots import front_plots, settings_plots  # loads Plotly and Optuna

    info = folder.info()
    statistics = statistics_of(folder, info, folder.trials())
    plots = front_plots(info, statistics)
    for strips in settings_plots(info, statistics.front).values():
        plots += strips
    return {plot.name: Figure(data=list(plot.traces), layout=plot.layout) for plot in plots}
