"""The page's plots of the front, the importances and the hypervolume, as plotly's plain data."""

import re
from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of, statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import FINAL, IMPORTED
from fpp_sweep.report.document import Plot
from fpp_sweep.report.effects import Effects
from fpp_sweep.report.figures import MEDIAN_LABEL, REGION_LABEL
from fpp_sweep.report.plots import (
    N_HOVERED_SETTINGS,
    _covering,
    front_plots,
    hypervolume_plot,
    importance_plot,
    largest_shares,
    plot_text,
    range_without_outliers,
    with_zoom,
    without_outliers,
)
from fpp_sweep.spec.palette import BLUE, GREY, RED
from tests.kit.measured import World, write_measured_sweep
from tests.kit.names import ZERO_SHOT
from tests.kit.records import ACCURACY, ECE, all_baselines, baseline, split_result, sweep_info, trial


def plots_of(records, objectives=(ACCURACY, ECE)):
    info = sweep_info(objectives)
    return front_plots(info, statistics_of_samples(info, front_of(info, records), {}))


def trace_named(plot, name):
    (found,) = [trace for trace in plot.traces if trace.get("name") == name and trace["mode"] == "markers"]
    return found


def hollow_traces(plot):
    return [trace for trace in plot.traces if str(trace.get("marker", {}).get("symbol", "")).endswith("-open")]


# --- the front ----------------------------------------------------------------------------------------


