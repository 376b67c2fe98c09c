"""Experiments: a table or figure of the paper as a search space with a grid, with its printed numbers.

A file (docs/reproduce.md) has `columns` and `rows` instead of a space's grid: a row's `set` are the settings of its
trial, and a column with a `set` adds settings for a separate trial. All other keys are those of a space.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from fpp_sweep.core.models.names import QUICK_SUFFIX, parse
from fpp_sweep.space.objectives import Name
from fpp_sweep.space.params import MAX_POINTS
from fpp_sweep.space.reading import space_from
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import Document, read
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.validation import (
    COMPUTED_DEFAULT,
    Distinct,
    Several,
    as_list,
    as_mapping,
    at_key,
    build,
    checked,
    keys,
    known_name,
    part,
    require,
    require_keys,
    set_field,
)

AVERAGE = "average"
PAPERS_MODEL = "ViT-B-16"  # the architecture behind the printed numbers
PAPERS_TAG = "openai"  # its weights
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
SHIPPED = Path(__file__).parent / "shipped"
REPLACED_KEYS = ("grid", "params", "points", "search")  # keys of a space that rows and columns replace
STAGES = {"seconds.pretrain": "pretraining", "seconds.adapt": "adaptation"}  # metrics of a table of costs
CHECKPOINTS = {"$coop": "coop", "$maple": "maple"}  # words that stand for the user's checkpoints -> their flags
# keys of an experiment's file that a space does not have
TABLE_KEYS = ("title", "columns", "rows", "claims", "average", "embedded", "figure", "alone")
FIXED = {  # settings of an experiment's space, whatever the file says
    "search.split": "test",
    "search.sampler": "grid",
    "search.max_failures": str(MAX_POINTS),  # a row that fails says nothing of the others
    "search.include_published": "false",
    "search.evaluate_only": "true",  # every row is shown: no final stage, no recommendation
    "work.baselines": "[]",
}


# --- printed numbers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrintedNumber:
    """A printed number with half a unit of its last digit."""

    text: str
    value: float
    rounding: float

    @classmethod
    def of_text(cls, text: str) -> PrintedNumber:
        """Read a number as it is printed.

        >>> PrintedNumber.of_text("8.50").rounding, PrintedNumber.of_text("23.9").rounding
        (0.005, 0.05)
        """
        decimals = len(text.partition(".")[2])
        return cls(text, float(text), float(0.5 * 10.0**-decimals))


def mean_of_printed(numbers: Sequence[PrintedNumber]) -> PrintedNumber:
    """Return the mean of printed numbers, with the largest error that their rounding can give.

    >>> mean_of_printed([PrintedNumber.of_text("4.00"), PrintedNumber.of_text("5.1")])
    PrintedNumber(text='4.55', value=4.55, rounding=0.0275)
    """
    values = []
    roundings = []
    decimals = 0
    for number in numbers:
        values.append(number.value)
        roundings.append(number.rounding)
        decimals = max(decimals, len(number.text.partition(".")[2]))
    value = math.fsum(values) / len(values)
    return PrintedNumber(f"{value:.{decimals}f}", value, math.fsum(roundings) / len(roundings))


def read_printed(value: Any) -> dict[str, dict[str, PrintedNumber | None]]:
    """Return printed numbers by column and dataset; a number without a dataset is the average."""
    printed: dict[str, dict[str, PrintedNumber | None]] = {}
    for column, numbers in as_mapping(value).items():
        by_dataset = numbers
        if not isinstance(numbers, Mapping):
            by_dataset = {AVERAGE: numbers}
        printed[column] = {}
        for dataset, number in by_dataset.items():
            printed[column][dataset] = _read_number(number, f"{column}.{dataset}")
    return printed


def _read_number(value: Any, key: str) -> PrintedNumber | None:
    if value is None or isinstance(value, PrintedNumber):
        return value
    require(_NUMBER.fullmatch(str(value)), f"must be a number ({value})", key)
    return PrintedNumber.of_text(str(value))


def is_papers_model(model: str) -> bool:
    """Return True for ViT-B/16 with OpenAI's weights, from the hub or a file.

    A file is OpenAI's because the user says that it has OpenAI's activation.

    >>> [is_papers_model(name) for name in ("ViT-B-16/openai", "ViT-B-16-quickgelu:b16.pt", "ViT-B-16:b16.pt", "tiny")]
    [True, True, False, False]
    """
    spec = parse(model)
    if spec.path is not None:
        return spec.architecture == f"{PAPERS_MODEL}{QUICK_SUFFIX}"
    return spec.architecture.removesuffix(QUICK_SUFFIX) == PAPERS_MODEL and spec.tag == PAPERS_TAG


# --- parts of an experiment ------------------------------------------------------------------------------


def _check_score(value: Any) -> Any:
    metrics = [row.name for row in catalogue.METRICS.values() if row.of_dataset]
    names = [*metrics, *STAGES]
    require(isinstance(value, str), "must be the name of a metric")
    parts = catalogue.parts_of(value)
    is_mapped = parts.posthoc in catalogue.POSTHOC and parts.stem in metrics and not parts.dataset
    if value not in names and not is_mapped:
        raise unknown("metric", value, names)
    return value


Score = Annotated[str, BeforeValidator(_check_score)]
Printed = Annotated[Mapping[str, Mapping[str, PrintedNumber | None]], BeforeValidator(read_printed)]
Names = Distinct[str]


@checked
class ExperimentColumn:
    """A number of each row."""

    name: Name = COMPUTED_DEFAULT  # the metric's
    metric: Score
    heading: str = COMPUTED_DEFAULT
    of: Literal["mean", "deviation"] = "mean"  # over seeds
    decimals: Annotated[int, Field(ge=0, le=10)] = COMPUTED_DEFAULT  # decimals of our numbers
    set: Mapping[str, Any] = field(default_factory=dict)  # on top of the row's

    def __post_init__(self) -> None:
        set_field(self, "name", self.name or self.metric)
        set_field(self, "heading", self.heading or _default_heading(self.metric))
        if self.decimals is None:
            set_field(self, "decimals", 1 if self.metric in STAGES else catalogue.metric(self.metric).decimals)

    @property
    def goal(self) -> catalogue.Goal:
        if self.metric in STAGES or self.of == "deviation":
            return "min"
        return catalogue.metric(self.metric).goal


def _default_heading(metric: str) -> str:
    if metric in STAGES:
        return STAGES[metric]
    heading = catalogue.metric(metric).heading
    posthoc = catalogue.parts_of(metric).posthoc
    if posthoc:
        return f"{heading} {posthoc}"
    return heading


@checked
class ExperimentRow:
    """A line of a table: the settings of a trial, and its printed numbers."""

    name: Name
    title: str = COMPUTED_DEFAULT
    set: Mapping[str, Any] | None = None  # none: only printed
    printed: Printed = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_field(self, "title", self.title or self.name)

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that the row needs."""
        return [CHECKPOINTS[value] for value in (self.set or {}).values() if value in CHECKPOINTS]

    def can_run(self, checkpoints: Collection[str]) -> bool:
        """Return True if the row has settings, and all its checkpoints are among `checkpoints`."""
        return self.set is not None and set(self.checkpoints) <= set(checkpoints)


