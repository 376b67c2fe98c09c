"""Drawing by matplotlib: order, labels and legibility of what the figures show."""

import io
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from PIL import Image

from fpp_sweep.records.answer import statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.report.figures import (
    FRAME_MARGIN,
    MAX_DIAGRAMS,
    MEDIAN_LABEL,
    REGION_LABEL,
    Chart,
    ErrorBar,
    Frame,
    FrontFigure,
    Points,
    Region,
    ReliabilityDiagram,
    Series,
    Staircase,
    StaticFigure,
    draw_charts,
    draw_front,
    draw_reliability_diagrams,
    error_bar,
    frame_of,
    front_figures,
    regions_of,
    series_styles,
    staircases_of,
    with_margin,
    write_front_picture,
)
from fpp_sweep.spec.palette import BLUE, CROSS, GREEN, GREY, INK, MARKERS, PALETTE, PAPER, RED
from fpp_sweep.statistics.attainment import Attainment
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import ACCURACY, ECE, NLL, all_baselines, baseline, sweep_info, trial

SQUARE, DIAMOND = MARKERS[1], MARKERS[2]
DEFAULT_LINE_WIDTH = 1.5  # points, matplotlib's default: thinner lines leave markers visible


# --- the figure of a front ----------------------------------------------------------------------------


def figures_of(records, objectives=(ACCURACY, ECE)):
    info = sweep_info(objectives)
    return front_figures(info, statistics_of_samples(info, front_of(info, records), {}))


def test_each_kind_of_record_has_its_label_color_and_marker():
    broken = trial(2, 71, 6, constraints={"ece": 1.0})
    records = [baseline(ZERO_SHOT, 66, 9), baseline(TPT, 67, 8), trial(0, 70, 5), trial(1, 69, 6), broken]
    (figure,) = figures_of(records)
    looks = []
    for points in figure.points:
        names = [record.name for record in points.records]
        looks.append((points.kind, points.label, points.color, points.marker, names))
    assert looks == [
        ("trials", "trials", GREY, MARKERS[0], ["trial-0001"]),
        ("infeasible", "break a constraint", GREY, CROSS, ["trial-0002"]),
        ("front", "front", BLUE, MARKERS[0], ["trial-0000"]),
        ("baseline", ZERO_SHOT, RED, SQUARE, [f"baseline-{ZERO_SHOT}"]),
        ("baseline", TPT, GREEN, DIAMOND, [f"baseline-{TPT}"]),
    ]
    assert [(points.xs, points.ys) for points in figure.points[:2]] == [([69], [6]), ([71], [6])]
    (staircase,) = figure.staircases
    assert staircase.color == BLUE
    assert figure.pair == (0, 1)


def test_more_baselines_than_markers_have_looks_that_begin_again():
    names = [f"baseline_{number:02}" for number in range(len(MARKERS) + 1)]
    (figure,) = figures_of([trial(0), *(baseline(name, 60, 9) for name in names)])
    baselines = [points for points in figure.points if points.kind == "baseline"]
    assert [points.label for points in baselines] == names
    assert baselines[len(MARKERS) - 1].marker == baselines[0].marker == SQUARE


@pytest.mark.parametrize(("objectives", "count"), [((ACCURACY,), 0), ((ACCURACY, ECE), 1), ((ACCURACY, ECE, NLL), 0)])
def test_only_a_front_of_two_objectives_has_a_staircase(objectives, count):
    front = front_of(sweep_info(objectives), [trial(0, objectives=objectives)])
    assert len(staircases_of(front, BLUE)) == count


def test_an_error_bar_begins_at_its_value_and_has_no_negative_length(far):
    info, statistics = far
    (member,) = statistics.front.members
    interval = statistics.interval(member, "val", "ece")

    class Shifted:
        """Statistics whose interval lies on one side of the value, as that of a biased metric may."""

        def __init__(self, low, high):
            self.shifted = replace(interval, value=5.0, low=low, high=high)

        def interval(self, record, split, metric):
            return self.shifted

    assert error_bar(info, Shifted(6.0, 7.0), member, "ece") == (0.0, 2.0)
    assert error_bar(info, Shifted(3.0, 4.0), member, "ece") == (2.0, 0.0)
    assert error_bar(info, Shifted(4.0, 7.0), member, "ece") == (1.0, 2.0)


