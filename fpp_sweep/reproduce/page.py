"""The files of a table, and reproduction.html: all tables on one page, with claims, figures and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.records.texts import format_setting, format_time, varies
from fpp_sweep.report.document import Block, Code, Document, Picture, Section, Text, paragraphs
from fpp_sweep.report.html import write_document
from fpp_sweep.report.table import Row, Table, cells_of, columns_of
from fpp_sweep.reproduce.claims import judge_claims
from fpp_sweep.reproduce.experiment_files import shipped
from fpp_sweep.reproduce.experiments import Experiment
from fpp_sweep.reproduce.figures import figures_of_page, write_figure
from fpp_sweep.reproduce.output import DIFFERS, claims_section, column_sections, write_table
from fpp_sweep.reproduce.printed import PAPERS_MODEL, PAPERS_TAG
from fpp_sweep.reproduce.tables import EXPERIMENT_FILE, ResultTable, load_table, save_experiment, table_of
from fpp_sweep.spec.config import relevant
from fpp_sweep.spec.errors import InputError

PAGE = "reproduction.html"
NOT_JUDGED = "not judged"
RULES = (
    "A number is the mean over seeds, ± their standard deviation. Averages are unweighted means over datasets. EuroSAT "
    "dominates the printed averages, so there is also one without it; for the paper it is computed from its columns.",
    "[Brackets] hold the 95 % interval over images and seeds. A calibration error near zero has none, and neither has "
    "a dataset of fewer than 30 images.",
    f"A number that differs from the printed one is marked {DIFFERS}: a t test over seeds (5 %), with half a unit of "
    "the last printed digit as tolerance. The printed number counts as one run of the same spread. Without several "
    "seeds there is no test.",
    "A claim compares rows on the same images, with the variance of seeds; columns that cannot be resampled by images "
    "are compared by seed. Holm's correction is over all comparisons of the table's claims. A claim holds if every "
    "comparison is significant in its direction, does not hold if one is significant against it, else it is undecided.",
    f"The paper's numbers are those of {PAPERS_MODEL}/{PAPERS_TAG}; numbers of another model are not compared with "
    "them.",
)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """An experiment with its sweep."""

    sweep: SweepFolder
    info: SweepInfo
    table: ResultTable

    @property
    def name(self) -> str:
        return self.sweep.path.name


def write_results(
    folder: SweepFolder, experiment: Experiment, checkpoints: Mapping[str, str], run_notes: Sequence[str]
) -> ResultTable:
    """Write the table and the figure of an experiment that has ended, and return the table."""
    save_experiment(folder.path, experiment, checkpoints, run_notes)
    table = table_of(experiment, folder, checkpoints, run_notes)
    write_table(folder.report, table)
    write_figure(folder, table)
    return table


def write_page(folder: Path, tables: Mapping[str, ResultTable] | None = None) -> Path:
    """Write the page of a reproduction's folder; tables that are passed, by name, are not made again."""
    tables = tables or {}
    loaded_tables = []
    for sweep in sweeps(folder):
        table = tables.get(sweep.path.name)
        if table is None:
            table = load_table(sweep)
        loaded_tables.append(LoadedTable(sweep, sweep.info(), table))
    if not loaded_tables:
        raise InputError(f"{folder} has no table yet")
    sections = [Section("Tables", [_overview(loaded_tables)])]
    settings = []
    for loaded in loaded_tables:
        sections.append(_experiment_section(loaded))
        settings.append(_settings_section(loaded.table))
    sections.append(Section("How the numbers were computed", paragraphs(RULES)))
    sections.append(Section("Settings", settings))
    sections.append(Section("Make it again", list(_origin(loaded_tables))))
    name = f"Reproduction {folder.resolve().name}"
    write_document(folder / PAGE, Document(name, sections, introduction=list(_introduction(loaded_tables))))
    return folder / PAGE


def sweeps(folder: Path) -> list[SweepFolder]:
    """Return the experiments' sweeps in the order of `--list`; the user's own come last, once they have ended."""
    order = shipped()
    own = []
    for path in sorted(folder.iterdir()):
        if path.name not in order and (path / EXPERIMENT_FILE).is_file():
            own.append(path.name)
    return [SweepFolder(folder / name) for name in (*order, *own) if (folder / name / "sweep.json").is_file()]


def _introduction(loaded_tables: Sequence[LoadedTable]) -> Iterator[Block]:
    models: dict[str, None] = {}
    times = []
    all_papers_model = True
    for loaded in loaded_tables:
        models[loaded.table.model] = None
        times += [loaded.info.created, loaded.info.finished or loaded.info.created]
        all_papers_model = all_papers_model and loaded.table.is_papers_model
    yield Text(f"The tables and figures of the FPP paper, run again on {', '.join(models)}.")
    yield Text(f"{format_time(min(times))} to {format_time(max(times))}", "faint")
    if not all_papers_model:
        yield Text(
            f"The paper's model is {PAPERS_MODEL}/{PAPERS_TAG}: its numbers are marked as another model's, and not "
            "compared.",
            "warning",
        )


