"""Add predictions of another program to a sweep, as a baseline that is measured like all others."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import measured_value
from fpp_sweep.records.records import IMPORTED, SweepInfo, TrialRecord, baseline_name
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.space.work import baseline_names
from fpp_sweep.spec import catalogue, keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import FILE_NAME, MAX_NAME
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.specs import DatasetInfo, DatasetSeed
from fpp_sweep.sweep.summary import export_results, has_results_file
from fpp_sweep.trial.artifacts import FITTED_ON, prediction_files, write_artifacts
from fpp_sweep.trial.imported import (
    DatasetSplitSeed,
    ImportedRows,
    Samples,
    checked_predictions,
    read_rows,
    read_samples,
    require_parts,
)
from fpp_sweep.trial.posthoc import FITTED_SPLIT, PredictionsBySeed, needs_validation
from fpp_sweep.trial.trial import DatasetResult, summarize, with_maps


class MeasuredSamples:
    """Samples of a sweep, from the predictions of its records."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder
        self._records = [record for record in folder.trials() if record.state == "complete"]
        self.splits: set[str] = set()
        for record in self._records:
            self.splits.update(record.results)

    def samples(self, dataset: str, split: str) -> Samples:
        """Return the samples of a dataset: of the record with the most of them."""
        candidates = self._files(dataset, split)
        if not candidates and split == FITTED_SPLIT:
            candidates = self._files(dataset, f"test/{FITTED_ON}")
        if not candidates:
            splits = ", ".join(sorted(self.splits)) or "no split"
            raise InputError(f"the sweep has no predictions of {dataset} on split {split} to compare with ({splits})")
        samples_by_record = [read_samples(file, dataset, split) for file in candidates]
        return max(samples_by_record, key=lambda samples: len(samples.labels))

    def _files(self, dataset: str, subfolder: str) -> list[Path]:
        """Return a file of predictions of each record."""
        files = []
        for record in self._records:
            files += prediction_files(self._folder.artifacts(record.name), subfolder, dataset)[:1]
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedResults:
    """The results of a split, and a sentence for each post-hoc map or kind of conformal set that was left out."""

    datasets: Sequence[DatasetResult]
    notes: Sequence[str]


def results_by_split(folder: SweepFolder, info: SweepInfo, rows: ImportedRows) -> dict[str, ImportedResults]:
    """Return the results on each split on which the sweep has results; raise InputError if the file does not fit it."""
    parts = rows.parts(_defaults(info, rows))
    require_parts(parts, info.datasets, info.search_split, rows.file)
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
    datasets = info.datasets
    if not datasets:
        raise InputError(f"{info.name} has no datasets on record; run it first", rows.file)
    if "dataset" not in rows.columns and len(datasets) > 1:
        names = ", ".join(datasets)
        raise InputError(f"has no column `dataset`, and the sweep has {len(datasets)} ({names}); add it", rows.file)
    return datasets[0], info.search_split, info.seeds[0]


DIGITS = 16  # length of a file's digest


def import_predictions(sweep: Path, file: Path, name: str) -> Iterator[str]:
    """Add a baseline with the predictions of a file; yield what was measured and written."""
    folder = SweepFolder(sweep)
    with folder.locked():
        info = folder.info()
        _require_free_name(folder, info, name)
        _require_objectives_of_predictions(info)
        rows = read_rows(file)
        results = results_by_split(folder, info, rows)
        record = _record(info, name, rows, results)
        for split, imported in results.items():
            write_artifacts(folder.artifacts(record.name), imported.datasets, split, f"{record.name}, {split}")
        folder.write_trial(record)
        yield f"imported    {record.name}: {_sizes(record)}"
        for result in record.results.values():
            for note in result.notes:
                yield f"note        {note}"
        write_report(folder, pages=True)
        yield f"page        {(folder.report / 'sweep.html').resolve().as_uri()}"
        if has_results_file(folder):
            yield export_results(folder)


def _sizes(record: TrialRecord) -> str:
    return ", ".join(f"{plural(result.samples, 'image')} of {split}" for split, result in record.results.items())


def _require_free_name(folder: SweepFolder, info: SweepInfo, name: str) -> None:
    if not FILE_NAME.fullmatch(name):
        problem = f"{name!r}: must be at most {MAX_NAME} letters, digits, '-', '_' and '.', first a letter or digit"
        raise InputError(problem, "--as")
    if name in [*baseline_names(catalogue.METHODS), *info.requested_baselines]:
        raise InputError(f"{name}: is the name of a baseline; take another name, such as {name}_theirs", "--as")
    file = folder.trial_file(baseline_name(name))
    if file.exists() or folder.trial_file(name).exists():
        raise InputError(f"{name}: the sweep has a record of that name ({file}); take another one", "--as")


def _require_objectives_of_predictions(info: SweepInfo) -> None:
    """Raise InputError if an objective cannot be computed from predictions alone."""
    for metric in metrics_of(info.objectives):
        row = catalogue.metric(metric)
        is_measured_by_model = row.on_request and catalogue.CONFORMAL.keys().isdisjoint(row.columns)
        if not row.of_dataset or is_measured_by_model:
            raise InputError(f"objective {metric}: cannot be computed from predictions; import into another sweep")


def _record(info: SweepInfo, name: str, rows: ImportedRows, results: Mapping[str, ImportedResults]) -> TrialRecord:
    """Return the record; raise InputError for an objective that needs a post-hoc map that was left out."""
    split_results = {}
    for split, imported in results.items():
        split_result = summarize(imported.datasets, [])
        split_results[split] = replace(split_result, notes=[*split_result.notes, *imported.notes])
    digest = hashlib.sha256(Path(rows.file).read_bytes()).hexdigest()
    config = {"file": rows.file, "digest": digest[:DIGITS], "values": rows.kind}
    return TrialRecord(
        name=baseline_name(name),
        kind="baseline",
        state="complete",
        origin=IMPORTED,
        config=config,
        key=keys.digest(config, length=keys.CONFIG_LENGTH),
        finished=time.time(),
        results=split_results,
        values=[measured_value(split_results[info.search_split], metric) for metric in metrics_of(info.objectives)],
    )