LineKey = tuple[str, str]  # name of a row and precision


class TableLine(NamedTuple):
    """A row of a table in one precision."""

    row: ExperimentRow
    precision: str  # empty: that of the row's settings

    @property
    def key(self) -> LineKey:
        return self.row.name, self.precision

    @property
    def title(self) -> str:
        return line_name((self.row.title, self.precision))


def line_name(key: LineKey) -> str:
    """Return the name of a line.

    >>> line_name(("tpt", "float32")), line_name(("tpt", ""))
    ('tpt, float32', 'tpt')
    """
    return ", ".join(filter(None, key))


@checked
class Claim:
    """A sentence about a table: a row is better or worse than others in a column, or differs from them."""

    says: str
    row: str
    than: Names
    column: str
    kind: Literal["better", "worse", "differs"] = "better"
    where: Literal["average", "average without eurosat", "every dataset"] = "average"


@checked
class ExperimentFigure:
    """A drawing of the rows: see reproduce/figures.py."""

    kind: Literal["scatter", "groups", "reliability", "lines"]
    x: str | None = None  # a column, or a setting
    y: Names = ()
    by: str | None = None  # a setting that tells lines apart
    datasets: Names = ()  # datasets of a reliability diagram; empty, or none of them in the table: all


def _column(item: Any) -> ExperimentColumn:
    """Return a column from its keys, or from the word that is its metric."""
    if isinstance(item, str):
        with at_key("", without="metric"):
            return ExperimentColumn(metric=item)
    return build(ExperimentColumn, item)


