"""Intervals and paired differences of records, with the variance of images and that of seeds.

The variance of images comes from the bootstrap, with the seeds held fixed. The variance of seeds comes from the values
of a record's seeds, on all splits that it ran on. Three seeds estimate it badly, and a record whose seeds agree by
chance looks certain. The larger of a record's own variance and of the mean over finalists therefore counts. The two
variances add up, with degrees of freedom by Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import special

from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, Numbers
from fpp_sweep.statistics.bootstrap import MetricSamples, RecordSamples, SplitSamples, estimated_bias

POWER = 0.8  # chance that a difference of the size that a sweep could show is shown
LEVEL = 0.05  # level of tests; intervals are 95 % intervals
# degrees of freedom that the seed variance of all records needs; with 1, from a single record of two seeds, 13 % of
# simulated sweeps had a false difference
MIN_SEED_DEGREES = 2
# a calibration error below this multiple of what a perfectly calibrated model shows on as many images has no interval,
# and two such errors have no test: chance alone makes them (benchmarks/RESULTS.md, Answer)
MIN_CALIBRATION_RATIO = 1.5
MIN_IMAGES = 30  # images that the smallest dataset needs for any interval
# metrics whose bootstrap intervals contain the truth in less than 90 % of simulated samples (commit 6eff76aa)
BAD_COVERAGE = ("nll_calibration", "brier_calibration")


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance with its degrees of freedom."""

    value: float
    degrees_of_freedom: float


NO_VARIANCE = Variance(0.0, 0.0)  # if seeds change nothing, or no record has several seeds


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval, in the metric's own unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First minus second on the same images, in one metric.

    A calibration error that is measured on few images is too large. This bias depends on the confidences, and is
    largest for a calibrated model. Refinement that is measured on few images is too small. The bootstrap estimates the
    bias; the interval and both tests subtract the estimate.
    """

    first: str
    second: str
    metric: str
    value: float
    standard_error: float
    degrees_of_freedom: float
    seed_variance: float = 0.0  # part of the squared standard error
    bias: float = 0.0  # estimated by the bootstrap
    adjusted_p: float = math.nan  # by Holm's correction within its family

    @property
    def is_significant(self) -> bool:
        """True if the difference is shown after Holm's correction."""
        return self.adjusted_p < LEVEL

    @property
    def p_value(self) -> float:
        """Two-sided, of a t test of the debiased value against 0."""
        if self.debiased == 0:
            return 1.0
        if self.standard_error == 0:
            return 0.0
        return float(2 * special.stdtr(min(self.degrees_of_freedom, 1e9), -abs(self.debiased) / self.standard_error))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval, which is not corrected for the family."""
        return t_quantile(1 - LEVEL / 2, self.degrees_of_freedom) * self.standard_error

    @property
    def debiased(self) -> float:
        """The value without its estimated bias: the centre of the interval."""
        return self.value - self.bias

    @property
    def low(self) -> float:
        return self.debiased - self.half_width

    @property
    def high(self) -> float:
        return self.debiased + self.half_width

    @property
    def gain(self) -> float:
        """The debiased value, negated where less is better."""
        return self.debiased * catalogue.sign(goal_of(self.metric))

    @property
    def mark(self) -> str:
        """`+` where the first is better, `-` where it is worse, empty where no difference is shown."""
        if not self.is_significant:
            return ""
        if self.gain > 0:
            return "+"
        return "-"

    @property
    def gain_lower_bound(self) -> float:
        """The one-sided 95 % bound: the true gain is smaller in 5 % of cases at most."""
        uncertainty = t_quantile(1 - LEVEL, self.degrees_of_freedom) * self.standard_error
        return self.gain - uncertainty

    def excludes_loss_beyond(self, margin: float) -> bool:
        """Return True if a loss of more than `margin` is ruled out at one-sided 5 %."""
        return self.gain_lower_bound >= -margin

    @property
    def clarity(self) -> float:
        """The gain in standard errors: how clearly the first is better; 0 for results that do not differ."""
        return self.gain / self.standard_error if self.standard_error else 0.0


def goal_of(metric: str) -> catalogue.Goal:
    """Return the direction of a metric, such as `ece` or `ece/dtd`."""
    return catalogue.metric(metric).goal


def detectable(paired: Difference, comparisons: int) -> float:
    """Return the true difference that is shown in 80 % of such samples, after Holm's first step."""
    threshold = t_quantile(1 - LEVEL / 2 / comparisons, paired.degrees_of_freedom)
    return (threshold + t_quantile(POWER, paired.degrees_of_freedom)) * paired.standard_error


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    return float(special.stdtrit(min(degrees_of_freedom, 1e9), probability))


# --- the variance of seeds -------------------------------------------------------------------------


def own_seed_variance(samples: MetricSamples) -> Variance:
    """Return the variance of a single seed, from the spread of the values of two seeds or more.

    The spread contains noise of images that acts on each seed differently. The bootstrap estimates this noise, which is
    subtracted because the variance of images contains it already.
    """
    seeds = len(samples.by_seed)
    spread = float(samples.by_seed[:, 0].var(ddof=1))
    deviations = samples.by_seed[:, 1:] - samples.draws
    image_noise = float(deviations.var(axis=1).sum() / (seeds - 1))
    return Variance(max(spread - image_noise, 0.0), seeds - 1.0)


