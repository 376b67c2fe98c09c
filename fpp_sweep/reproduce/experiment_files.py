"""Reads experiments from their files, those of the package and the user's; errors name file and line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpp_sweep.reproduce.experiments import (
    TABLE_KEYS,
    Claim,
    Experiment,
    ExperimentColumn,
    ExperimentFigure,
    ExperimentRow,
)
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import Document, read
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.validation import as_list, at_key, build, check_value, keys, known_name, require, require_keys

SHIPPED = Path(__file__).parent / "shipped"
REPLACED_KEYS = ("grid", "params", "points", "search")  # keys of a space that rows and columns replace


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
        values: dict[str, Any] = {"title": name, "question": ""}
        for key in ("title", "question", "alone", "average"):
            if key in entries:
                with at_key(key):
                    values[key] = check_value(Experiment, key, entries[key])
        if "figure" in entries:
            values["figure"] = _part_of(ExperimentFigure, entries["figure"], "figure")
        experiment = Experiment(
            name=name,
            document=document,
            columns=_parts_of(ExperimentColumn, entries, "columns"),
            rows=_parts_of(ExperimentRow, entries, "rows"),
            claims=_parts_of(Claim, entries, "claims"),
            **values,
        )
        _check_rows(experiment)
        _check_claims(experiment)
        _check_figure(experiment)
    return experiment


def _parts_of(kind: type[Any], entries: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    with at_key(key):
        items = as_list(entries.get(key, []))
    return tuple(_part_of(kind, item, f"{key}.{index}") for index, item in enumerate(items))


def _part_of(kind: type[Any], values: Any, path: str) -> Any:
    """Return a part of an experiment; a word stands for a column of that metric."""
    if kind is ExperimentColumn and isinstance(values, str):
        values = {"metric": values}
    with at_key(path):
        return build(kind, values, "")


# --- names that must exist ----------------------------------------------------------------------------


def _check_rows(experiment: Experiment) -> None:
    columns = [column.name for column in experiment.columns]
    names: list[str] = []
    for index, row in enumerate(experiment.rows):
        with at_key(f"rows.{index}"):
            require(row.name not in names, f"there is a row named {row.name} already")
            names.append(row.name)
            with at_key("printed"):
                for column in row.printed:
                    known_name("column", column, columns)


def _check_claims(experiment: Experiment) -> None:
    rows = [row.name for row in experiment.rows]
    columns = [column.name for column in experiment.columns]
    for index, claim in enumerate(experiment.claims):
        with at_key(f"claims.{index}"):
            for name in (claim.row, *claim.than):
                known_name("row", name, rows)
            known_name("column", claim.column, columns)


def _check_figure(experiment: Experiment) -> None:
    figure = experiment.figure
    if figure is None:
        return
    columns = [column.name for column in experiment.columns]
    names = list(figure.y)
    if figure.kind == "scatter":
        names.append(figure.x or "")
    with at_key("figure"):
        for name in names:
            known_name("column", name, columns)
