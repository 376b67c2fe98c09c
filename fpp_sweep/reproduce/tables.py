"""Tables: an experiment with the numbers of its sweep, read from the sweep's folder."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas  # type: ignore[import-untyped]

from fpp_sweep.core.datasets import expand
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.reproduce.experiments import (
    AVERAGE,
    STAGES,
    Experiment,
    ExperimentColumn,
    ExperimentRow,
    PrintedNumber,
    experiment_of,
    find,
    is_papers_model,
    mean_of_printed,
)
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.space.yamlfile import of_plain
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import read_own, write_json
from fpp_sweep.spec.names import listed_names
from fpp_sweep.spec.validation import as_mapping
from fpp_sweep.statistics.bootstrap import SplitSamples, average_over
from fpp_sweep.statistics.paired import LEVEL, Interval, metric_interval, t_quantile

EUROSAT = "eurosat"  # dominates the printed averages
WITHOUT = f"{AVERAGE} without {EUROSAT}"
SPLIT = "test"
EXPERIMENT_FILE = "experiment.json"
SETTINGS_SHOWN = (
    "fpp.gamma1",
    "fpp.gamma2",
    "fpp.start",
    "fpp.detach",
    "fpp.align_distance",
    "fpp.steps",
    "views.count",
    "views.augmix",
    "precision",
)


Verdict = Literal["agrees", "differs", ""]
NUMBERS = ("ours", "deviation_over_seeds", "low", "high", "difference")  # columns of table.csv
COLUMNS = ("row", "column", "dataset", *NUMBERS[:4], "printed", "difference", "verdict", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCell:
    """A row's number in a column, on one dataset or on average."""

    value: float | None = None
    deviation: float | None = None  # over seeds; none: one seed
    seeds: int = 0
    interval: Interval | None = None  # 95 %, over images and seeds
    printed: PrintedNumber | None = None
    is_papers_model: bool = True
    has_all_images: bool = True  # False if --limit left images of a test split out

    @property
    def difference(self) -> float | None:
        if self.value is None or self.printed is None or not self.is_papers_model:
            return None
        return self.value - self.printed.value

    @property
    def verdict(self) -> Verdict:
        """The result of a t test over seeds, with the rounding of the printed number as tolerance; empty: no test.

        The printed number counts as one run of the same spread, our number as a mean over seeds. Images have no part
        in the test, because both numbers are about the same images; a number of fewer images has no test.

        >>> printed = PrintedNumber.of_text("65.37")
        >>> ResultCell(value=64.8, deviation=0.1, seeds=3, printed=printed).verdict
        'differs'
        """
        if self.difference is None or self.deviation is None or not self.has_all_images:
            return ""
        quantile = t_quantile(1 - LEVEL / 2, self.seeds - 1)
        standard_error = self.deviation * math.sqrt(1 + 1 / self.seeds)
        assert self.printed is not None
        if abs(self.difference) <= quantile * standard_error + self.printed.rounding:
            return "agrees"
        return "differs"


def values_by_seed(result: SplitResult, column: ExperimentColumn, datasets: Sequence[str]) -> dict[str, float]:
    """Return a column's mean over datasets for each seed; empty if the record has no values by seed."""
    values = {}
    for seed, scores in result.by_seed.items():
        mean = _mean_score(scores, column.metric, datasets)
        if mean is not None:
            values[seed] = mean
    return values


def _mean_score(scores: Mapping[str, Mapping[str, float]], metric: str, datasets: Sequence[str]) -> float | None:
    """Return a metric's mean over datasets; None if one of them has no value."""
    values = []
    for name in datasets:
        value = scores.get(name, {}).get(metric)
        if value is None:
            return None
        values.append(value)
    return statistics.fmean(values)


def measured_cell(result: SplitResult, column: ExperimentColumn, datasets: Sequence[str]) -> ResultCell:
    """Return a column's value over some datasets, with its standard deviation over seeds."""
    if column.metric in STAGES:
        return ResultCell(value=_mean_seconds(result, column, datasets))
    if column.of == "deviation":
        return ResultCell(value=_mean_deviation(result, column, datasets))
    value = _mean_score(result.datasets, column.metric, datasets)
    if value is None:
        return ResultCell()
    by_seed = list(values_by_seed(result, column, datasets).values())
    deviation = None
    if len(by_seed) > 1:
        deviation = statistics.stdev(by_seed)
    return ResultCell(value=value, deviation=deviation, seeds=len(by_seed))


def _mean_seconds(result: SplitResult, column: ExperimentColumn, datasets: Sequence[str]) -> float | None:
    stage = column.metric.partition(".")[2]
    total = 0.0
    for name in datasets:
        seconds = result.costs.get(name, {}).get(stage)
        if seconds is None:
            return None
        total += seconds
    return total / len(datasets)


def _mean_deviation(result: SplitResult, column: ExperimentColumn, datasets: Sequence[str]) -> float | None:
    """Return the standard deviation over seeds on each dataset, averaged over datasets."""
    deviations = []
    for name in datasets:
        by_seed = values_by_seed(result, column, [name])
        if len(by_seed) < 2:
            return None
        deviations.append(statistics.stdev(by_seed.values()))
    return statistics.fmean(deviations)


