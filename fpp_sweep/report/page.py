"""sweep.html: the whole sweep on one page that loads nothing from anywhere and may be shown in a sandbox."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fpp_sweep import catalogue
from fpp_sweep.config import relevant
from fpp_sweep.files import written_whole
from fpp_sweep.records.front import (
    Front,
    format_metric,
    format_setting,
    metric_of,
    metrics_shown,
    splits_of,
    values_by_setting,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report import plots
from fpp_sweep.report.importance import TOP, Importance
from fpp_sweep.report.plots import Plot
from fpp_sweep.report.theme import SCRIPT, STYLE

# nothing may be fetched or sent, even if a hostile text should find a way in; parallel coordinates compile shaders
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
FAILURES = 50  # listed
_NAMED = '<th class="words">trial</th>'


def write_page(
    path: Path, info: SweepInfo, records: Sequence[TrialRecord], front: Front, importances: Sequence[Importance]
) -> None:
    """About 5 MB, nearly all of it plotly.js."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    drawn = {
        "front": plots.front_plots(info, front),
        "parallel": [plots.parallel_plot(info, front)],
        "importances": [plots.importance_plot(importances)],
        "hypervolume": [plots.hypervolume_plot(front)],
    }
    body = [
        _heading(info, records, front),
        _section("Front", _plots(drawn["front"]), _hint(front), _front_table(info, front)),
        _section("Datasets", _dataset_tables(info, front)),
        _section("Settings", _parallel_note(front), _plots(drawn["parallel"]), _constants(front)),
        _section("Importances", _plots(drawn["importances"]), _importance_note(front, importances)),
        _section("Hypervolume", _plots(drawn["hypervolume"])),
        _section("Trials without a result", _failures(records)),
        _section("How the numbers were computed", *_computed(info, front)),
        _section("Origin", _origin(info)),
    ]
    sheet = {
        "plots": [
            {"name": plot.name, "traces": plot.traces, "layout": plot.layout}
            for group in drawn.values()
            for plot in group
            if plot.traces
        ],
        "configs": {record.name: _texts(record) for record in (*front.trials, *front.infeasible, *front.baselines)},
    }
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{_safe(info.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        )
        file.write("\n".join(body))
        file.write(f'\n<script type="application/json" id="sheet">{_script_data(sheet)}</script>\n')
        file.write(f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n")


def _texts(record: TrialRecord) -> dict[str, str]:
    return {key: format_setting(value) for key, value in {**record.config, **record.params}.items()}


def _script_data(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _safe(value: object) -> str:
    return html.escape(str(value))


def _section(title: str, *parts: str) -> str:
    return "\n".join([f"<section>\n<h2>{title}</h2>", *(part for part in parts if part), "</section>"])


def _plots(group: Iterable[Plot]) -> str:
    return "\n".join(
        f'<div class="wide"><div class="plot" id="{plot.name}" style="min-width:{plot.least_width}px"></div></div>'
        if plot.traces
        else f'<p class="faint">{_safe(plot.instead)}</p>'
        for plot in group
    )


def _heading(info: SweepInfo, records: Sequence[TrialRecord], front: Front) -> str:
    trials = [record for record in records if record.kind == "trial"]
    counts = {state: sum(record.state == state for record in trials) for state in ("complete", "failed", "running")}
    goals = " and ".join(f"{objective.metric} ({objective.goal})" for objective in info.objectives)
    lines = [
        f"<header>\n<h1>{_safe(info.name)}</h1>",
        f'<p class="faint">{_safe(info.state)}; begun {_time(info.created)}{_ended(info)}</p>',
        f"<p>{_safe(goals)} on the {_safe(info.search_split)} split: {counts['complete']} trials finished, "
        f"{counts['failed']} failed, {counts['running']} running; {len(front.members)} on the front"
        f"{f', {len(front.infeasible)} break a constraint' if front.infeasible else ''}.</p>",
    ]
    if question := info.space.get("question"):
        lines.insert(1, f"<p>{_safe(question)}</p>")
    if info.search_split == "test":
        lines.append('<p class="warn">Settings were searched on the test split: its numbers are optimistic.</p>')
    return "\n".join([*lines, "</header>"])


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _ended(info: SweepInfo) -> str:
    return "" if info.finished is None else f", ended {_time(info.finished)}"


def _hint(front: Front) -> str:
    if not (front.trials or front.infeasible or front.baselines):
        return ""
    return (
        '<p class="faint">A point under the cursor shows its settings; a click shows its whole config here.</p>'
        '<div id="details" class="faint">No trial chosen.</div>'
    )


def _front_table(info: SweepInfo, front: Front) -> str:
    records = [*front.members, *front.baselines]
    if not records:
        return ""
    searched = values_by_setting(front.members)
    splits, metrics = splits_of(info, records), metrics_shown(info.objectives)
    rows = [
        _row(record, front, [*_metric_cells(record, splits, metrics), *setting_cells(record, searched)])
        for record in records
    ]
    groups = "".join(f'<th class="group" colspan="{len(metrics)}">{_safe(split)}</th>' for split in splits)
    settings = f'<th class="group" colspan="{len(searched)}">settings</th>' if searched else ""
    heads = [_safe(metric) for _ in splits for metric in metrics] + [_safe(key) for key in searched]
    return _table(
        f"<tr><th></th>{groups}{settings}</tr><tr>{_NAMED}" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>",
        rows,
    )


def _row(record: TrialRecord, front: Front, cells: Sequence[str]) -> str:
    marks = front.marks.get(record.name, [])
    remarks = ", ".join([*marks, *([] if record.feasible else ["breaks a constraint"])])
    look = "baseline" if record.kind == "baseline" else "best" if marks else ""
    name = record.name.removeprefix("baseline-")
    return f'<tr class="{look}"><th>{_safe(name)}<small>{_safe(remarks)}</small></th>{"".join(cells)}</tr>'


def _metric_cells(record: TrialRecord, splits: Sequence[str], metrics: Sequence[str]) -> list[str]:
    cells = []
    for split in splits:
        result = record.results.get(split)
        for index, metric in enumerate(metrics):
            deviation = result.deviation.get(metric) if result else None
            first = ' class="first"' if index == 0 else ""
            cells.append(f"<td{first}>{format_metric(metric, metric_of(result, metric), deviation)}</td>")
    return cells


def setting_cells(record: TrialRecord, keys: Iterable[str]) -> list[str]:
    """Of a baseline too, which has a config if no searched values; nothing where nothing reads the setting."""
    values = {**relevant(record.config), **record.params}
    return [f"<td>{_safe(format_setting(values[key])[:60]) if key in values else ''}</td>" for key in keys]


def _table(head: str, rows: Sequence[str]) -> str:
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n' + "\n".join(rows) + "\n</tbody></table></div>"


def _dataset_tables(info: SweepInfo, front: Front) -> str:
    records = [*front.members, *front.baselines]
    parts = []
    for split in splits_of(info, records):
        names = list(
            dict.fromkeys(
                name for record in records if split in record.results for name in record.results[split].datasets
            )
        )
        if not names:
            continue
        heads = "".join(f'<th class="group" colspan="2">{_safe(name)}</th>' for name in names)
        metrics = [f"{metric}/{name}" for name in names for metric in (catalogue.ACCURACY, catalogue.ECE)]
        heading, other = (catalogue.metric(metric).heading for metric in (catalogue.ACCURACY, catalogue.ECE))
        columns = f'<th class="first">{heading}</th><th>{other}</th>' * len(names)
        rows = [
            _row(record, front, _dataset_cells(record, split, metrics)) for record in records if split in record.results
        ]
        head = f"<tr><th></th>{heads}</tr><tr>{_NAMED}{columns}</tr>"
        parts.append(f"<h3>{_safe(split)} split</h3>{_table(head, rows)}")
    return "\n".join(parts) or '<p class="faint">No trial has finished yet.</p>'


def _dataset_cells(record: TrialRecord, split: str, metrics: Sequence[str]) -> list[str]:
    values = [format_metric(metric, metric_of(record.results[split], metric)) for metric in metrics]
    return [f'<td class="{"first" if index % 2 == 0 else ""}">{value}</td>' for index, value in enumerate(values)]


def _parallel_note(front: Front) -> str:
    if len(front.trials) < 2:
        return ""
    return (
        f'<p class="faint">A line for each trial, by its {_safe(front.objectives[0].metric)} from grey (worst) over '
        "blue to red (best); drag along an axis to keep the lines that pass there.</p>"
    )


def _constants(front: Front) -> str:
    columns = values_by_setting([*front.trials, *front.infeasible]).items()
    same = [
        f"{key} = {format_setting(values[0])}" for key, values in columns if len(set(map(format_setting, values))) == 1
    ]
    return f'<p class="faint">The same in all trials: {_safe(", ".join(same))}.</p>' if same else ""


def _importance_note(front: Front, importances: Sequence[Importance]) -> str:
    skipped = [f"{importance.metric}: {importance.skipped}." for importance in importances if not importance.shares]
    if len(skipped) == len(importances):  # said in the plot's place
        return ""
    return "".join(f'<p class="faint">{_safe(reason)}</p>' for reason in skipped) + (
        f'<p class="faint">PED-ANOVA: how much a setting tells the best tenth of the trials, but at least {TOP}, '
        "from all of them; shares add up to 1. With few trials they are hints.</p>"
    )


def _failures(records: Sequence[TrialRecord]) -> str:
    failed = [record for record in records if record.state in ("failed", "stopped", "interrupted")]
    if not failed:
        return '<p class="faint">None.</p>'
    rows = [
        f"<tr><th>{_safe(record.name)}</th><td>{_safe(record.state)}</td>"
        f'<td class="words">{_safe(format_setting(record.reason or ""))}</td></tr>'
        for record in failed[:FAILURES]
    ]
    more = f'<p class="faint">and {len(failed) - FAILURES} more</p>' if len(failed) > FAILURES else ""
    return _table('<tr><th class="words">trial</th><th>state</th><th class="words">reason</th></tr>', rows) + more


def _computed(info: SweepInfo, front: Front) -> list[str]:
    samples = {
        split: max(
            record.results[split].samples for record in (*front.members, *front.baselines) if split in record.results
        )
        for split in splits_of(info, [*front.members, *front.baselines])
        if any(split in record.results for record in (*front.members, *front.baselines))
    }
    images = ", ".join(f"{count} images of {split}" for split, count in samples.items())
    sentences = [
        f"Each trial was measured on {images}, each image once for each seed." if images else "",
        "Accuracy and calibration errors are percentages. ECE has 20 bins of equal width. A value is the unweighted "
        "mean over datasets, then over seeds; ± is the standard deviation of that mean over seeds, where there are "
        "several.",
        f"Trials were chosen by their values on the {info.search_split} split. A finished trial that keeps "
        "all constraints is on the front unless another such trial is at least as good at every objective and better "
        "at one.",
        "The knee is the member nearest to the best of every objective at once, each measured from the front's best "
        "to its worst.",
        "Configs of the front, of the knee and of the best at each objective are in best/ beside this page.",
    ]
    if front.reference is not None:
        corner = ", ".join(
            f"{objective.metric} {format_metric(objective.metric, value)}"
            for objective, value in zip(info.objectives, front.reference, strict=True)
        )
        sentences.insert(3, f"The hypervolume is what the front dominates, up to the reference point {corner}; exact.")
    return [f"<p>{_safe(sentence)}</p>" for sentence in sentences if sentence]


def _origin(info: SweepInfo) -> str:
    rows = [
        f'<tr><th>{_safe(key)}</th><td class="words">{_safe(value)}</td></tr>'
        for key, value in sorted(info.tags.items())
    ]
    return _table('<tr><th class="words">tag</th><th class="words">value</th></tr>', rows)
