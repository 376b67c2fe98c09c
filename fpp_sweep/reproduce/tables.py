"""Tables: an experiment with the numbers of its sweep, read from the sweep's folder."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    LineKey,
    PrintedNumber,
    TableLine,
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
from fpp_sweep.spec.files import listed_names, read_own, write_json
from fpp_sweep.spec.validation import as_mapping
from fpp_sweep.statistics.bootstrap import average_over
from fpp_sweep.statistics.paired import LEVEL, Interval, SplitStatistics, t_quantile

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
COLUMNS = ("row", "precision", "column", "dataset", *NUMBERS[:4], "printed", "difference", "verdict", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCell:
    """A number of the table: of a row in one precision, in a column, on one dataset or on average."""

    row: str = ""
    precision: str = ""
    column: str = ""
    dataset: str = ""  # or the average over several
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
        mean = _mean(scores.get(name, {}).get(column.metric) for name in datasets)
        if mean is not None:
            values[seed] = mean
    return values


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    present = []
    for value in values:
        if value is None:
            return None
        present.append(value)
    return statistics.fmean(present)


def _value(result: SplitResult, column: ExperimentColumn, dataset: str) -> float | None:
    """Return a column's number on one dataset."""
    if column.metric in STAGES:
        return result.costs.get(dataset, {}).get(column.metric.partition(".")[2])
    if column.of == "deviation":
        return _deviation(values_by_seed(result, column, [dataset]))
    return result.datasets.get(dataset, {}).get(column.metric)


def _deviation(by_seed: Mapping[str, float]) -> float | None:
    """Return the standard deviation over seeds; None of a single seed."""
    if len(by_seed) < 2:
        return None
    return statistics.stdev(by_seed.values())


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