def test_a_front_is_drawn_of_trials_alone_and_of_baselines_alone():
    for records, counts in (
        ([trial(0), trial(1)], "2 trials and 0 baselines"),
        (all_baselines()[:1], "0 trials and 1 baseline"),
    ):
        (plot,) = plots_of(records)
        names = [name for trace in plot.traces for name in trace.get("customdata", ())]
        assert {record.name for record in records} <= set(names)
        assert plot.name == "front-0"
        assert plot.description.startswith("ece  (better ↓) over accuracy  (better →) of ")
        assert plot.description.endswith(f" of {counts}; the table has the same numbers")
        titles = [plot.layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
        assert titles == ["accuracy  (better →)", "ece  (better ↓)"]
        assert plot.layout["height"] == 480  # pixels: the page reserves them before the plot is drawn


def test_trials_beside_the_front_have_smaller_and_paler_markers():
    broken = trial(2, 71, 6, constraints={"ece": 1.0})
    (plot,) = plots_of([trial(0, 70, 5), trial(1, 69, 6), broken, baseline(ZERO_SHOT, 66, 9)])
    look = {name: trace_named(plot, name)["marker"] for name in ("trials", "break a constraint", "front", ZERO_SHOT)}
    assert {name: marker["color"] for name, marker in look.items()} == {
        "trials": GREY, "break a constraint": GREY, "front": BLUE, ZERO_SHOT: RED
    }  # fmt: skip
    sizes = {name: marker["size"] for name, marker in look.items()}  # pixels
    assert sizes == {"trials": 7, "break a constraint": 7, "front": 11, ZERO_SHOT: 11}
    for name in ("trials", "break a constraint"):
        assert 0 < look[name]["opacity"] < 1
        assert "opacity" not in look["front"]
    assert trace_named(plot, "break a constraint")["marker"]["symbol"] == "x"


def test_a_hover_label_has_remarks_values_settings_and_broken_constraints():
    settings = {f"s{number:02}": number for number in range(N_HOVERED_SETTINGS)}
    front = trial(0, 70, 5, params=settings)
    many = trial(1, 69, 6, params={**settings, "more": 1, "most": 2})
    broken = trial(2, 71, 6, params={}, constraints={"ece": 1.0, "accuracy": -1.0})
    theirs = replace(baseline("theirs", 60.0, 5.5), origin=IMPORTED, config={"file": "theirs.csv"})
    (plot,) = plots_of([front, many, broken, theirs])
    lines = {}
    for trace in plot.traces:
        if trace["mode"] == "markers":
            for name, text in zip(trace["customdata"], trace["text"], strict=True):
                lines[name] = text.split("<br>")
    assert lines["trial-0000"] == [
        "<b>trial-0000</b> (code, best accuracy, best ece, knee)",
        "accuracy: <b>70.00</b>",
        "ece: <b>5.00</b>",
        *(f"s{number:02} = {number}" for number in range(N_HOVERED_SETTINGS)),
    ]
    assert lines["trial-0001"][0] == "<b>trial-0001</b> (sampled)"
    assert lines["trial-0001"][-2:] == [f"s{N_HOVERED_SETTINGS - 1} = {N_HOVERED_SETTINGS - 1}", "and 2 more"]
    method, prompt = (broken.config[key] for key in ("method", "prompt"))
    assert lines["trial-0002"][3:] == [f"method = {method}", f"prompt = {prompt}", "breaks ece"]
    assert lines["baseline-theirs"] == [
        f"<b>baseline-theirs</b> ({IMPORTED})", "accuracy: <b>60.00</b>", "ece: <b>5.50</b>", "file = theirs.csv"
    ]  # fmt: skip


def test_a_hover_label_names_the_support_before_the_marks(far):
    info, statistics = far
    (plot,) = front_plots(info, statistics)
    (text,) = trace_named(plot, "front")["text"]
    assert text.startswith("<b>trial-0002</b> (sampled, likely, best accuracy, best ece, knee)<br>")


def test_intervals_are_drawn_if_every_member_has_one(far, tmp_path):
    info, statistics = far
    (plot,) = front_plots(info, statistics)
    (member,) = statistics.front.members
    trace = trace_named(plot, "front")
    for axis, metric in (("error_x", "accuracy"), ("error_y", "ece")):
        interval = statistics.interval(member, "val", metric)
        bars = trace[axis]
        assert bars["array"] == pytest.approx([interval.high - interval.value])
        assert bars["arrayminus"] == pytest.approx([interval.value - interval.low])
        assert (bars["type"], bars["symmetric"]) == ("data", False)
        assert bars["thickness"] == 1  # pixel
        assert bars["width"] == 2  # pixels of the bar's end
    assert "error_x" not in trace_named(plot, ZERO_SHOT)
    folder = write_measured_sweep(tmp_path / "two", World(400), {"trial-0002": (0.7, 0.1), "trial-0003": (0.6, 0.05)})
    for file in folder.artifacts("trial-0003").glob("val/*"):
        file.unlink()
    statistics = statistics_of(folder, folder.info(), folder.trials())
    assert len(statistics.front.members) == 2
    (plot,) = front_plots(folder.info(), statistics)
    assert not {"error_x", "error_y"} & set(trace_named(plot, "front"))


def test_a_thin_line_leads_from_each_member_to_its_hollow_marker_on_a_later_split():
    first, second = trial(0, 70, 5, test=True), trial(1, 69, 4, test=True)
    untested = trial(2, 68, 3)
    last = {**first.results, FINAL: split_result(71.5, 6.5)}
    records = [replace(first, results=last), second, untested, baseline(ZERO_SHOT, 66, 9)]
    (plot,) = plots_of(records)
    on_front = [trace for trace in hollow_traces(plot) if trace["showlegend"]]
    by_name = {trace["name"]: trace for trace in on_front}
    assert set(by_name) == {"front on test", f"front on {FINAL}"}  # not on the search split, where the lines begin
    trace = by_name["front on test"]
    ends = {"trial-0000": ((70, 5), (pytest.approx(69.3), 5)), "trial-0001": ((69, 4), (pytest.approx(68.3), 4))}
    names = trace["customdata"][::3]
    assert set(names) == set(ends)
    assert trace["customdata"] == [name for name in names for _ in range(3)]
    for number, name in enumerate(names):
        (x, y), (end_x, end_y) = ends[name]
        part = slice(3 * number, 3 * number + 3)
        assert trace["x"][part] == [x, end_x, None]
        assert trace["y"][part] == [y, end_y, None]
        title = f"<b>{name}</b> on test<br>ece: {end_y:.2f}"
        assert trace["text"][part] == [None, title, None]
    assert (by_name[f"front on {FINAL}"]["x"], by_name[f"front on {FINAL}"]["y"]) == ([70, 71.5, None], [5, 6.5, None])
    assert by_name[f"front on {FINAL}"]["line"]["dash"] == "solid"
    assert (trace["line"]["width"], trace["line"]["dash"]) == (1, "dot")
    assert 0 < trace["opacity"] < 1
    assert trace["marker"]["size"] == [0, 10, 0] * 2
    (of_baseline,) = [trace for trace in hollow_traces(plot) if not trace["showlegend"]]
    assert of_baseline["customdata"] == [f"baseline-{ZERO_SHOT}"] * 3


def test_a_single_objective_has_its_later_splits_above_the_same_position():
    (plot,) = plots_of(
        [trial(number, 70 + number, objectives=(ACCURACY,), test=True) for number in (0, 1)], (ACCURACY,)
    )
    (trace,) = [trace for trace in hollow_traces(plot) if trace["showlegend"]]
    assert trace["x"] == [2, 2, None]
    assert trace["y"] == [71, pytest.approx(70.3), None]


def test_a_finalist_beside_the_front_has_hollow_markers_without_a_line_in_the_legend():
    beside = trial(0, 69, 6, test=True)
    (plot,) = plots_of([trial(1, 70, 5, test=True), beside, trial(2, 68, 7)])
    (trace,) = [trace for trace in hollow_traces(plot) if beside.name in trace["customdata"]]
    assert trace["customdata"] == [beside.name] * 3
    assert (trace["x"], trace["y"]) == ([69, pytest.approx(68.3), None], [6, 6, None])
    assert (trace["line"]["color"], trace["showlegend"]) == (GREY, False)


def test_bands_lie_below_the_staircase_and_points_are_drawn_last(far):
    info, statistics = far
    (plot,) = front_plots(info, statistics)
    best, worst, median, staircase, *others = plot.traces
    assert [trace.get("name") for trace in (best, worst, median)] == [None, REGION_LABEL, MEDIAN_LABEL]
    assert (worst["fill"], best["showlegend"]) == ("tonexty", False)
    assert best["x"] == worst["x"] == median["x"]
    assert best["y"] != worst["y"] != median["y"]
    *color, opacity = re.fullmatch(r"rgba\((\d+),(\d+),(\d+),([\d.]+)\)", worst["fillcolor"]).groups()
    assert bytes(map(int, color)) == bytes.fromhex(BLUE.removeprefix("#"))
    assert 0 < float(opacity) < 0.2  # grid lines and a second band stay visible through it
    assert {best["line"]["width"], worst["line"]["width"]} == {0}
    assert 0 < median["line"]["width"] < staircase["line"]["width"] < 2
    assert (staircase["mode"], staircase["showlegend"], staircase["line"]["color"]) == ("lines", False, BLUE)
    assert len(staircase["x"]) == len(staircase["y"]) == 1
    modes = [trace["mode"] for trace in others]
    assert modes == ["lines+markers"] * 4 + ["markers"] * 4
    assert {trace["hoverinfo"] for trace in plot.traces[:4]} == {"skip"}


# --- axes that leave outliers out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([-100, 6, 10, 10.5, 11, 11.5, 12, 16, 100], [5.3, 16.7]),  # 6 and 16 are exactly two quartile ranges away
        ([-100, None, 6, 10, 10.5, 11, None, 11.5, 12, 16, 100], [5.3, 16.7]),
        ([3, 70, 70.1, 70.2], [69.986, 70.214]),
        ([3, 70, 70.1], None),  # three values have no quartiles
        ([8, 10, 10.5, 11, 11.5, 12, 14], None),
        ([5, 5, 5, 5, 100], None),  # a range of equal values has no width
        ([5, 6, 6, 9], [4.93, 6.07]),
        ([3, 6, 6, 7], [5.93, 7.07]),
    ],
)
def test_outliers_are_more_than_two_quartile_ranges_beyond_the_quartiles(values, ends):
    found = range_without_outliers(values)
    assert found is None if ends is None else found == pytest.approx(ends)


