"""The cells of a table: our number with its spread and interval, and the printed number with their difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fpp_sweep.core.datasets import DATASETS, expand
from fpp_sweep.records.records import SplitResult
from fpp_sweep.reproduce.experiments import STAGES, Experiment, ExperimentColumn, ExperimentRow
from fpp_sweep.reproduce.printed import PrintedNumber, mean_of_printed
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.names import listed_names
from fpp_sweep.spec.validation import as_mapping
from fpp_sweep.statistics.paired import LEVEL, Interval, t_quantile

Verdict = Literal["agrees", "differs", ""]


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
    datasets: set[str] = set()
    for name in listed_names(work.get("datasets") or []):
        try:
            datasets.update(expand(name))
        except InputError:  # the name of a user's own dataset, which only its file tells
            datasets.add(name.partition("=")[0])
    return datasets


def has_all_images(datasets: Sequence[str], limit: int | None) -> bool:
    """Return False if datasets were cut to a number of images below that of the published test split."""
    if limit is None:
        return True
    for name in datasets:
        published = DATASETS[name].test_size if name in DATASETS else None
        if published is None or published > limit:
            return False
    return True


def mean_printed(row: ExperimentRow, column: ExperimentColumn, datasets: Sequence[str]) -> PrintedNumber | None:
    """Return the mean of a row's printed numbers on some datasets; None unless each of them is printed."""
    printed = []
    for name in datasets:
        number = row.printed.get(column.name, {}).get(name)
        if number is None:
            return None
        printed.append(number)
    return mean_of_printed(printed)