# --- tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class ResultTable:
    """An experiment with its numbers. A scope is a dataset or an average over datasets."""

    experiment: Experiment
    sweep: SweepFolder
    info: SweepInfo
    scopes: Mapping[str, Sequence[str]]  # datasets of each scope; single datasets first
    cells: Sequence[ResultCell]  # those that have a number, ours or the paper's
    run_notes: tuple[str, ...]  # sentences on models, data and settings
    statistics: Mapping[str, SplitStatistics]  # by scope
    failed: Mapping[LineKey, str]  # why a line has no numbers
    records: Mapping[tuple[LineKey, str], TrialRecord]  # with results, by line and column

    @property
    def name(self) -> str:
        return self.sweep.path.name

    @property
    def is_papers_model(self) -> bool:
        return is_papers_model(self.info.model)

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

    def record(self, line: LineKey) -> TrialRecord | None:
        """Return the line's trial; the first one if columns have trials of their own."""
        for column in self.experiment.columns:
            if (line, column.name) in self.records:
                return self.records[line, column.name]
        return None

    @property
    def lines(self) -> list[TableLine]:
        """The lines that have a number or that failed."""
        keys = set(self.failed)
        for cell in self.cells:
            keys.add((cell.row, cell.precision))
        return [line for line in self.experiment.lines if line.key in keys]

    @cached_property
    def _cells_by_place(self) -> dict[tuple[LineKey, str, str], ResultCell]:
        cells = {}
        for cell in self.cells:
            cells[(cell.row, cell.precision), cell.column, cell.dataset] = cell
        return cells

    def cell(self, line: LineKey, column: str, scope: str) -> ResultCell:
        return self._cells_by_place.get((line, column, scope), ResultCell())

    @cached_property
    def tidy(self) -> Any:
        """The cells as a data frame: the lines of table.csv."""
        lines = []
        for cell in self.cells:
            lines.append(
                {
                    "row": cell.row,
                    "precision": cell.precision,
                    "column": cell.column,
                    "dataset": cell.dataset,
                    "ours": cell.value,
                    "deviation_over_seeds": cell.deviation,
                    "low": cell.interval.low if cell.interval else None,
                    "high": cell.interval.high if cell.interval else None,
                    "printed": cell.printed.text if cell.printed else "",
                    "difference": cell.difference,
                    "verdict": cell.verdict if self.is_papers_model else "other model",
                    "model": self.info.model,
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
    measured = measure(folder, list(distinct.values()), SPLIT, metrics)
    scopes = scopes_of(experiment, info.datasets)
    by_scope = {scope: SplitStatistics(average_over(measured, datasets)) for scope, datasets in scopes.items()}
    return ResultTable(
        experiment=experiment,
        sweep=folder,
        info=info,
        scopes=scopes,
        cells=list(_cells_of(experiment, info.model, space.work.limit, scopes, records, by_scope)),
        run_notes=(*run_notes, *_settings_sentences(experiment, info, space), *measured.notes),
        statistics=by_scope,
        failed=failed,
        records=records,
    )


def _records_of(
    experiment: Experiment, folder: SweepFolder, space: Space, checkpoints: Mapping[str, str]
) -> tuple[dict[tuple[LineKey, str], TrialRecord], dict[LineKey, str]]:
    """Return the trial behind each line and column, and why lines have none."""
    by_key = {record.key: record for record in folder.trials()}
    records = {}
    failed = {}
    for line in experiment.lines:
        if not line.row.can_run(checkpoints):
            continue
        lacking: list[str] = []  # columns
        for column in experiment.columns:
            config = space.resolve(experiment.settings(line.row, column, checkpoints, line.precision))
            record = by_key.get(keys.config_key(config))
            if record is None:
                continue
            if SPLIT in record.results:
                records[line.key, column.name] = record
            else:
                lacking.append(column.name)
                failed[line.key] = f"{', '.join(lacking)}: {record.reason or record.state}"
    return records, failed


def _settings_sentences(experiment: Experiment, info: SweepInfo, space: Space) -> Iterator[str]:
    seeds = str(list(info.seeds)).strip("[]")
    yield f"model {info.model}, datasets {', '.join(info.datasets)}, seeds {seeds}"
    if space.work.limit:
        yield f"at most {space.work.limit} images of each dataset"
    else:
        yield "all images of the test splits; 200 of each embedded dataset"
    settings = space.resolve({}).flat()
    if any(experiment.precisions):
        settings["precision"] = " and ".join(experiment.precisions)
    yield ", ".join(f"{key}={settings[key]}" for key in SETTINGS_SHOWN)


# --- cells ---------------------------------------------------------------------------------------------


def _cells_of(
    experiment: Experiment,
    model: str,
    limit: int | None,
    scopes: Mapping[str, Sequence[str]],
    records: Mapping[tuple[LineKey, str], TrialRecord],
    by_scope: Mapping[str, SplitStatistics],
) -> Iterator[ResultCell]:
    """Yield the cells that have a number, ours or the paper's."""
    is_same_model = is_papers_model(model)
    papers_datasets = datasets_of_printed_averages(experiment) or set(scopes.get(AVERAGE, ()))
    for line, column, scope in itertools.product(experiment.lines, experiment.columns, scopes):
        datasets = scopes[scope]
        printed = dict(line.row.printed.get(column.name, {}))
        if is_same_model and scope == AVERAGE and set(datasets) != papers_datasets:
            printed.pop(AVERAGE, None)
        cell = ResultCell(
            row=line.row.name,
            precision=line.precision,
            column=column.name,
            dataset=scope,
            printed=_printed(printed, scope, datasets),
            is_papers_model=is_same_model,
            has_all_images=limit is None,
        )
        record = records.get((line.key, column.name))
        if record is not None:
            cell = _measured(cell, record, column, datasets, by_scope[scope])
        if cell.value is not None or cell.printed is not None:
            yield cell


def _measured(
    cell: ResultCell,
    record: TrialRecord,
    column: ExperimentColumn,
    datasets: Sequence[str],
    statistics: SplitStatistics,
) -> ResultCell:
    """Return a cell with a column's value over some datasets, its spread over seeds and its interval."""
    result = record.results[SPLIT]
    value = _mean(_value(result, column, name) for name in datasets)
    if value is None or column.of == "deviation":
        return replace(cell, value=value)
    by_seed = values_by_seed(result, column, datasets)
    interval = statistics.interval(record.name, column.metric)
    return replace(cell, value=value, deviation=_deviation(by_seed), seeds=len(by_seed), interval=interval)


def _printed(
    by_dataset: Mapping[str, PrintedNumber | None], scope: str, datasets: Sequence[str]
) -> PrintedNumber | None:
    """Return the printed number of a scope, or else the mean of the numbers that are printed of all its datasets."""
    if scope in by_dataset:
        return by_dataset[scope]
    numbers = []
    for name in datasets:
        number = by_dataset.get(name)
        if number is None:
            return None
        numbers.append(number)
    return mean_of_printed(numbers)


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
    return table_of(replace(experiment, precisions=tuple(precisions)), folder, checkpoints, run_notes)
