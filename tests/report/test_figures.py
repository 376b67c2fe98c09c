"""The figure of a front, drawn by matplotlib and by plotly from the same data."""

from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.report.figures import StaticFigure, axis_titles, draw_front, front_figures
from fpp_sweep.report.plots import front_plots
from tests.kit.measured import statistics_without_files
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import ACCURACY, ECE, all_baselines, below_floor, sweep_info


def test_the_figure_has_points_intervals_the_staircase_and_the_region_of_resampled_fronts(far):
    information, statistics = far
    (figure,) = front_figures(information, statistics)
    by_label = {points.label: points for points in figure.points}
    assert list(by_label) == ["trials", "front", ZERO_SHOT, TPT]
    interval = statistics.interval(statistics.front.members[0], "val", "accuracy")
    error = by_label["front"].x_errors[:, 0]
    assert error == pytest.approx((interval.value - interval.low, interval.high - interval.value))
    region = figure.region
    assert len(region.xs) == len(region.best) == len(region.worst)
    reached = [(best, worst) for best, worst in zip(region.best, region.worst, strict=True) if best is not None]
    assert len(reached) > len(region.xs) / 2
    assert np.isfinite(reached).all()
    assert all(best <= worst for best, worst in reached)  # the vertical axis is ECE: a lower value is better
    assert figure.staircase is not None


@pytest.mark.parametrize(
    ("objectives", "titles"),
    [
        ((ACCURACY, ECE), ("accuracy  (better →)", "ece  (better ↓)")),
        ((ECE, ACCURACY), ("ece  (better ←)", "accuracy  (better ↑)")),
    ],
)
def test_arrows_of_the_axes_lead_to_their_better_ends(objectives, titles):
    info = sweep_info(objectives)
    assert axis_titles(info, (0, 1)) == titles
    assert axis_titles(info, (1, 1)) == ("trials, in the order they ended; baselines at 0", titles[1])


def test_matplotlib_and_plotly_draw_the_same_points(far):
    from matplotlib.figure import Figure

    information, statistics = far
    (figure,) = front_figures(information, statistics)
    axes = Figure().subplots()
    draw_front(axes, figure)
    drawn = {scatter.get_label(): scatter.get_offsets().tolist() for scatter in axes.collections if scatter.get_label()}
    (plot,) = front_plots(information, statistics)
    for trace in plot.traces:
        if trace.get("mode") == "markers":
            assert drawn[trace["name"]] == [list(point) for point in zip(trace["x"], trace["y"], strict=True)]
    assert any("error_x" in trace for trace in plot.traces)
    (intervals,) = axes.containers
    assert (intervals.has_xerr, intervals.has_yerr) == (True, True)


def test_equal_figures_have_equal_bytes_and_svg_follows_the_readers_theme(far):
    information, statistics = far
    panel = front_figures(information, statistics)[0]
    figure = StaticFigure(caption="<b>", data=(), draw=lambda canvas: draw_front(canvas.subplots(), panel))
    for kind in ("png", "pdf", "svg"):
        assert figure.to_bytes(kind) == figure.to_bytes(kind)
    svg = figure.to_svg()
    assert "var(--ink)" in svg
    assert "#1d2127" not in svg
    assert 'aria-label="&lt;b&gt;"' in svg


def test_a_trial_below_the_floor_stands_at_the_edge_of_the_frame(far):
    information, statistics = far
    front = replace(statistics.front, infeasible=(below_floor(9, 20.0, 30.0),))
    (figure,) = front_figures(information, replace(statistics, front=front))
    (below,) = (points for points in figure.points if points.kind == "below floor")
    assert "trial-0009" in {record.name for record in below.records}
    assert all(front.is_below_floor(record) for record in below.records)
    for points in figure.points:
        assert all(figure.frame.xs[0] < x < figure.frame.xs[1] for x in points.xs)
        assert all(figure.frame.ys[0] < y < figure.frame.ys[1] for y in points.ys)
        if points is not below:
            assert not any(front.is_below_floor(record) for record in points.records)


def test_trials_that_are_all_below_the_floor_are_shown():
    """Six baselines alone would make a frame, and the trial would be an outlier beside them."""
    information = sweep_info()
    statistics = statistics_without_files(information, [*all_baselines(), below_floor(9, 20.0, 30.0)])
    (figure,) = front_figures(information, statistics)
    assert figure.frame is None
