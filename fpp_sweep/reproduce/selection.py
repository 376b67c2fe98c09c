"""The experiments that a command line selects, with the space of each."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fpp_sweep.cli import overrides
from fpp_sweep.reproduce.experiments import Experiment, find, is_papers_model, shipped
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.files import listed_names, require_folder_name, user_path
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.specs import Precision

PAPERS_PRECISIONS: tuple[Precision, ...] = ("released", "float32")  # the printed rows' arithmetic, and the exact one
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The experiments that a command line selects, with their spaces."""

    experiments: Mapping[str, Experiment] = field(default_factory=dict)  # by name, in the order of the request
    spaces: Mapping[str, Space] = field(default_factory=dict)  # by name of the experiment
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # sentences for the tables, by experiment
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # the user's files, by kind


def checkpoints_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the user's checkpoints by kind; raise InputError for one that does not exist."""
    checkpoints = {}
    for kind, path in (("coop", args.coop), ("maple", args.maple)):
        if path:
            file = user_path(path)
            if not file.is_file():
                raise InputError(f"--{kind} {path}: no such file; correct the path")
            checkpoints[kind] = str(file)
    return checkpoints


def select(args: argparse.Namespace) -> Selection:
    """Return the requested tables, each once; raise InputError for wrong names, rows or settings.

    Tables without a requested row, and tables of `all` that cannot run, are left out with a note.
    """
    named = [find(name) for name in dict.fromkeys(args.table) if name != ALL]
    others = [find(name) for name in shipped() if ALL in args.table and name not in args.table]
    require_known_rows(args.methods, [*named, *others])
    precisions, checkpoints = requested_precisions(args), checkpoints_of(args)
    experiments, spaces, notes = {}, {}, {}
    without_rows = []
    left_out: dict[str, None] = {}  # a line for each reason, though tables share datasets
    for experiment in (*named, *others):
        if args.methods and not any(row.name in args.methods for row in experiment.rows):
            without_rows.append(experiment.name)
            continue
        in_precisions = replace(experiment, precisions=precisions)
        try:
            space, missing = select_space(in_precisions, args, checkpoints)
        except InputError as error:
            if experiment in named:
                raise
            left_out[str(error)] = None
            continue
        experiments[experiment.name], spaces[experiment.name] = in_precisions, space
        notes[experiment.name] = partial_notes(experiment, missing, checkpoints)
        left_out.update(dict.fromkeys(missing.values()))
    if without_rows:
        left_out[f"no row {' or '.join(args.methods)} in {', '.join(without_rows)}"] = None
    if not experiments:
        raise InputError(next(iter(left_out)))
    for reason in left_out:
        note(f"left out: {reason}")
    return Selection(experiments=experiments, spaces=spaces, notes=notes, checkpoints=checkpoints)


def folder_name_of(name: str | None, model: str) -> str:
    """Return the name of the reproduction's folder: the user's, or else the model's."""
    if name is None:
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).strip("-")
    require_folder_name(name)
    return name


# --- precisions and rows ------------------------------------------------------------------------------


def requested_precisions(args: argparse.Namespace) -> tuple[Precision | Literal[""], ...]:
    """Return the precisions of every row; "" is that of the row's own settings."""
    if args.precision:
        return tuple(dict.fromkeys(args.precision))
    is_set = any("precision" in assignment.partition("=")[0] for assignment in overrides(args))
    if is_papers_model(args.model) and not is_set:
        return PAPERS_PRECISIONS
    return ("",)


def require_known_rows(names: Sequence[str], experiments: Iterable[Experiment]) -> None:
    """Raise InputError unless each name is a row of some table."""
    rows: dict[str, None] = {}
    for experiment in experiments:
        rows.update(dict.fromkeys(row.name for row in experiment.rows))
    for name in names:
        if name not in rows:
            raise InputError(f"--methods {name}: {unknown('row', name, list(rows))}")


# --- spaces -------------------------------------------------------------------------------------------


def assignments_of(experiment: Experiment, args: argparse.Namespace) -> list[str]:
    """Return the settings of the command line, with the datasets of the model."""
    datasets = []
    if args.dataset_file and not args.datasets:
        datasets = ["work.datasets=[]"]
    elif args.model == "tiny" and not args.datasets:
        datasets = [f"work.datasets=[{', '.join(experiment.embedded_datasets())}]"]
    return [*datasets, *overrides(args)]


def select_space(
    experiment: Experiment, args: argparse.Namespace, checkpoints: Mapping[str, str]
) -> tuple[Space, dict[str, str]]:
    """Return an experiment's space, and why datasets are left out; raise InputError if nothing of it can be run."""
    assignments = assignments_of(experiment, args)
    space = experiment.space(overrides=assignments, checkpoints=checkpoints, rows=args.methods)
    if not args.allow_missing:
        return space, {}
    present, missing = present_datasets(space)
    assignments.append(f"work.datasets={json.dumps(present)}")
    return experiment.space(overrides=assignments, checkpoints=checkpoints, rows=args.methods), missing


def partial_notes(experiment: Experiment, missing: Collection[str], checkpoints: Mapping[str, str]) -> list[str]:
    """Return sentences for the table on the datasets and rows that are left out."""
    notes = []
    if missing:
        notes.append(f"PARTIAL: without {', '.join(missing)}, which are not there")
    without = [row.title for row in experiment.rows if not set(row.checkpoints) <= checkpoints.keys()]
    if without:
        notes.append(f"PARTIAL: without {', '.join(without)}, whose checkpoints were not passed")
    return notes


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