def test_a_range_is_widened_to_the_points_that_must_be_visible():
    assert _covering([10, 20], []) == [10, 20]
    assert _covering([10, 20], [10, 20, 15]) == [10, 20]  # already visible
    assert _covering([10, 20], [5, 30, 8]) == pytest.approx([4.8, 30.2])


def marker_plot(xs, ys, names=None, mode="markers"):
    names = names or [str(number) for number in range(len(xs))]
    return {"mode": mode, "x": xs, "y": ys, "customdata": names}


def test_a_trial_is_counted_once_if_it_is_outside_on_any_axis():
    traces = [
        marker_plot([0, 10, 11, 5, 5, None], [0, 1, 0.5, 1.5, 0.5, None], ["at", "ends", "x", "y", "in", "gap"]),
        marker_plot([11, -1], [0.5, 2], ["x", "both"], "lines+markers"),
        {"mode": "lines", "x": [99], "y": [99]},
    ]
    plot = with_zoom(Plot(name="made", traces=traces), {"xaxis": [0, 10], "yaxis": [0, 1]})
    assert plot.zoom == {"xaxis": [0, 10], "yaxis": [0, 1]}
    assert plot.n_outliers == 3
    assert with_zoom(plot, {"xaxis": [0, 10]}).n_outliers == 2
    assert with_zoom(plot, {"yaxis": [0, 1]}).n_outliers == 2
    assert with_zoom(plot, {}).n_outliers == 0


