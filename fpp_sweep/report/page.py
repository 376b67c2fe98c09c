"""sweep.html: the whole sweep on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fpp_sweep import catalogue
from fpp_sweep.config import relevant
from fpp_sweep.records.front import (
    Front,
    format_result,
    format_setting,
    format_values,
    metrics_shown,
    splits_of,
    values_by_setting,
    varies,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report import plots
from fpp_sweep.report.builder import (
    faint,
    paragraph,
    place,
    safe,
    section,
    table,
    table_of_words,
    time_of,
    warning,
    write_html,
)
from fpp_sweep.report.evidence import Evidence
from fpp_sweep.report.importance import TOP, Importance
from fpp_sweep.report.words import beside, remarks, sentences

FAILURES = 50  # listed
SUPPORT = (
    "Intervals below values hold 95 % over images of these datasets, and say nothing of other datasets; that of an ECE "
    "is around its debiased value. Support is the share of resamples of the images in which a trial is on the front: "
    "clear from 0.8 on, unlikely below 0.02, open between. It is no probability. "
    "An objective that does not follow from sums over images is taken as exact."
)


def write_page(
    path: Path,
    info: SweepInfo,
    records: Sequence[TrialRecord],
    front: Front,
    evidence: Evidence,
    importances: Sequence[Importance],
) -> None:
    """About 5 MB, nearly all of it plotly.js."""
    fronts = plots.front_plots(info, front, evidence)
    others = [plots.parallel_plot(info, front), plots.importance_plot(importances), plots.hypervolume_plot(front)]
    parallel, importance, hypervolume = map(place, others)
    body = [
        _heading(info, records, front),
        section("Front", *map(place, fronts), _hint(front), _front_table(info, front, evidence)),
        section("What these numbers bear", *_borne(info, front, evidence)),
        section("Datasets", _dataset_tables(info, front, evidence)),
        section("Settings", _parallel_note(front), parallel, _constants(front)),
        section("Importances", importance, _importance_note(importances)),
        section("Hypervolume", hypervolume),
        section("Trials without a result", _failures(records)),
        section("How the numbers were computed", *_computed(info, front)),
        section("Origin", table_of_words(["tag", "value"], sorted(info.tags.items()))),
    ]
    configs = {
        record.name: {key: format_setting(value) for key, value in {**record.config, **record.params}.items()}
        for record in (*front.finished, *front.baselines)
    }
    write_html(path, info.name, body, plots=(*fronts, *others), configs=configs)


def _heading(info: SweepInfo, records: Sequence[TrialRecord], front: Front) -> str:
    counts = Counter(record.state for record in records if record.kind == "trial")
    ended_otherwise = f"{counts['failed']} failed" + (f", {counts['stopped']} stopped" if counts["stopped"] else "")
    going_on = f"{counts['running']} running" + (f", {counts['waiting']} waiting" if counts["waiting"] else "")
    ended = "" if info.finished is None else f", ended {time_of(info.finished)}"
    infeasible = f", {len(front.infeasible)} break a constraint" if front.infeasible else ""
    lines = [
        f"<header>\n<h1>{safe(info.name)}</h1>",
        paragraph(info.space["question"]) if info.space.get("question") else "",
        f'<p class="faint">{safe(info.state)}; begun {time_of(info.created)}{ended}</p>',
        f"<p>{safe(info.goals)} on the {safe(info.search_split)} split: {counts['complete']} trials finished, "
        f"{ended_otherwise}, {going_on}; {len(front.members)} on the front{infeasible}.</p>",
        warning("Settings were searched on the test split: its numbers are optimistic.")
        if info.search_split == "test"
        else "",
        "</header>",
    ]
    return "\n".join(filter(None, lines))


def _hint(front: Front) -> str:
    if not (front.finished or front.baselines):
        return ""
    return (
        '<p class="faint screen">A point under the cursor shows its settings; a click shows its whole config here.</p>'
        '<div id="details" class="faint screen">No trial chosen.</div>'
    )


def _grouped_table(front: Front, groups: Mapping[str, Sequence[str]], rows: Mapping[str, Sequence[str]]) -> str:
    """Columns in groups with a heading above them; a row of cells for each of the compared records, by its name."""
    above = "".join(
        f'<th class="group" colspan="{len(heads)}">{safe(group)}</th>' for group, heads in groups.items() if heads
    )
    heads = "".join(f"<th>{safe(head)}</th>" for heads in groups.values() for head in heads)
    lines = []
    for record in front.compared:
        if record.name in rows:
            style = "baseline" if record.kind == "baseline" else "best" if front.marks.get(record.name) else ""
            remarks = f"<small>{safe(', '.join(front.remarks(record)))}</small>"
            cells = "".join(rows[record.name])
            lines.append(f'<tr class="{style}"><th>{safe(record.label)}{remarks}</th>{cells}</tr>')
    return table(f'<tr><th></th>{above}</tr><tr><th class="words">trial</th>{heads}</tr>', lines)


def _borne(info: SweepInfo, front: Front, evidence: Evidence) -> list[str]:
    told = [paragraph(line) for line in sentences(info, front, evidence)]
    return [*told, *(faint(f"{line}.") for line in remarks(info, front, evidence)), paragraph(SUPPORT)]


def _front_table(info: SweepInfo, front: Front, evidence: Evidence) -> str:
    if not front.compared:
        return ""
    searched = values_by_setting(front.members)
    splits, metrics = splits_of(info, front.compared), metrics_shown(info.objectives)
    rows = {
        record.name: [
            *(_metric_cells(record, split, metrics, evidence) for split in splits),
            f"<td>{safe(evidence.standing(record.name))}</td>",
            *setting_cells(record, searched),
        ]
        for record in front.compared
    }
    groups = {**dict.fromkeys(splits, metrics), "support": ["on the front"], "settings": list(searched)}
    return _grouped_table(front, groups, rows)


def _metric_cells(record: TrialRecord, split: str, metrics: Sequence[str], evidence: Evidence) -> str:
    """Each with its interval below."""
    cells = []
    for metric in metrics:
        interval = beside(evidence, record.name, split, metric)
        below = f"<small>{safe(interval)}</small>" if interval else ""
        cells.append(format_result(metric, record.results.get(split)) + below)
    return '<td class="first">' + "</td><td>".join(cells) + "</td>"


def setting_cells(record: TrialRecord, keys: Iterable[str]) -> list[str]:
    """A baseline's come from its config, as nothing was searched for it; empty where nothing reads the setting."""
    values = {**relevant(record.config), **record.params}
    return [f"<td>{safe(format_setting(values[key])[:60]) if key in values else ''}</td>" for key in keys]


