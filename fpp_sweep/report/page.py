"""sweep.html: the whole sweep on one page that loads nothing from anywhere and may be shown in a sandbox."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from fpp_sweep import catalogue
from fpp_sweep.config import relevant
from fpp_sweep.files import written_whole
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
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.report import plots
from fpp_sweep.report.importance import TOP, Importance
from fpp_sweep.report.plots import Plot
from fpp_sweep.report.theme import SCRIPT, STYLE

# nothing may be fetched or sent, even if a hostile text should find a way in; parallel coordinates compile shaders
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
FAILURES = 50  # listed


def write_page(
    path: Path, info: SweepInfo, records: Sequence[TrialRecord], front: Front, importances: Sequence[Importance]
) -> None:
    """About 5 MB, nearly all of it plotly.js."""
    fronts = plots.front_plots(info, front)
    others = [plots.parallel_plot(info, front), plots.importance_plot(importances), plots.hypervolume_plot(front)]
    parallel, importance, hypervolume = map(_plot, others)
    body = [
        _heading(info, records, front),
        _section("Front", *map(_plot, fronts), _hint(front), _front_table(info, front)),
        _section("Datasets", _dataset_tables(info, front)),
        _section("Settings", _parallel_note(front), parallel, _constants(front)),
        _section("Importances", importance, _importance_note(importances)),
        _section("Hypervolume", hypervolume),
        _section("Trials without a result", _failures(records)),
        _section("How the numbers were computed", *_computed(info, front)),
        _section("Origin", _rows_of_words(["tag", "value"], sorted(info.tags.items()))),
    ]
    sheet = {
        "plots": [
            {"name": plot.name, "traces": plot.traces, "layout": plot.layout}
            for plot in (*fronts, *others)
            if plot.traces
        ],
        "configs": {
            record.name: {key: format_setting(value) for key, value in {**record.config, **record.params}.items()}
            for record in (*front.finished, *front.baselines)
        },
    }
    data = json.dumps(sheet, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":  # so that no text can end the script element that it stands in
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{_safe(info.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        )
        file.write("\n".join(body))
        file.write(f'\n<script type="application/json" id="sheet">{data}</script>\n')
        file.write(f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n")


def _safe(value: object) -> str:
    return html.escape(str(value))


def _faint(text: str) -> str:
    return f'<p class="faint">{_safe(text)}</p>'


def _section(title: str, *paragraphs: str) -> str:
    return "\n".join([f"<section>\n<h2>{title}</h2>", *filter(None, paragraphs), "</section>"])


def _plot(plot: Plot) -> str:
    if not plot.traces:
        return _faint(plot.instead)
    return f'<div class="wide"><div class="plot" id="{plot.name}" style="min-width:{plot.least_width}px"></div></div>'


def _heading(info: SweepInfo, records: Sequence[TrialRecord], front: Front) -> str:
    counts = Counter(record.state for record in records if record.kind == "trial")
    ended_otherwise = f"{counts['failed']} failed" + (f", {counts['stopped']} stopped" if counts["stopped"] else "")
    going_on = f"{counts['running']} running" + (f", {counts['waiting']} waiting" if counts["waiting"] else "")
    ended = "" if info.finished is None else f", ended {_time(info.finished)}"
    infeasible = f", {len(front.infeasible)} break a constraint" if front.infeasible else ""
    lines = [
        f"<header>\n<h1>{_safe(info.name)}</h1>",
        f"<p>{_safe(info.space['question'])}</p>" if info.space.get("question") else "",
        f'<p class="faint">{_safe(info.state)}; begun {_time(info.created)}{ended}</p>',
        f"<p>{_safe(info.goals)} on the {_safe(info.search_split)} split: {counts['complete']} trials finished, "
        f"{ended_otherwise}, {going_on}; {len(front.members)} on the front{infeasible}.</p>",
        '<p class="warn">Settings were searched on the test split: its numbers are optimistic.</p>'
        if info.search_split == "test"
        else "",
        "</header>",
    ]
    return "\n".join(filter(None, lines))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _hint(front: Front) -> str:
    if not (front.finished or front.baselines):
        return ""
    return (
        '<p class="faint">A point under the cursor shows its settings; a click shows its whole config here.</p>'
        '<div id="details" class="faint">No trial chosen.</div>'
    )


def _table(head: str, rows: Sequence[str]) -> str:
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table></div>"


def _rows_of_words(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th class="words">{head}</th>' for head in heads)
    lines = []
    for first, *others in rows:
        cells = "".join(f'<td class="words">{_safe(cell)}</td>' for cell in others)
        lines.append(f"<tr><th>{_safe(first)}</th>{cells}</tr>")
    return _table(f"<tr>{head}</tr>", lines)


def _grouped_table(front: Front, groups: Mapping[str, Sequence[str]], rows: Mapping[str, Sequence[str]]) -> str:
    """Columns in groups with a heading above them; a row of cells for each of the compared records, by its name."""
    above = "".join(
        f'<th class="group" colspan="{len(heads)}">{_safe(group)}</th>' for group, heads in groups.items() if heads
    )
    heads = "".join(f"<th>{_safe(head)}</th>" for heads in groups.values() for head in heads)
    lines = []
    for record in front.compared:
        if record.name in rows:
            style = "baseline" if record.kind == "baseline" else "best" if front.marks.get(record.name) else ""
            remarks = f"<small>{_safe(', '.join(front.remarks(record)))}</small>"
            cells = "".join(rows[record.name])
            lines.append(f'<tr class="{style}"><th>{_safe(record.label)}{remarks}</th>{cells}</tr>')
    return _table(f'<tr><th></th>{above}</tr><tr><th class="words">trial</th>{heads}</tr>', lines)


def _front_table(info: SweepInfo, front: Front) -> str:
    if not front.compared:
        return ""
    searched = values_by_setting(front.members)
    splits, metrics = splits_of(info, front.compared), metrics_shown(info.objectives)
    rows = {
        record.name: [
            *(_metric_cells(record.results.get(split), metrics) for split in splits),
            *setting_cells(record, searched),
        ]
        for record in front.compared
    }
    return _grouped_table(front, {**dict.fromkeys(splits, metrics), "settings": list(searched)}, rows)


def _metric_cells(result: SplitResult | None, metrics: Sequence[str]) -> str:
    return '<td class="first">' + "</td><td>".join(format_result(metric, result) for metric in metrics) + "</td>"


def setting_cells(record: TrialRecord, keys: Iterable[str]) -> list[str]:
    """A baseline's come from its config, as nothing was searched for it; empty where nothing reads the setting."""
    values = {**relevant(record.config), **record.params}
    return [f"<td>{_safe(format_setting(values[key])[:60]) if key in values else ''}</td>" for key in keys]


