"""Experiments: a table or figure of the paper as a search space with a grid, its printed numbers beside it.

A file (docs/reproduce.md) has `columns` and `rows` in the place of a space's grid: a row's `set` are the settings of
its trial, and a column with a `set` of its own stands for a trial that has those, too. All else is as in a space.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fpp_sweep.space.grid import MOST_POINTS
from fpp_sweep.space.reading import space_from
from fpp_sweep.space.rules import (
    LATER,
    NAME,
    Rule,
    as_mapping,
    check_fields,
    expect,
    flag,
    keys,
    number,
    set_field,
    text,
    under,
)
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import Node, of_plain, read
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, unknown

SHIPPED = Path(__file__).parent / "shipped"
STAGES = {"seconds.pretrain": "pretraining", "seconds.adapt": "adaptation"}  # of work, as columns of a table of costs
AVERAGE = "average"
FILES = {"$coop": "coop", "$maple": "maple"}  # places for a user's checkpoints, and the flags that fill them
FIXED = {  # what an experiment's space has, whatever the file says
    "search.split": "test",
    "search.sampler": "grid",
    "search.max_failures": str(MOST_POINTS),  # a row that fails says nothing of the others
    "search.include_published": "false",
    "work.baselines": "[]",
}


def _check_score(value: Any) -> Any:
    known = [*(row.name for row in catalogue.METRICS.values() if row.of_dataset), *STAGES]
    expect(isinstance(value, str), "must be the name of a metric")
    if value not in known:
        raise unknown("metric", value, known)
    return value


def _check_printed(value: Any) -> Mapping[str, Mapping[str, float | None]]:
    """Numbers by column and dataset; a bare number is the average."""
    checked: dict[str, dict[str, float | None]] = {}
    for column, numbers in as_mapping(value).items():
        with under(column):
            cells = numbers if isinstance(numbers, Mapping) else {AVERAGE: numbers}
            checked[column] = {}
            for dataset, cell in cells.items():
                with under(str(dataset)):
                    checked[column][dataset] = None if cell is None else number().check(cell)
    return checked


def _as_it_is(value: Any) -> Any:
    return dict(as_mapping(value))


SCORE = Rule(_check_score, dict)
PRINTED = Rule(_check_printed, dict)
SETTINGS = Rule(_as_it_is, dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A number of each row."""

    name: Annotated[str, NAME] = LATER  # the metric's
    metric: Annotated[str, SCORE]
    heading: str = LATER
    of: Literal["mean", "deviation"] = "mean"  # over seeds
    decimals: int = LATER  # as the paper prints it
    set: Annotated[Mapping[str, Any], SETTINGS] = field(default_factory=dict)  # on top of the row's

    def __post_init__(self) -> None:
        check_fields(self)
        row = catalogue.METRICS.get(self.metric)
        set_field(self, "name", self.name or self.metric)
        set_field(self, "heading", self.heading or (row.heading if row else STAGES[self.metric]))
        if self.decimals is None:
            set_field(self, "decimals", row.decimals if row else 1)

    @property
    def goal(self) -> str:
        row = catalogue.METRICS.get(self.metric)
        return "min" if row is None or self.of == "deviation" else row.goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a table: the settings of a trial, and what the paper prints of it."""

    name: Annotated[str, NAME]
    title: str = LATER
    set: Annotated[Mapping[str, Any], SETTINGS] | None = None  # none: only printed
    printed: Annotated[Mapping[str, Any], PRINTED] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        set_field(self, "title", self.title or self.name)

    @property
    def files(self) -> list[str]:
        """The checkpoints that it needs."""
        return [FILES[value] for value in (self.set or {}).values() if value in FILES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence about a table: a row is better than others in a column, or differs from them."""

    says: str
    row: str
    than: tuple[str, ...]
    column: str
    kind: Literal["better", "differs"] = "better"
    where: Literal["average", "average without eurosat", "every dataset"] = "average"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is drawn of the rows: see reproduce/figures.py."""

    kind: Literal["scatter", "groups", "reliability", "lines"]
    x: str | None = None  # a column, or a setting
    y: tuple[str, ...] = ()
    by: str | None = None  # a setting that tells lines apart

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """See the module's text."""

    name: str
    title: str
    question: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    average: tuple[str, ...] = ()  # datasets that averages are of; empty: all
    figure: Figure | None = None
    theory: str = ""  # what is computed without a sweep, instead of rows
    alone: bool = False  # on one worker, with no result of another run at hand: its times are to be compared
    root: Node = field(repr=False)

    def space(self, *, overrides: Sequence[str], files: Mapping[str, str], rows: Collection[str] = ()) -> Space:
        """The space of the rows that are asked for, or of all, and of those whose files are there."""
        root = copy.deepcopy(self.root)
        blocks = []
        for index, node in enumerate(root.value.pop("rows").items()):
            row = self.rows[index]
            if row.set is None or (rows and row.name not in rows) or not files.keys() >= set(row.files):
                continue
            settings = node.value["set"]
            for setting in settings.value.values():
                if setting.value in FILES:
                    setting.value = files[FILES[setting.value]]
            for column in self.columns:
                more = {key: of_plain(value, settings.where, key) for key, value in column.set.items()}
                blocks.append(Node({**settings.value, **more}, settings.where, settings.path))
        if not blocks:
            needed = sorted({f"--{name}" for row in self.rows for name in row.files})
            raise InputError(f"table {self.name} has no row that can be run: give {' or '.join(needed)} a checkpoint")
        for key in ("title", "columns", "claims", "average", "embedded", "figure", "alone"):
            root.value.pop(key, None)
        root.value["grid"] = Node(_distinct(blocks), root.where, "rows")
        asked = {name for column in self.columns if column.metric in catalogue.METRICS
                 for name in catalogue.METRICS[column.metric].columns}  # fmt: skip
        fixed = {**FIXED, "name": self.name}
        if asked:
            fixed["work.columns"] = f"[{', '.join(sorted(asked))}]"
        if self.alone:
            fixed |= {"work.workers": "1", "work.reuse_results": "false"}
        return space_from(root, self.name, [*(f"{key}={value}" for key, value in fixed.items()), *overrides])

    def settings(self, row: Row, column: Column, files: Mapping[str, str]) -> dict[str, Any]:
        """Of the trial that a cell is of."""
        settings = {**(row.set or {}), **column.set}
        return {
            key: files[FILES[value]] if isinstance(value, str) and value in FILES else value
            for key, value in settings.items()
        }

    def embedded(self) -> list[str]:
        """The datasets on the embedded model; InputError if the table makes no sense there."""
        node = self.root.value.get("embedded")
        if node is None:
            return ["tiny"]
        if isinstance(node.value, str):
            raise InputError(f"table {self.name} makes no sense on the embedded model: {node.value}")
        return [item.value for item in node.items()]


