"""A trial's files, of `evaluate` and of a sweep: prompts, predictions of samples, reliability diagrams.

    prompts/<dataset>.seed<n>.safetensors              prompts that were pretrained
    <split>/<dataset>.seed<n>.predictions.parquet      a row for each sample, for pandas, DuckDB and the like
    <split>/fitted_on/                                 the same of the split that post-hoc maps are fitted on
    <split>/block_stats.npz                            what intervals and comparisons need, by block of images
    <split>/block_stats@<map>.npz                      the same after a post-hoc map
    <split>/posthoc.json                               the temperatures of post-hoc maps, if there are any
    <split>/reliability.png                            reliability diagrams of the first seed

matplotlib takes half a second to load, so it is imported when a trial writes its files.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.measurements import block_stats_file
from fpp_sweep.spec.errors import InputError, message_in_one_line
from fpp_sweep.spec.files import files_in, open_own, write_json, written_whole
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.block_stats import BlockStats, to_bytes
from fpp_sweep.trial.trial import DatasetResult

FITTED_ON = "fitted_on"  # the folder in a split's folder
PREDICTIONS = ".predictions.parquet"  # the end of a file's name
POSTHOC_FILE, DIAGRAM_FILE = "posthoc.json", "reliability.png"  # in a split's folder
MEASURED = ("id", "label", "predicted", "confidence", "nll", "brier")  # columns that metrics are computed from


def write_artifacts(folder: Path, results: Sequence[DatasetResult], split: str, title: str) -> None:
    """Write all files of a trial on one split, and remove predictions that an earlier run wrote with other seeds."""
    from fpp_sweep.trial.diagram import write_reliability_diagrams  # start-up time: loads matplotlib

    written = {f"{_stem_of(result)}{PREDICTIONS}" for result in results}
    for subfolder in (split, f"{split}/{FITTED_ON}"):
        for path in prediction_files(folder, subfolder):
            if path.name not in written:
                path.unlink()
    for result in results:
        _write_dataset_files(folder, result, split)
    for posthoc, table in _block_stats_by_map(results).items():
        with written_whole(folder / split / block_stats_file(posthoc)) as partial:
            partial.write_bytes(to_bytes(table))
    fits = []
    for result in results:
        fits += [asdict(fit) for fit in result.fits]
    if fits:
        write_json(folder / split / POSTHOC_FILE, fits)
    panels = {}
    first_seed = results[0].seed
    for result in results:
        if result.seed == first_seed:
            panels[f"{result.dataset.name}, seed {first_seed}"] = result.predictions
    write_reliability_diagrams(panels, folder / split / DIAGRAM_FILE, title=title)


def _stem_of(result: DatasetResult) -> str:
    """Return the name of a dataset's files without their endings."""
    return f"{result.dataset.name}.seed{result.seed}"


def _write_dataset_files(folder: Path, result: DatasetResult, split: str) -> None:
    """Write the predictions of one dataset and seed, those that maps are fitted on, and the pretrained prompt."""
    name = _stem_of(result)
    classes = result.dataset.classes
    write_predictions(result.predictions, classes, folder / split / f"{name}{PREDICTIONS}")
    if result.fitted_on is not None:
        write_predictions(result.fitted_on, classes, folder / split / FITTED_ON / f"{name}{PREDICTIONS}")
    if result.prompt is not None:
        with written_whole(folder / "prompts" / f"{name}.safetensors") as partial:
            partial.write_bytes(result.prompt)


def _block_stats_by_map(results: Sequence[DatasetResult]) -> dict[str, dict[DatasetSeed, BlockStats]]:
    """Return block statistics by post-hoc map, dataset and seed; the empty map stands for the method itself."""
    by_map: dict[str, dict[DatasetSeed, BlockStats]] = {}
    for result in results:
        name = result.dataset.name
        for posthoc, predictions in {"": result.predictions, **result.mapped}.items():
            of_map = by_map.setdefault(posthoc, {})
            of_map[name, result.seed] = BlockStats.of_predictions(name, predictions)
    return by_map


def prediction_files(folder: Path, split: str, dataset: str | None = None) -> list[Path]:
    """Return the files of a trial's predictions, of all datasets or of one, sorted."""
    name = "*" if dataset is None else glob.escape(dataset)
    files = files_in(folder / split, f"{name}.seed*{PREDICTIONS}")
    for file in files:
        open_own(file).close()  # pyarrow would wait for a pipe, and follow a link
    return files


def dataset_and_seed(path: Path) -> DatasetSeed:
    """Return the dataset and the seed of a file of predictions, which its name has."""
    dataset, _, seed = path.name.removesuffix(PREDICTIONS).rpartition(".seed")
    if not seed.isdecimal():
        problem = f"the name has no seed, such as .seed0{PREDICTIONS}, so it is not readable as predictions"
        raise InputError(f"{path}: {problem}; delete it")
    return dataset, int(seed)


def read_predictions(path: Path) -> dict[str, Any]:
    """Return the columns that `write_predictions` wrote, without logits, with samples in the order of their names.

    Raise InputError if they cannot be read, or metrics cannot be computed from them.
    """
    table = read_columns(path, lambda name: name != "logits", remedy="delete it")
    missing = [name for name in MEASURED if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column `{missing[0]}`; delete it")
    table = table.sort_by("id")
    return {name: table[name].to_numpy() for name in table.column_names}


def read_columns(path: Path, is_wanted: Callable[[str], bool], *, remedy: str) -> pyarrow.Table:
    """Return columns of a parquet file; raise InputError with the remedy if it cannot be read."""
    try:
        with parquet.ParquetFile(path) as file:
            return file.read([name for name in file.schema_arrow.names if is_wanted(name)])
    except Exception as error:  # pyarrow raises nearly anything on a damaged file
        if isinstance(error, OSError) and error.errno:
            raise
        problem = message_in_one_line(error)
        raise InputError(f"{path}: not readable as parquet ({problem}); {remedy}") from error


def write_predictions(predictions: Predictions, classes: Sequence[str], path: Path) -> None:
    """Write one row for each sample, and the names of all classes as metadata; optional columns come last."""
    columns: dict[str, Any] = {
        "id": list(predictions.ids),
        "label": predictions.labels,
        "predicted": predictions.predicted,
        "label_name": [classes[label] for label in predictions.labels],
        "predicted_name": [classes[label] for label in predictions.predicted],
        "confidence": predictions.confidence,
        "in_top5": predictions.in_top5,
        "nll": predictions.nll,
        "brier": predictions.brier,
    }
    for name, values in predictions.columns.items():
        if values.ndim > 1:
            columns[name] = list(values)
        else:
            columns[name] = values
    with written_whole(path) as partial:
        table = pyarrow.table(columns).replace_schema_metadata({"classes": json.dumps(list(classes))})
        parquet.write_table(table, partial)
