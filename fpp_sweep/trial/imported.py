"""Predictions of other programs: the file that holds them, and its checks against the samples of a sweep.

A file has a row for each sample: `id`, and `logits` or `probabilities` with a value for each class. The columns
`dataset`, `split`, `seed` and `label` are optional. In parquet files the values are lists. In npz files each column is
an array, and that of the classes has two axes: NaN stands for further classes of a dataset with fewer than another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import compute

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec.errors import InputError, message_in_one_line, unknown
from fpp_sweep.statistics.posthoc import Numbers, softmax
from fpp_sweep.trial.artifacts import read_columns

Kind = Literal["logits", "probabilities"]
KINDS: tuple[Kind, ...] = ("logits", "probabilities")
SUM_TOLERANCE = 1e-3  # largest distance of a row's sum from one; half precision is nearer
LEAST_PROBABILITY = 1e-38  # under the logarithm that makes logits of probabilities
DatasetSplitSeed = tuple[str, str, int]  # dataset, split and seed
COLUMNS = ("dataset", "split", "seed", "label")  # optional ones
FORMATS = (".npz", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """The samples of one dataset and split on which a sweep has results."""

    dataset: str
    split: str
    classes: tuple[str, ...]
    labels: Mapping[str, int]  # by name of the sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportedRows:
    """The content of a file, or its rows for one dataset, split and seed."""

    file: str
    kind: Kind
    values: Numbers  # (N, largest number of classes); NaN beyond the classes of a dataset
    columns: pandas.DataFrame  # `id`, and the optional columns (COLUMNS) that the file has

    def parts(self, defaults: DatasetSplitSeed) -> dict[DatasetSplitSeed, ImportedRows]:
        """Return the rows by dataset, split and seed; the defaults stand for columns that the file lacks."""
        names = ["dataset", "split", "seed"]
        lacking = {name: value for name, value in zip(names, defaults, strict=True) if name not in self.columns}
        parts = {}
        for (dataset, split, seed), columns in self.columns.assign(**lacking).groupby(names, sort=False, dropna=False):
            key = str(dataset), str(split), int(seed)
            parts[key] = replace(self, values=self.values[columns.index.to_numpy()], columns=columns)
        return parts


# --- reading ----------------------------------------------------------------------------------------


def read_rows(path: Path) -> ImportedRows:
    """Return the content of a file; raise InputError if it cannot be read or lacks a column."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path}: must be one of {', '.join(FORMATS)} by its name ({path.suffix or 'no suffix'})")
    try:
        columns = _read_npz(path) if path.suffix == ".npz" else _read_parquet(path)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: does not exist; give a file that does") from error
    except PermissionError as error:
        raise InputError(f"{path}: {error.strerror}; give a file that can be read") from error
    except Exception as error:  # NumPy, zipfile and pyarrow raise nearly anything on a damaged file
        problem = message_in_one_line(error)
        raise InputError(f"{path}: not readable as {path.suffix[1:]} ({problem}); write it again") from error
    return _checked_rows(path, columns)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
        return dict(file)


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    read = ("id", *COLUMNS, *KINDS)
    table = read_columns(path, lambda name: name in read, remedy="write it again")
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        if name in KINDS:
            columns[name] = _padded(table[name])
        else:
            columns[name] = np.array(table[name].to_pylist())
    return columns


def _padded(column: Any) -> Numbers:
    """Return a column of lists as rows, with NaN behind short ones."""
    lengths = compute.list_value_length(column).fill_null(0).to_numpy()
    width = int(lengths.max(initial=0))
    values = compute.list_flatten(column).cast("float64").to_numpy()  # a missing value is NaN
    rows = np.full((len(lengths), width), np.nan)
    rows[np.arange(width) < lengths[:, None]] = values
    return rows


def _checked_rows(path: Path, columns: dict[str, NDArray[Any]]) -> ImportedRows:
    kinds = [kind for kind in KINDS if kind in columns]
    if len(kinds) != 1:
        present = " and ".join(kinds) or "neither"
        raise InputError(
            f"{path}: must have either logits or probabilities ({present}); docs/import.md shows the columns"
        )
    if "id" not in columns:
        raise InputError(f"{path}: has no column `id`, the names of samples; docs/import.md shows where to find them")
    kind = kinds[0]
    values = _checked_values(path, kind, columns[kind])
    given = {name: columns[name] for name in ("id", *COLUMNS) if name in columns}
    for name, column in given.items():
        if column.shape != (len(values),):
            raise InputError(f"{path}: `{name}` must have one value for each of {len(values)} rows ({column.shape})")
        if name in ("seed", "label") and column.dtype.kind not in "iu":
            raise InputError(f"{path}: `{name}` must hold whole numbers ({column.dtype})")
        if name == "seed" and column.min() < 0:
            raise InputError(f"{path}: `seed` must be >= 0 ({column.min()})")
    given["id"] = given["id"].astype(str)
    return ImportedRows(file=str(path), kind=kind, values=values, columns=pandas.DataFrame(given))


