"""front.png: the trials, the front among them and the baselines beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.files import written_whole
from fpp_sweep.records.front import Front, objective_pairs, staircase, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Paul Tol's bright scheme, for colour-blind readers; shapes tell the groups apart in grey
_BLUE, _RED, _GREY = "#4477AA", "#EE6677", "#999999"
_PANEL = (6.4, 4.8)  # inches
_SHAPES = "sD^vP*XhdpH8"


def write_picture(path: Path, info: SweepInfo, front: Front) -> None:
    """One panel for each pair of objectives; a single objective over the order of the trials."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pairs = objective_pairs(info)
    figure = Figure(figsize=(_PANEL[0] * len(pairs), _PANEL[1]), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, pair in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
        _draw(axes, info, front, pair)
    count = len(front.trials) + len(front.infeasible)
    title = textwrap.fill(info.name, 60 * len(pairs))
    heading = f"{title}\n{len(front.members)} of {count} trials on the front, {info.search_split} split"
    figure.suptitle(heading, fontsize="medium", parse_math=False)
    figure.legend(*_legend(figure.axes), loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    with written_whole(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})


def _draw(axes: Axes, info: SweepInfo, front: Front, pair: tuple[int, int]) -> None:
    alone = pair[0] == pair[1]
    members = {member.name for member in front.members}
    others = [trial for trial in front.trials if trial.name not in members]
    order = {trial.name: index for index, trial in enumerate([*front.trials, *front.infeasible], 1)}

    def coordinates(records: Sequence[TrialRecord]) -> tuple[list[float], list[float]]:
        xs = [float(order[record.name]) if alone else values_of(record)[pair[0]] for record in records]
        return xs, [values_of(record)[pair[1]] for record in records]

    axes.scatter(*coordinates(others), s=22, color=_GREY, alpha=0.7, linewidths=0, label="trials", zorder=2)
    if front.infeasible:
        axes.scatter(
            *coordinates(front.infeasible), s=22, color=_GREY, marker="x", label="break a constraint", zorder=2
        )
    if len(info.objectives) == 2:
        axes.plot(*staircase(front), color=_BLUE, linewidth=1.2, zorder=3)
    axes.scatter(*coordinates(front.members), s=48, color=_BLUE, edgecolors="white", label="front", zorder=5)
    for shape, baseline in zip(cycle(_SHAPES), front.baselines, strict=False):
        label = baseline.name.removeprefix("baseline-")
        value = values_of(baseline)
        if alone:
            axes.axhline(value[0], color=_RED, linewidth=0.8, linestyle=":", zorder=1)
            axes.plot([0], [value[0]], shape, color=_RED, label=label, linestyle="", zorder=4)
        else:
            axes.plot([value[pair[0]]], [value[pair[1]]], shape, color=_RED, label=label, linestyle="", zorder=4)
    x, y = (info.objectives[index] for index in pair)
    axes.set_xlabel(
        "trials, in the order they finished; baselines at 0" if alone else axis_title(x, "→", "←"), parse_math=False
    )
    axes.set_ylabel(axis_title(y, "↑", "↓"), parse_math=False)
    axes.margins(0.08)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def axis_title(objective: Objective, up: str, down: str) -> str:
    """An objective with where its better end is."""
    return f"{objective.metric}  (better {up if objective.goal == 'max' else down})"


def _legend(panels: Sequence[Axes]) -> tuple[list[Artist], list[str]]:
    handles, labels = panels[0].get_legend_handles_labels()
    return list(handles), [str(label).replace("$", r"\$") for label in labels]
