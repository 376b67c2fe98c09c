"""The answer of a sweep: which finalist is recommended, and which differences to the baselines are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.names import label_of
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS
from fpp_sweep.statistics.paired import Difference

# Largest loss to zero-shot that a recommended setting may have; `search.margin` overrides. Half a point of a
# calibration error could not be decided: with 5 x 1,000 images and 3 seeds, a difference in ECE is known to 0.7 points
# (benchmarks/RESULTS.md, Answer).
PERCENT_MARGIN = 1.0  # points of a metric in percent
FRACTION_MARGIN = 0.01  # for a metric on the scale from 0 to 1
NLL_MARGIN = 0.02  # nats


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The recommendation of a sweep, and the family of differences that it rests on."""

    metrics: tuple[str, ...] = ()  # objectives that can be resampled, in their order
    untested: tuple[str, ...] = ()  # objectives that cannot be
    finalists: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    split: str = ""
    images: Mapping[str, int] = field(default_factory=dict)  # by dataset
    seeds: int = 0  # number of each finalist's seeds
    seeds_unknown: bool = False  # True if each finalist has one seed that changes it, by an amount that no record shows
    differences: Mapping[tuple[str, str, str], Difference] = field(default_factory=dict)
    recommended: str | None = None
    recommended_kind: Literal["trial", "baseline"] | None = None
    reason: str = ""  # one sentence: why this one, or why none

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


def _margins_text(metrics: Sequence[str], margins: Mapping[str, float]) -> str:
    """Return the margins in words.

    >>> _margins_text(["accuracy", "ece"], {}), _margins_text(["accuracy", "nll"], {})
    ('1 point', '1 of accuracy or 0.02 of nll')
    """
    values = [margin_of(metric, margins) for metric in metrics]
    if set(values) == {PERCENT_MARGIN}:
        return f"{PERCENT_MARGIN:g} point"
    return " or ".join(f"{value:g} of {metric}" for metric, value in zip(metrics, values, strict=True))


def recommend(
    differences: Sequence[Difference],
    finalists: Sequence[str],
    baselines: Sequence[str],
    metrics: Sequence[str],
    margins: Mapping[str, float],
    *,
    references: Sequence[str],
) -> tuple[str | None, str]:
    """Return the recommended finalist, if any, and the reason in one clause.

    `finalists` stand in the order of preference, the knee of the front first. `references` are the baselines of which a
    recommended finalist beats at least one. A loss to the first of them (zero-shot, where there is one) beyond the
    margin must be ruled out in every metric, each at one-sided 5 %. So a setting that is too bad in any metric passes
    in 5 % of cases at most. No baseline may be shown to beat it.
    """
    if not baselines:
        return None, "there are no baselines to compare with"
    if not metrics:
        return None, "no objective can be resampled, so that no difference can be tested"
    table = {(difference.first, difference.second, difference.metric): difference for difference in differences}
    reference = label_of(references[0])
    margin = _margins_text(metrics, margins)
    safe = [name for name in finalists if _is_safe(table, name, references[0], metrics, margins)]
    if not safe:
        return None, f"every finalist may be worse than {reference} by more than {margin}"
    unbeaten = [name for name in safe if not _any_mark(table, name, baselines, metrics, "-")]
    if not unbeaten:
        return None, f"each finalist that is not worse than {reference} by more than {margin} is beaten by a baseline"
    for name in unbeaten:
        gains = _gains(table, name, references, metrics)
        if gains:
            return name, f"better in {gains}, not worse than {reference} by more than {margin}"
    names = " or ".join(label_of(baseline) for baseline in references)
    return None, f"no finalist is shown to be better than {names}"


def _gains(
    table: Mapping[tuple[str, str, str], Difference], name: str, references: Sequence[str], metrics: Sequence[str]
) -> str:
    """Return what a finalist is shown to be better in, and than which reference; empty if in nothing."""
    gains = []
    for metric in metrics:
        beaten = []
        for baseline in references:
            difference = table.get((name, baseline, metric))
            if difference is not None and difference.mark == "+":
                beaten.append(label_of(baseline))
        if beaten:
            gains.append(f"{metric} than {' and '.join(beaten)}")
    return ", and in ".join(gains)


def _is_safe(
    table: Mapping[tuple[str, str, str], Difference],
    name: str,
    reference: str,
    metrics: Sequence[str],
    margins: Mapping[str, float],
) -> bool:
    """Return True if a loss to the reference beyond the margin is excluded in every metric."""
    for metric in metrics:
        difference = table.get((name, reference, metric))
        if difference is None or not difference.excludes_loss_beyond(margin_of(metric, margins)):
            return False
    return True


def _any_mark(
    table: Mapping[tuple[str, str, str], Difference],
    name: str,
    baselines: Sequence[str],
    metrics: Sequence[str],
    mark: str,
) -> bool:
    for baseline in baselines:
        for metric in metrics:
            difference = table.get((name, baseline, metric))
            if difference is not None and difference.mark == mark:
                return True
    return False


def best_baseline(values: Mapping[str, Sequence[float]], goals: Sequence[Goal]) -> str | None:
    """Return the baseline that no other dominates and that is best in the first objective.

    >>> best_baseline({"a": (70.0, 5.0), "b": (71.0, 4.0), "c": (69.0, 3.0)}, ["max", "min"])
    'b'
    """
    best = None
    best_gains: tuple[float, ...] = ()
    for name, point in values.items():
        gains = tuple(catalogue.sign(goal) * value for value, goal in zip(point, goals, strict=True))
        if gains > best_gains:  # the first objective decides, ties go to the next one
            best = name
            best_gains = gains
    return best
