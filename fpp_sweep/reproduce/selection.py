"""The experiments that a command line selects, with the space of each."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fpp_sweep.cli.flags import overrides
from fpp_sweep.reproduce.experiment_files import find, in_precisions, names_in_precisions, shipped
from fpp_sweep.reproduce.experiments import Experiment
from fpp_sweep.reproduce.printed import is_papers_model
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.names import listed_names, require_folder_name
from fpp_sweep.spec.specs import Precision, adaptation_precision

PAPERS_PRECISIONS: tuple[Precision, ...] = ("released", "float32")  # the printed rows' arithmetic, and the exact one
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The experiments that a command line selects, with their spaces."""

    experiments: Mapping[str, Experiment] = field(default_factory=dict)  # by name, in the order of the request
    spaces: Mapping[str, Space] = field(default_factory=dict)  # by name of the experiment
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # sentences for the tables, by experiment
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # the user's files, by kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The part of a command line that selects experiments and their settings."""

    tables: Sequence[str]  # names, files, or `all`
    rows: Sequence[str]  # empty: all rows
    precisions: Sequence[Precision]  # precisions of every row; empty: see `requested_precisions`
    checkpoints: Mapping[str, str]  # the user's files, by kind
    model: str
    datasets: Sequence[str] | None
    dataset_file: str | None
    assignments: Sequence[str]  # `key=value`, of all flags that are short for a key, and of --set
    allow_missing: bool  # datasets may be missing
    on_cluster: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> Request:
        """Read the arguments; raise InputError for a checkpoint that does not exist."""
        return cls(
            tables=list(dict.fromkeys(args.table)),
            rows=args.methods,
            precisions=list(dict.fromkeys(args.precision)),
            checkpoints=_checkpoints(args),
            model=args.model,
            datasets=args.datasets,
            dataset_file=args.dataset_file,
            assignments=overrides(args),
            allow_missing=args.allow_missing,
            on_cluster=bool(args.address),
        )


def _checkpoints(args: argparse.Namespace) -> dict[str, str]:
    paths = {"coop": args.coop, "maple": args.maple}
    checkpoints = {}
    for kind, path in paths.items():
        if not path:
            continue
        file = user_path(path)
        if not file.is_file():
            raise InputError(f"--{kind} {path}: no such file; correct the path")
        checkpoints[kind] = str(file)
    return checkpoints


def select(request: Request) -> Selection:
    """Return the selected experiments; raise InputError for wrong names, rows or settings."""
    experiments = {experiment.name: experiment for experiment in requested_experiments(request)}
    rows = list(request.rows)
    precisions = requested_precisions(request)
    if precisions:
        for name, experiment in experiments.items():
            experiments[name] = in_precisions(experiment, precisions)
        rows += _rows_in_precisions(rows, precisions, experiments.values())
    check_rows(rows, experiments.values())
    spaces = {}
    notes = {}
    left_out: dict[str, None] = {}  # a line for each dataset, though tables share datasets
    for name, experiment in experiments.items():
        selected = select_space(experiment, request, rows)
        spaces[name], notes[name] = selected.space, selected.notes
        left_out.update(dict.fromkeys(selected.missing.values()))
    for reason in left_out:
        note(f"left out: {reason}")
    return Selection(experiments=experiments, spaces=spaces, notes=notes, checkpoints=request.checkpoints)


def folder_name_of(name: str | None, model: str) -> str:
    """Return the name of the reproduction's folder: the user's, or else the model's."""
    if name is None:
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).strip("-")
    require_folder_name(name)
    return name


def requested_experiments(request: Request) -> list[Experiment]:
    """Return the requested tables, each once; `all` leaves out those without a requested row, or that cannot run."""
    experiments = [find(name) for name in request.tables if name != ALL]
    if ALL not in request.tables:
        return experiments
    others = [find(name) for name in shipped() if name not in request.tables]
    require_known_rows(request.rows, [*experiments, *others])
    without_rows = []
    problems: dict[str, None] = {}  # a line for each, though tables share datasets
    for experiment in others:
        if not has_row(experiment, request.rows):
            without_rows.append(experiment.name)
            continue
        try:
            select_space(experiment, request, request.rows)
        except InputError as error:
            problems[str(error)] = None
        else:
            experiments.append(experiment)
    for problem in problems:
        note(f"left out: {problem}")
    if without_rows:
        note(f"left out, because they have no row {' or '.join(request.rows)}: {', '.join(without_rows)}")
    return experiments


# --- precisions and rows ------------------------------------------------------------------------------


def requested_precisions(request: Request) -> list[Precision]:
    """Return the precisions of every row; empty: each row has that of its table."""
    if request.precisions:
        return possible_precisions(request)
    is_set = any("precision" in assignment.partition("=")[0] for assignment in request.assignments)
    if is_papers_model(request.model) and not is_set:
        return list(PAPERS_PRECISIONS)
    return []