@checked
class Experiment:
    """A table or figure of the paper, as its file describes it."""

    name: str
    title: str
    question: str
    columns: Several[Annotated[ExperimentColumn, BeforeValidator(_column)]]
    rows: Several[Annotated[ExperimentRow, part(ExperimentRow)]]
    claims: Several[Annotated[Claim, part(Claim)]] = ()
    average: Names = ()  # datasets of the averages; empty: all
    figure: Annotated[ExperimentFigure, part(ExperimentFigure)] | None = None
    alone: bool = False  # on one worker and without cached results, because times are compared
    document: Document = field(repr=False)
    precisions: tuple[str, ...] = ("",)  # an axis of the grid; "": each row's own. Claims are about the first one

    @property
    def lines(self) -> list[TableLine]:
        """The rows in each precision; a row that is only printed has none."""
        lines = []
        for row in self.rows:
            precisions = ("",) if row.set is None else self.precisions
            lines += [TableLine(row, precision) for precision in precisions]
        return lines

    def column(self, name: str) -> ExperimentColumn:
        return next(column for column in self.columns if column.name == name)

    def space(self, *, overrides: Sequence[str], checkpoints: Mapping[str, str], rows: Collection[str] = ()) -> Space:
        """Return the space of the requested rows, or of all, without rows whose checkpoint is missing."""
        document = self.document.copy()
        for key in TABLE_KEYS:
            document.value.pop(key, None)
        blocks: list[dict[str, Any]] = []  # of the grid, without repetitions
        precisions = [precision for precision in self.precisions if precision]
        for index, row in enumerate(self.rows):
            if (rows and row.name not in rows) or not row.can_run(checkpoints):
                continue
            for column in self.columns:
                block = self.settings(row, column, checkpoints, precisions)
                if block not in blocks:
                    document.use_places(f"grid.{len(blocks)}", f"rows.{index}.set")
                    blocks.append(block)
        if not blocks:
            needed = sorted({f"--{name}" for row in self.rows for name in row.checkpoints})
            raise InputError(f"table {self.name} has no row that can be run: give {' or '.join(needed)} a checkpoint")
        document.value["grid"] = blocks
        return space_from(document, self.name, [*self._fixed_settings(), *overrides])

    def _fixed_settings(self) -> list[str]:
        fixed = {**FIXED, "name": self.name}
        columns: set[str] = set()  # optional columns of the predictions
        for column in self.columns:
            if column.metric not in STAGES:
                columns.update(catalogue.metric(column.metric).columns)
        if columns:
            fixed["work.columns"] = f"[{', '.join(sorted(columns))}]"
        if self.alone:
            fixed["work.workers"] = "1"
            fixed["work.reuse_results"] = "false"
        return [f"{key}={value}" for key, value in fixed.items()]

    def settings(
        self, row: ExperimentRow, column: ExperimentColumn, checkpoints: Mapping[str, str], precision: Any = ""
    ) -> dict[str, Any]:
        """Return the settings of the trial behind a cell, or of the trials in a list of precisions."""
        axis = {"precision": precision} if precision else {}
        settings = {**(row.set or {}), **axis, **column.set}
        for key, value in settings.items():
            if isinstance(value, str) and value in CHECKPOINTS:
                settings[key] = checkpoints[CHECKPOINTS[value]]
        return settings

    def embedded_datasets(self) -> list[str]:
        """Return the datasets on the embedded model; raise InputError if the table makes no sense there."""
        datasets = self.document.value.get("embedded", ["tiny"])
        if isinstance(datasets, str):
            raise InputError(f"table {self.name} makes no sense on the embedded model: {datasets}")
        with self.document.locating("embedded"):
            return list(as_list(datasets))


# --- files of experiments -------------------------------------------------------------------------------


def shipped() -> list[str]:
    """Return the names of the tables and figures that come with the package, tables first."""
    return (SHIPPED / "order.txt").read_text().split()


def find(name: str) -> Experiment:
    """Return an experiment of the package by name, or the user's by file."""
    if name.endswith((".yaml", ".yml")):
        return load(user_path(name))
    if name not in shipped():
        raise InputError(f"--table {name}: {unknown('table', name, shipped())}")
    return load(SHIPPED / f"{name}.yaml")


def load(path: Path) -> Experiment:
    return experiment_of(read(path, "experiment", verbatim="printed"), path.stem)


def experiment_of(document: Document, name: str) -> Experiment:
    """Return the experiment that a document describes."""
    entries = document.value
    with document.locating():
        require_keys(entries, [*TABLE_KEYS, *(key for key in keys(Space) if key not in REPLACED_KEYS)])
        require({"columns", "rows"} <= entries.keys(), "needs columns and rows; see docs/reproduce.md")
        values = {key: entries[key] for key in keys(Experiment) if key in entries}
        experiment = Experiment(**{"title": name, "question": "", **values, "name": name, "document": document})
        _check_names(experiment)
    return experiment


def _check_names(experiment: Experiment) -> None:
    """Require different names of rows, and that every row and column that is named exists."""
    rows = [row.name for row in experiment.rows]
    columns = [column.name for column in experiment.columns]
    for index, row in enumerate(experiment.rows):
        with at_key(f"rows.{index}"):
            require(row.name not in rows[:index], f"there is a row named {row.name} already")
            with at_key("printed"):
                _require_names("column", row.printed, columns)
    for index, claim in enumerate(experiment.claims):
        with at_key(f"claims.{index}"):
            _require_names("row", (claim.row, *claim.than), rows)
            _require_names("column", [claim.column], columns)
    if experiment.figure is not None:
        with at_key("figure"):
            _require_names("column", experiment.figure.y, columns)
            if experiment.figure.kind == "scatter":
                known_name("column", experiment.figure.x or "", columns)


def _require_names(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        known_name(kind, name, known)