def _dataset_tables(info: SweepInfo, front: Front) -> str:
    main = (catalogue.ACCURACY, catalogue.ECE)
    headings = [catalogue.metric(metric).heading for metric in main]
    tables = []
    for split in splits_of(info, front.compared):
        results = {record.name: record.results[split] for record in front.compared if split in record.results}
        datasets = list(dict.fromkeys(dataset for result in results.values() for dataset in result.datasets))
        rows = {
            name: [_metric_cells(result, [f"{metric}/{dataset}" for metric in main]) for dataset in datasets]
            for name, result in results.items()
        }
        if datasets:
            tables.append(f"<h3>{_safe(split)} split</h3>")
            tables.append(_grouped_table(front, dict.fromkeys(datasets, headings), rows))
    return "\n".join(tables) or _faint("No trial has finished yet.")


def _parallel_note(front: Front) -> str:
    if len(front.trials) < 2:
        return ""
    return _faint(
        f"A line for each trial, by its {front.objectives[0].metric} from grey (worst) over blue to red (best); drag "
        "along an axis to keep the lines that pass there."
    )


def _constants(front: Front) -> str:
    columns = values_by_setting(front.finished).items()
    same = [f"{key} = {format_setting(values[0])}" for key, values in columns if not varies(values)]
    return _faint(f"The same in all trials: {', '.join(same)}.") if same else ""


def _importance_note(importances: Sequence[Importance]) -> str:
    skipped = [f"{row.metric}: {row.skipped}." for row in importances if not row.shares]
    if len(skipped) == len(importances):  # the plot's place says so
        return ""
    return "".join(map(_faint, skipped)) + _faint(
        f"PED-ANOVA: how much a setting tells the best tenth of the trials, but at least {TOP}, from all of them; "
        "shares add up to 1. With few trials they are hints."
    )


def _failures(records: Sequence[TrialRecord]) -> str:
    failed = [record for record in records if record.state in ("failed", "stopped", "interrupted")]
    if not failed:
        return _faint("None.")
    rows = ([record.name, record.state, format_setting(record.reason or "")] for record in failed[:FAILURES])
    more = _faint(f"and {len(failed) - FAILURES} more") if len(failed) > FAILURES else ""
    return _rows_of_words(["trial", "state", "reason"], rows) + more


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
    return [f"<p>{_safe(sentence)}</p>" for sentence in sentences if sentence]