def test_the_region_ends_at_the_worst_value_that_is_reached_where_few_resamples_get_so_far(far):
    _, statistics = far
    attainment = Attainment(
        positions=np.array([60.0, 65.0, 70.0]),
        best=np.array([2.0, 3.0, np.inf]),
        median=np.array([4.0, 5.0, np.inf]),
        worst=np.array([6.0, np.inf, np.inf]),
    )
    assert regions_of(statistics.front, None, BLUE) == []
    (region,) = regions_of(statistics.front, attainment, RED)
    assert region.color == RED
    assert region.xs == [60, 65, 70]
    assert region.best == [2, 3, None]
    assert region.median == [4, 5, None]
    assert region.worst == [6, 6, 6]  # ECE is better if it is lower: the worst is the highest one
    better_if_high = replace(statistics.front, objectives=(ECE, ACCURACY))
    falling = replace(attainment, best=-attainment.best, median=-attainment.median, worst=-attainment.worst)
    (region,) = regions_of(better_if_high, falling, RED)
    assert region.worst == [-6, -6, -6]


def test_the_region_contains_the_front_of_half_of_the_resamples_also_if_few_get_as_far_anywhere(far):
    _, statistics = far
    nowhere = np.full(2, np.inf)
    attainment = Attainment(
        np.array([60.0, 65.0]), best=np.array([2.0, 3.0]), median=np.array([4.0, 5.0]), worst=nowhere
    )
    (region,) = regions_of(statistics.front, attainment, RED)
    assert region.worst == [5, 5]


def points_of(records, xs, ys, kind="trials", **changes):
    return Points(kind=kind, label=kind, records=records, xs=xs, ys=ys, color=GREY, **changes)


def test_the_frame_covers_the_intervals_of_all_trials_above_the_floor():
    records = [baseline(ZERO_SHOT, 66, 9), trial(0, 70, 5), trial(1, 68, 7), trial(2, 20, 60)]
    front = front_of(sweep_info(), records)
    zero_shot, good, second, fallen = records
    points = [
        points_of([second, fallen], [68.0, 20.0], [7.0, 60.0]),
        points_of([good], [70.0], [5.0], "front", x_errors=[ErrorBar(5.0, 4.0)], y_errors=[ErrorBar(2.0, 5.0)]),
        points_of([zero_shot], [66.0], [9.0], "baseline"),
    ]
    frame = frame_of(front, points)
    assert frame.xs == pytest.approx((65 - 0.08 * 9, 74 + 0.08 * 9))
    assert frame.ys == pytest.approx((3 - 0.08 * 7, 10 + 0.08 * 7))


@pytest.mark.parametrize(("xs", "ys"), [([68.0, 68.0], [7.0, 5.0]), ([68.0, 70.0], [5.0, 5.0])])
def test_without_a_range_on_an_axis_there_is_no_frame(xs, ys):
    records = [baseline(ZERO_SHOT, 66, 9), trial(0, 70, 5), trial(1, 68, 7), trial(2, 20, 60)]
    assert frame_of(front_of(sweep_info(), records), [points_of(records[1:3], xs, ys)]) is None


def test_a_margin_is_a_share_of_the_range():
    assert with_margin([2.0, 6.0, 4.0], 0.25) == (1.0, 7.0)


# --- its drawing --------------------------------------------------------------------------------------


def region(color):
    return Region(color=color, xs=[60, 70], best=[2, None], median=[3, 4], worst=[5, 6])


