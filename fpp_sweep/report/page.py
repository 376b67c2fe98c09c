"""sweep.html: the whole sweep on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import (
    Front,
    format_range,
    format_result,
    format_setting,
    format_values,
    metric_of,
    metrics_shown,
    splits_of,
    values_by_setting,
    varies,
)
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report import plots, settings_plots
from fpp_sweep.report.dataset_heatmap import heat_map
from fpp_sweep.report.evidence import Evidence
from fpp_sweep.report.html import (
    Plot,
    faint,
    paragraph,
    picture,
    place,
    places,
    safe,
    section,
    table,
    table_of_words,
    time_of,
    warning,
    write_html,
)
from fpp_sweep.report.importance import RESAMPLES, TOP, Importance
from fpp_sweep.report.timeline import costs, timeline
from fpp_sweep.report.words import beside, remarks, sentences
from fpp_sweep.space.rules import as_mapping
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.messages import command_line, plural
from fpp_sweep.spec.progress import duration

TOLD = 6  # sentences of the verdict that are seen at once
EVERY = 60  # seconds after which the page of a sweep that runs is loaded again
PARTS = ("Verdict", "Front", "Trials", "Settings", "Datasets", "Course", "Origin")
READING = "<summary>How to read this</summary>" + paragraph(
    "Intervals below values hold 95 % over images of these datasets, and say nothing of other datasets; that of an ECE "
    "is around its debiased value. Support is the share of resamples of the images in which a trial is on the front, "
    "with what chance has put between the trials near it taken out: clear from 0.8 on, unlikely below 0.01, open "
    "between. It is no probability. "
    "An objective that does not follow from sums over images is taken as exact. Hollow marks are the same trials on "
    "the test split. A point under the cursor shows its settings; a click, its whole config."
)
SLICES = (
    "The line is the mean of the trials near by, the band 95 % of that mean: where a level line fits into it, chance "
    "would do. Outliers count as much as the last of the others."
)
GAINS = (
    "A cell is what a trial has on a dataset, less the dataset's median; blue is better. The best trials stand on top."
)


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is drawn of a sweep."""

    fronts: Sequence[Plot]
    parallel: Plot
    slices: Sequence[Plot]
    contour: Plot
    importance: Plot
    heat: Plot
    hypervolume: Plot
    workers: Plot
    idle: str  # what is said of the workers

    @property
    def everything(self) -> list[Plot]:
        settings = (self.parallel, *self.slices, self.contour, self.importance)
        return [*self.fronts, *settings, self.heat, self.hypervolume, self.workers]


def figures(
    folder: SweepFolder,
    info: SweepInfo,
    records: Sequence[TrialRecord],
    front: Front,
    evidence: Evidence,
    importances: Sequence[Importance],
) -> Figures:
    workers, idle = timeline(folder.path / "logs", records)
    return Figures(
        fronts=plots.front_plots(info, front, evidence),
        parallel=settings_plots.parallel_plot(info, front),
        slices=settings_plots.slice_plots(info, front, importances),
        contour=settings_plots.contour_plot(info, front, importances),
        importance=plots.importance_plot(importances),
        heat=heat_map(info, front),
        hypervolume=plots.hypervolume_plot(front),
        workers=workers,
        idle=idle,
    )


def write_page(
    folder: SweepFolder,
    info: SweepInfo,
    records: Sequence[TrialRecord],
    front: Front,
    evidence: Evidence,
    importances: Sequence[Importance],
) -> None:
    """One story: question, verdict, front, trials, settings, datasets, course, and how to make it again."""
    drawn = figures(folder, info, records, front, evidence, importances)
    body = [
        _heading(info, records, front),
        _part("Verdict", *_borne(info, front, evidence)),
        _part("Front", *map(place, drawn.fronts), _front_table(info, front, evidence), f"<details>{READING}</details>"),
        _part("Trials", _trial_table(info, records, front, evidence)),
        _part(
            "Settings",
            *_head("Each trial", _parallel_note(front), place(drawn.parallel), _constants(front)),
            *(_head("One at a time", faint(SLICES), places(drawn.slices)) if drawn.slices else ()),
            *_head("Two at a time", place(drawn.contour)),
            *_head("Importance", place(drawn.importance), _importance_note(importances)),
        ),
        _part(
            "Datasets",
            *_head("Gains and losses", place(drawn.heat), faint(GAINS)),
            _dataset_tables(info, front, evidence),
            *_calibration(folder, info, front),
        ),
        _part(
            "Course",
            *map(paragraph, costs(info, records)),
            *_head("Hypervolume", place(drawn.hypervolume)),
            *_head("Workers", paragraph(drawn.idle) if drawn.idle else "", place(drawn.workers)),
        ),
        _part("Origin", *_origin(folder, info, front)),
    ]
    details = {record.name: dict(_details(record)) for record in records}
    write_html(
        folder.report / "sweep.html",
        info.name,
        body,
        plots=drawn.everything,
        details=details,
        every=EVERY if info.state == "running" else 0,
    )


def _part(title: str, *parts: str) -> str:
    return section(title, *parts, anchor=title.lower())