def _overview(loaded_tables: Sequence[LoadedTable]) -> Table:
    """Return a table of the experiments, with links to their sections."""
    titles = ["table", "question", "cells against the paper", "claims", "state"]
    rows = []
    for loaded in loaded_tables:
        table = loaded.table
        state: str = loaded.info.state
        if table.failed:
            state += f", {len(table.failed)} rows failed"
        texts = [loaded.name, table.experiment.question, _cell_counts(table), _claim_counts(table), state]
        rows.append(Row(cells_of(texts), anchor=loaded.name))
    return Table(columns=columns_of(titles, is_text=True), rows=rows)


def _cell_counts(table: ResultTable) -> str:
    if not table.is_papers_model:
        return "other model"
    verdicts = []
    for cell in table.cells.values():
        if cell.difference is not None:
            verdicts.append(cell.verdict or NOT_JUDGED)
    return _counts(verdicts)


def _claim_counts(table: ResultTable) -> str:
    return _counts([claim.verdict.partition(";")[0] for claim in judge_claims(table)])


def _counts(words: Iterable[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in Counter(words).most_common())


def _experiment_section(loaded: LoadedTable) -> Section:
    table = loaded.table
    blocks: list[Block] = [Text(table.experiment.question)]
    sentences = []
    for sentence in table.run_notes:
        if sentence.startswith("PARTIAL"):
            blocks.append(Text(sentence, "warning"))
        else:
            sentences.append(sentence)
    blocks.append(Text("; ".join(sentences), "faint"))
    if loaded.info.state != "finished":
        blocks.append(Text(f"The sweep is {loaded.info.state}: rows may be missing.", "warning"))
    blocks += [Text(f"{name} has no numbers: {reason}", "warning") for name, reason in table.failed.items()]
    if table.experiment.claims:
        blocks.append(claims_section(table))
    blocks += column_sections(table)
    for figure in figures_of_page(loaded.sweep, table):
        blocks.append(Picture(figure.to_svg(), figure.caption))
    return Section(f"{loaded.name}: {table.experiment.title}", blocks, anchor=loaded.name)


def _settings_section(table: ResultTable) -> Section:
    """Return the settings in which the rows' trials differ, and the shared settings in a sentence."""
    configs = _configs_of(table)
    names: dict[str, None] = {}
    for config in configs.values():
        names.update(dict.fromkeys(config))
    differing = []
    same = []
    for name in names:
        texts = [format_setting(config[name]) if name in config else "" for config in configs.values()]
        if varies(texts):
            differing.append([name, *texts])
        else:
            same.append(f"{name} = {texts[0]}")
    settings = Table.of_strings(["setting", *configs], differing, text_columns=range(len(configs) + 1))
    shared = ""
    if same:
        shared = f"The same in all rows: {', '.join(same)}."
    return Section(table.experiment.title, [settings, Text(shared, "faint")])


def _configs_of(table: ResultTable) -> dict[str, dict[str, Any]]:
    """Return the settings that each trial's method reads, by the title of its row."""
    configs: dict[str, dict[str, Any]] = {}
    keys = set()
    for (row_name, column), record in table.records.items():
        if record.key in keys:
            continue
        keys.add(record.key)
        row = table.experiment.row(row_name)
        label = row.title
        if record is not table.record(row):
            label = f"{row.title}, {column}"
        configs[label] = relevant(record.config)
    return configs


def _origin(loaded_tables: Sequence[LoadedTable]) -> Iterator[Block]:
    """Yield commands, versions and digests; a name whose values differ has a line for each."""
    yield Text("The same commands continue where they ended, and do not compute cached results again.")
    for command in dict.fromkeys(loaded.info.command for loaded in loaded_tables):
        if command:
            yield Code(command)
    yield Text("This page alone, from the folder:")
    yield Code("fpp-sweep show FOLDER --page")
    rows = list(_provenance(loaded_tables))
    yield Table.of_strings(["name", "value", "tables"], rows, text_columns=range(3))


def _provenance(loaded_tables: Sequence[LoadedTable]) -> Iterator[list[str]]:
    """Yield name, value and tables of each version and digest."""
    values_by_table = {loaded.name: loaded.info.provenance() for loaded in loaded_tables}
    names: set[str] = set()
    for values in values_by_table.values():
        names.update(values)
    names.discard("command")
    for name in sorted(names):
        tables_by_value: dict[str, list[str]] = {}
        for table_name, values in values_by_table.items():
            tables_by_value.setdefault(values.get(name, ""), []).append(table_name)
        for value, table_names in tables_by_value.items():
            tables = ", ".join(table_names)
            if len(tables_by_value) == 1:
                tables = "all"
            if value:
                yield [name, value, tables]