# --- what the printed numbers are of ------------------------------------------------------------------


def datasets_of_printed_averages(experiment: Experiment) -> set[str]:
    """Return the datasets that an experiment's printed averages are of; empty if its file does not name them."""
    if experiment.average:
        return set(experiment.average)
    work = as_mapping(experiment.document.value.get("work") or {})
    try:
        return set(expand(listed_names(work.get("datasets") or [])))
    except InputError:  # a user's own datasets, for which nothing is printed
        return set()


def mean_printed(row: ExperimentRow, column: ExperimentColumn, datasets: Sequence[str]) -> PrintedNumber | None:
    """Return the mean of a row's printed numbers on some datasets; None unless each of them is printed."""
    printed = []
    for name in datasets:
        number = row.printed.get(column.name, {}).get(name)
        if number is None:
            return None
        printed.append(number)
    return mean_of_printed(printed)


# --- tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ResultTable:
    """An experiment with its numbers. A scope is a dataset or an average over datasets."""

    experiment: Experiment
    model: str
    is_papers_model: bool
    scopes: Mapping[str, Sequence[str]]  # datasets of each scope; single datasets first
    cells: Mapping[tuple[str, str, str], ResultCell]  # by row, column and scope
    run_notes: tuple[str, ...]  # sentences on models, data and settings
    samples: Mapping[str, SplitSamples]  # resampled metrics, by scope
    failed: Mapping[str, str]  # row -> why it has no numbers
    records: Mapping[tuple[str, str], TrialRecord]  # with results, by row and column

    @property
    def datasets(self) -> list[str]:
        return [scope for scope in self.scopes if not is_average(scope)]

    @property
    def averaged(self) -> Sequence[str]:
        """The datasets of the average; the only dataset if there is one."""
        return self.scopes.get(AVERAGE, self.datasets)

    @property
    def main_scope(self) -> str:
        """The average, or the only dataset."""
        if AVERAGE in self.scopes:
            return AVERAGE
        return self.datasets[0]

    def record(self, row: ExperimentRow) -> TrialRecord | None:
        """Return the row's trial; the first one if columns have trials of their own."""
        for column in self.experiment.columns:
            if (row.name, column.name) in self.records:
                return self.records[row.name, column.name]
        return None

    @property
    def rows(self) -> list[ExperimentRow]:
        """The rows that have a number, ours or the paper's, or that failed."""
        names = set(self.failed)
        for row_name, _, _ in self.cells:
            names.add(row_name)
        return [row for row in self.experiment.rows if row.name in names]

    def cell(self, row: ExperimentRow, column: ExperimentColumn, scope: str) -> ResultCell:
        return self.cells.get((row.name, column.name, scope), ResultCell())

    @cached_property
    def tidy(self) -> Any:
        """A data frame with a line for each row, column and scope: the lines of table.csv."""
        lines = []
        for row in self.rows:
            for column in self.experiment.columns:
                for scope in self.scopes:
                    cell = self.cell(row, column, scope)
                    lines.append(
                        {
                            "row": row.name,
                            "column": column.name,
                            "dataset": scope,
                            "ours": cell.value,
                            "deviation_over_seeds": cell.deviation,
                            "low": cell.interval.low if cell.interval else None,
                            "high": cell.interval.high if cell.interval else None,
                            "printed": cell.printed.text if cell.printed else "",
                            "difference": cell.difference,
                            "verdict": cell.verdict if self.is_papers_model else "other model",
                            "model": self.model,
                        }
                    )
        return pandas.DataFrame(lines, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))


def is_average(scope: str) -> bool:
    return scope.startswith(AVERAGE)


def scopes_of(experiment: Experiment, datasets: Sequence[str]) -> dict[str, list[str]]:
    """Return the datasets of each scope: every dataset, then the averages over several."""
    scopes = {name: [name] for name in datasets}
    averaged = [name for name in datasets if name in experiment.average] or list(datasets)
    if len(averaged) > 1:
        scopes[AVERAGE] = averaged
    if EUROSAT in averaged and len(averaged) > 2:
        without = list(averaged)
        without.remove(EUROSAT)
        scopes[WITHOUT] = without
    return scopes


def table_of(
    experiment: Experiment, folder: SweepFolder, checkpoints: Mapping[str, str], run_notes: Sequence[str] = ()
) -> ResultTable:
    """Read an experiment's numbers from its sweep's folder; `run_notes` are sentences on what was run."""
    info = folder.info()
    space = space_of(info.space, str(folder.info_file))
    records, failed = _records_of(experiment, folder, space, checkpoints)
    distinct = {record.name: record for record in records.values()}
    metrics = resampled_metrics([column.metric for column in experiment.columns])
    measurements = measure(folder, list(distinct.values()), SPLIT, metrics)
    scopes = scopes_of(experiment, list(info.datasets))
    samples = {scope: average_over(measurements.samples, datasets) for scope, datasets in scopes.items()}
    return ResultTable(
        experiment=experiment,
        model=info.model,
        is_papers_model=is_papers_model(info.model),
        scopes=scopes,
        cells=_cells_of(experiment, info.model, space.work.limit, scopes, records, samples),
        run_notes=(*run_notes, *_settings_sentences(info, space), *measurements.notes),
        samples=samples,
        failed=failed,
        records=records,
    )


