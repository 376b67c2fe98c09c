"""Document of a comparison of trials: values and differences by dataset, for each metric."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from fpp_sweep.records.front import metric_of
from fpp_sweep.records.measurements import resampled_metrics
from fpp_sweep.records.texts import format_metric
from fpp_sweep.report.answer_section import SIGNIFICANT, difference_cell, settings_table
from fpp_sweep.report.document import Document, Section, Text
from fpp_sweep.report.formatting import counts_text, format_bounds, format_interval, format_p_value
from fpp_sweep.report.table import Cell, Column, Row, Table, columns_of
from fpp_sweep.report.trial_comparison import TrialComparison
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.paired import paired_over, why_not_paired

AVERAGE = "average"


def trial_comparison_document(title: str, comparison: TrialComparison) -> Document:
    sections = []
    settings = settings_table(comparison.trials, "")
    if len(settings.columns) > 1:
        sections.append(Section("Settings", [settings]))
    for metric in comparison.metrics:
        heading = f"{metric} on {comparison.split}: {catalogue.metric(metric).title}"
        sections.append(Section(heading, [_value_table(comparison, metric)]))
        reason = _why_no_test(comparison, metric)
        if reason:
            sections.append(Section(f"{metric}: no paired test", [Text(reason)]))
        else:
            table = _difference_table(comparison, metric)
            sections.append(Section(f"{metric} on {comparison.split}: differences", [table]))
    return Document(title, sections)


def _why_no_test(comparison: TrialComparison, metric: str) -> str:
    """Return why no pair has a test in a metric; an empty text if any pair has one."""
    if not resampled_metrics([metric]):
        return "it cannot be computed from block statistics"
    reason = ""
    for first, second in combinations(comparison.results, 2):
        for key in _metric_keys(comparison, metric).values():
            if (first, second, key) in comparison.differences:
                return ""
            reason = why_not_paired(comparison.statistics.samples, first, second, key)
    return reason


def _metric_keys(comparison: TrialComparison, metric: str) -> dict[str, str]:
    """Return heading -> metric of the columns: each dataset, then the average."""
    keys = {dataset: f"{metric}/{dataset}" for dataset in comparison.statistics.samples.images}
    return {**keys, AVERAGE: metric}


def _columns(comparison: TrialComparison, title: str) -> list[Column]:
    return [Column(title, is_text=True), *columns_of([*comparison.statistics.samples.images, AVERAGE])]


def _value_table(comparison: TrialComparison, metric: str) -> Table:
    rows = []
    for label, result in comparison.results.items():
        cells = [Cell(label)]
        for key in _metric_keys(comparison, metric).values():
            interval = comparison.statistics.interval(label, key)
            interval_text = "" if isinstance(interval, str) else format_interval(key, interval)
            cells.append(Cell(format_metric(key, metric_of(result, key)), interval=interval_text))
        rows.append(Row(cells))
    notes = [f"images that all have seen: {counts_text(comparison.statistics.samples.images)}"]
    if comparison.chosen_by:
        notes.append(f"trials were chosen by these {comparison.chosen_by}: optimistic")
    return Table(columns=_columns(comparison, "trial"), rows=rows, notes=notes)


def _difference_table(comparison: TrialComparison, metric: str) -> Table:
    rows = []
    for first, second in combinations(comparison.results, 2):
        cells = [Cell(f"{first} minus {second}")]
        for key in _metric_keys(comparison, metric).values():
            cells.append(_cell(comparison, first, second, key))
        rows.append(Row(cells))
    return Table(columns=_columns(comparison, "pair"), rows=rows, notes=list(_family_notes(comparison, metric)))


def _cell(comparison: TrialComparison, first: str, second: str, metric: str) -> Cell:
    difference = comparison.differences.get((first, second, metric))
    if difference is None:
        return Cell("-")
    return replace(
        difference_cell(metric, difference),
        interval=format_bounds(metric, difference),
        below={"p": format_p_value(difference.adjusted_p)},
    )


def _family_notes(comparison: TrialComparison, metric: str) -> Iterator[str]:
    """Yield which tests were corrected together; the pairs of the sweep's answer keep their p-values from there."""
    pairing = paired_over(comparison.statistics.samples)
    yield f"{pairing}; p two-sided, after Holm's correction; {SIGNIFICANT} below 0.05"
    families: dict[str, None] = {}
    for key, difference in comparison.differences.items():
        family = "of averages in this comparison"
        if key in comparison.from_answer:
            family = "of the sweep's answer"
        elif "/" in difference.metric:
            family = "of single datasets in this comparison"
        families[f"the {difference.family_size} tests {family}"] = None
    yield f"families: {', '.join(families)}"
    from_answer = []
    for first, second, tested in comparison.from_answer:
        if tested == metric:
            from_answer.append(f"{first} minus {second}")
    if from_answer:
        yield f"of the sweep's answer: {', '.join(sorted(from_answer))} (average)"