def test_each_axis_is_fitted_to_all_markers_and_not_to_lines():
    many = [10, 10.5, 11, 11.5, 12]
    traces = [
        marker_plot(many, [1] * 5),
        marker_plot([11, 1000], [1, 1], mode="lines+markers"),
        {"mode": "lines", "x": [5000] * 20, "y": [5000] * 20},
    ]
    plot = without_outliers(Plot(name="made", traces=traces))
    assert list(plot.zoom) == ["xaxis"]
    assert plot.zoom["xaxis"] == pytest.approx([10 - 0.14, 12 + 0.14])
    assert plot.n_outliers == 1
    essential = without_outliers(Plot(name="made", traces=traces), [(1000, 1)])
    assert essential.zoom["xaxis"][1] > 1000
    assert essential.n_outliers == 0


def test_members_of_the_front_are_never_outside():
    records = [trial(number, 70 + number / 10, 5 + number / 20) for number in range(20)]
    ahead = trial(20, 99.0, 0.5)
    (plot,) = plots_of([*records, ahead, trial(21, 30.0, 6.0)])
    low, high = plot.zoom["xaxis"]
    assert low > 60
    assert high > 99
    assert plot.n_outliers == 1


# --- importances and hypervolume ----------------------------------------------------------------------


def known_effects(metric, shares):
    spread = {key: (share / 2, share + 0.25) for key, share in shares.items()}
    return Effects(metric, shares, spread)


