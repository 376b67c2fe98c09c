"""Reads experiments from their files, those of the package and the user's; errors name file and line."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
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
from fpp_sweep.space.yamlfile import Node, of_plain, read
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.validation import check_value, keys, require

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
    return experiment_of(read(path, "experiment"), path.stem)


def experiment_of(root: Node, name: str) -> Experiment:
    """Return the experiment that a document describes."""
    entries = root.mapping([*TABLE_KEYS, *(key for key in keys(Space) if key not in REPLACED_KEYS)])
    if not {"columns", "rows"} <= entries.keys():
        raise root.error("needs columns and rows; see docs/reproduce.md")
    values: dict[str, Any] = {"title": name, "question": ""}
    for key in ("title", "question", "alone"):
        if key in entries:
            with entries[key].locating():
                values[key] = check_value(Experiment, key, entries[key].plain())
    if "average" in entries:
        values["average"] = tuple(item.value for item in entries["average"].items())
    if "figure" in entries:
        values["figure"] = _part_of(ExperimentFigure, entries["figure"])
    experiment = Experiment(
        name=name,
        root=root,
        columns=_parts_of(ExperimentColumn, entries.get("columns")),
        rows=_rows_of(entries.get("rows")),
        claims=_parts_of(Claim, entries.get("claims")),
        **values,
    )
    _check_rows(experiment)
    _check_claims(experiment)
    _check_figure(experiment)
    return experiment


def _parts_of(kind: type[Any], node: Node | None) -> tuple[Any, ...]:
    if node is None:
        return ()
    return tuple(_part_of(kind, item) for item in node.items())


def _part_of(kind: type[Any], node: Node) -> Any:
    """Return a part of an experiment; a word stands for a column of that metric."""
    with node.locating():
        if kind is ExperimentColumn and isinstance(node.value, str):
            return ExperimentColumn(metric=node.value)
        values = {key: child.plain() for key, child in node.mapping(keys(kind)).items()}
        for part in fields(kind):
            if part.default is MISSING and part.default_factory is MISSING:
                require(part.name in values, f"needs a {part.name}")
        return kind(**values)


def _rows_of(node: Node | None) -> tuple[ExperimentRow, ...]:
    if node is None:
        return ()
    for item in node.items():
        if isinstance(item.value, dict) and "printed" in item.value:
            _keep_digits(item.value["printed"])
    return _parts_of(ExperimentRow, node)


def _keep_digits(node: Node) -> None:
    """Replace numbers by their text in the file, so that 8.50 keeps its last digit."""
    if isinstance(node.value, dict):
        for child in node.value.values():
            _keep_digits(child)
    elif node.text and isinstance(node.value, int | float):
        node.value = node.text


# --- names that must exist ----------------------------------------------------------------------------


def _check_rows(experiment: Experiment) -> None:
    columns = [column.name for column in experiment.columns]
    names: list[str] = []
    for row, node in zip(experiment.rows, _nodes_of(experiment, "rows"), strict=True):
        if row.name in names:
            raise node.error(f"there is a row named {row.name} already")
        names.append(row.name)
        for column in row.printed:
            if column not in columns:
                raise node.value["printed"].error(unknown("column", column, columns))


def _check_claims(experiment: Experiment) -> None:
    rows = [row.name for row in experiment.rows]
    columns = [column.name for column in experiment.columns]
    for claim, node in zip(experiment.claims, _nodes_of(experiment, "claims"), strict=True):
        for name in (claim.row, *claim.than):
            if name not in rows:
                raise node.error(unknown("row", name, rows))
        if claim.column not in columns:
            raise node.error(unknown("column", claim.column, columns))


def _check_figure(experiment: Experiment) -> None:
    figure = experiment.figure
    if figure is None:
        return
    columns = [column.name for column in experiment.columns]
    names = list(figure.y)
    if figure.kind == "scatter":
        names.append(figure.x or "")
    for name in names:
        if name not in columns:
            raise experiment.root.value["figure"].error(unknown("column", name, columns))


def _nodes_of(experiment: Experiment, key: str) -> list[Node]:
    node: Node | None = experiment.root.value.get(key)
    if node is None:
        return []
    return node.items()


# --- rows in several precisions -----------------------------------------------------------------------


def in_precisions(experiment: Experiment, precisions: Sequence[str]) -> Experiment:
    """Return the experiment with every row in each precision; claims are about the first one."""
    root = copy.deepcopy(experiment.root)
    nodes = []
    for row, node in zip(experiment.rows, root.value["rows"].items(), strict=True):
        if row.set is None:
            nodes.append(node)
            continue
        names = [row.name, *names_in_precisions(row.name, precisions)]
        for name, precision in zip(names, precisions, strict=True):
            nodes.append(_row_in_precision(node, name, f"{row.title}, {precision}", precision))
    root.value["rows"].value = nodes
    return experiment_of(root, experiment.name)


def _row_in_precision(row: Node, name: str, title: str, precision: str) -> Node:
    settings = {**row.value["set"].plain(), "precision": precision}
    changes = of_plain({"name": name, "title": title, "set": settings}, row.where, row.path)
    return replace(row, value={**row.value, **changes.value})


def names_in_precisions(row: str, precisions: Sequence[str]) -> list[str]:
    """Return the names of a row in the precisions after the first."""
    return [f"{row}_{precision}" for precision in precisions[1:]]
