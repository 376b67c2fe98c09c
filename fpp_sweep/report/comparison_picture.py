"""Picture of a comparison of sweeps: their fronts for each pair of objectives, and hypervolume over cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING

from fpp_sweep.records.front import objective_pairs
from fpp_sweep.report.comparison import ComparedSweep, SweepComparison
from fpp_sweep.report.figures import (
    FrontFigure,
    Points,
    Region,
    Staircase,
    StaticFigure,
    axis_titles,
    draw_front,
    regions_of,
    staircases_of,
)
from fpp_sweep.spec.palette import CROSS, GREY, MARKERS, PALETTE, Marker

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL_WIDTH, HEIGHT = 5.2, 4.4  # inches


def comparison_figure(comparison: SweepComparison) -> StaticFigure:
    panels = [_panel(comparison, pair) for pair in objective_pairs(comparison.info)]

    def draw(figure: Figure) -> None:
        figure.set_size_inches(PANEL_WIDTH * (len(panels) + 1), HEIGHT)
        *front_axes, cost_axes = figure.subplots(1, len(panels) + 1, squeeze=False)[0]
        for axes, panel in zip(front_axes, panels, strict=True):
            draw_front(axes, panel)
        for sweep, color, _ in _styled(comparison):
            cost_axes.step(sweep.seconds, sweep.volumes, where="post", color=color)
        cost_axes.set_xlabel("worker seconds")
        cost_axes.set_ylabel("hypervolume")

    caption = f"{comparison.info.name}: trials, their fronts, and the fronts of 10 to 90 % of the resamples."
    return StaticFigure(kind="comparison", caption=caption, data=(), draw=draw)


def _styled(comparison: SweepComparison) -> Iterator[tuple[ComparedSweep, str, Marker]]:
    """Yield each sweep with its color and marker."""
    yield from zip(comparison.sweeps, cycle(PALETTE), cycle(MARKERS), strict=False)


def _panel(comparison: SweepComparison, pair: tuple[int, int]) -> FrontFigure:
    points: list[Points] = []
    staircases: list[Staircase] = []
    regions: list[Region] = []
    for sweep, color, marker in _styled(comparison):
        front = sweep.front
        xs, ys = front.coordinates(front.trials, pair)
        points.append(Points(kind="trials", label="", records=front.trials, xs=xs, ys=ys, color=color))
        xs, ys = front.coordinates(front.members, pair)
        points.append(
            Points(kind="front", label=sweep.label, records=front.members, xs=xs, ys=ys, color=color, marker=marker)
        )
        staircases += staircases_of(front, color)
        regions += regions_of(front, sweep.attainment, color)
    union = comparison.statistics.front
    xs, ys = union.coordinates(union.baselines, pair)
    points.append(
        Points(kind="baseline", label="baselines", records=union.baselines, xs=xs, ys=ys, color=GREY, marker=CROSS)
    )
    x_title, y_title = axis_titles(comparison.info, pair)
    return FrontFigure(
        pair=pair, x_title=x_title, y_title=y_title, points=points, staircases=staircases, regions=regions
    )