def test_importances_have_a_bar_with_a_whisker_for_each_setting_and_objective():
    plot = importance_plot(
        [
            known_effects("accuracy", {"a": 0.5, "b": 0.25}),
            Effects("nll", skipped="all trials have the same nll"),
            known_effects("ece", {"b": 0.125, "a": 0.0625}),
        ]
    )
    assert plot.name == "importances"
    assert [trace["name"] for trace in plot.traces] == ["accuracy", "ece"]
    assert [trace["marker"]["color"] for trace in plot.traces] == [BLUE, RED]
    assert [trace["x"] for trace in plot.traces] == [[0.25, 0.5], [0.125, 0.0625]]
    for trace in plot.traces:
        whiskers = trace["error_x"]
        assert whiskers["array"] == [0.25, 0.25]
        assert whiskers["arrayminus"] == [x / 2 for x in trace["x"]]
        assert (whiskers["symmetric"], whiskers["thickness"], trace["orientation"]) == (False, 1, "h")
    assert plot.layout["xaxis"]["range"] == [0, None]
    assert plot.layout["xaxis"]["title"]["text"] == "share of the variance"
    assert plot.layout["yaxis"] == {"automargin": True, "type": "category"}
    assert plot.layout["margin"]["l"] == 16  # pixels: the names of settings add their own


@pytest.mark.parametrize(("n_settings", "n_objectives", "height"), [(1, 1, 142), (3, 1, 186), (3, 2, 252)])
def test_importances_are_as_high_as_they_have_bars(n_settings, n_objectives, height):
    shares = {f"s{number}": 0.1 for number in range(n_settings)}
    plot = importance_plot([known_effects(f"m{number}", shares) for number in range(n_objectives)])
    assert plot.layout["height"] == height  # 22 pixels for each bar


def test_more_objectives_than_colors_have_colors_that_begin_again():
    plot = importance_plot([known_effects(f"m{number}", {"a": 0.5}) for number in range(4)])
    assert [trace["marker"]["color"] for trace in plot.traces] == [BLUE, RED, GREY, BLUE]


def test_the_largest_share_of_a_setting_is_that_over_all_objectives():
    effects = [known_effects("accuracy", {"a": 0.5, "b": 0.03}), known_effects("ece", {"a": 0.25, "b": 0.04})]
    assert largest_shares(effects) == {"a": 0.5, "b": 0.04}


def test_the_hypervolume_grows_with_the_trials_in_the_order_they_finished():
    front = front_of(sweep_info(), [trial(0, 70, 5), trial(1, 69, 6), trial(2, 72, 4)])
    plot = hypervolume_plot(front)
    (trace,) = plot.traces
    assert plot.name == "hypervolume"
    assert trace["x"] == [1, 2, 3]
    first, second, third = trace["y"]
    assert 0 < first == second < third
    names = ["trial-0000", "trial-0001", "trial-0002"]
    assert trace["text"] == trace["customdata"] == names
    assert trace["line"]["shape"] == "hv"  # it stays as it is until the next trial has finished
    assert plot.layout["yaxis"]["rangemode"] == "tozero"
    assert (plot.layout["height"], trace["marker"]["size"]) == (340, 5)  # pixels


def test_a_trial_has_one_position_in_the_charts_over_the_order_of_trials():
    broken = trial(1, 69, 6, objectives=(ACCURACY,), constraints={"accuracy": 1.0})
    records = [trial(0, 70, 5, objectives=(ACCURACY,)), broken, trial(2, 72, 4, objectives=(ACCURACY,))]
    (volume,) = hypervolume_plot(front_of(sweep_info((ACCURACY,)), records)).traces
    (plot,) = plots_of(records, (ACCURACY,))
    positions = {}
    for trace in plot.traces:
        positions |= dict(zip(trace["customdata"], trace["x"], strict=True))
    assert positions == {"trial-0000": 1, "trial-0001": 2, "trial-0002": 3}
    assert dict(zip(volume["customdata"], volume["x"], strict=True)) == {"trial-0000": 1, "trial-0002": 3}


def test_the_title_of_the_order_of_trials_is_shown_whole():
    (plot,) = plots_of([trial(0, objectives=(ACCURACY,))], (ACCURACY,))
    assert plot.layout["xaxis"]["title"]["text"] == "trials, in the order they ended; baselines at 0"


def test_a_long_text_loses_its_middle():
    text = plot_text("a" * 40 + "b" * 40)
    assert len(text) == 48
    assert re.fullmatch("a+…b+", text)
