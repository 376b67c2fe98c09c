"""Results of imported predictions on each split, after the post-hoc maps of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetInfo, DatasetSeed
from fpp_sweep.sweep.measured_samples import MeasuredSamples
from fpp_sweep.trial.imported import DatasetSplitSeed, ImportedRows, checked_predictions, require_parts
from fpp_sweep.trial.posthoc import FITTED_SPLIT, PredictionsBySeed, needs_validation
from fpp_sweep.trial.trial import DatasetResult, with_maps


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedResults:
    """The results of a split, and a sentence for each post-hoc map or kind of conformal set that was left out."""

    datasets: Sequence[DatasetResult]
    notes: Sequence[str]


def results_by_split(folder: SweepFolder, info: SweepInfo, rows: ImportedRows) -> dict[str, ImportedResults]:
    """Return the results on each split on which the sweep has results; raise InputError if the file does not fit it."""
    parts = rows.parts(_defaults(info, rows))
    require_parts(parts, list(info.datasets), info.search_split, rows.file)
    sources = MeasuredSamples(folder)
    by_split: dict[str, dict[DatasetSeed, Predictions]] = {}
    for (dataset, split, seed), part in sorted(parts.items()):
        checked = checked_predictions(part, sources.samples(dataset, split), seed)
        by_split.setdefault(split, {})[dataset, seed] = checked
    results = {}
    for split, predictions in by_split.items():
        if split in sources.splits:
            results[split] = _with_maps(info, sources, split, predictions, by_split.get(FITTED_SPLIT))
    return results


def _with_maps(
    info: SweepInfo,
    sources: MeasuredSamples,
    split: str,
    predictions: PredictionsBySeed,
    validation: PredictionsBySeed | None,
) -> ImportedResults:
    """Return the results of a split with the sweep's post-hoc maps and conformal sets, as far as they have inputs."""
    requested_maps = info.work_settings.get("posthoc", ())
    names = []
    notes = []
    for name in [*requested_maps, *_conformal_sets(info)]:
        if needs_validation([name], split) and validation is None:
            notes.append(f"{name} on {split} is left out: the file has no predictions of split {FITTED_SPLIT}")
        else:
            names.append(name)
    if not needs_validation(names, split):
        validation = None
    maps = [name for name in names if name not in catalogue.CONFORMAL]
    conformal = [name for name in names if name in catalogue.CONFORMAL]
    datasets = with_maps(maps, conformal, _dataset_results(sources, split, predictions), validation)
    return ImportedResults(datasets=datasets, notes=notes)


def _dataset_results(sources: MeasuredSamples, split: str, predictions: PredictionsBySeed) -> list[DatasetResult]:
    """Return the predictions as results of a trial, before any post-hoc map."""
    results = []
    for (name, seed), rows in predictions.items():
        classes = sources.samples(name, split).classes
        dataset = DatasetInfo(
            name=name, split=split, group="custom", classes=classes, size=len(rows), digest="", images=""
        )
        results.append(DatasetResult(dataset=dataset, seed=seed, predictions=rows, prompt=None))
    return results


def _conformal_sets(info: SweepInfo) -> list[str]:
    """Return the columns of conformal sets that the sweep keeps or has objectives of."""
    columns = {*info.work_settings.get("columns", ())}
    for objective in info.objectives:
        columns.update(catalogue.metric(objective.metric).columns)
    return [name for name in catalogue.CONFORMAL if name in columns]


def _defaults(info: SweepInfo, rows: ImportedRows) -> DatasetSplitSeed:
    """Return dataset, split and seed of rows that do not say theirs; raise InputError if the dataset is not clear."""
    datasets = list(info.datasets)
    if not datasets:
        raise InputError(f"{info.name} has no datasets on record; run it first", rows.file)
    if "dataset" not in rows.columns and len(datasets) > 1:
        names = ", ".join(datasets)
        raise InputError(f"has no column `dataset`, and the sweep has {len(datasets)} ({names}); add it", rows.file)
    return datasets[0], info.search_split, info.seeds[0]
