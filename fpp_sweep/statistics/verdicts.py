"""The answer of a sweep: which finalist is recommended, and which differences to the baselines are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.names import label_of
from fpp_sweep.spec.rounding import without_rounding_error
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS
from fpp_sweep.statistics.paired import Difference

# Largest loss to zero-shot that a recommended setting may have; `search.margin` overrides. Half a point of a
# calibration error could not be decided: with 5 x 1,000 images and 3 seeds, a difference in ECE is known to 0.7 points
# (benchmarks/RESULTS.md, Answer).
PERCENT_MARGIN = 1.0  # points of a metric in percent
FRACTION_MARGIN = 0.01  # for a metric on the scale from 0 to 1
NLL_MARGIN = 0.02  # nats


DifferenceTable = Mapping[tuple[str, str, str], Difference]  # by finalist, baseline and metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A recommended trial, or else the best baseline, if there is one."""

    trial: str | None = None
    best_baseline: str | None = None
    reason: str  # one clause: why this trial, or why none


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The recommendation of a sweep, and the family of differences that it rests on."""

    metrics: tuple[str, ...] = ()  # objectives that have a valid test, in their order
    untested: tuple[str, ...] = ()  # objectives that have none
    finalists: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    split: str = ""
    images: Mapping[str, int] = field(default_factory=dict)  # by dataset
    seeds: int = 0  # number of each finalist's seeds
    seeds_unknown: bool = False  # True if too few seeds show by how much seeds change the finalists, for all of them
    differences: DifferenceTable = field(default_factory=dict)
    recommended: str | None = None  # name of a trial
    best_baseline: str | None = None  # named where no trial is recommended
    reason: str = ""  # one clause: why this trial, or why none

    def difference(self, finalist: str, baseline: str, metric: str) -> Difference | None:
        return self.differences.get((finalist, baseline, metric))

    def beats(self, name: str) -> dict[str, list[str]]:
        """Return the baselines that a finalist is shown to beat, by metric."""
        return self._marked(name, "+")

    def beaten_by(self, name: str) -> dict[str, list[str]]:
        """Return the baselines that are shown to beat a finalist, by metric."""
        return self._marked(name, "-")

    def _marked(self, name: str, mark: str) -> dict[str, list[str]]:
        marked: dict[str, list[str]] = {}
        for (finalist, baseline, metric), difference in self.differences.items():
            if finalist == name and difference.mark == mark:
                marked.setdefault(metric, []).append(baseline)
        return marked

    @property
    def design(self) -> str:
        """Seeds and images in words: `3 seeds, 5 x 200 test images`."""
        if not self.images:
            return ""
        sizes = sorted(set(self.images.values()))
        if len(sizes) == 1:
            images = f"{len(self.images)} x {sizes[0]} {self.split} images"
        else:
            images = f"{len(self.images)} datasets of {sizes[0]} to {sizes[-1]} {self.split} images"
        seeds = f"{self.seeds} seeds"
        if self.seeds == 1:
            seeds = "one seed"
        return f"{seeds}, {images}"


def margin_of(metric: str, margins: Mapping[str, float]) -> float:
    """Return the largest loss to zero-shot in a metric that a recommended setting may have."""
    parts = catalogue.parts_of(metric)
    stem = parts.stem
    for name in (metric, parts.of_average, stem):
        if name in margins:
            return margins[name]
    if stem.startswith("nll"):
        return NLL_MARGIN
    if BLOCKWISE_METRICS[stem].scale == 1:
        return FRACTION_MARGIN
    return PERCENT_MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """The differences between finalists and baselines, and the rules that they are judged by."""

    differences: DifferenceTable
    baselines: Sequence[str]
    reference: str  # the baseline that a finalist must beat, usually zero-shot; empty without baselines
    metrics: Sequence[str]
    margins: Mapping[str, float]  # largest loss to the reference by metric, where it is not the default

    @property
    def why_impossible(self) -> str:
        """The reason for which nothing can be compared; empty if there are baselines and metrics."""
        if not self.baselines:
            return "there are no baselines to compare with"
        if not self.metrics:
            return "no objective has a valid test"
        return ""

    def metrics_with_possible_loss(self, finalist: str) -> list[str]:
        """Return the metrics in which a loss to the reference beyond the margin is not ruled out."""
        metrics = []
        for metric in self.metrics:
            difference = self._difference_to_reference(finalist, metric)
            if difference is None or not difference.excludes_loss_beyond(self._margin(metric)):
                metrics.append(metric)
        return metrics

    def only_hides_losses(self, finalist: str, metrics: Sequence[str]) -> bool:
        """Return True if in each of these metrics only a hidden loss (see `Difference`) stands against a finalist."""
        for metric in metrics:
            difference = self._difference_to_reference(finalist, metric)
            if difference is None or not difference.hides_loss_beyond(self._margin(metric)):
                return False
        return True

    def is_beaten(self, finalist: str) -> bool:
        """Return True if any baseline is shown to be better in any metric."""
        for baseline in self.baselines:
            for metric in self.metrics:
                if self._mark(finalist, baseline, metric) == "-":
                    return True
        return False

    def gains_text(self, finalist: str) -> str:
        """Return the metrics in which a finalist is shown to beat the reference, such as `accuracy and ece`."""
        return " and ".join(metric for metric in self.metrics if self._mark(finalist, self.reference, metric) == "+")

    def qualifies(self, finalist: str) -> bool:
        """Return True if a finalist may be recommended.

        There are three conditions:

        - In every metric, a loss to the reference beyond the margin is ruled out at one-sided 5 %. A setting that
          is too bad in any metric then passes in 5 % of cases at most.
        - No baseline is shown to beat the finalist.
        - The finalist is shown to beat the reference. To beat TPT alone is not enough: zero-shot costs nothing.
        """
        if self.why_impossible or self.metrics_with_possible_loss(finalist):
            return False
        return not self.is_beaten(finalist) and self.gains_text(finalist) != ""

    def why_recommended(self, finalist: str) -> str:
        """Return the reason for a finalist that qualifies."""
        return f"better in {self.gains_text(finalist)} than {label_of(self.reference)}, not {self.worse_text()}"

    def worse_text(self) -> str:
        """Return the loss that must be ruled out, in words: `worse than zero_shot by more than 1 point`."""
        return f"worse than {label_of(self.reference)} by more than {self.margins_text()}"

    def margins_text(self) -> str:
        """Return the margins in words: `1 point`, or `1 of accuracy or 0.02 of nll`."""
        margins = {metric: self._margin(metric) for metric in self.metrics}
        if catalogue.ACCURACY in margins and set(margins.values()) == {PERCENT_MARGIN}:
            return f"{PERCENT_MARGIN:g} point"
        return " or ".join(f"{margin:g} of {metric}" for metric, margin in margins.items())

    def _margin(self, metric: str) -> float:
        return margin_of(metric, self.margins)

    def _difference_to_reference(self, finalist: str, metric: str) -> Difference | None:
        return self.differences.get((finalist, self.reference, metric))

    def _mark(self, finalist: str, baseline: str, metric: str) -> str:
        """Return the mark of a difference; empty where the two cannot be compared."""
        difference = self.differences.get((finalist, baseline, metric))
        if difference is None:
            return ""
        return difference.mark


def why_none_qualifies(finalists: Sequence[str], comparison: BaselineComparison) -> str:
    """Return the reason for which none of these finalists qualifies."""
    if comparison.why_impossible:
        return comparison.why_impossible
    worse = comparison.worse_text()
    safe = []
    for name in finalists:
        if not comparison.metrics_with_possible_loss(name):
            safe.append(name)
    if not safe:
        return _why_none_is_safe(finalists, comparison)
    if all(comparison.is_beaten(name) for name in safe):
        return f"each finalist that is not {worse} is beaten by a baseline"
    reference = label_of(comparison.reference)
    if any(comparison.gains_text(name) for name in finalists):
        return f"each finalist that is shown to be better than {reference} may be {worse}, or is beaten by a baseline"
    return f"no finalist is shown to be better than {reference}"


def _why_none_is_safe(finalists: Sequence[str], comparison: BaselineComparison) -> str:
    """Return the reason for which a loss beyond the margin is not ruled out for any finalist.

    The reason is the number of images if for some finalist only hidden losses stand against a recommendation.
    """
    for name in finalists:
        metrics = comparison.metrics_with_possible_loss(name)
        if comparison.only_hides_losses(name, metrics):
            reference = label_of(comparison.reference)
            return f"these images are too few to show a loss of {' and '.join(metrics)} to {reference}"
    return f"every finalist may be {comparison.worse_text()}"


def best_baseline(values: Mapping[str, Sequence[float]], goals: Sequence[Goal]) -> str | None:
    """Return the baseline that is best in the first objective, so that no other dominates it; None without baselines.

    Of baselines with an equal first objective the next objective decides.

    >>> best_baseline({"a": (70.0, 5.0), "b": (71.0, 4.0), "c": (69.0, 3.0)}, ["max", "min"])
    'b'
    """

    def gains(name: str) -> tuple[float, ...]:
        signed = []
        for value, goal in zip(values[name], goals, strict=True):
            signed.append(catalogue.sign(goal) * without_rounding_error(value))
        return tuple(signed)

    return max(values, key=gains, default=None)