def _dataset_tables(info: SweepInfo, front: Front, evidence: Evidence) -> str:
    main = (catalogue.ACCURACY, catalogue.ECE)
    headings = [catalogue.metric(metric).heading for metric in main]
    tables = []
    for split in splits_of(info, front.compared):
        results = {record.name: record.results[split] for record in front.compared if split in record.results}
        datasets = list(dict.fromkeys(dataset for result in results.values() for dataset in result.datasets))
        rows = {
            record.name: [
                _metric_cells(record, split, [f"{metric}/{dataset}" for metric in main], evidence)
                for dataset in datasets
            ]
            for record in front.compared
            if record.name in results
        }
        if datasets:
            tables.append(f"<h3>{safe(split)} split</h3>")
            tables.append(_grouped_table(front, dict.fromkeys(datasets, headings), rows))
    return "\n".join(tables) or faint("No trial has finished yet.")


def _parallel_note(front: Front) -> str:
    if len(front.trials) < 2:
        return ""
    return faint(
        f"A line for each trial, by its {front.objectives[0].metric} from grey (worst) over blue to red (best); drag "
        "along an axis to keep the lines that pass there."
    )


def _constants(front: Front) -> str:
    columns = values_by_setting(front.finished).items()
    same = [f"{key} = {format_setting(values[0])}" for key, values in columns if not varies(values)]
    return faint(f"The same in all trials: {', '.join(same)}.") if same else ""


def _importance_note(importances: Sequence[Importance]) -> str:
    skipped = [f"{row.metric}: {row.skipped}." for row in importances if not row.shares]
    if len(skipped) == len(importances):  # the plot's place says so
        return ""
    return "".join(map(faint, skipped)) + faint(
        f"PED-ANOVA: how much a setting tells the best tenth of the trials, but at least {TOP}, from all of them; "
        "shares add up to 1. With few trials they are hints."
    )


def _failures(records: Sequence[TrialRecord]) -> str:
    failed = [record for record in records if record.state in ("failed", "stopped", "interrupted")]
    if not failed:
        return faint("None.")
    rows = ([record.name, record.state, format_setting(record.reason or "")] for record in failed[:FAILURES])
    more = faint(f"and {len(failed) - FAILURES} more") if len(failed) > FAILURES else ""
    return table_of_words(["trial", "state", "reason"], rows) + more


def _computed(info: SweepInfo, front: Front) -> list[str]:
    counts = {
        split: max((record.results[split].samples for record in front.compared if split in record.results), default=0)
        for split in splits_of(info, front.compared)
    }
    images = ", ".join(f"{count} images of {split}" for split, count in counts.items() if count)
    sentences = [
        f"Each trial was measured on {images}, each image once for each seed." if images else "",
        "Accuracy and calibration errors are percentages. ECE has 20 bins of equal width. A value is the unweighted "
        "mean over datasets, then over seeds; ± is the standard deviation of that mean over seeds, where there are "
        "several.",
        f"Trials were chosen by their values on the {info.search_split} split. A finished trial that keeps "
        "all constraints is on the front unless another such trial is at least as good at every objective and better "
        "at one.",
        ""
        if front.reference is None
        else "The hypervolume is what the front dominates, up to the reference point "
        f"{format_values(info.objectives, front.reference)}; exact.",
        "The knee is the member nearest to the best of every objective at once, each measured from the front's best "
        "to its worst.",
        "Configs of the front, of the knee and of the best at each objective are in best/ beside this page.",
    ]
    return [paragraph(sentence) for sentence in sentences if sentence]
