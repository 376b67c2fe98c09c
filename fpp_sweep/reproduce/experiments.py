"""Experiments: a table or figure of the paper as a search space with a grid, with its printed numbers.

A file (docs/reproduce.md) has `columns` and `rows` instead of a space's grid: a row's `set` are the settings of its
trial, and a column with a `set` adds settings for a separate trial. All other keys are those of a space.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fpp_sweep.reproduce.printed import PrintedNumber, read_printed
from fpp_sweep.space.grid import MAX_POINTS
from fpp_sweep.space.objectives import Name
from fpp_sweep.space.reading import space_from
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import Document
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.validation import COMPUTED_DEFAULT, Distinct, as_list, check_fields, require, set_field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentColumn:
    """A number of each row."""

    name: Name = COMPUTED_DEFAULT  # the metric's
    metric: Score
    heading: str = COMPUTED_DEFAULT
    of: Literal["mean", "deviation"] = "mean"  # over seeds
    decimals: Annotated[int, Field(ge=0, le=10)] = COMPUTED_DEFAULT  # decimals of our numbers
    set: Mapping[str, Any] = field(default_factory=dict)  # on top of the row's

    def __post_init__(self) -> None:
        check_fields(self)
        set_field(self, "name", self.name or self.metric)
        set_field(self, "heading", self.heading or _default_heading(self.metric))
        if self.decimals is None:
            set_field(self, "decimals", _default_decimals(self.metric))

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


def _default_decimals(metric: str) -> int:
    if metric in STAGES:
        return 1
    return catalogue.metric(metric).decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRow:
    """A line of a table: the settings of a trial, and its printed numbers."""

    name: Name
    title: str = COMPUTED_DEFAULT
    set: Mapping[str, Any] | None = None  # none: only printed
    printed: Printed = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        set_field(self, "title", self.title or self.name)

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that the row needs."""
        return [CHECKPOINTS[value] for value in (self.set or {}).values() if value in CHECKPOINTS]

    def can_run(self, checkpoints: Collection[str]) -> bool:
        """Return True if the row has settings, and all its checkpoints are among `checkpoints`."""
        return self.set is not None and set(self.checkpoints) <= set(checkpoints)


def names_in_precisions(row: str, precisions: Sequence[str]) -> list[str]:
    """Return the names of a row in each precision.

    >>> names_in_precisions("tpt", ["released", "float32"])
    ['tpt', 'tpt_float32']
    """
    return [row, *(f"{row}_{precision}" for precision in precisions[1:])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence about a table: a row is better or worse than others in a column, or differs from them."""

    says: str
    row: str
    than: Names
    column: str
    kind: Literal["better", "worse", "differs"] = "better"
    where: Literal["average", "average without eurosat", "every dataset"] = "average"

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFigure:
    """A drawing of the rows: see reproduce/figures.py."""

    kind: Literal["scatter", "groups", "reliability", "lines"]
    x: str | None = None  # a column, or a setting
    y: Names = ()
    by: str | None = None  # a setting that tells lines apart
    datasets: Names = ()  # datasets of a reliability diagram; empty, or none of them in the table: all

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """A table or figure of the paper, as its file describes it."""

    name: str
    title: str
    question: str
    columns: tuple[ExperimentColumn, ...]
    rows: tuple[ExperimentRow, ...]
    claims: tuple[Claim, ...] = ()
    average: Names = ()  # datasets of the averages; empty: all
    figure: ExperimentFigure | None = None
    alone: bool = False  # on one worker and without cached results, because times are compared
    document: Document = field(repr=False)
    precisions: tuple[str, ...] = ()  # of every row; empty: each row has its own

    def row(self, name: str) -> ExperimentRow:
        return next(row for row in self.rows if row.name == name)

    def column(self, name: str) -> ExperimentColumn:
        return next(column for column in self.columns if column.name == name)

    def space(self, *, overrides: Sequence[str], checkpoints: Mapping[str, str], rows: Collection[str] = ()) -> Space:
        """Return the space of the requested rows, or of all, without rows whose checkpoint is missing."""
        document = self.document.copy()
        for key in TABLE_KEYS:
            document.value.pop(key, None)
        points: list[dict[str, Any]] = []  # the settings of each trial, without repetitions
        indices = self._indices_in_file()
        for row in self.rows:
            if (rows and row.name not in rows) or not row.can_run(checkpoints):
                continue
            for column in self.columns:
                point = self.settings(row, column, checkpoints)
                if point not in points:
                    document.use_places(f"grid.{len(points)}", f"rows.{indices[row.name]}.set")
                    points.append(point)
        if not points:
            needed = sorted({f"--{name}" for row in self.rows for name in row.checkpoints})
            raise InputError(f"table {self.name} has no row that can be run: give {' or '.join(needed)} a checkpoint")
        document.value["grid"] = points
        return space_from(document, self.name, [*self._fixed_settings(), *overrides])

    def _indices_in_file(self) -> dict[str, int]:
        """Return the index of each row's entry in the file, by name; a row has one entry for all its precisions."""
        indices = {}
        for index, entry in enumerate(self.document.value["rows"]):
            for name in names_in_precisions(entry["name"], self.precisions):
                indices[name] = index
        return indices

    def in_precisions(self, precisions: Sequence[str]) -> Experiment:
        """Return the experiment with every row in each precision; claims are about the first one."""
        rows = []
        for row in self.rows:
            if row.set is None:
                rows.append(row)
                continue
            for name, precision in zip(names_in_precisions(row.name, precisions), precisions, strict=True):
                settings = {**row.set, "precision": precision}
                rows.append(replace(row, name=name, title=f"{row.title}, {precision}", set=settings))
        return replace(self, rows=tuple(rows), precisions=tuple(precisions))

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

    def settings(self, row: ExperimentRow, column: ExperimentColumn, checkpoints: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings of the trial behind a cell."""
        settings = {**(row.set or {}), **column.set}
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
