"""reproduction.html: all tables of a reproduction on one page, with claims, figures, and how to make it again."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_setting, varies
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report.html import (
    faint,
    paragraph,
    picture,
    safe,
    section,
    table,
    table_of_words,
    time_of,
    warning,
    write_html,
)
from fpp_sweep.reproduce.cells import DRAWS, PAPERS_MODEL, PAPERS_TAG, REMEMBERED, Cell, Table, recalled
from fpp_sweep.reproduce.experiments import AVERAGE, STAGES, Column, find, shipped
from fpp_sweep.reproduce.figures import drawings
from fpp_sweep.reproduce.output import SHORT, number, ours
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.errors import InputError

PAGE = "reproduction.html"
UNJUDGED = "not judged"
SIGNS = {"agrees": "=", "differs": "≠", "holds": "✓", "does not hold": "✕"}
STYLES = {"holds": "agrees", "does not hold": "differs"}
RULES = (
    "A number is the mean over seeds, ± their standard deviation. Averages are unweighted means over datasets; EuroSAT "
    "dominates the printed ones, so there is one without it, too, for the paper computed from its columns.",
    f"In [brackets]: 95 % over the images of the first seed, {DRAWS} resamples. They do not decide whether a number "
    "agrees with the printed one, as both are of the same images. An ECE has one from 1,000 images a dataset on, "
    "around its debiased value: that of fewer is biased by more than it varies.",
    "A number differs from the printed one beyond 2 sqrt 2 standard deviations over seeds plus the rounding of what is "
    "printed; without a spread over seeds it is not judged.",
    "A claim on accuracy or ECE holds where the 95 % interval of the difference, paired by images, is above zero in "
    "every comparison; on other columns, where the difference is above two standard deviations over seeds. It does not "
    "hold where any is below by as much, and is not told apart otherwise.",
    f"The paper's numbers are of {PAPERS_MODEL}/{PAPERS_TAG}; those of another model are not held against them.",
)


def write_page(folder: Path, tables: Mapping[str, Table] | None = None) -> Path:
    """The page of a reproduction's folder; tables at hand, by name, are not made again."""
    found = [(sweep, sweep.info(), (tables or {}).get(sweep.path.name) or recalled(sweep)) for sweep in sweeps(folder)]
    if not found:
        raise InputError(f"{folder} has no table yet")
    infos = {sweep.path.name: info for sweep, info, _ in found}
    body = [
        _heading(folder, infos, [made for _, _, made in found]),
        section("Tables", _overview(infos, [made for _, _, made in found])),
        *(_experiment(sweep, info, made) for sweep, info, made in found),
        *_theory(folder),
        section("How the numbers were computed", *map(paragraph, RULES)),
        section("Settings", *(part for _, _, made in found for part in _settings(made))),
        section("Make it again", *_origin(infos)),
    ]
    write_html(folder / PAGE, f"Reproduction {folder.resolve().name}", body)
    return folder / PAGE


def sweeps(folder: Path) -> list[SweepFolder]:
    """The experiments' sweeps, in the order of `--list`, the user's own last, once they came to an end."""
    order = shipped()
    there = [file.parent for file in folder.glob("*/sweep.json")]
    names = [path.name for path in there if path.name in order or (path / REMEMBERED).is_file()]
    names.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return [SweepFolder(folder / name) for name in names]


def _heading(folder: Path, infos: Mapping[str, SweepInfo], tables: Sequence[Table]) -> str:
    models = ", ".join(dict.fromkeys(made.model for made in tables))
    times = [time for info in infos.values() for time in (info.created, info.finished) if time is not None]
    other = not all(made.same_model for made in tables)
    return "\n".join(
        [
            f"<header>\n<h1>Reproduction {safe(folder.resolve().name)}</h1>",
            paragraph(f"The tables and figures of the FPP paper, run again on {models}."),
            faint(f"{time_of(min(times))} to {time_of(max(times))}"),
            warning(f"The paper's model is {PAPERS_MODEL}/{PAPERS_TAG}: its numbers are marked as another model's, and "
                    "not compared.") if other else "",
            "</header>",
        ]
    )  # fmt: skip


def _overview(infos: Mapping[str, SweepInfo], tables: Sequence[Table]) -> str:
    lines = []
    for name, made in zip(infos, tables, strict=True):
        verdicts: Counter[str] = Counter(
            cell.verdict or UNJUDGED for cell in made.cells.values() if cell.difference is not None
        )
        cells = _counted(verdicts) if made.same_model else "other model"
        claims = _counted(Counter(judged.verdict.partition(";")[0] for judged in made.judged))
        state = infos[name].state + (f", {len(made.failed)} rows failed" if made.failed else "")
        words = "".join(
            f'<td class="words">{safe(text)}</td>' for text in (made.experiment.question, cells, claims, state)
        )
        lines.append(f'<tr><th><a href="#{safe(name)}">{safe(name)}</a></th>{words}</tr>')
    heads = ("table", "question", "cells against the paper", "claims", "state")
    return table("<tr>" + "".join(f'<th class="words">{head}</th>' for head in heads) + "</tr>", lines)