def full_figure(pair=(0, 1), **changes):
    """Return a figure with everything that a front can show."""
    records = [trial(number) for number in range(2)]
    errors = {"x_errors": [ErrorBar(1, 2), None], "y_errors": [None, ErrorBar(0.5, 0.25)]}
    points = [
        Points(kind="trials", label="", records=records, xs=[60, 61], ys=[9, 8], color=GREY),
        Points(kind="infeasible", label="bad", records=records, xs=[62, 63], ys=[9, 8], color=GREY, marker=CROSS),
        Points(kind="front", label="front", records=records, xs=[70, 71], ys=[5, 6], color=BLUE, **errors),
        Points(kind="baseline", label="zero", records=records[:1], xs=[0], ys=[7], color=RED, marker=SQUARE),
    ]
    fields = {
        "points": points,
        "staircases": [Staircase(color=GREEN, xs=[70, 71], ys=[5, 6])],
        "regions": [region(BLUE), region(RED)],
        **changes,
    }
    return FrontFigure(pair=pair, x_title="accuracy", y_title="ece", **fields)


def drawn(figure):
    axes = Figure().subplots()
    draw_front(axes, figure)
    return axes


def scatters(axes):
    """Return the scatters by kind, in the order of `full_figure`; regions and error bars are other artists."""
    found = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    return dict(zip(("trials", "infeasible", "front", "baseline"), found, strict=True))


def error_bars(axes):
    """Return the ends of all drawn intervals, each as ((x, y), (x, y)), and their artists."""
    lines = [line for container in axes.containers for line in container.lines[2]]
    return [tuple(map(tuple, line.get_segments()[0].tolist())) for line in lines], lines


def test_the_front_is_drawn_above_intervals_baselines_staircase_trials_and_regions():
    axes = drawn(full_figure())
    by_kind = scatters(axes)
    regions, medians = axes.collections[:2], [line for line in axes.lines if line.get_linestyle() == "--"]
    (staircase,) = [line for line in axes.lines if to_hex(line.get_color()) == GREEN.lower()]
    _, bars = error_bars(axes)
    assert len(regions) == len(medians) == 2
    layers = [
        [artist.get_zorder() for artist in (*regions, *medians)],
        [by_kind["trials"].get_zorder(), by_kind["infeasible"].get_zorder()],
        [staircase.get_zorder()],
        [by_kind["baseline"].get_zorder(), *(bar.get_zorder() for bar in bars)],
        [by_kind["front"].get_zorder()],
    ]
    for below, above in pairwise(layers):
        assert max(below) < min(above)
    widths = [*(line.get_linewidth() for line in medians), *(bar.get_linewidth()[0] for bar in bars)]
    assert max(widths) < staircase.get_linewidth() < DEFAULT_LINE_WIDTH
    assert all(0 < bar.get_alpha() < 1 for bar in bars)


def test_points_have_the_color_and_marker_of_their_kind_and_a_label_only_if_they_have_one():
    axes = drawn(full_figure())
    by_kind = scatters(axes)
    colors = {kind: to_hex(scatter.get_facecolor()[0]) for kind, scatter in by_kind.items()}
    assert colors == {"trials": GREY, "infeasible": GREY, "front": BLUE.lower(), "baseline": RED.lower()}
    for kind, marker in (("infeasible", "x"), ("baseline", "s"), ("front", "o")):
        style = MarkerStyle(marker)
        expected = style.get_path().transformed(style.get_transform())
        assert np.array_equal(by_kind[kind].get_paths()[0].vertices, expected.vertices), kind
    labels = axes.get_legend_handles_labels()[1]
    assert sorted(labels) == sorted([REGION_LABEL, MEDIAN_LABEL, "bad", "front", "zero"])
    assert REGION_LABEL in drawn(full_figure(regions=[region(BLUE)])).get_legend_handles_labels()[1]


def test_an_interval_is_drawn_from_its_low_to_its_high_end_in_the_color_of_its_point():
    axes = drawn(full_figure())
    ends, bars = error_bars(axes)
    assert ends == [((69, 5), (72, 5)), ((71, 5.5), (71, 6.25))]
    for bar in bars:
        assert to_hex(bar.get_color()[0]) == BLUE.lower()
    only_y = replace(full_figure().points[2], x_errors=())
    ends, _ = error_bars(drawn(full_figure(points=[only_y])))
    assert ends == [((71, 5.5), (71, 6.25))]