def shipped() -> list[str]:
    """Names of the tables and figures that come with the package, tables first."""
    return (SHIPPED / "order.txt").read_text().split()


def find(name: str) -> Experiment:
    """An experiment by name, or a user's own by its file."""
    if name.endswith((".yaml", ".yml")):
        return load(Path(name))
    if name not in shipped():
        raise InputError(f"--table {name}: {unknown('table', name, shipped())}")
    return load(SHIPPED / f"{name}.yaml")


def load(path: Path) -> Experiment:
    """Read an experiment's file; complaints name file and line."""
    return made_from(read(path, "experiment"), path.stem)


def made_from(root: Node, stem: str) -> Experiment:
    """The same of a document that is read already."""
    own = ("title", "columns", "rows", "claims", "average", "embedded", "figure", "theory", "alone")
    entries = root.mapping([*own, *(key for key in keys(Space) if key not in ("grid", "params", "points", "search"))])
    if "theory" not in entries and not {"columns", "rows"} <= entries.keys():
        raise root.error("needs columns and rows; see docs/reproduce.md")
    made: dict[str, Any] = {
        key: tuple(_made(kind, node) for node in entries[key].items()) if key in entries else ()
        for key, kind in (("columns", Column), ("rows", Row), ("claims", Claim))
    }
    for key, rule in (("title", text()), ("question", text()), ("theory", text()), ("alone", flag())):
        if key in entries:
            with entries[key].locating():
                made[key] = rule.check(entries[key].plain())
    if "average" in entries:
        made["average"] = tuple(item.value for item in entries["average"].items())
    if "figure" in entries:
        made["figure"] = _made(Figure, entries["figure"])
    experiment = Experiment(name=stem, root=root, **{"title": stem, "question": "", **made})
    _check_names(experiment)
    return experiment


def in_precisions(experiment: Experiment, precisions: Sequence[str]) -> Experiment:
    """The same with every row that is run once in each precision; what is claimed is of the first."""
    root, rows = copy.deepcopy(experiment.root), []
    for row, node in zip(experiment.rows, root.value["rows"].items(), strict=True):
        names = [row.name, *beside(row.name, precisions)]
        for name, precision in zip(names, precisions, strict=True) if row.set is not None else ():
            settings = {**node.value["set"].plain(), "precision": precision}
            told = {"name": name, "title": f"{row.title}, {precision}", "set": settings}
            rows.append(replace(node, value={**node.value, **of_plain(told, node.where, node.path).value}))
        rows += [node] if row.set is None else []
    root.value["rows"].value = rows
    return made_from(root, experiment.name)


def beside(row: str, precisions: Sequence[str]) -> list[str]:
    """Names of the same row in the precisions after the first."""
    return [f"{row}_{precision}" for precision in precisions[1:]]


def _made(kind: type[Any], node: Node) -> Any:
    """A part of an experiment; a word is a column's metric."""
    values = {"metric": node.value} if kind is Column and isinstance(node.value, str) else None
    with node.locating():
        if values is None:
            values = {key: child.plain() for key, child in node.mapping(keys(kind)).items()}
            for each in fields(kind):
                if each.default is MISSING and each.default_factory is MISSING:
                    expect(each.name in values, f"needs a {each.name}")
        return kind(**values)


def _check_names(experiment: Experiment) -> None:
    """Whatever refers to rows and columns must find them."""
    entries, columns = experiment.root.value, [column.name for column in experiment.columns]
    rows = [row.name for row in experiment.rows]
    for index, row in enumerate(experiment.rows):
        node = entries["rows"].value[index]
        if rows.index(row.name) < index:
            raise node.error(f"there is a row named {row.name} already")
        for column in row.printed:
            if column not in columns:
                raise node.value["printed"].error(unknown("column", column, columns))
    for index, claim in enumerate(experiment.claims):
        for name in (claim.row, *claim.than):
            if name not in rows:
                raise entries["claims"].value[index].error(unknown("row", name, rows))
        if claim.column not in columns:
            raise entries["claims"].value[index].error(unknown("column", claim.column, columns))
    if figure := experiment.figure:
        for name in (*figure.y, *((figure.x or "",) if figure.kind == "scatter" else ())):
            if name not in columns:
                raise entries["figure"].error(unknown("column", name, columns))


def _distinct(blocks: Iterable[Node]) -> list[Node]:
    """Each set of settings once."""
    seen: dict[str, Node] = {}
    for block in blocks:
        seen.setdefault(repr(sorted(block.plain().items())), block)
    return list(seen.values())
