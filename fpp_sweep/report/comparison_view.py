"""A comparison as text and in files: verdict, sweeps, settings, and each metric's values and differences by dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.front import metric_of
from fpp_sweep.records.measurements import resampled_metrics
from fpp_sweep.records.texts import format_metric, format_setting, setting_text
from fpp_sweep.report.answer_section import SIGNIFICANT, difference_cell, settings_table
from fpp_sweep.report.comparison import (
    Comparison,
    Entry,
    LoadedSweep,
    compare,
    entries_of,
    front_hypervolumes,
    sweeps_of,
)
from fpp_sweep.report.document import (
    Block,
    Section,
    Text,
    blocks_to_latex,
    blocks_to_markdown,
    blocks_to_text,
    paragraphs,
)
from fpp_sweep.report.formatting import counts_text, cut, format_bounds, format_interval, format_p_value, output_width
from fpp_sweep.report.table import Cell, Column, Row, Table, columns_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import dotted
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.keys import digest
from fpp_sweep.spec.messages import plural, printable
from fpp_sweep.spec.progress import duration
from fpp_sweep.statistics.paired import Difference

COMPARISONS = Path("comparisons")
LONGEST_NAME = 150  # characters of a folder that is named after what is compared
AVERAGE = "average"
SETTING_LENGTH = 40  # characters
PROVENANCE = ("model_digest", "device", "git_commit", "fpp_sweep", "torch", "plugins")  # compared beside the spaces


def write_comparison(
    sweeps: Sequence[Path], names: Sequence[str], split: str | None = None, out: Path | None = None
) -> str:
    """Compare named records of a sweep, or the best trials of several; return tables and files for the terminal."""
    entries = entries_of(sweeps, names)
    labels = [sweep.label for sweep in sweeps_of(entries)]
    if names:
        labels = [entry.label for entry in entries]
    title, folder_name = ", ".join(labels), "-".join(labels)
    if names:
        title, folder_name = f"{sweeps[0].name}: {title}", f"{sweeps[0].name}-{folder_name}"
    sections = comparison_sections(compare(entries, split))
    folder_name = folder_name.replace("/", "_")
    if len(folder_name) > LONGEST_NAME:
        folder_name = f"{folder_name[:LONGEST_NAME]}-{digest(folder_name, length=6)}"
    out = out or COMPARISONS / folder_name
    markdown, latex = out / "comparison.md", out / "comparison.tex"
    for path, text in ((markdown, blocks_to_markdown(title, sections)), (latex, blocks_to_latex(sections))):
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")
    paths = f"Markdown  {printable(markdown)}\nLaTeX     {printable(latex)}"
    return f"{blocks_to_text(sections, output_width())}\n\n{paths}"


def comparison_sections(comparison: Comparison) -> list[Section]:
    blocks: list[Block] = [Text(verdict(comparison), "lead"), *paragraphs(_notes(comparison))]
    sections = [Section(f"Comparison on {comparison.split}", blocks)]
    if len(comparison.sweeps) > 1:
        sections.append(Section("Sweeps", [_sweep_table(comparison)]))
        sections.append(Section("Settings of the sweeps that differ", [_differing_settings(comparison.sweeps)]))
    trials = []
    for entry in comparison.entries:
        if entry.record.kind == "trial":
            trials.append(replace(entry.record, name=entry.label))
    settings = settings_table(trials, "")
    if len(settings.columns) > 1:
        sections.append(Section("Settings of the trials", [settings]))
    for metric in comparison.metrics:
        heading = f"{metric} on {comparison.split}: {catalogue.metric(metric).title}"
        sections.append(Section(heading, [_value_table(comparison, metric)]))
        reason = _why_no_test(comparison, metric)
        if reason:
            sections.append(Section(f"{metric}: no paired test", [Text(reason)]))
        else:
            table = _difference_table(comparison, metric)
            sections.append(Section(f"{metric} on {comparison.split}: differences", [table]))
    return sections


# --- the verdict --------------------------------------------------------------------------------------


def verdict(comparison: Comparison) -> str:
    """Return which records are better on average, and how many differences may be luck of the search."""
    verdicts = []
    n_lucky = 0
    causes: dict[str, None] = {}
    averages = [difference for key, difference in comparison.differences.items() if key[2] in comparison.metrics]
    for (first, second, metric), difference in comparison.differences.items():
        if metric in comparison.metrics and difference.mark:
            causes_of_luck = _causes_of_luck(comparison, first, second, metric)
            if causes_of_luck:
                n_lucky += 1
                causes.update(dict.fromkeys(causes_of_luck))
            else:
                verdicts.append(_verdict_of(first, second, difference))
    if not averages:
        return "No difference was tested."
    sentences = []
    if verdicts:
        sentences.append(f"{'; '.join(verdicts)}.")
    if n_lucky:
        differences = plural(n_lucky, "significant difference")
        sentences.append(f"No verdict on {differences}, which may be luck: the trials {' and '.join(causes)}.")
    return " ".join(sentences) or "No difference of averages is significant."


def _verdict_of(first: str, second: str, difference: Difference) -> str:
    better, worse = first, second
    if difference.mark == "-":
        better, worse = second, first
    return f"{better} is better than {worse} in {difference.metric}"


def _causes_of_luck(comparison: Comparison, first: str, second: str, metric: str) -> list[str]:
    """Return why a significant difference may come from lucky images or seeds; an empty list if not."""
    causes = []
    compared = [entry for entry in comparison.entries if entry.label in (first, second)]
    chosen_by = {entry.chosen_by(comparison.split) for entry in compared}
    if "images" in chosen_by:
        causes.append(f"were chosen by these {comparison.split} images")
    elif "seeds" in chosen_by:
        causes.append("were chosen with these seeds")
    if not all(comparison.statistics.has_known_seed_variance(entry.label, [metric]) for entry in compared):
        causes.append("have too few seeds")
    return causes


def _notes(comparison: Comparison) -> Iterator[str]:
    yield f"images that all have seen: {counts_text(comparison.images)}"
    if comparison.left_out:
        yield f"left out, as not all have seen the same images: {', '.join(comparison.left_out)}"
    for cause in ("images", "seeds"):
        chosen = [entry.label for entry in comparison.entries if entry.chosen_by(comparison.split) == cause]
        if chosen:
            yield f"chosen by these {cause}, so their values are optimistic: {', '.join(chosen)}"


# --- sweeps and settings ------------------------------------------------------------------------------


def _sweep_table(comparison: Comparison) -> Table:
    """Return cost, hypervolume and best trials of each sweep."""
    volumes = front_hypervolumes(comparison)
    first, *others = comparison.sweeps
    marks: dict[str, None] = {}
    for entry in comparison.entries:
        marks.update(dict.fromkeys(entry.marks))
    columns = [Column("sweep", is_text=True), *columns_of(["trials", "worker time", "hypervolume"])]
    columns += columns_of(marks, is_text=True)
    rows = []
    for sweep in comparison.sweeps:
        volume = "-"
        if sweep.label in volumes:
            volume = f"{volumes[sweep.label]:.4g}"
        texts = [sweep.label, str(len(sweep.trials)), duration(sweep.search_seconds), volume]
        texts += [sweep.statistics.front.trial_with(mark) or "-" for mark in marks]
        rows.append(Row([Cell(text) for text in texts]))
    notes = [f"hypervolume: of the fronts on these images, by {first.info.goals}"]
    if not volumes:
        notes = [f"no hypervolume: not every objective of {first.label} can be measured on these images"]
    for sweep in others:
        if sweep.info.goals != first.info.goals:
            notes.append(f"{sweep.label} searched {sweep.info.goals}")
        notes += _differing_inputs(first, sweep)
    cached = [sweep.label for sweep in comparison.sweeps if sweep.info.work.cached > 0]
    if cached:
        notes.append(f"cached results cost nothing: {', '.join(cached)}")
    return Table(columns=columns, rows=rows, notes=notes)


def _differing_inputs(first: LoadedSweep, sweep: LoadedSweep) -> list[str]:
    """Return a note on datasets whose labels or views differ between two sweeps that limit them alike."""
    if first.info.work_settings.get("limit") != sweep.info.work_settings.get("limit"):
        return []
    digests, first_digests = sweep.info.digests, first.info.digests
    differing = [name for name in digests if digests[name] != first_digests.get(name, digests[name])]
    if not differing:
        return []
    return [f"{sweep.label}: labels or views of {', '.join(differing)} differ from {first.label}'s; paired by names"]


def _differing_settings(sweeps: Sequence[LoadedSweep]) -> Table:
    """Return the keys of the spaces and of the provenance in which the sweeps differ."""
    settings = {sweep.label: _settings_of(sweep) for sweep in sweeps}
    keys: dict[str, None] = {}
    for of_sweep in settings.values():
        keys.update(dict.fromkeys(of_sweep))
    rows = []
    for key in keys:
        texts = [of_sweep.get(key, "-") for of_sweep in settings.values()]
        if len(set(texts)) > 1:
            rows.append([key, *texts])
    notes = [] if rows else ["none"]
    return Table.of_strings(["setting", *settings], rows, notes=notes, text_columns=range(len(settings) + 1))


def _settings_of(sweep: LoadedSweep) -> Mapping[str, str]:
    settings = {}
    for key, value in dotted(dict(sweep.info.space)):
        if key not in ("question", "name"):
            name = key.removeprefix("params.").rpartition(".")[0]  # of a range's end
            settings[key] = cut(setting_text(name, value), SETTING_LENGTH)
    for name, text in sweep.info.provenance().items():
        if name in PROVENANCE:
            settings[name] = cut(format_setting(text), SETTING_LENGTH)
    return settings


# --- values and differences ---------------------------------------------------------------------------


def _why_no_test(comparison: Comparison, metric: str) -> str:
    """Return why no pair has a test in a metric; an empty text if any pair has one."""
    if not resampled_metrics([metric]):
        return "it cannot be computed from block statistics"
    reason = "the sweeps have no two different trials with the same mark"
    for first, second in comparison.pairs:
        for key in _metric_keys(comparison, metric).values():
            if (first.label, second.label, key) in comparison.differences:
                return ""
            reason = comparison.statistics.why_no_difference(first.label, second.label, key)
    return reason


def _metric_keys(comparison: Comparison, metric: str) -> dict[str, str]:
    """Return heading -> metric of the columns: each dataset, then the average."""
    keys = {dataset: f"{metric}/{dataset}" for dataset in comparison.images}
    return {**keys, AVERAGE: metric}


def _columns(comparison: Comparison, title: str) -> list[Column]:
    return [Column(title, is_text=True), *columns_of([*comparison.images, AVERAGE])]


def _value_table(comparison: Comparison, metric: str) -> Table:
    rows = []
    for label, result in comparison.results.items():
        cells = [Cell(label)]
        for key in _metric_keys(comparison, metric).values():
            interval = comparison.statistics.interval(label, key)
            interval_text = format_interval(key, interval) if interval else ""
            cells.append(Cell(format_metric(key, metric_of(result, key)), interval=interval_text))
        rows.append(Row(cells))
    return Table(columns=_columns(comparison, "trial"), rows=rows)


def _difference_table(comparison: Comparison, metric: str) -> Table:
    rows = []
    for first, second in comparison.pairs:
        cells = [Cell(f"{first.label} minus {second.label}")]
        for key in _metric_keys(comparison, metric).values():
            cells.append(_cell(comparison, first, second, key))
        rows.append(Row(cells))
    return Table(columns=_columns(comparison, "pair"), rows=rows, notes=list(_family_notes(comparison, metric)))


def _cell(comparison: Comparison, first: Entry, second: Entry, metric: str) -> Cell:
    difference = comparison.differences.get((first.label, second.label, metric))
    if difference is None:
        return Cell("-")
    return replace(
        difference_cell(metric, difference),
        interval=format_bounds(metric, difference),
        below={"p": format_p_value(difference.adjusted_p)},
    )


def _family_notes(comparison: Comparison, metric: str) -> Iterator[str]:
    """Yield which tests were corrected together; the pairs of a sweep's answer keep their p-values from there."""
    families = "all averages, and over all single datasets"
    yield f"paired over images; p two-sided, after Holm's correction over {families}; {SIGNIFICANT} below 0.05"
    from_answer = []
    for first, second, tested in comparison.from_answer:
        if tested == metric:
            from_answer.append(f"{first} minus {second}")
    if from_answer:
        yield f"averages corrected within the sweep's answer: {', '.join(sorted(from_answer))}"
