"""A trial's files, of `evaluate` and of a sweep: prompts, predictions of samples, reliability diagrams.

    prompts/<dataset>.seed<n>.safetensors              prompts that were pretrained
    <split>/<dataset>.seed<n>.predictions.parquet      a row for each sample, for pandas, DuckDB and the like
    <split>/fitted_on/                                 the same of the split that post-hoc maps are fitted on
    <split>/block_stats.npz                            what intervals and comparisons need, by block of images
    <split>/block_stats@<map>.npz                      the same after a post-hoc map
    <split>/posthoc.json                               the temperatures of post-hoc maps, if there are any
    <split>/reliability.json                           reliability diagrams, over all seeds
    <split>/reliability.png                            the same as a picture, of the first seed
    <split>/skipped.json                               images that were left out, if there were any

matplotlib takes half a second to load, so it is imported when a trial writes its files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from fpp_sweep.core.metrics import Confidences, Predictions
from fpp_sweep.records.measurements import block_stats_file, read_block_stats
from fpp_sweep.records.reliability import write_reliability
from fpp_sweep.records.skipped_images import SkippedImage, write_skipped
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import files_inside, open_inside, require_inside, write_json, written_whole
from fpp_sweep.statistics.block_stats import BlockStats, to_bytes
from fpp_sweep.trial.trial import DatasetResult

FITTED_ON = "fitted_on"  # the folder in a split's folder


def write_artifacts(folder: Path, results: Sequence[DatasetResult], split: str, title: str) -> None:
    """Write all files of a trial on one split."""
    from fpp_sweep.trial.diagram import reliability_panels  # start-up time: loads matplotlib

    for subfolder in (f"{split}/{FITTED_ON}", "prompts"):
        require_inside(folder, folder / subfolder)
    block_stats: dict[str, dict[tuple[str, int], BlockStats]] = {}  # by post-hoc map; empty: of the method itself
    first_seed = results[0].seed
    panels = {}
    for result in results:
        dataset = result.dataset
        name = f"{dataset.name}.seed{result.seed}"
        write_predictions(result.predictions, dataset.classes, folder / split / f"{name}.predictions.parquet")
        if result.fitted_on is not None:
            fitted_on = folder / split / FITTED_ON / f"{name}.predictions.parquet"
            write_predictions(result.fitted_on, dataset.classes, fitted_on)
        if result.prompt is not None:
            with written_whole(folder / "prompts" / f"{name}.safetensors") as partial:
                partial.write_bytes(result.prompt)
        for posthoc, predictions in {"": result.predictions, **result.mapped}.items():
            of_map = block_stats.setdefault(posthoc, {})
            of_map[dataset.name, result.seed] = BlockStats.of_predictions(dataset.name, predictions)
        if result.seed == first_seed:
            panels[f"{dataset.name}, seed {first_seed}"] = result.predictions
    for posthoc, table in block_stats.items():
        with written_whole(folder / split / block_stats_file(posthoc)) as partial:
            partial.write_bytes(to_bytes(table))
    write_reliability(folder / split, block_stats[""])
    fits = [asdict(fit) for result in results for fit in result.fits]
    if fits:
        write_json(folder / split / "posthoc.json", fits)
    write_skipped(folder / split, skipped_images(results))
    reliability_panels(panels, folder / split / "reliability.png", title=title)


def skipped_images(results: Sequence[DatasetResult]) -> list[SkippedImage]:
    """Return the images that were left out, with the dataset and the seed."""
    images: list[SkippedImage] = []
    for result in results:
        for sample in result.skipped:
            image = {"image": sample.sample_id, "reason": sample.reason}
            images.append({"dataset": result.dataset.name, "seed": result.seed, **image})
    return images


def read_sums(folder: Path, split: str) -> dict[tuple[str, int], BlockStats]:
    """Return the block statistics of a trial by dataset and seed; computed from the predictions if the file is damaged.

    The result is empty if the predictions are missing as well.
    """
    try:
        table = read_block_stats(folder, split)
    except InputError:  # a link out of the folder
        raise
    except ValueError:  # damaged
        table = None
    if table is None:
        return dict(_from_predictions(folder, split))
    return dict(table)


def changed(folder: Path) -> int:
    """Return a number that differs after any file of the folder was written: files appear complete, by a rename."""
    if not folder.is_dir():
        return 0
    return folder.stat().st_mtime_ns


def prediction_files(folder: Path, split: str, dataset: str = "*") -> list[Path]:
    """Return the files of a trial's predictions; raise InputError for a link out of the trial's folder."""
    files = files_inside(folder, folder / split, f"{dataset}.seed*.predictions.parquet")
    for file in files:
        open_inside(folder, file).close()  # pyarrow would wait for a pipe, and follow a link
    return files


def _from_predictions(folder: Path, split: str) -> Iterator[tuple[tuple[str, int], BlockStats]]:
    for path in prediction_files(folder, split):
        dataset, _, seed = path.name.removesuffix(".predictions.parquet").rpartition(".seed")
        try:
            rows = read_predictions(path)
        except (ValueError, KeyError) as error:  # pyarrow's errors are such
            raise InputError(f"{path}: not readable as predictions ({error}); delete it") from error
        yield (dataset, int(seed)), BlockStats.of(dataset, rows["id"], Confidences.of(rows), rows["nll"], rows["brier"])


def read_predictions(path: Path) -> dict[str, Any]:
    """Return the columns that `write_predictions` wrote, without logits, with samples in the order of their names."""
    table = parquet.read_table(path).sort_by("id")
    return {name: table[name].to_numpy() for name in table.column_names if name != "logits"}


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