def _head(title: str, *parts: str) -> tuple[str, ...]:
    return f"<h3>{safe(title)}</h3>", *parts


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
        if info.search_split == "test" and not front.evaluate_only
        else "",
        '<nav class="screen">',
        *(f'<a href="#{part.lower()}">{part}</a>' for part in PARTS),
        "</nav>",
        "</header>",
    ]
    return "\n".join(filter(None, lines))


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
            lines.append(f'<tr class="{style}"><th>{_named(record)}{remarks}</th>{cells}</tr>')
    return table(f'<tr><th></th>{above}</tr><tr><th class="words">trial</th>{heads}</tr>', lines)


def _named(record: TrialRecord) -> str:
    """A name that shows the record when it is pressed."""
    return f'<button type="button" data-trial="{safe(record.name)}">{safe(record.label)}</button>'


def _borne(info: SweepInfo, front: Front, evidence: Evidence) -> list[str]:
    told = [paragraph(line) for line in sentences(info, front, evidence)]
    told = told or [paragraph(f"On the front: {plural(len(front.members), 'trial')}.")]
    told += [faint(f"{line}.") for line in remarks(info, front, evidence)]
    more = f"<details><summary>{len(told) - TOLD} more</summary>{''.join(told[TOLD:])}</details>"
    return [*told[:TOLD], more if told[TOLD:] else ""]


def _trial_table(info: SweepInfo, records: Sequence[TrialRecord], front: Front, evidence: Evidence) -> str:
    """Every trial and baseline, whatever became of it."""
    if not records:
        return faint("No trial was begun yet.")
    keys = values_by_setting(records)
    wanted = [(split, metric) for split in splits_of(info, records) for metric in metrics_shown(info.objectives)]
    shown = [
        (split, metric) for split, metric in wanted if any(metric_of(r.results.get(split), metric) for r in records)
    ]
    metrics = [metric if split == info.search_split else f"{split}/{metric}" for split, metric in shown]
    heads = (*metrics, "front", *keys, "state", "minutes", "reason")
    lines = []
    for record in records:
        numbers = [format_result(metric, record.results.get(split), deviation=False) for split, metric in shown]
        standing = ", ".join(filter(None, [*front.remarks(record), evidence.standing(record.name)]))
        took = f"{(record.finished - record.started) / 60:.1f}" if record.finished else ""
        cells = [*(f"<td>{number}</td>" for number in numbers), f"<td>{safe(standing)}</td>"]
        cells += [*setting_cells(record, keys), f"<td>{record.state}</td><td>{took}</td>"]
        reason = f'<td class="words">{safe(format_setting(record.reason or "")[:200])}</td>'
        style = "baseline" if record.kind == "baseline" else "best" if record.name in front.marks else ""
        lines.append(f'<tr class="{style}"><th>{_named(record)}</th>{"".join(cells)}{reason}</tr>')
    note = faint("The filter takes words, and comparisons such as ece<5 or state=failed. A name shows the whole trial.")
    head = '<tr><th class="words">trial</th>' + "".join(f"<th>{safe(head)}</th>" for head in heads) + "</tr>"
    return note + table(head, lines, name="trials")


def _details(record: TrialRecord) -> Iterator[tuple[str, str]]:
    """What a click on a trial shows: its numbers, then its config."""
    yield "state", record.state
    if record.reason:
        yield "reason", format_setting(record.reason)
    if record.finished:
        yield "took", duration(record.finished - record.started)
    for split, result in record.results.items():
        yield from ((f"{metric} ({split})", format_result(metric, result)) for metric in result.average)
    yield from ((key, format_setting(value)) for key, value in {**record.config, **record.params}.items())


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


def _calibration(folder: SweepFolder, info: SweepInfo, front: Front) -> tuple[str, ...]:
    """The diagrams that the trials have drawn: of the members that stand out and of the baselines."""
    folded = []
    for record in front.compared:
        file = folder.artifacts(record.name) / info.search_split / "reliability.png"
        inside = file.resolve().is_relative_to(folder.path.resolve())  # a link may lead to what is not the sweep's
        drawn = picture(file, record.label) if inside else ""
        if drawn and (record.kind == "baseline" or front.remarks(record)):
            folded.append(f"<details><summary>{safe(record.label)}</summary>{drawn}</details>")
    return _head("Calibration", *folded) if folded else ()


def _parallel_note(front: Front) -> str:
    if len(front.trials) < 2:
        return ""
    return faint(
        "A line for each trial, from grey (worst) over blue to red (best); drag along an axis to keep the lines that "
        "pass there."
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
        f"shares add up to 1. Whiskers are the least and the most of {RESAMPLES} resamples of the trials."
    )


def _origin(folder: SweepFolder, info: SweepInfo, front: Front) -> Iterator[str]:
    """What was searched and measured, with which versions, and the commands."""
    searched = as_mapping(info.space.get("params", {})).items()
    ranges = [(key, format_range(given)) for key, given in searched]
    if ranges:
        yield from _head("Searched", table_of_words(["setting", "range"], ranges))
    yield from _head("How the numbers were computed", *_computed(info, front))
    yield "<h3>Commands</h3>"
    commands = {
        "The sweep:": info.command,
        "What it looks like now:": command_line("show", [folder.path.name]),
        "This page again:": command_line("show", [folder.path.name, "--page"]),
    }
    yield from (f"{paragraph(what)}<pre>{safe(command)}</pre>" for what, command in commands.items() if command)
    rows = sorted((name, value) for name, value in info.provenance().items() if name != "command")
    yield from _head("Versions and settings", table_of_words(["name", "value"], rows))


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