def test_the_region_is_a_pale_band_without_an_edge_around_a_dashed_line():
    axes = drawn(full_figure())
    for band, color in zip(axes.collections[:2], (BLUE, RED), strict=True):
        red, green, blue, alpha = band.get_facecolor()[0]
        assert (red, green, blue) == to_rgba(color)[:3]
        assert 0 < alpha < 0.2  # grid lines and a second band stay visible through it
        assert band.get_linewidth()[0] == 0
        low, high = band.get_paths()[0].get_extents().intervaly
        assert (low, high) == (2, 5)  # the band ends where no front is reached
    medians = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [to_hex(line.get_color()) for line in medians] == [BLUE.lower(), RED.lower()]
    assert [line.get_ydata().tolist() for line in medians] == [[3, 4], [3, 4]]


def test_a_single_objective_has_a_dotted_level_for_each_baseline():
    (level,) = [line for line in drawn(full_figure(pair=(1, 1))).lines if line.get_linestyle() == ":"]
    assert set(level.get_ydata()) == {7}
    assert to_hex(level.get_color()) == RED.lower()
    assert level.get_zorder() < 2  # below the trials
    assert level.get_linewidth() < DEFAULT_LINE_WIDTH * 0.6
    for pair in ((0, 1), (0, 2), (1, 2)):
        assert not [line for line in drawn(full_figure(pair=pair)).lines if line.get_linestyle() == ":"]


def test_axes_have_titles_and_the_frame_or_a_margin():
    axes = drawn(full_figure())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("accuracy", "ece")
    assert axes.margins() == (FRAME_MARGIN, FRAME_MARGIN)
    framed = drawn(full_figure(frame=Frame((65.0, 72.0), (4.0, 8.0))))
    assert (framed.get_xlim(), framed.get_ylim()) == ((65, 72), (4, 8))


# --- files --------------------------------------------------------------------------------------------


@pytest.fixture
def written(monkeypatch):
    """Collect the figures that are written as files."""
    figures = []
    to_bytes = StaticFigure.to_bytes

    def collect(figure, file_format):
        figures.append(figure)
        return to_bytes(figure, file_format)

    monkeypatch.setattr(StaticFigure, "to_bytes", collect)
    return figures


def canvas_of(picture):
    canvas = Figure()
    picture.draw(canvas)
    return canvas


FALLEN = (baseline(ZERO_SHOT, 66, 9), trial(0, 70, 5), trial(1, 68, 7), trial(2, 20, 60))


@pytest.mark.parametrize(("objectives", "panels"), [((ACCURACY,), 1), ((ACCURACY, ECE), 1), ((ACCURACY, ECE, NLL), 3)])
def test_the_picture_has_a_panel_for_each_pair_of_objectives(tmp_path, written, objectives, panels):
    info = sweep_info(objectives, name="n" * 100)
    records = [*all_baselines(objectives), *(trial(number, objectives=objectives) for number in range(3))]
    statistics = statistics_of_samples(info, front_of(info, records), {})
    path = tmp_path / "front.png"
    write_front_picture(path, info, statistics)
    with Image.open(path) as image:
        assert image.size == (960 * panels, 720)  # 6.4 x 4.8 inches with 150 dots each
    (picture,) = written
    canvas = canvas_of(picture)
    assert [axes.get_xlabel() for axes in canvas.axes] == [figure.x_title for figure in front_figures(info, statistics)]
    assert all(axes.collections for axes in canvas.axes)
    title = canvas.get_suptitle()
    assert title == picture.caption
    *name, counts = title.splitlines()
    assert [len(line) for line in name] == ([60, 40] if panels == 1 else [100])
    assert counts == f"{len(statistics.front.members)} of 3 finished trials on the front, val split"


