"""The numbers of one trial as text: by dataset, and after post-hoc maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fpp_sweep.cli.terminal import terminal_width
from fpp_sweep.records.front import orders_remark
from fpp_sweep.records.records import SplitResult, TrialRecord, mean_of_shared
from fpp_sweep.records.released_marks import released_notes
from fpp_sweep.records.texts import format_metric
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.space.work import NO_MAP
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.messages import printable

EUROSAT = "eurosat"  # dominates averages of the ten fine-grained datasets, so there is one without it as well


def split_text(record: TrialRecord, split: str, shown: Sequence[str] | None = None) -> str:
    """Return a trial's numbers on a split, those after post-hoc maps, and notes on orders, released settings and maps.

    `shown` are metrics that the tables have beside those that the catalogue shows; None: they have all metrics.
    """
    result = record.results[split]
    if shown is not None:
        result = replace(result, average=_shown(result.average, shown))
    parts = [split_table(split, result)]
    for remark in (*orders_remark(record, split), *released_notes([record])):
        parts.append(f"note: {remark}")
    mapped = posthoc_table(result)
    if mapped:
        parts += ["", mapped]
        for sentence in result.notes:
            parts.append(f"note: {printable(sentence)}")
    return "\n".join(parts)


def _shown(average: Mapping[str, float], objectives: Sequence[str]) -> dict[str, float]:
    """Return the metrics that a table shows: those of the objectives, and those that the catalogue shows."""
    stems = {catalogue.parts_of(metric).stem for metric in objectives}
    values = {}
    for metric, value in average.items():
        if catalogue.is_shown(metric) or catalogue.parts_of(metric).stem in stems:
            values[metric] = value
    return values


def split_table(split: str, result: SplitResult) -> str:
    """Return a table of a trial's numbers: a row for each dataset, then the averages."""
    metrics = [metric for metric in result.average if not catalogue.parts_of(metric).posthoc]
    heads = [split, *(_heading(metric) for metric in metrics)]
    rows = []
    for name, values in (*result.datasets.items(), *averages_of(result).items()):
        cells = [name]
        for metric in metrics:
            cells.append(format_metric(metric, values.get(metric)))
        rows.append(cells)
    return to_text(Table.of_strings(heads, rows), terminal_width())


def posthoc_table(result: SplitResult) -> str:
    """Return the averages without a post-hoc map and after each; empty without maps."""
    stems: dict[str, None] = {}
    maps: dict[str, None] = {}
    for metric in result.average:
        parts = catalogue.parts_of(metric)
        if parts.posthoc:
            stems[parts.stem] = None
            maps[parts.posthoc] = None
    if not maps:
        return ""
    rows = []
    for posthoc in ("", *maps):
        cells = [posthoc or NO_MAP]
        for stem in stems:
            name = catalogue.MetricParts(stem, posthoc).of_average
            cells.append(format_metric(name, result.average.get(name)))
        rows.append(cells)
    return to_text(Table.of_strings(["post-hoc map", *(_heading(stem) for stem in stems)], rows), terminal_width())


def _heading(metric: str) -> str:
    if metric in catalogue.METRICS:
        return catalogue.METRICS[metric].heading
    return metric  # a metric of a plugin that is not loaded


def averages_of(result: SplitResult) -> dict[str, Mapping[str, float]]:
    """Return the averages over datasets: of all, and of all but EuroSAT where the datasets contain it."""
    averages: dict[str, Mapping[str, float]] = {"average": result.average}
    without_eurosat = [values for name, values in result.datasets.items() if name != EUROSAT]
    if EUROSAT in result.datasets and len(without_eurosat) > 1:
        averages[f"average without {EUROSAT}"] = mean_of_shared(without_eurosat)
    return averages
