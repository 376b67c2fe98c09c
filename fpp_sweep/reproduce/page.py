"""reproduction.html: all tables of a reproduction on one page, with claims, figures, and how to make it again."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_setting, varies
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.report import table as report_table
from fpp_sweep.report.document import Block, Code, Document, Html, Section, Text
from fpp_sweep.report.html import format_time, picture, safe, write_html
from fpp_sweep.reproduce.cells import DRAWS, PAPERS_MODEL, PAPERS_TAG, REMEMBERED, Table, recalled
from fpp_sweep.reproduce.experiments import find, shipped
from fpp_sweep.reproduce.figures import drawings
from fpp_sweep.reproduce.output import DIFFERS, claims_section, column_sections
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.errors import InputError

PAGE = "reproduction.html"
NOT_JUDGED = "not judged"
RULES = (
    "A number is the mean over seeds, ± their standard deviation. Averages are unweighted means over datasets; EuroSAT "
    "dominates the printed ones, so there is one without it, too, for the paper computed from its columns.",
    f"In [brackets]: 95 % over the images of the first seed, {DRAWS} resamples. They do not decide whether a number "
    "agrees with the printed one, as both are of the same images. An ECE has one from 1,000 images a dataset on, "
    "around its debiased value: that of fewer is biased by more than it varies.",
    "A number differs from the printed one beyond 2 sqrt 2 standard deviations over seeds plus the rounding of what is "
    f"printed, and is then marked {DIFFERS}; without a spread over seeds it is not judged.",
    "A claim on accuracy or ECE holds where the 95 % interval of the difference, paired by images, is above zero in "
    "every comparison; on other columns, where the difference is above two standard deviations over seeds. It does not "
    "hold where any is below by as much, and is not told apart otherwise.",
    f"The paper's numbers are of {PAPERS_MODEL}/{PAPERS_TAG}; those of another model are not held against them.",
)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """An experiment with its sweep."""

    sweep: SweepFolder
    info: SweepInfo
    table: Table

    @property
    def name(self) -> str:
        return self.sweep.path.name


def write_page(folder: Path, tables: Mapping[str, Table] | None = None) -> Path:
    """Write the page of a reproduction's folder; tables that are passed, by name, are not made again."""
    loaded = []
    for sweep in sweeps(folder):
        table = (tables or {}).get(sweep.path.name) or recalled(sweep)
        loaded.append(LoadedTable(sweep, sweep.info(), table))
    if not loaded:
        raise InputError(f"{folder} has no table yet")
    sections = [
        Section("Tables", [_overview(loaded)]),
        *(_experiment_section(experiment) for experiment in loaded),
        *_theory_sections(folder),
        Section("How the numbers were computed", [Text(rule) for rule in RULES]),
        Section("Settings", [_settings_section(experiment.table) for experiment in loaded]),
        Section("Make it again", list(_origin(loaded))),
    ]
    name = f"Reproduction {folder.resolve().name}"
    write_html(folder / PAGE, Document(name, sections, introduction=list(_introduction(loaded))))
    return folder / PAGE


def sweeps(folder: Path) -> list[SweepFolder]:
    """Return the experiments' sweeps in the order of `--list`; the user's own come last, once they have ended."""
    order = shipped()
    names = []
    for file in folder.glob("*/sweep.json"):
        name = file.parent.name
        if name in order or (file.parent / REMEMBERED).is_file():
            names.append(name)
    names.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return [SweepFolder(folder / name) for name in names]


def _introduction(loaded: Sequence[LoadedTable]) -> Iterator[Block]:
    models = ", ".join(dict.fromkeys(experiment.table.model for experiment in loaded))
    starts = [experiment.info.created for experiment in loaded]
    ends = [experiment.info.finished or experiment.info.created for experiment in loaded]
    yield Text(f"The tables and figures of the FPP paper, run again on {models}.")
    yield Text(f"{format_time(min(starts))} to {format_time(max(ends))}", "faint")
    if not all(experiment.table.same_model for experiment in loaded):
        yield Text(
            f"The paper's model is {PAPERS_MODEL}/{PAPERS_TAG}: its numbers are marked as another model's, and not "
            "compared.",
            "warning",
        )