def _checked_values(path: Path, kind: Kind, values: NDArray[Any]) -> Numbers:
    """Return logits or probabilities in float64; raise InputError unless they are samples times classes."""
    if values.dtype.kind not in "iuf":
        raise InputError(f"{path}: {kind} must hold numbers ({values.dtype})")
    if values.shape[:1] == (0,):
        raise InputError(f"{path}: has no rows; write one for each sample")
    if values.ndim != 2 or not values.size:
        problem = f"{kind} must be samples times classes (shape {values.shape})"
        raise InputError(f"{path}: {problem}; write a row for each sample, with a value for each class")
    return np.asarray(values, np.float64)


def read_samples(path: Path, dataset: str, split: str) -> Samples:
    """Return the samples of a file that `artifacts.write_predictions` wrote; raise InputError if it is damaged."""
    table = read_columns(path, lambda name: name in ("id", "label"), remedy="evaluate again")
    try:
        classes = tuple(json.loads(table.schema.metadata[b"classes"]))
        labels = dict(zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: lacks names of samples, labels or classes; evaluate again") from error
    return Samples(dataset=dataset, split=split, classes=classes, labels=labels)


# --- checks -----------------------------------------------------------------------------------------


def checked_predictions(rows: ImportedRows, samples: Samples, seed: int) -> Predictions:
    """Return the predictions of one dataset, split and seed, with their logits.

    Raise InputError for the first difference from the sweep's samples and classes, and for values that are no
    predictions.
    """
    where = f"{rows.file}: {samples.dataset}, split {samples.split}, seed {seed}"
    _require_samples(rows, samples, where)
    _require_values(rows, samples, where)
    values = rows.values[:, : len(samples.classes)]
    if rows.kind == "logits":
        probabilities, logits = softmax(values), values
    else:
        probabilities, logits = values, np.log(np.maximum(values, LEAST_PROBABILITY))
    ids = rows.columns["id"].tolist()
    labels = np.array([samples.labels[name] for name in ids], np.int64)
    clipped = np.clip(probabilities, 0, 1).astype(np.float32)  # rounding may lead beyond 1
    return Predictions.of(ids, labels, clipped, {"logits": logits.astype(np.float32)})


def _require_samples(rows: ImportedRows, samples: Samples, where: str) -> None:
    """Raise InputError unless the samples, and their labels if the file has them, are those of the sweep."""
    ids = rows.columns["id"]
    for name in ids[ids.duplicated()]:
        raise InputError(f"sample {name!r} appears more than once; keep one of its rows", where)
    for name in ids[~ids.isin(samples.labels)]:
        known = f"{len(samples.labels)} samples, such as {min(samples.labels)!r}"
        raise InputError(f"unknown sample {name!r}; the sweep has {known}", where)
    missing = sorted(set(samples.labels).difference(ids))
    if missing:
        counts = f"{len(missing)} of {len(samples.labels)} samples"
        raise InputError(f"lacks {counts}, first {missing[0]!r}; add them", where)
    for name, label in zip(ids, rows.columns.get("label", ids.map(samples.labels)), strict=True):
        expected = samples.labels[name]
        if label != expected:
            problem = f"sample {name!r} has label {label}, in the sweep {expected} ({samples.classes[expected]})"
            raise InputError(f"{problem}; number classes as the sweep does", where)


def _require_values(rows: ImportedRows, samples: Samples, where: str) -> None:
    """Raise InputError unless the values are logits or probabilities of the sweep's classes."""
    classes = len(samples.classes)
    filled = np.flatnonzero(~np.isnan(rows.values).all(axis=0))
    width = int(filled.max(initial=-1)) + 1
    if width != classes:
        names = f"from {samples.classes[0]!r} to {samples.classes[-1]!r}"
        raise InputError(f"has {width} classes, the sweep has {classes}, {names}", where)
    values = rows.values[:, :classes]
    ids = rows.columns["id"].tolist()
    for row, column in np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max)):  # nan, too
        number = f"{rows.kind} of class {column} is {values[row, column]}"
        raise InputError(f"sample {ids[row]!r}: {number}, must be a finite float32", where)
    if rows.kind == "probabilities":
        sums = values.sum(axis=1)
        for row in np.flatnonzero((values < 0).any(axis=1) | (np.abs(sums - 1) > SUM_TOLERANCE)):
            problem = f"sample {ids[row]!r}: probabilities must be >= 0 and sum to 1 (the sum is {sums[row]:g})"
            raise InputError(f"{problem}; apply a softmax first, or name the values logits", where)


def require_parts(
    parts: Mapping[DatasetSplitSeed, ImportedRows], datasets: Sequence[str], split: str, file: str
) -> None:
    """Raise InputError unless a file has the split, and on each of its splits all datasets and seeds."""
    splits = sorted({part_split for _, part_split, _ in parts})
    seeds = sorted({seed for _, _, seed in parts})
    for dataset, _, _ in parts:
        if dataset not in datasets:
            raise InputError(unknown("dataset", dataset, datasets).problem, file)
    if split not in splits:
        raise InputError(f"lacks split {split}, on which the sweep was searched; it has {', '.join(splits)}", file)
    for name in splits:
        for dataset in datasets:
            for seed in seeds:
                if (dataset, name, seed) not in parts:
                    raise InputError(f"lacks dataset {dataset} of split {name}, seed {seed}; add its rows", file)
