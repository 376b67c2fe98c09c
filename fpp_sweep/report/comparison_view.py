"""Comparisons as they are shown: tables with what is to be said of them, a picture, a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fpp_sweep.records.front import (
    format_metric,
    format_result,
    format_setting,
    format_values,
    metric_of,
    metrics_shown,
    objective_pairs,
    splits_of,
    staircase,
    values_of,
)
from fpp_sweep.report.canvas import Drawing
from fpp_sweep.report.comparison import Comparison, Side, Trials
from fpp_sweep.report.document import Part, as_html
from fpp_sweep.report.html import safe, write_html
from fpp_sweep.report.pictures import axis_titles, draw_region
from fpp_sweep.report.theme import PALETTE, SHAPES
from fpp_sweep.report.words import beside, bounds, remarks, sentences
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import dotted
from fpp_sweep.spec.files import written_whole
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import duration
from fpp_sweep.statistics.old_bootstrap import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PAIRED = "paired over images; p two-sided, corrected by Holm over"
SURE = 0.05  # corrected p of what is marked
SHARES = (0.5, 0.9, 0.99)  # of the union's hypervolume
PLACES = 5  # of the attainment's table
COMPARED = ("model_digest", "device", "git_commit", "fpp_sweep", "torch", "plugins")


def told(p: float) -> str:
    """A corrected p, marked where it is below 0.05.

    >>> told(0.0321), told(0.2), told(1e-9)
    ('0.032*', '0.200', '<0.001*')
    """
    return f"{'<0.001' if p < 0.001 else f'{p:.3f}'}{'*' * (p < SURE)}"


# --- trials of one sweep ------------------------------------------------------------------------------


def parts_of_trials(found: Trials) -> Iterator[Part]:
    """Values and differences by metric: datasets, then their average."""
    sets, pairs = list(found.evidence.datasets), list(combinations(found.results, 2))
    images = ", ".join(f"{count} of {name}" for name, count in found.evidence.images.items())
    chosen = "; trials were chosen by these images: optimistic" * found.chosen
    averages = sum("/" not in metric for *_, metric in found.ps)
    tests = f"{averages} tests of averages, and over the {len(found.ps) - averages} of datasets"
    for metric in found.metrics:
        keys = [*(f"{metric}/{name}" for name in sets), metric]
        values, gaps = [["", *sets, "average"]], [["", *sets, "average"]]
        for label, result in found.results.items():
            values.append([label, *(format_metric(key, metric_of(result, key)) for key in keys)])
            given = [found.evidence.interval(label, key) for key in keys]
            if any(isinstance(one, Interval) for one in given):
                values.append(["  95 %", *("" if isinstance(one, str) else bounds(metric, one) for one in given)])
        for pair in pairs:
            each = [gap for key in keys if (gap := found.evidence.difference(*pair, key)) is not None]
            if each:
                gaps.append([" less ".join(pair), *(bounds(metric, gap, value=True) for gap in each)])
                gaps.append(["  p", *(told(found.ps[*pair, key]) for key in keys)])
        heading = f"{metric} on {found.split}: {catalogue.metric(metric).title}"
        yield Part(title=heading, rows=values, lines=[f"images that all have seen: {images}{chosen}"])
        if len(gaps) == 1:
            yield Part(title=f"{metric}: no paired test", lines=["it does not follow from sums over images"])
            continue
        lines = [f"{PAIRED} the {tests}; * below {SURE}"]
        lines += ["of debiased values: not those of the values above"] * (metric == catalogue.ECE)
        yield Part(title=f"{metric} on {found.split}: differences", rows=gaps, lines=lines)


# --- sweeps -------------------------------------------------------------------------------------------


def parts_of_sweeps(found: Comparison, reach: Sequence[float]) -> list[Part]:
    parts = [_union(found), _tests(found), _attainment(found), _cost(found, reach), _settings(found)]
    if found.notes:
        parts.insert(0, Part(title="What cannot be compared", lines=found.notes))
    return [part for part in parts if part.rows or part.lines]


def _union(found: Comparison) -> Part:
    info, front = found.info, found.front
    columns = list(product(splits_of(info, front.compared), metrics_shown(info.objectives)))
    rows = [["", *(f"{metric} ({split})" for split, metric in columns), ""]]
    for record in front.compared:
        cells = []
        for split, metric in columns:
            cell = format_result(metric, record.results.get(split))
            cells.append(f"{cell} {beside(found.evidence, record.name, split, metric)}".strip())
        standing = filter(None, [found.evidence.standing(record.name), *front.remarks(record)])
        rows.append([record.label, *cells, ", ".join(standing)])
    shares = [f"{sum(member.name.startswith(f'{side.label}/') for member in front.members)} of {side.label}"
              for side in found.sides]  # fmt: skip
    images = ", ".join(f"{count} of {name}" for name, count in found.common.images.items())
    lines = [f"{len(front.members)} of {len(front.finished)} trials: {', '.join(shares)}; images: {images}"]
    lines += [*sentences(info, front, found.evidence), *remarks(info, front, found.evidence)]
    title = f"Union front of {info.name}, by {info.goals} on {info.search_split}"
    return Part(title=title, rows=rows, lines=lines, words=(0, len(rows[0]) - 1))


def _tests(found: Comparison) -> Part:
    rows = [["", "first", "second", "on", "metric", "first less second", "p"]]
    for test in found.tests:
        gap = bounds(test.metric, test.gap, value=True)
        rows.append([", ".join(test.marks), *test.names, test.split, test.metric, gap, told(test.p)])
    lines = ["no two of them can be paired"]
    if found.tests:
        lines = [f"{PAIRED} these {len(found.tests)}; * below {SURE}"]
        if any(test.split == found.info.search_split for test in found.tests):
            lines.append(f"on {found.info.search_split} they were chosen by these images: optimistic")
    return Part(title="The sweeps' best against each other", rows=rows, lines=lines, words=(0, 1, 2, 3, 4))


def _attainment(found: Comparison) -> Part:
    """What each sweep's front reaches in the second objective, at places along the first."""
    regions = {side.label: side.evidence.region for side in found.sides}
    known = {label: region for label, region in regions.items() if region is not None}
    if not known:
        return Part(title="")
    x, y = (objective.metric for objective in found.info.objectives)
    places = next(iter(known.values()))[0]
    rows = [[x, *(f"{y} of {label}" for label in known)]]
    for index in np.linspace(0, len(places) - 1, PLACES + 2).astype(int)[1:-1]:
        rows.append([format_metric(x, float(places[index])),
                     *(_reached(y, reached[:, index].tolist()) for _, reached in known.values())])  # fmt: skip
    lines = [f"reached in half of the resamples [in one of ten, in nine of ten] at that {x} or better"]
    return Part(title="Attainment", rows=rows, lines=lines)