def _counted(words: Counter[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in words.most_common())


def _experiment(sweep: SweepFolder, info: SweepInfo, made: Table) -> str:
    parts = [paragraph(made.experiment.question), *(warning(said) for said in made.ran if said.startswith("PARTIAL"))]
    parts += [faint("; ".join(said for said in made.ran if not said.startswith("PARTIAL")))]
    if info.state != "finished":
        parts.append(warning(f"The sweep is {info.state}: rows may be missing."))
    parts += [warning(f"{name} has no numbers: {reason}") for name, reason in made.failed.items()]
    if made.judged:
        parts += ["<h3>What the paper says, on our numbers</h3>", _claims(made)]
    for column in made.experiment.columns:
        parts += [f"<h3>{safe(column.heading)} <small>{safe(_meaning(column))}</small></h3>", _numbers(made, column)]
    for drawing in drawings(sweep, made):
        picture = f'<div class="wide" tabindex="0">{drawing.inline()}</div>'
        parts.append(f"<figure>{picture}<figcaption>{safe(drawing.caption)}</figcaption></figure>")
    return section(f"{sweep.path.name}: {made.experiment.title}", *parts, anchor=sweep.path.name)


def _theory(folder: Path) -> Iterator[str]:
    """What was computed without a sweep."""
    for name in shipped():
        file = folder / name / "report" / "table.csv"
        if find(name).theory and file.is_file():
            heads, *rows = csv.reader(file.read_text().splitlines())
            question = paragraph(find(name).question)
            drawn = picture(file.with_name("figure.png"), find(name).title)
            yield section(f"{name}: {find(name).title}", question, table_of_words(heads, rows), drawn, anchor=name)


def _claims(made: Table) -> str:
    lines = []
    for judged in made.judged:
        verdict = judged.verdict.partition(";")[0]
        words = f"{SIGNS.get(verdict, '')} {judged.verdict}".strip()
        lines.append(
            f'<tr><th>{safe(judged.says)}</th><td class="words {STYLES.get(verdict, "")}">{safe(words)}</td>'
            f'<td class="words">{safe(judged.numbers)}</td></tr>'
        )
    heads = ("claim", "verdict", "how much better, in the column's unit")
    return table("<tr>" + "".join(f'<th class="words">{head}</th>' for head in heads) + "</tr>", lines)


def _numbers(made: Table, column: Column) -> str:
    """A row for each of the table's, with everything about a cell inside it."""
    head = "".join(f"<th>{safe(SHORT.get(place, place))}</th>" for place in made.places)
    lines = []
    for row in made.rows:
        cells = "".join(
            f'<td class="{"first" if place.startswith(AVERAGE) else ""}" data-value="{_sorted_by(cell)}">'
            f"{''.join(_cell(cell, column))}</td>"
            for place in made.places
            for cell in [made.of(row, column, place)]
        )
        lines.append(f"<tr><th>{safe(row.title)}</th>{cells}</tr>")
    return table(f'<tr><th class="words">row</th>{head}</tr>', lines)


def _sorted_by(cell: Cell) -> str:
    value = cell.printed if cell.value is None else cell.value
    return "" if value is None else repr(value)


def _cell(cell: Cell, column: Column) -> Iterator[str]:
    if cell.value is not None:
        yield safe(ours(cell, column))
    if cell.interval:
        yield f"<small>[{cell.interval[0]:.1f}, {cell.interval[1]:.1f}]</small>"
    if cell.printed is not None:
        yield f"<small>{'paper' if cell.same_model else 'other model'} {number(cell.printed, column)}</small>"
    if cell.difference is not None:
        words = f"{SIGNS[cell.verdict]} {cell.verdict}" if cell.verdict else UNJUDGED
        yield f'<small class="{cell.verdict}">{cell.difference:+.{column.decimals}f} {words}</small>'


def _meaning(column: Column) -> str:
    if column.metric in STAGES:
        return f"seconds of {STAGES[column.metric]}, when it was computed"
    title = catalogue.METRICS[column.metric].title
    return title if column.of == "mean" else f"standard deviation over seeds, averaged over datasets, of: {title}"


def _settings(made: Table) -> Iterator[str]:
    """What the rows' trials read: a table of what differs between them, and the rest in a sentence."""
    trials: dict[str, tuple[str, dict[str, Any]]] = {}
    for (name, column), record in made.records.items():
        row = next(row for row in made.experiment.rows if row.name == name)
        label = row.title if record is made.record(row) else f"{row.title}, {column}"
        trials.setdefault(record.key, (label, relevant(record.config)))
    configs = [config for _, config in trials.values()]
    if not configs:
        return
    keys = list(dict.fromkeys(key for config in configs for key in config))
    shown = {key: [format_setting(config[key]) if key in config else "" for config in configs] for key in keys}
    differing = [[key, *cells] for key, cells in shown.items() if varies(cells)]
    same = ", ".join(f"{key} = {cells[0]}" for key, cells in shown.items() if not varies(cells))
    yield f"<h3>{safe(made.experiment.title)}</h3>"
    yield table_of_words(("setting", *(label for label, _ in trials.values())), differing) if differing else ""
    yield faint(f"The same in all rows: {same}.") if same else ""


def _origin(infos: Mapping[str, SweepInfo]) -> Iterator[str]:
    """Commands, versions and digests; a tag whose values differ has a line for each."""
    commands = dict.fromkeys(info.command for info in infos.values())
    yield paragraph("The same commands go on where they were ended, and compute nothing again that is there.")
    yield from (f"<pre>{safe(command)}</pre>" for command in commands if command)
    yield paragraph("This page alone, from what is there:")
    yield "<pre>fpp-sweep show FOLDER --page</pre>"
    rows = []
    provenance = {name: info.provenance() for name, info in infos.items()}
    for key in sorted({key for texts in provenance.values() for key in texts} - {"command"}):
        tables: dict[str, list[str]] = {}
        for name, texts in provenance.items():
            tables.setdefault(texts.get(key, ""), []).append(name)
        rows += [
            (key, value, "all" if len(tables) == 1 else ", ".join(names)) for value, names in tables.items() if value
        ]
    yield table_of_words(("name", "value", "tables"), rows)