def _overview(loaded: Sequence[LoadedTable]) -> report_table.Table:
    """Return a table of the experiments, with links to their sections."""
    titles = ("table", "question", "cells against the paper", "claims", "state")
    rows = []
    for experiment in loaded:
        table = experiment.table
        verdicts = [cell.verdict or NOT_JUDGED for cell in table.cells.values() if cell.difference is not None]
        claims = [claim.verdict.partition(";")[0] for claim in table.judged]
        state: str = experiment.info.state
        if table.failed:
            state += f", {len(table.failed)} rows failed"
        compared = _counts(verdicts) if table.same_model else "other model"
        texts = [experiment.name, table.experiment.question, compared, _counts(claims), state]
        rows.append(report_table.Row([report_table.Cell(text) for text in texts], anchor=experiment.name))
    columns = [report_table.Column(title, is_text=True) for title in titles]
    return report_table.Table(columns=columns, rows=rows)


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in Counter(words).most_common())


def _experiment_section(experiment: LoadedTable) -> Section:
    table = experiment.table
    blocks: list[Block] = [Text(table.experiment.question)]
    blocks += [Text(sentence, "warning") for sentence in table.ran if sentence.startswith("PARTIAL")]
    blocks.append(Text("; ".join(sentence for sentence in table.ran if not sentence.startswith("PARTIAL")), "faint"))
    if experiment.info.state != "finished":
        blocks.append(Text(f"The sweep is {experiment.info.state}: rows may be missing.", "warning"))
    blocks += [Text(f"{name} has no numbers: {reason}", "warning") for name, reason in table.failed.items()]
    if table.judged:
        blocks.append(claims_section(table))
    blocks += column_sections(table)
    for figure in drawings(experiment.sweep, table):
        caption = f"<figcaption>{safe(figure.caption)}</figcaption>"
        blocks.append(Html(f'<figure><div class="wide" tabindex="0">{figure.to_svg()}</div>{caption}</figure>'))
    return Section(f"{experiment.name}: {table.experiment.title}", blocks, anchor=experiment.name)


def _theory_sections(folder: Path) -> Iterator[Section]:
    """Yield the experiments that were computed without a sweep."""
    for name in shipped():
        file = folder / name / "report" / "table.csv"
        if find(name).theory and file.is_file():
            heads, *rows = csv.reader(file.read_text().splitlines())
            table = report_table.Table.of_strings(heads, rows, text_columns=range(len(heads)))
            blocks: list[Block] = [Text(find(name).question), table]
            figure = file.with_name("figure.png")
            if figure.is_file():
                blocks.append(picture(figure, find(name).title))
            yield Section(f"{name}: {find(name).title}", blocks, anchor=name)


def _settings_section(table: Table) -> Section:
    """Return the settings in which the rows' trials differ, and the others in a sentence."""
    configs: dict[str, dict[str, Any]] = {}  # label -> settings that the trial's method reads
    seen = set()
    for (row_name, column), record in table.records.items():
        if record.key not in seen:
            seen.add(record.key)
            row = next(row for row in table.experiment.rows if row.name == row_name)
            label = row.title if record is table.record(row) else f"{row.title}, {column}"
            configs[label] = relevant(record.config)
    keys: dict[str, None] = {}
    for config in configs.values():
        keys.update(dict.fromkeys(config))
    differing = []
    same = []
    for key in keys:
        texts = [format_setting(config[key]) if key in config else "" for config in configs.values()]
        if varies(texts):
            differing.append([key, *texts])
        else:
            same.append(f"{key} = {texts[0]}")
    settings = report_table.Table.of_strings(["setting", *configs], differing, text_columns=range(len(configs) + 1))
    shared = f"The same in all rows: {', '.join(same)}." if same else ""
    return Section(table.experiment.title, [settings, Text(shared, "faint")])


def _origin(loaded: Sequence[LoadedTable]) -> Iterator[Block]:
    """Yield commands, versions and digests; a name whose values differ has a line for each."""
    yield Text("The same commands continue where they ended, and do not compute cached results again.")
    for command in dict.fromkeys(experiment.info.command for experiment in loaded):
        if command:
            yield Code(command)
    yield Text("This page alone, from the folder:")
    yield Code("fpp-sweep show FOLDER --page")
    rows = []
    provenance = {experiment.name: experiment.info.provenance() for experiment in loaded}
    names = {name for values in provenance.values() for name in values} - {"command"}
    for name in sorted(names):
        tables_by_value: dict[str, list[str]] = {}
        for table_name, values in provenance.items():
            tables_by_value.setdefault(values.get(name, ""), []).append(table_name)
        for value, table_names in tables_by_value.items():
            if value:
                rows.append([name, value, "all" if len(tables_by_value) == 1 else ", ".join(table_names)])
    yield report_table.Table.of_strings(["name", "value", "tables"], rows, text_columns=range(3))