def _reached(metric: str, values: Sequence[float]) -> str:
    tenth, half, most = (format_metric(metric, value) if math.isfinite(value) else "-" for value in values)
    return f"{half} [{tenth}, {most}]"


def _cost(found: Comparison, reach: Sequence[float]) -> Part:
    """Worker time until a front is so good: shares of the union's hypervolume, or a value of each objective."""
    best = max((volume for _, volume in found.front.hypervolume), default=0.0)
    goals = found.info.objectives
    asked = format_values(goals, reach) if reach else ""
    rows = [["", "trials", "worker time", "hypervolume", *([asked] if reach else [f"{share:.0%}" for share in SHARES])]]
    for side in found.sides:
        volumes = [volume for _, volume in side.front.hypervolume]
        good = [[_as_good(goals, values_of(trial), reach) for trial in side.front.trials]] if reach else [
            [0 < share * best <= volume for volume in volumes] for share in SHARES]  # fmt: skip
        spent = duration(side.given.spent(math.inf))
        row = [side.label, str(len(side.front.finished)), spent, f"{max(volumes, default=0.0):.4g}"]
        rows.append([*row, *(_until(side, each) for each in good)])
    until = "the first trial as good as that" if reach else "that share of the hypervolume of all"
    lines = [f"worker time until {until}; by values as measured, on what is shared"]
    if not best and not reach:
        lines.append("no trial is better in every objective than the corner of the hypervolume: ask with --target")
    if free := [side.label for side in found.sides if side.given.info.work.cached]:
        lines.append(f"results that were at hand cost nothing: {', '.join(free)}")
    if len({side.given.info.device for side in found.sides}) > 1:
        lines.append("they ran on different devices: their times are not comparable")
    return Part(title="Cost", rows=rows, lines=lines)