def test_the_title_of_the_picture_names_the_trials_that_its_axes_leave_out(tmp_path, written):
    info = sweep_info(name="mine")
    write_front_picture(tmp_path / "front.png", info, statistics_of_samples(info, front_of(info, FALLEN), {}))
    assert written[0].caption.splitlines() == [
        "mine",
        "1 of 3 finished trials on the front, val split",
        "axes fitted without 1 trial more than 5 points below zero_shot",
    ]


def test_the_title_names_the_left_out_trials_if_any_panel_leaves_them_out(tmp_path, written):
    """All trials above the floor have the same NLL, so that the panels with NLL have no frame."""
    objectives = (ACCURACY, ECE, NLL)
    info = sweep_info(objectives)
    records = []
    for record in FALLEN:
        records.append(replace(record, values=[*record.values, 3.0 if record.name == "trial-0002" else 0.5]))
    statistics = statistics_of_samples(info, front_of(info, records), {})
    assert {figure.frame is None for figure in front_figures(info, statistics)} == {True, False}
    write_front_picture(tmp_path / "front.png", info, statistics)
    assert "axes fitted without 1 trial" in written[0].caption


def simple_figure(labels, caption="", kept=None):
    """Return a figure with a labelled line for each label; the canvas is added to `kept`."""

    def draw(canvas):
        axes = canvas.subplots()
        for label in labels:
            axes.plot([0, 1], [0, 1], label=label)
        axes.set_title(caption)
        if kept is not None:
            kept.append(canvas)

    return StaticFigure(kind="lines", caption=caption, data=(), draw=draw)


def test_the_legend_stands_below_the_axes_in_rows_of_four():
    kept = []
    picture = simple_figure(["a", "b", "c", "d", "e"], kept=kept).to_bytes("png")
    (canvas,) = kept
    (legend,) = canvas.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c", "d", "e"]
    tops = [round(text.get_window_extent().y0) for text in legend.get_texts()]
    assert len(set(tops)) == 2
    assert sorted(tops.count(top) for top in set(tops)) == [1, 4] or sorted(tops.count(top) for top in set(tops)) == [
        2,
        3,
    ]
    (axes,) = canvas.axes
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0 + 1
    assert Image.open(io.BytesIO(picture)).size == (960, 720)


def test_files_name_neither_a_date_nor_the_library_that_wrote_them():
    figure = simple_figure(["a"])
    assert "Software" not in Image.open(io.BytesIO(figure.to_bytes("png"))).info
    document = figure.to_bytes("pdf")
    for word in (b"CreationDate", b"Producer", b"Creator"):
        assert word not in document
    svg = figure.to_bytes("svg")
    assert b"<dc:date>" not in svg
    assert b"Matplotlib" not in svg.partition(b"<defs>")[0].partition(b"-->")[2]


def test_a_letter_that_the_font_lacks_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simple_figure(["a"], "🙂").to_bytes("png")


def test_svg_has_no_style_metadata_or_comment_of_several_lines():
    text = simple_figure(["a"], "two\nlines").to_svg()
    assert text.startswith('<svg role="img" aria-label="two\nlines" ')
    for part in ("<style", "<metadata", "<!--"):
        assert part not in text


# --- charts -------------------------------------------------------------------------------------------


def chart(*series, **changes):
    return Chart(**{"x_title": "gamma", "y_title": "ece", "series": series, **changes})


def series(kind="line", xs=(1, 2), ys=(3, 4), style=0, **changes):
    return Series(kind=kind, style=series_styles()[style], xs=xs, ys=ys, **changes)


@pytest.mark.parametrize(
    ("columns", "is_log"),
    [
        ([(1, 20)], False),  # at the ratio
        ([(1, 21)], True),
        ([(1, 10), (0.4, 2)], True),  # the axis is that of all series
        ([(0, 1000)], False),
        ([(-5, 1000)], False),
        ([(0.5, 100)], True),
        ([("a", 1000), (1, 1000)], False),
        ([("a", "b")], False),
        ([()], False),
    ],
)
def test_an_axis_is_logarithmic_if_positive_numbers_span_a_wide_range(columns, is_log):
    assert chart(*(series(xs=xs) for xs in columns)).has_log_axis is is_log


