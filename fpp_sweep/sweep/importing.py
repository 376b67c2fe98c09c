"""Add predictions of another program to a sweep, as a baseline that is measured like all others."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import IMPORTED, SweepInfo, TrialRecord, baseline_name, measured_value
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.space.work import baseline_names
from fpp_sweep.spec import catalogue, keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.names import FILE_NAME, MAX_NAME
from fpp_sweep.sweep.imported_results import ImportedResults, results_by_split
from fpp_sweep.sweep.summary import export_results, has_results_file
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.imported import ImportedRows, read_rows
from fpp_sweep.trial.trial import summarize

DIGITS = 16  # length of a file's digest


def import_predictions(sweep: Path, file: Path, name: str) -> Iterator[str]:
    """Add a baseline with the predictions of a file; yield what was measured and written."""
    folder = SweepFolder.open(sweep)
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
