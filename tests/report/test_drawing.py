"""Drawing by matplotlib: order, labels and legibility of what the figures show."""

import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from fpp_sweep.records.answer import statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.report.figures import (
    Chart,
    ErrorBar,
    Points,
    ReliabilityDiagram,
    Series,
    StaticFigure,
    draw_reliability_diagrams,
    error_bar,
    frame_of,
    front_figures,
    regions_of,
    series_styles,
    staircases_of,
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


def test_the_frame_covers_points_and_intervals():
    zero_shot, good, second = baseline(ZERO_SHOT, 66, 9), trial(0, 70, 5), trial(1, 68, 7)
    points = [
        points_of([second], [68.0], [7.0]),
        points_of([good], [70.0], [5.0], "front", x_errors=[ErrorBar(5.0, 4.0)], y_errors=[ErrorBar(2.0, 5.0)]),
        points_of([zero_shot], [66.0], [9.0], "baseline"),
    ]
    frame = frame_of(points)
    assert frame.xs == pytest.approx((65 - 0.08 * 9, 74 + 0.08 * 9))
    assert frame.ys == pytest.approx((3 - 0.08 * 7, 10 + 0.08 * 7))


# --- its drawing --------------------------------------------------------------------------------------


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


def test_the_title_of_the_picture_names_the_trials_at_its_edge(tmp_path, written):
    info = sweep_info(name="mine")
    write_front_picture(tmp_path / "front.png", info, statistics_of_samples(info, front_of(info, FALLEN), {}))
    assert written[0].caption.splitlines() == [
        "mine",
        "1 of 3 finished trials on the front, val split",
        "1 trial more than 5 points below zero_shot: triangles at the edge",
    ]


def test_the_title_names_the_trials_at_the_edge_if_any_panel_has_them_there(tmp_path, written):
    """All trials above the floor have the same NLL, so that the panels with NLL have no frame."""
    objectives = (ACCURACY, ECE, NLL)
    info = sweep_info(objectives)
    records = []
    for record in FALLEN:
        records.append(replace(record, values=[*record.values, 3.0 if record.name == "trial-0002" else 0.5]))
    statistics = statistics_of_samples(info, front_of(info, records), {})
    assert {figure.frame is None for figure in front_figures(info, statistics)} == {True, False}
    write_front_picture(tmp_path / "front.png", info, statistics)
    assert "1 trial more than 5 points below zero_shot" in written[0].caption


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
