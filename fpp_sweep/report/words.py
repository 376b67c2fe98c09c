"""What a sweep's numbers bear, in words; numpy is not needed to say it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fpp_sweep.records.front import Front
from fpp_sweep.records.records import SweepInfo
from fpp_sweep.spec import catalogue

if TYPE_CHECKING:
    from fpp_sweep.report.evidence import Evidence
    from fpp_sweep.statistics.old_bootstrap import Interval

ALIKE = 5  # trials that are named as such
MOST_TIMES = 100  # as many images: beyond, a difference is called none
SMALL = 1000  # images of a dataset; below, smooth ECE ranks trials better than ECE


def bounds(metric: str, interval: Interval, *, value: bool = False) -> str:
    """`[2.1, 3.4]`, or of a difference `-1.9 [-2.6, -1.1]`, with a digit less than the metric itself."""
    row = catalogue.METRICS.get(metric.partition("/")[0])
    decimals = max(1, row.decimals - 1) if row else 1
    if not value:
        return f"[{interval.low:.{decimals}f}, {interval.high:.{decimals}f}]"
    low, middle, high = (f"{number:+.{decimals}f}" for number in (interval.low, interval.value, interval.high))
    return f"{middle} [{low}, {high}]"


def as_data(interval: Interval | str) -> dict[str, float] | str:
    """For JSON; a reason stays one."""
    return interval if isinstance(interval, str) else {"low": interval.low, "high": interval.high}


def beside(evidence: Evidence | None, name: str, split: str, metric: str) -> str:
    """The interval that stands beside a value; empty where there is none."""
    found = evidence.splits.get(split) if evidence else None
    interval = found.interval(name, metric) if found else ""
    return "" if isinstance(interval, str) else bounds(metric, interval)


def verdict(other: str, differences: Mapping[str, tuple[catalogue.Goal, Interval]]) -> tuple[str, int, int]:
    """What differences to another bear, in words, and in how many metrics it is better and worse.

    >>> from fpp_sweep.statistics.old_bootstrap import Interval
    >>> verdict("tpt", {"accuracy": ("max", Interval(0.1, 0.3)), "ece": ("min", Interval(-1.9, 0.4))})
    ('better than tpt in ece (-1.9 [-2.7, -1.1]), not told apart in accuracy', 1, 0)
    """
    words: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for metric, (goal, interval) in differences.items():
        told = interval.sign * catalogue.sign(goal)
        words[told].append(f"{metric} ({bounds(metric, interval, value=True)})" if told else metric)
    parts = [("better than", words[1]), ("worse than", words[-1]), ("not told apart from", words[0])]
    first, *rest = [(text, named) for text, named in parts if named]
    if not rest and not (words[1] or words[-1]):
        return f"not told apart from {other}", 0, 0
    told_of = [f"{first[0]} {other} in {' and '.join(first[1])}"]
    told_of += [f"{text.removesuffix(' than').removesuffix(' from')} in {' and '.join(named)}" for text, named in rest]
    return ", ".join(told_of), len(words[1]), len(words[-1])


def sentences(info: SweepInfo, front: Front, evidence: Evidence) -> Iterator[str]:
    """Which members beat which baselines: on images that they were not chosen by where there are any."""
    others = [split for split in evidence.splits if split != info.search_split]
    split = others[-1] if others else info.search_split  # test, where there is one beside what was confirmed
    found = evidence.splits.get(split)
    if found is None or not front.members:
        return
    chosen = "" if others else ", by which they were chosen: optimistic"
    yield f"on {split} ({min(found.images.values())} images of the smallest dataset{chosen}):"
    beaten, apart = 0, math.inf
    for member in front.chosen:
        told: list[str] = []
        same: list[str] = []
        for baseline in front.baselines:
            differences = {
                objective.metric: (objective.goal, gap)
                for objective in front.objectives
                if (gap := found.difference(member.name, baseline.name, objective.metric)) is not None
            }
            if not differences:
                continue
            words, better, worse = verdict(baseline.label, differences)
            beaten += bool(better and not worse)
            apart = min([apart, *(_more_images(goal, gap) for goal, gap in differences.values())])
            (told if better or worse else same).append(words if better or worse else baseline.label)
        if same:
            told.append(f"not told apart from {', '.join(same)}")
        if told:
            yield f"{member.label}: {'; '.join(told)}"
    if front.baselines and not beaten:
        need = ""
        if 1 < apart < MOST_TIMES:
            images = _rounded(apart * min(found.images.values()))
            need = f"; {images} images of each dataset would tell the clearest difference, if it is what it looks"
        yield f"no member of the front beats a baseline on these images{need}"


def _more_images(goal: catalogue.Goal, gap: Interval) -> float:
    """How many times as many images would tell a difference for the better from zero, if it is as large as it looks."""
    reach = gap.high - gap.value
    return (reach / gap.value) ** 2 if gap.value * catalogue.sign(goal) > 0 else math.inf


def _rounded(images: float) -> int:
    """
    >>> _rounded(3412.3), _rounded(612)
    (3500, 620)
    """
    step = int(10 ** max(0, math.floor(math.log10(images)) - 1))
    return math.ceil(images / step) * step


def remarks(info: SweepInfo, front: Front, evidence: Evidence) -> Iterator[str]:
    """What a reader must know of these numbers."""
    searched = evidence.splits.get(info.search_split)
    if searched is None:
        yield "no intervals: there are no sums of the predictions"
        return
    fewest = min(searched.images.values())
    names = [objective.metric.partition("/")[0] for objective in front.objectives]
    if catalogue.ECE in names and fewest < SMALL:
        yield f"{fewest} images of a dataset are few for ece: smooth_ece ranks trials better below {SMALL}"
    for metric in dict.fromkeys(objective.metric for objective in front.objectives):
        if front.members and isinstance(why := searched.interval(front.members[0].name, metric), str):
            yield f"{metric}: {why}"
    for name, accuracy in evidence.expected.items():
        yield f"{name} was chosen as the most accurate: expect {accuracy:.2f} on fresh images"
    for name, others in evidence.alike.items():
        if others:
            more = f" and {len(others) - ALIKE} more" if len(others) > ALIKE else ""
            yield f"{name} cannot be told from {', '.join(others[:ALIKE])}{more}"