def test_styles_of_series_differ_in_every_marker_and_leave_out_the_palest_color():
    styles = series_styles()
    assert [style.marker for style in styles] == list(MARKERS)
    assert [style.color for style in styles[:7]] == [*PALETTE[:-1], PALETTE[0]]
    assert [style.dash for style in styles[:5]] == ["-", "--", "-.", ":", "-"]


def charted(charts, across=None):
    figure = Figure()
    draw_charts(figure, charts, across)
    return figure


@pytest.mark.parametrize(
    ("count", "across", "size", "grid"),
    [(1, None, (4.0, 3.3), (1, 1)), (3, None, (11.2, 3.3), (1, 3)), (4, 2, (7.6, 6.6), (2, 2))],
)
def test_charts_stand_in_rows_and_keep_their_size(count, across, size, grid):
    figure = charted([chart(series(), x_title=str(number)) for number in range(count)], across)
    assert tuple(figure.get_size_inches()) == pytest.approx(size)
    assert [axes.get_xlabel() for axes in figure.axes] == [str(number) for number in range(count)]
    assert figure.axes[0].get_gridspec().get_geometry() == grid


def test_a_chart_has_titles_and_on_request_a_line_at_zero():
    plain, with_zero = charted([chart(series(xs=(1, 30))), chart(series(), zero_line=True)]).axes
    assert (plain.get_xlabel(), plain.get_ylabel()) == ("gamma", "ece")
    assert (plain.get_xscale(), with_zero.get_xscale()) == ("log", "linear")
    assert plain.xaxis.get_major_formatter()(10.0) == "10"
    assert len(plain.lines) == 1
    _, zero = with_zero.lines
    assert set(zero.get_ydata()) == {0}
    assert zero.get_color() == INK
    assert zero.get_linewidth() < 0.8  # thinner than the axes


def test_each_kind_of_series_has_its_look():
    kinds = [
        series("points", label="p"),
        series("large point", xs=[5], ys=[6], style=1, label="o"),
        series("level", ys=[7], style=2, label="l"),
        series("line", style=3, label="n"),
        series("line", style=1, errors=[0.5, 0.25], label="e"),
        series("points"),
    ]
    (axes,) = charted([chart(*kinds)]).axes
    (container,) = axes.containers
    by_label = {artist.get_label(): artist for artist in axes.lines} | {"e": container.lines[0]}
    points, large, level, line, with_errors = (by_label[label] for label in "polne")
    styles = series_styles()
    assert (points.get_linestyle(), points.get_marker(), points.get_color()) == ("None", "o", styles[0].color)
    assert points.get_markeredgewidth() == 0
    assert 0 < points.get_alpha() < 1
    assert (large.get_linestyle(), large.get_marker(), large.get_color()) == ("None", "s", styles[1].color)
    assert large.get_markeredgecolor() == INK
    assert points.get_markersize() < line.get_markersize() < large.get_markersize()
    assert (set(level.get_ydata()), level.get_color(), level.get_linestyle()) == ({7}, styles[2].color, "-.")
    assert (line.get_marker(), line.get_color(), line.get_linestyle()) == ("^", styles[3].color, ":")
    assert (with_errors.get_marker(), with_errors.get_color(), with_errors.get_linestyle()) == ("s", RED, "--")
    assert line.get_xydata().tolist() == with_errors.get_xydata().tolist() == [[1, 3], [2, 4]]
    bars = [segment.tolist() for segment in container.lines[2][0].get_segments()]
    assert bars == [[[1, 2.5], [1, 3.5]], [[2, 3.75], [2, 4.25]]]
    assert len(container.lines[1]) == 2  # a cap at both ends
    assert sorted(axes.get_legend_handles_labels()[1]) == ["e", "l", "n", "o", "p"]


