"""front.png: the trials, the front among them and the baselines beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fpp_sweep.records.front import Front, objective_pairs, staircase
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.evidence import Evidence
from fpp_sweep.report.theme import PALETTE
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.files import written_whole

_BLUE, _RED, *_ = PALETTE
_GREY = "#999999"
_PANEL = (6.4, 4.8)  # inches
_SHAPES = "sD^vP*XhdpH8"


def write_picture(path: Path, info: SweepInfo, front: Front, evidence: Evidence) -> None:
    """One panel for each pair of objectives; a single objective over the order of the trials."""
    pairs = objective_pairs(info)
    figure = Figure(figsize=(_PANEL[0] * len(pairs), _PANEL[1]), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, pair in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
        _draw(axes, info, front, pair)
        _draw_evidence(axes, info, front, pair, evidence)
    title = textwrap.fill(info.name, 60 * len(pairs))
    heading = f"{title}\n{len(front.members)} of {len(front.finished)} trials on the front, {info.search_split} split"
    figure.suptitle(heading, fontsize="medium", parse_math=False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    labels = [str(label).replace("$", r"\$") for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    with written_whole(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})


def _draw(axes: Axes, info: SweepInfo, front: Front, pair: tuple[int, int]) -> None:
    def draw(records: Sequence[TrialRecord], label: str, **style: Any) -> None:
        axes.scatter(*front.coordinates(records, pair), label=label, **style)

    draw(front.dominated, "trials", s=22, color=_GREY, alpha=0.7, linewidths=0, zorder=2)
    if front.infeasible:
        draw(front.infeasible, "break a constraint", s=22, color=_GREY, marker="x", zorder=2)
    if len(info.objectives) == 2:
        axes.plot(*staircase(front), color=_BLUE, linewidth=1.2, zorder=3)
    draw(front.members, "front", s=48, color=_BLUE, edgecolors="white", zorder=5)
    for shape, baseline in zip(cycle(_SHAPES), front.baselines, strict=False):
        xs, ys = front.coordinates([baseline], pair)
        if pair[0] == pair[1]:
            axes.axhline(ys[0], color=_RED, linewidth=0.8, linestyle=":", zorder=1)
        axes.plot(xs, ys, shape, color=_RED, label=baseline.label, linestyle="", zorder=4)
    x, y = axis_titles(info, pair)
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel(y, parse_math=False)
    axes.margins(0.08)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_evidence(axes: Axes, info: SweepInfo, front: Front, pair: tuple[int, int], evidence: Evidence) -> None:
    """The members' intervals, and where the front runs in 10, 50 and 90 % of the resamples."""
    if evidence.region is not None:
        labels = ("front in 10 to 90 % of resamples", "in half of them")
        draw_region(axes, evidence.region, info.objectives[1].goal, _BLUE, labels)
    for member in front.members:
        (x,), (y,) = front.coordinates([member], pair)
        across, up = reaches(info, evidence, member.name, pair)
        axes.errorbar(x, y, xerr=across, yerr=up, color=_BLUE, linewidth=0.8, alpha=0.6, zorder=4)


def draw_region(axes: Axes, region: Any, goal: Goal, colour: str, labels: Sequence[str | None] = (None, None)) -> None:
    """Where a front runs in most of the resamples, and in half of them; the goal is that of the second objective."""
    places, (tenth, half, most) = region
    known = np.concatenate([tenth, most])[np.isfinite(np.concatenate([tenth, most]))]
    worst = (known.max() if goal == "min" else known.min()) if len(known) else np.nan
    most = np.where(np.isfinite(most), most, worst)  # there the front ends sooner in one resample of ten
    axes.fill_between(places, finite(tenth), most, color=colour, alpha=0.12, linewidth=0, zorder=1, label=labels[0])
    axes.plot(places, finite(half), color=colour, linewidth=0.8, linestyle="--", zorder=1, label=labels[1])


def finite(values: Any) -> Any:
    """Gaps where fewer resamples reach so far."""
    return np.where(np.isfinite(values), values, np.nan)


def reaches(info: SweepInfo, evidence: Evidence, name: str, pair: tuple[int, int]) -> tuple[float | None, float | None]:
    """Half the widths of a record's intervals in two objectives; None where there is none, or no axis for it."""
    found = evidence.splits.get(info.search_split)
    given = [found.interval(name, info.objectives[index].metric) if found else "" for index in pair]
    across, up = (None if isinstance(one, str) else one.high - one.value for one in given)
    return None if pair[0] == pair[1] else across, up


def axis_titles(info: SweepInfo, pair: tuple[int, int]) -> tuple[str, str]:
    """The objectives of a pair, with an arrow towards their better ends."""
    x, y = (info.objectives[index] for index in pair)
    return (
        "trials, in the order they finished; baselines at 0"
        if x is y
        else f"{x.metric}  (better {'→' if x.goal == 'max' else '←'})",
        f"{y.metric}  (better {'↑' if y.goal == 'max' else '↓'})",
    )