def _as_good(goals: Sequence[Objective], values: Sequence[float], least: Sequence[float]) -> bool:
    return all(catalogue.sign(goal.goal) * (value - asked) >= 0
               for goal, value, asked in zip(goals, values, least, strict=True))  # fmt: skip


def _until(side: Side, good: Sequence[bool]) -> str:
    place = good.index(True) if True in good else None
    return "never" if place is None else f"{duration(side.spent[place])}, {plural(place + 1, 'trial')}"


def _settings(found: Comparison) -> Part:
    """What the spaces and the origins do not share."""
    given = {side.label: {**dict(dotted(dict(side.given.info.space))),
                          **{name: value for name, value in side.given.info.provenance().items() if name in COMPARED}}
             for side in found.sides}  # fmt: skip
    keys = dict.fromkeys(key for values in given.values() for key in values if key not in ("question", "name"))
    rows = [["setting", *given]]
    for key in keys:
        cells = [format_setting(values[key]) if key in values else "-" for values in given.values()]
        if len(set(cells)) > 1:
            rows.append([key, *(cell if len(cell) <= 40 else f"{cell[:37]}..." for cell in cells)])
    words = tuple(range(len(rows[0])))
    return Part(title="Settings that differ", rows=rows if len(rows) > 1 else (), words=words,
                lines=[] if len(rows) > 1 else ["none"])  # fmt: skip


# --- picture and page ---------------------------------------------------------------------------------


def drawing(found: Comparison) -> Drawing:
    """A panel for each pair of objectives, and one for hypervolume over cost."""
    pairs = objective_pairs(found.info)

    def draw(canvas: Canvas) -> None:
        canvas.set_size_inches(5.2 * (len(pairs) + 1), 4.4)
        *fronts, cost = canvas.subplots(1, len(pairs) + 1, squeeze=False)[0]
        for axes, pair in zip(fronts, pairs, strict=True):
            for place, side in enumerate(found.sides):
                _draw_side(axes, side, pair, PALETTE[place % len(PALETTE)], SHAPES[place % len(SHAPES)])
            xs, ys = found.front.coordinates(found.front.baselines, pair)
            axes.plot(xs, ys, "x", color="#777777", label="baselines")
            x, y = axis_titles(found.info, pair)
            axes.set_xlabel(x)
            axes.set_ylabel(y)
        for place, side in enumerate(found.sides):
            volumes = [volume for _, volume in side.front.hypervolume]
            cost.step(side.spent, volumes, where="post", color=PALETTE[place % len(PALETTE)])
        cost.set_xlabel("seconds that workers were held")
        cost.set_ylabel("hypervolume")

    caption = f"{found.info.name}: their trials, the fronts among them and where those run in 10 to 90 % of resamples."
    return Drawing(kind="comparison", caption=caption, data=(), draw=draw)


def _draw_side(axes: Axes, side: Side, pair: tuple[int, int], colour: str, shape: str) -> None:
    axes.scatter(*side.front.coordinates(side.front.trials, pair), s=14, color=colour, alpha=0.4, linewidths=0)
    xs, ys = side.front.coordinates(side.front.members, pair)
    axes.scatter(xs, ys, s=36, color=colour, marker=shape, label=side.label, zorder=4)
    if side.evidence.region is not None:
        axes.plot(*staircase(side.front), color=colour, linewidth=1)
        draw_region(axes, side.evidence.region, side.front.goals[1], colour)


def write_comparison(folder: Path, found: Comparison, parts: Sequence[Part]) -> None:
    """comparison.png and comparison.html."""
    drawn = drawing(found)
    with written_whole(folder / "comparison.png") as partial:
        partial.write_bytes(drawn.saved("png"))
    head = f'<header><h1>{safe(found.info.name)}</h1></header>\n<div class="wide" tabindex="0">{drawn.inline()}</div>'
    write_html(folder / "comparison.html", found.info.name, [head, *map(as_html, parts)])