@dataclass(frozen=True, slots=True)
class SeedVariances:
    """Variances of a single seed, for one metric."""

    pooled: Variance  # the mean over records, for a record of one seed
    by_record: Mapping[str, Variance]  # of records that seeds change: the larger of their own and the mean

    @classmethod
    def of(cls, records: Iterable[RecordSamples], metric: str, typical: Collection[str] = ()) -> SeedVariances:
        """Return the variances of the records that have several seeds; zero for all if there is none.

        A record may come once for each split, with other seeds. The mean is that of the records in `typical`, if any
        of them has several seeds.
        """
        own: dict[str, list[Variance]] = {}
        for record in records:
            if metric in record.metrics and len(record.seeds) > 1 and not record.is_unvaried(metric):
                own.setdefault(record.name, []).append(own_seed_variance(record.metrics[metric]))
        if not own:
            return cls(NO_VARIANCE, {})
        by_record = {name: _pooled(variances) for name, variances in own.items()}
        pooled = _pooled([by_record[name] for name in by_record if name in typical] or by_record.values())
        larger = {name: max(own, pooled, key=lambda either: either.value) for name, own in by_record.items()}
        return cls(pooled, larger)

    def of_mean(self, record: RecordSamples, metric: str) -> Variance:
        """Return the variance of a record's mean over its seeds; zero where seeds change nothing or are unknown."""
        if record.is_unvaried(metric):
            return NO_VARIANCE
        variance = self.by_record.get(record.name, self.pooled)
        return Variance(variance.value / len(record.seeds), variance.degrees_of_freedom)


def _pooled(variances: Iterable[Variance]) -> Variance:
    """Return the mean of variances, weighted by their degrees of freedom."""
    degrees_of_freedom = 0.0
    weighted_sum = 0.0
    for variance in variances:
        degrees_of_freedom += variance.degrees_of_freedom
        weighted_sum += variance.value * variance.degrees_of_freedom
    return Variance(weighted_sum / degrees_of_freedom, degrees_of_freedom)


def satterthwaite(variances: Sequence[Variance]) -> Variance:
    """Return the sum of independent variances with its effective degrees of freedom."""
    total = 0.0
    weighted_squares = 0.0
    for variance in variances:
        total += variance.value
        if variance.value > 0:
            weighted_squares += variance.value**2 / variance.degrees_of_freedom
    degrees_of_freedom = math.inf
    if weighted_squares > 0:
        degrees_of_freedom = total**2 / weighted_squares
    return Variance(total, degrees_of_freedom)


# --- intervals and differences ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SplitStatistics:
    """Intervals and paired differences of one split's records, from resampled metrics and the variances of seeds."""

    samples: SplitSamples
    others: Sequence[SplitSamples] = ()  # samples of other splits: the spread of their seeds counts, too
    typical: Collection[str] = ()  # names of the records whose mean variance counts; empty: all
    # variances of seeds by metric, computed when needed
    variances: dict[str, SeedVariances] = field(default_factory=dict)

    def seeds(self, metric: str) -> SeedVariances:
        """Return the variances of the records' seeds in a metric."""
        if metric not in self.variances:
            records = [record for split in (self.samples, *self.others) for record in split.records.values()]
            self.variances[metric] = SeedVariances.of(records, metric, self.typical)
        return self.variances[metric]

    def has_known_seed_variance(self, name: str, metrics: Iterable[str]) -> bool:
        """Return True if a record's variance over pretraining seeds is known in every metric.

        A record of one seed needs seeds that change nothing: other records do not tell how lucky that seed is.
        """
        record = self.samples.records[name]
        if not record.deterministic and len(record.seeds) < 2:
            return False
        for metric in metrics:
            if metric not in record.metrics:
                return False
            is_known = self.seeds(metric).pooled.degrees_of_freedom >= MIN_SEED_DEGREES
            if not is_known and not record.is_unvaried(metric):
                return False
        return True

    def why_no_interval(self, name: str, metric: str) -> str:
        """Return why a record has no interval; an empty text if it has one."""
        return _why_unmeasurable(metric) or _why_too_little(self.samples, metric, [self.samples.metric(name, metric)])

    def interval(self, name: str, metric: str) -> Interval | None:
        """Return a record's interval; None if it has none."""
        measured = self.samples.metric(name, metric)
        if measured is None or self.why_no_interval(name, metric):
            return None
        bias = estimated_bias(measured, metric)
        of_seeds = self.seeds(metric).of_mean(self.samples.records[name], metric)
        variance = satterthwaite([_image_variance(measured.draws, bias, measured), of_seeds])
        half_width = t_quantile(1 - LEVEL / 2, variance.degrees_of_freedom) * math.sqrt(variance.value)
        centre = measured.value - bias
        largest = BLOCKWISE_METRICS[catalogue.parts_of(metric).stem].largest
        return Interval(measured.value, max(0.0, centre - half_width), min(largest, centre + half_width))

    def why_no_difference(self, first: str, second: str, metric: str) -> str:
        """Return why the difference of two records has no test; an empty text if it has one."""
        both = [self.samples.metric(first, metric), self.samples.metric(second, metric)]
        return why_never_tested(metric) or _why_too_little(self.samples, metric, both)

    def difference(self, first: str, second: str, metric: str) -> Difference | None:
        """Return first minus second on the same images, not yet corrected; None where they cannot be paired."""
        minuend, subtrahend = self.samples.metric(first, metric), self.samples.metric(second, metric)
        if minuend is None or subtrahend is None or self.why_no_difference(first, second, metric):
            return None
        bias = estimated_bias(minuend, metric) - estimated_bias(subtrahend, metric)
        of_seeds = [self.seeds(metric).of_mean(self.samples.records[name], metric) for name in (first, second)]
        # the extra variance belongs to the images, which both records share, so it counts once
        variance = satterthwaite([_image_variance(minuend.draws - subtrahend.draws, bias, minuend), *of_seeds])
        return Difference(
            first=first,
            second=second,
            metric=metric,
            value=minuend.value - subtrahend.value,
            standard_error=math.sqrt(variance.value),
            degrees_of_freedom=variance.degrees_of_freedom,
            seed_variance=of_seeds[0].value + of_seeds[1].value,
            bias=bias,
        )

    def differences(self, pairs: Iterable[tuple[str, str]], metrics: Sequence[str]) -> list[Difference]:
        """Return the differences of all pairs in all metrics that can be tested, not yet corrected."""
        tested = []
        for first, second in pairs:
            for metric in metrics:
                paired = self.difference(first, second, metric)
                if paired is not None:
                    tested.append(paired)
        return tested