def _records_of(
    experiment: Experiment, folder: SweepFolder, space: Space, checkpoints: Mapping[str, str]
) -> tuple[dict[tuple[str, str], TrialRecord], dict[str, str]]:
    """Return the trial behind each row and column, and why rows have none."""
    by_key = {record.key: record for record in folder.trials()}
    records = {}
    failed = {}
    for row in experiment.rows:
        if not row.can_run(checkpoints):
            continue
        for column in experiment.columns:
            config = space.resolve(experiment.settings(row, column, checkpoints))
            record = by_key.get(keys.config_key(config))
            if record is None:
                continue
            if SPLIT in record.results:
                records[row.name, column.name] = record
            else:
                failed[row.name] = record.reason or record.state
    return records, failed


def _settings_sentences(info: SweepInfo, space: Space) -> Iterator[str]:
    seeds = str(list(info.seeds)).strip("[]")
    yield f"model {info.model}, datasets {', '.join(info.datasets)}, seeds {seeds}"
    if space.work.limit:
        yield f"at most {space.work.limit} images of each dataset"
    else:
        yield "all images of the test splits; 200 of each embedded dataset"
    settings = space.resolve({}).flat()
    yield ", ".join(f"{key}={settings[key]}" for key in SETTINGS_SHOWN)


# --- cells ---------------------------------------------------------------------------------------------


def _cells_of(
    experiment: Experiment,
    model: str,
    limit: int | None,
    scopes: Mapping[str, Sequence[str]],
    records: Mapping[tuple[str, str], TrialRecord],
    samples: Mapping[str, SplitSamples],
) -> dict[tuple[str, str, str], ResultCell]:
    """Return the cells that have a number, ours or the paper's, by row, column and scope."""
    is_same_model = is_papers_model(model)
    cells = {}
    for scope, datasets in scopes.items():
        prints_own_mean = _prints_own_mean(experiment, scope, datasets, is_same_model)
        for row in experiment.rows:
            for column in experiment.columns:
                cell = ResultCell()
                record = records.get((row.name, column.name))
                if record is not None:
                    cell = measured_cell(record.results[SPLIT], column, datasets)
                    cell = replace(cell, interval=_interval(samples[scope], record, column))
                printed = row.printed.get(column.name, {}).get(scope)
                if prints_own_mean:
                    printed = mean_printed(row, column, datasets)
                if cell.value is None and printed is None:
                    continue
                cells[row.name, column.name, scope] = replace(
                    cell, printed=printed, is_papers_model=is_same_model, has_all_images=limit is None
                )
    return cells


def _prints_own_mean(experiment: Experiment, scope: str, datasets: Sequence[str], is_same_model: bool) -> bool:
    """Return True for an average that the paper does not print: we compute it from the numbers printed by dataset.

    Such are the average without EuroSAT, and our average if it is over other datasets than the paper's.
    """
    if scope == WITHOUT:
        return True
    if scope != AVERAGE or not is_same_model:
        return False
    papers_datasets = datasets_of_printed_averages(experiment)
    return bool(papers_datasets) and set(datasets) != papers_datasets


def _interval(samples: SplitSamples, record: TrialRecord, column: ExperimentColumn) -> Interval | None:
    if column.of != "mean" or record.name not in samples.records:
        return None
    interval = metric_interval(samples, record.name, column.metric)
    if isinstance(interval, str):  # the reason why there is none
        return None
    return interval


# --- saved tables ---------------------------------------------------------------------------------------


def save_experiment(
    folder: Path, experiment: Experiment, checkpoints: Mapping[str, str], run_notes: Sequence[str]
) -> None:
    """Write what `load_table` reads to an experiment's folder."""
    document = {
        "experiment": experiment.document.value,
        "precisions": list(experiment.precisions),
        "files": dict(checkpoints),
        "ran": list(run_notes),
    }
    write_json(folder / EXPERIMENT_FILE, document)


def load_table(folder: SweepFolder) -> ResultTable:
    """Return a sweep's table of the experiment as it was run, or of the package's if the run has not ended."""
    file = folder.path / EXPERIMENT_FILE
    try:
        document = json.loads(read_own(file))
        experiment = experiment_of(of_plain(document["experiment"], str(file)), folder.path.name)
        precisions, checkpoints, run_notes = document["precisions"], document["files"], document["ran"]
        if not all(isinstance(text, str) for text in (*precisions, *checkpoints, *checkpoints.values(), *run_notes)):
            raise ValueError("precisions, files and ran must be texts")
    except FileNotFoundError:
        return table_of(find(folder.path.name), folder, {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: not readable ({error})") from error
    return table_of(experiment.in_precisions(precisions), folder, checkpoints, run_notes)
