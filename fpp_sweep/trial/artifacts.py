"""A trial's files, of `evaluate` and of a sweep alike: prompts, predictions per sample, reliability diagrams.

    prompts/<dataset>.seed<n>.safetensors              where one was pretrained
    <split>/<dataset>.seed<n>.predictions.parquet      a row for each sample, for pandas, DuckDB and the like
    <split>/block_stats.npz                            what intervals and comparisons need, by block of images
    <split>/reliability.png                            of the first seed
    <split>/skipped.json                               images that were left out, if there were any

The border to pyarrow and (in `diagram`) matplotlib, which take a second: a trial's process loads them when it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.core.metrics import Confidences, Predictions
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.records.skipped_images import SkippedImage, write_skipped
from fpp_sweep.spec.files import written_whole
from fpp_sweep.statistics.block_stats import BlockStats, from_bytes, to_bytes
from fpp_sweep.trial.diagram import reliability_panels
from fpp_sweep.trial.trial import DatasetResult


def write_artifacts(folder: Path, results: Sequence[DatasetResult], split: str, title: str) -> None:
    for result in results:
        name = f"{result.facts.name}.seed{result.seed}"
        write_predictions(result.predictions, result.facts.classes, folder / split / f"{name}.predictions.parquet")
        if result.prompt is not None:
            with written_whole(folder / "prompts" / f"{name}.safetensors") as partial:
                partial.write_bytes(result.prompt)
    with written_whole(folder / split / BLOCK_STATS_FILE) as partial:
        partial.write_bytes(to_bytes({(result.facts.name, result.seed): result.sums for result in results}))
    write_skipped(folder / split, skipped_images(results))
    seed = results[0].seed
    panels = {f"{result.facts.name}, seed {seed}": result.predictions for result in results if result.seed == seed}
    reliability_panels(panels, folder / split / "reliability.png", title=title)


def skipped_images(results: Sequence[DatasetResult]) -> list[SkippedImage]:
    """Return the images that were left out, with the dataset and the seed."""
    images: list[SkippedImage] = []
    for result in results:
        for sample in result.skipped:
            image = {"image": sample.sample_id, "reason": sample.reason}
            images.append({"dataset": result.facts.name, "seed": result.seed, **image})
    return images


def read_sums(folder: Path, split: str) -> dict[tuple[str, int], BlockStats]:
    """By dataset and seed, of a trial's folder; without its file, or where that is damaged, from the predictions.

    Empty where there are none either.
    """
    try:
        return from_bytes((folder / split / BLOCK_STATS_FILE).read_bytes())
    except (OSError, ValueError):
        return dict(_from_predictions(folder / split))


def changed(folder: Path) -> int:
    """Differs after any file of it was written: they all appear whole, under their names."""
    return folder.stat().st_mtime_ns if folder.is_dir() else 0


def _from_predictions(folder: Path) -> Iterator[tuple[tuple[str, int], BlockStats]]:
    for path in sorted(folder.glob("*.seed*.predictions.parquet")):
        dataset, _, seed = path.name.removesuffix(".predictions.parquet").rpartition(".seed")
        rows = read_predictions(path)
        yield (dataset, int(seed)), BlockStats.of(dataset, rows["id"], Confidences.of(rows), rows["nll"], rows["brier"])


def read_predictions(path: Path) -> dict[str, Any]:
    """The columns that `write_predictions` wrote but logits, as arrays; the samples in the order of their names."""
    from pyarrow import parquet

    table = parquet.read_table(path).sort_by("id")
    return {name: table[name].to_numpy() for name in table.column_names if name != "logits"}


def write_predictions(predictions: Predictions, classes: Sequence[str], path: Path) -> None:
    """One row for each sample; optional columns stand last."""
    import pyarrow
    from pyarrow import parquet

    columns = {
        "id": list(predictions.ids),
        "label": predictions.labels,
        "predicted": predictions.predicted,
        "label_name": [classes[label] for label in predictions.labels],
        "predicted_name": [classes[label] for label in predictions.predicted],
        "confidence": predictions.confidence,
        "in_top5": predictions.in_top5,
        "nll": predictions.nll,
        "brier": predictions.brier,
        **{name: values if values.ndim == 1 else list(values) for name, values in predictions.columns.items()},
    }
    with written_whole(path) as partial:
        parquet.write_table(pyarrow.table(columns), partial)