def _image_variance(draws: Numbers, bias: float, measured: MetricSamples) -> Variance:
    """Return the variance over images of a value or difference; the bias's standard error is taken as half of it."""
    value = float(draws.var()) + measured.extra_variance + (bias / 2) ** 2
    return Variance(value, measured.blocks - 1.0)


# --- metrics and images without intervals and tests --------------------------------------------------


def _why_unmeasurable(metric: str) -> str:
    """Return why a metric has neither intervals nor tests on any images; empty if it can have them."""
    stem = catalogue.parts_of(metric).stem
    if stem in BAD_COVERAGE:
        return f"bootstrap intervals of {stem} contain the truth too rarely"
    if stem not in BLOCKWISE_METRICS:
        return f"{stem} cannot be computed from block statistics"
    return ""


def why_never_tested(metric: str) -> str:
    """Return why the differences in a metric have no test on any images; empty if they can have one."""
    if catalogue.parts_of(metric).posthoc:
        return f"the map of {metric} is fitted on few images, and no resample fits it again"
    return _why_unmeasurable(metric)


def _why_too_little(samples: SplitSamples, metric: str, compared: Sequence[MetricSamples | None]) -> str:
    """Return why the images do not tell a metric of one record, or of two apart; empty if they do."""
    measured = [samples_of_record for samples_of_record in compared if samples_of_record is not None]
    if len(measured) < len(compared):
        return "no block statistics of these images"
    dataset = catalogue.parts_of(metric).dataset
    images = samples.images[dataset] if dataset else min(samples.images.values())
    if images < MIN_IMAGES:
        return f"fewer than {MIN_IMAGES} images"
    largest = max(measured, key=lambda either: either.value)
    if largest.value < MIN_CALIBRATION_RATIO * largest.calibrated_bias:
        return f"too near to {largest.calibrated_bias:.1f}, the error of a calibrated model on as many images"
    return ""


# --- other differences, and Holm's correction --------------------------------------------------------


def difference_over_seeds(
    first: str, second: str, metric: str, first_values: Mapping[str, float], second_values: Mapping[str, float]
) -> Difference:
    """Return first minus second, paired by seed; for numbers that cannot be computed from block statistics.

    The variance is that of seeds only. With fewer than two shared seeds, or without a variance, the standard error is
    infinite: gaps that are equal for all seeds do not tell how they vary over images.
    """
    shared = sorted(first_values.keys() & second_values.keys())
    gaps = np.array([first_values[seed] - second_values[seed] for seed in shared])
    value = float(np.mean(list(first_values.values())) - np.mean(list(second_values.values())))
    standard_error, degrees_of_freedom = math.inf, 1.0
    if len(gaps) > 1 and gaps.std() > 0:
        value = float(gaps.mean())
        standard_error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
        degrees_of_freedom = len(gaps) - 1.0
    return Difference(
        first=first,
        second=second,
        metric=metric,
        value=value,
        standard_error=standard_error,
        degrees_of_freedom=degrees_of_freedom,
    )


def adjust_p_values(family: Sequence[Difference]) -> list[Difference]:
    """Return the differences with p-values adjusted by Holm.

    The chance that the family has any false difference then stays below the level.
    """
    adjusted = list(family)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(family)), key=lambda index: family[index].p_value)):
        largest = max(largest, (len(family) - rank) * family[index].p_value)
        adjusted[index] = replace(family[index], adjusted_p=min(1.0, largest))
    return adjusted