def diagrams(count):
    found = []
    for number in range(count):
        found.append(
            ReliabilityDiagram(
                title=f"set {number}",
                lows=[0.5, 0.9],
                accuracies=[0.4, 0.95],
                confidences=[0.55, 0.92],
                counts=[3, 8],
                bin_width=0.1,
            )
        )
    return found


def visible(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


@pytest.mark.parametrize(
    ("count", "size", "rows", "across"),
    [(1, (4.0, 3.3), 1, 1), (2, (4.2, 3.3), 1, 2), (5, (10.5, 3.3), 1, 5), (7, (10.5, 6.3), 2, 5)],
)
def test_diagrams_stand_in_rows_of_five_each_above_its_number_of_samples(count, size, rows, across):
    figure = Figure()
    draw_reliability_diagrams(figure, diagrams(count))
    assert MAX_DIAGRAMS == 5
    assert tuple(figure.get_size_inches()) == pytest.approx(size)
    uppers = [axes for axes in visible(figure) if axes.get_title()]
    lowers = [axes for axes in visible(figure) if not axes.get_title()]
    assert [axes.get_title() for axes in uppers] == [f"set {number}" for number in range(count)]
    for number, (upper, lower) in enumerate(zip(uppers, lowers, strict=True)):
        (row, column), spec = divmod(number, across), upper.get_subplotspec()
        assert spec.get_gridspec().get_geometry() == (2 * rows, across)
        assert (spec.rowspan.start, spec.colspan.start) == (2 * row, column)
        spec = lower.get_subplotspec()
        assert (spec.rowspan.start, spec.colspan.start) == (2 * row + 1, column)
        names = ("accuracy", "samples") if column == 0 else ("", "")
        assert (upper.get_ylabel(), lower.get_ylabel()) == names
        assert upper.get_xlim() == lower.get_xlim()
        assert lower.get_xlabel() == "confidence"
    assert uppers[0].get_position().height == pytest.approx(3 * lowers[0].get_position().height)
    assert uppers[0].title.get_fontsize() < Figure().subplots().title.get_fontsize()


def test_a_diagram_has_bars_of_accuracy_with_the_gap_to_confidence():
    figure = Figure()
    draw_reliability_diagrams(figure, diagrams(1))
    upper, lower = visible(figure)
    accuracy, gap = upper.containers
    sides = [(bar.get_x(), bar.get_width(), bar.get_y(), bar.get_height()) for bar in (*accuracy, *gap)]
    assert sides == [
        pytest.approx(numbers)
        for numbers in ((0.5, 0.1, 0, 0.4), (0.9, 0.1, 0, 0.95), (0.5, 0.1, 0.4, 0.15), (0.9, 0.1, 0.95, -0.03))
    ]
    assert {to_hex(bar.get_facecolor()) for bar in accuracy} == {BLUE.lower()}
    assert {bar.get_facecolor()[3] for bar in gap} == {0}  # an outline, through which the accuracy is visible
    assert {to_hex(bar.get_edgecolor()) for bar in gap} == {RED.lower()}
    assert {to_hex(bar.get_edgecolor()) for bar in (*accuracy, *lower.patches)} == {PAPER}
    assert max(bar.get_linewidth() for bar in (*accuracy, *lower.patches)) < 0.5 < gap[0].get_linewidth() < 1
    (diagonal,) = upper.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert (diagonal.get_linestyle(), diagonal.get_color()) == ("--", INK)
    assert diagonal.get_linewidth() < 1
    assert (upper.get_xlim(), upper.get_ylim()) == ((0, 1), (0, 1))
    assert set(upper.get_legend_handles_labels()[1]) == {"accuracy", "gap to confidence", "perfect calibration"}
    assert [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in lower.patches] == [
        pytest.approx(numbers) for numbers in ((0.5, 0.1, 3), (0.9, 0.1, 8))
    ]
    assert {to_hex(bar.get_facecolor()) for bar in lower.patches} == {PALETTE[-1].lower()}