def possible_precisions(request: Request) -> list[Precision]:
    """Return the requested precisions without those that this machine lacks; a cluster's machines may differ."""
    from fpp_sweep.core.compute import devices, precision  # start-up time

    possible = []
    problems = []
    for name in request.precisions:
        try:
            if not request.on_cluster:
                precision.require_precision_support(adaptation_precision(name), devices.choose_device("auto"))
            possible.append(name)
        except InputError as error:
            problems.append(error)
    if not possible:
        raise problems[0]
    for problem in problems:
        note(f"its rows are left out: {problem}")
    return possible


def _rows_in_precisions(
    names: Sequence[str], precisions: Sequence[str], experiments: Iterable[Experiment]
) -> list[str]:
    """Return the further precisions of the rows that were selected by name."""
    rows: set[str] = set()
    for experiment in experiments:
        rows.update(row.name for row in experiment.rows)
    further = []
    for name in names:
        further += [row for row in names_in_precisions(name, precisions) if row in rows]
    return further


def has_row(experiment: Experiment, names: Sequence[str]) -> bool:
    """Return True if the table has one of the rows, or no rows are named."""
    return not names or any(row.name in names for row in experiment.rows)


def require_known_rows(names: Sequence[str], experiments: Iterable[Experiment]) -> None:
    """Raise InputError unless each name is a row of some table."""
    rows: dict[str, None] = {}
    for experiment in experiments:
        rows.update(dict.fromkeys(row.name for row in experiment.rows))
    for name in names:
        if name not in rows:
            raise InputError(f"--methods {name}: {unknown('row', name, list(rows))}")


def check_rows(names: Sequence[str], experiments: Collection[Experiment]) -> None:
    """Raise InputError unless each name is a row of some table, and each table has one of the rows."""
    require_known_rows(names, experiments)
    for experiment in experiments:
        if not has_row(experiment, names):
            rows = ", ".join(row.name for row in experiment.rows)
            raise InputError(f"--methods: table {experiment.name} has none of these rows; it has {rows}")


# --- spaces -------------------------------------------------------------------------------------------


def assignments_of(experiment: Experiment, request: Request) -> list[str]:
    """Return the settings of the command line, with the datasets of the model."""
    if request.model == "tiny" and not (request.datasets or request.dataset_file):
        return [f"work.datasets=[{', '.join(experiment.embedded_datasets())}]", *request.assignments]
    if request.dataset_file and not request.datasets:
        return ["work.datasets=[]", *request.assignments]
    return list(request.assignments)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedSpace:
    """An experiment's space with the settings of the command line."""

    space: Space
    notes: Sequence[str]  # sentences for the table, on what is left out
    missing: Mapping[str, str]  # why datasets cannot be opened, by name


def select_space(experiment: Experiment, request: Request, rows: Sequence[str]) -> SelectedSpace:
    """Return an experiment's space; raise InputError if nothing of it can be run."""
    assignments = assignments_of(experiment, request)
    space = experiment.space(overrides=assignments, checkpoints=request.checkpoints, rows=rows)
    notes = []
    missing: dict[str, str] = {}
    if request.allow_missing:
        present, missing = present_datasets(space)
        assignments.append(f"work.datasets={json.dumps(present)}")
        space = experiment.space(overrides=assignments, checkpoints=request.checkpoints, rows=rows)
        if missing:
            notes.append(f"PARTIAL: without {', '.join(missing)}, which are not there")
    without = [row.title for row in experiment.rows if not set(row.checkpoints) <= request.checkpoints.keys()]
    if without:
        notes.append(f"PARTIAL: without {', '.join(without)}, whose checkpoints were not passed")
    return SelectedSpace(space=space, notes=notes, missing=missing)


def present_datasets(space: Space) -> tuple[list[str], dict[str, str]]:
    """Return the space's datasets that can be opened here, and why the others cannot; raise InputError if none can."""
    from fpp_sweep.core.datasets import custom_datasets, expand, open_dataset  # start-up time

    work = space.work
    custom = custom_datasets(work.datasets, work.dataset_file)
    root = None
    if work.data_root:
        root = Path(work.data_root)
    present = []
    missing = {}
    for name in expand(list(work.datasets) or list(custom), custom):
        try:
            open_dataset(name, space.search.split, root, custom)
            present.append(name)
        except InputError as error:
            missing[name] = str(error)
    if missing and not present:
        problem = next(iter(missing.values()))
        if len(missing) > 1:
            problem = f"none of {', '.join(missing)} can be opened, such as {problem}"
        raise InputError(problem)
    return with_folders(present, work.datasets), missing


def with_folders(names: Iterable[str], requested: Iterable[str]) -> list[str]:
    """Return names of datasets as a command line takes them: those of a user's folders as `NAME=PATH`.

    >>> with_folders(["mine", "dtd"], ["fine_grained", "mine=photos"])
    ['mine=photos', 'dtd']
    """
    folders = {}
    for word in listed_names(requested):
        if "=" in word:
            folders[word.partition("=")[0].strip()] = word
    return [folders.get(name, name) for name in names]
