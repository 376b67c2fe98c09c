"""Axes and plots of the searched settings, and the heat map of datasets."""

from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.records.front import front_of
from fpp_sweep.report.dataset_heatmap import heat_map
from fpp_sweep.report.effects import Curve, EffectMap, Effects
from fpp_sweep.report.plots import transparent
from fpp_sweep.report.settings_plots import (
    MAX_SLICES,
    Axis,
    axes_of,
    axis_of,
    clipped,
    map_plots,
    metric_columns,
    more_is_better,
    nested_lists,
    parallel_plot,
    round_ticks,
    rounded,
    slice_plots,
    usual_range,
)
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.palette import BLUE, INK, RED
from tests.kit.names import ZERO_SHOT
from tests.kit.records import ACCURACY, ECE, NLL, baseline, split_result, sweep_info, trial

# --- axes ---------------------------------------------------------------------------------------------


def test_choices_stand_at_even_steps_in_the_order_of_their_names():
    axis = axis_of("method", ["tpt", "ctpt", None, True, "tpt"])
    assert list(axis.tick_texts) == sorted(axis.tick_texts)
    by_text = dict(zip(axis.tick_texts, axis.tick_positions, strict=True))
    assert axis.positions[0] == axis.positions[4] == by_text["tpt"]
    assert axis.positions[1] == by_text["ctpt"]
    assert sorted(by_text.values()) == [0, 1, 2, 3]
    assert axis.range == pytest.approx((-0.2, 3.2))


def test_a_single_choice_has_an_axis_with_room_around_it():
    axis = axis_of("method", ["tpt", "tpt"])
    assert (axis.positions, axis.range) == ([0, 0], pytest.approx((-0.2, 0.2)))


def test_of_many_choices_some_have_a_tick():
    names = [f"{number:02}{'x' * 30}" for number in range(20)]
    axis = axis_of("prompt" * 5, names)
    assert axis.tick_positions == [0, 3, 6, 9, 12, 15, 18]
    assert [text[:2] for text in axis.tick_texts] == ["00", "03", "06", "09", "12", "15", "18"]
    assert {len(text) for text in (axis.label, *axis.tick_texts)} == {18}  # characters beside an axis
    assert axis.positions == list(range(20))
    eight = axis_of("prompt", names[:8])
    assert eight.tick_positions == list(range(8))


def test_few_numbers_have_a_tick_each_and_many_round_ones():
    few = axis_of("gamma", [1, 4.5, 2, 1])
    assert (few.tick_positions, list(few.tick_texts)) == ([1, 2, 4.5], ["1", "2", "4.5"])
    assert (few.positions, few.range) == ([1, 4.5, 2, 1], (1, 4.5))
    eight = axis_of("gamma", [0.13 * number for number in range(8)])
    assert len(eight.tick_positions) == 8
    assert eight.tick_texts[1] == "0.13"
    many = axis_of("gamma", [0.13 * number for number in range(9)])
    assert many.tick_positions == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


def test_a_constant_setting_has_an_axis_of_some_width():
    axis = axis_of("gamma", [3, 3])
    assert (axis.positions, axis.range, axis.tick_positions) == ([3, 3], (3, 4), [3])


def test_trials_without_a_number_stand_a_sixth_of_the_range_below_the_others():
    axis = axis_of("gamma", [2, None, 8])
    assert (axis.positions, axis.range) == ([2, 1, 8], (1, 8))
    assert dict(zip(axis.tick_texts, axis.tick_positions, strict=True)) == {"not set": 1, "2": 2, "8": 8}
    assert axis.tick_texts[0] == "not set"


@pytest.mark.parametrize(
    ("column", "log", "positions", "texts"),
    [
        ([0.01, 1, 10], True, [-2, 0, 1], ["0.01", "1", "10"]),
        ([0.01, 1, 10], False, [0.01, 1, 10], ["0.01", "1", "10"]),
        ([0, 1, 10], True, [0, 1, 10], ["0", "1", "10"]),  # zero has no logarithm
        ([-1, 1, 10], True, [-1, 1, 10], ["-1", "1", "10"]),
        ([0.5, 5], True, [-0.30103, 0.69897], ["0.5", "5"]),
        ([1, "x"], True, [0, 1], ["1", "x"]),
        ([None, None], True, [0, 0], ["not set"]),
    ],
)
def test_an_axis_is_logarithmic_on_request_if_all_values_are_positive_numbers(column, log, positions, texts):
    axis = axis_of("gamma", column, log=log)
    assert axis.positions == positions
    assert list(axis.tick_texts) == texts


@pytest.mark.parametrize(
    ("column", "log", "texts"),
    [
        ([71 + 0.003 * step for step in range(100)], False, ["71", "71.05", "71.1", "71.15", "71.2", "71.25"]),
        ([0.1095, 0.1096, 0.1099], False, ["0.1095", "0.1096", "0.1099"]),
        ([0.15, 0.150001, 9.20065], False, ["0.15", "0.15", "9.2"]),  # two ticks on one pixel
        ([1000, 1001, 1002], True, ["1000", "1001", "1002"]),
    ],
)
def test_the_number_at_a_tick_is_where_the_tick_stands(column, log, texts):
    assert list(axis_of("accuracy", column, log=log).tick_texts) == texts


def test_a_logarithmic_axis_of_many_values_has_ticks_at_round_numbers():
    axis = axis_of("gamma", [10 ** (number / 10) for number in range(21)], log=True)
    assert list(axis.tick_texts) == ["1", "2", "5", "10", "20", "50", "100"]
    assert axis.tick_positions == pytest.approx([0, 0.30103, 0.69897, 1, 1.301, 1.699, 2])


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0, 2, [1, 2, 5, 10, 20, 50, 100]),
        (0, 3, [1, 3, 10, 30, 100, 300, 1000]),
        (0, 6, [1, 10, 100, 1e3, 1e4, 1e5, 1e6]),
        (-2, -1, [0.01, 0.02, 0.05, 0.1]),
        (0.31, 0.47, [2.2, 2.4, 2.6, 2.8]),  # 2.04 to 2.95
        (0.31, 0.75, [3, 4, 5]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_round_numbers(low, high, values):
    assert 10 ** round_ticks(low, high, log=True) == pytest.approx(values)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0, 6.9, [0, 1, 2, 3, 4, 5, 6]),
        (0, 13.9, [0, 2, 4, 6, 8, 10, 12]),
        (0, 14, [0, 5, 10]),
        (0, 34, [0, 5, 10, 15, 20, 25, 30]),
        (0, 36, [0, 10, 20, 30]),
        (0.001, 0.0079, [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007]),
        (1000, 1000.6, [1000, 1000.1, 1000.2, 1000.3, 1000.4, 1000.5, 1000.6]),
    ],
)
def test_ticks_of_a_linear_axis_are_eight_at_most(low, high, ticks):
    assert round_ticks(low, high, log=False) == pytest.approx(ticks)


def test_an_axis_is_a_dimension_of_parallel_coordinates_and_an_axis_of_a_plot():
    axis = Axis(label="<b>", positions=[1, 3], tick_positions=[1, 3], tick_texts=["<1>", "3"], range=(1, 3))
    assert axis.dimension == {
        "label": "<b>", "values": [1, 3], "tickvals": [1, 3], "ticktext": ["<1>", "3"], "range": (1, 3)
    }  # fmt: skip
    layout = axis.layout
    assert (layout["title"]["text"], layout["ticktext"]) == ("&lt;b&gt;", ["&lt;1&gt;", "3"])
    assert layout["range"] == pytest.approx([0.92, 3.08])


def test_only_settings_that_vary_have_an_axis_and_a_searched_logarithm_is_kept():
    trials = [trial(number, params={"a": 10.0**number, "b": 10.0**number, "c": 1}) for number in range(3)]
    ranges = {"a": {"low": 1, "high": 100, "log": True}, "b": {"low": 1, "high": 100}}
    axes = axes_of(sweep_info(space={"params": ranges}), trials)
    assert {key: list(axis.positions) for key, axis in axes.items()} == {"a": [0, 1, 2], "b": [1, 10, 100]}


# --- ranges of values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "below", "ends"),
    [
        ([70, 71, 72, 30], [3], [69.86, 72.14]),
        ([70, 71, 72, 73], [], None),  # the axis may show all
        ([70, 70, 30], [2], None),  # no width
        ([70, 30], [1], None),
        ([10, 10.5, 11, 11.5, 12, 99, 5], [6], [9.86, 12.14]),  # above the floor there is an outlier as well
        ([10, 10.5, 11, 11.5, 12, 99], [], [9.86, 12.14]),
    ],
)
def test_the_usual_range_leaves_out_outliers_and_trials_below_the_floor(column, below, ends):
    flags = np.isin(np.arange(len(column)), below)
    found = usual_range(column, flags)
    assert found is None if ends is None else found == pytest.approx(ends)
    shown = clipped(column, flags)
    if ends is None:
        assert shown == column
    else:
        assert shown == pytest.approx(np.clip(column, *ends))


def test_missing_values_of_a_matrix_are_none_and_numbers_have_five_digits():
    assert nested_lists(np.array([[1.0, np.nan], [np.inf, 2.0]]), str) == [["1.0", None], [None, "2.0"]]
    assert (rounded(1234567.0), rounded(0.00123456)) == (1234600.0, 0.0012346)


def test_the_goal_of_a_metric_is_that_of_the_objective_or_of_the_metric():
    """A sweep may be shown without the plugin that has its objective's metric; other metrics are maximized."""
    info = sweep_info((Objective.recorded(metric="mine", goal="min"), Objective.recorded(metric="yours", goal="max")))
    expected = {"accuracy": True, "ece": False, "nll": False, "auroc": True, "ece/dtd": False, "other": True}
    expected |= {"mine": False, "yours": True}
    assert {metric: more_is_better(info, metric) for metric in expected} == expected


def test_a_metric_can_be_chosen_if_all_trials_have_it_and_objectives_come_first():
    trials = [trial(number, objectives=(NLL, ACCURACY)) for number in range(2)]
    (first, second) = trials
    average = {key: value for key, value in second.results["val"].average.items() if key != "sce"}
    second = replace(second, results={"val": replace(second.results["val"], average=average)})
    info = sweep_info((NLL, ACCURACY))
    columns = metric_columns(info, [first, second])
    assert list(columns) == ["nll", "accuracy", "ece", "brier"]
    assert columns["ece"] == [11.5, 10.8]
    assert columns["accuracy"] == [53, 54]
    elsewhere = replace(second, results={"test": second.results["val"]})
    assert list(metric_columns(info, [first, elsewhere])) == ["nll", "accuracy"]


# --- parallel coordinates -----------------------------------------------------------------------------


def different_trials(count=3, keys="ab"):
    trials = []
    for number in range(count):
        trials.append(trial(number, 70 + number, 5 - number, params={key: number for key in keys}))
    return trials


def test_parallel_coordinates_have_a_line_for_each_trial_through_settings_and_objectives():
    trials = different_trials()
    plot = parallel_plot(sweep_info(), front_of(sweep_info(), trials))
    (trace,) = plot.traces
    assert [axis["label"] for axis in trace["dimensions"]] == ["a", "b", "accuracy", "ece"]
    assert trace["dimensions"][2]["values"] == [70, 71, 72]
    assert trace["meta"] == [record.name for record in trials]
    assert trace["line"]["showscale"] is True
    assert (plot.name, plot.choice_label) == ("parallel", "colour")
    assert plot.description == "a line for each of 3 trials through its settings and objectives"
    assert plot.min_width == 4 * 150  # pixels: an axis keeps its distance from the next one
    assert plot.choices["ece"]["traces"][0]["line"]["color"] == [5, 4, 3]


def test_trials_beyond_the_range_of_an_objective_stand_at_ends_that_have_no_number():
    """An end of the range is no trial's value: a tick with its number would contradict the tables."""
    accuracies = [70, 71, 72, 73, 74, 30]
    errors = [5.0, 5.5, 6.0, 6.5, 7.0, 40.0]
    trials = []
    for number, (accuracy, error) in enumerate(zip(accuracies, errors, strict=True)):
        trials.append(trial(number, accuracy, error, params={"a": number}))
    plot = parallel_plot(sweep_info(), front_of(sweep_info(), trials))
    _, accuracy, error = plot.traces[0]["dimensions"]
    assert accuracy["ticktext"] == ["lower", "70", "71", "72", "73", "74"]
    assert accuracy["tickvals"] == pytest.approx([69.72, 70, 71, 72, 73, 74])
    assert accuracy["values"] == pytest.approx([70, 71, 72, 73, 74, 69.72])
    assert accuracy["range"] == pytest.approx((69.72, 74.28))
    assert error["ticktext"] == ["5", "5.5", "6", "6.5", "7", "higher"]
    assert error["values"] == pytest.approx([5, 5.5, 6, 6.5, 7, 7.14])


@pytest.mark.parametrize(
    ("trials", "is_drawn"),
    [
        (different_trials(2), True),
        (different_trials(1), False),
        ([trial(0, params={"a": 1}), trial(1, params={"a": 1})], False),
        ([], False),
    ],
)
def test_parallel_coordinates_need_two_trials_with_different_settings(trials, is_drawn):
    plot = parallel_plot(sweep_info(), front_of(sweep_info(), trials))
    assert plot.name == "parallel"
    assert bool(plot.traces) == is_drawn
    if not is_drawn:
        assert plot.placeholder == "Fewer than two trials with different settings have finished."


# --- slices -------------------------------------------------------------------------------------------


def curve(low, high):
    return Curve(np.array([0.0, 2.0]), np.array([71.0, 72.0]), np.array([low, low]), np.array([high, high]))


def test_a_slice_has_a_point_for_each_trial_and_the_curve_of_the_chosen_metric():
    trials = different_trials()
    effects = [Effects("accuracy", {"a": 0.5, "b": 0.1}, curves={"a": curve(70, 73)}), Effects("ece", skipped="few")]
    first, second = slice_plots(sweep_info(), front_of(sweep_info(), trials), effects)
    assert [first.name, second.name] == ["slice-0", "slice-1"]
    assert first.description == "metrics of 3 trials over a"
    assert (first.group, first.layout["showlegend"]) == ("slices", False)
    assert first.layout["xaxis"]["title"]["text"] == "a"
    points, band, line = first.traces
    names = [record.name for record in trials]
    assert (points["x"], points["text"], points["customdata"]) == ([0, 1, 2], names, names)
    assert points["mode"] == "markers"
    assert points["marker"] == {"color": BLUE, "size": 6, "opacity": 0.8}
    assert band["fillcolor"] == transparent(RED, 0.2)  # the points stay visible through it
    assert (band["line"]["width"], band["fill"], band["hoverinfo"]) == (0, "toself", "skip")
    assert (line["line"], line["mode"]) == ({"color": RED, "width": 2}, "lines")
    assert first.choices["accuracy"]["traces"] == [
        {"y": [70, 71, 72]},
        {"x": [0, 2, 2, 0], "y": [73, 73, 70, 70]},
        {"x": [0, 2], "y": [71, 72]},
    ]
    empty = {"x": [], "y": []}
    assert first.choices["ece"]["traces"] == [{"y": [5, 4, 3]}, empty, empty]
    assert first.choices["ece"]["layout"]["yaxis"]["title"]["text"] == "ece"
    assert len(second.traces) == 1  # no curve is known over it
    assert second.choices["ece"]["traces"] == [{"y": [5, 4, 3]}]


def test_two_trials_have_slices_and_one_has_none():
    counts = [len(slice_plots(sweep_info(), front_of(sweep_info(), different_trials(n)), [])) for n in (1, 2)]
    assert counts == [0, 2]


def test_the_most_important_settings_have_slices():
    keys = "abcdefghijklmno"
    front = front_of(sweep_info(), different_trials(keys=keys))
    shares = {key: 0.05 * index for index, key in enumerate(keys)}
    slices = slice_plots(sweep_info(), front, [Effects("accuracy", shares)])
    assert [plot.layout["xaxis"]["title"]["text"] for plot in slices] == list(reversed(keys))[:MAX_SLICES]


def test_outliers_of_a_slice_are_the_trials_outside_its_range():
    accuracies = [70, 70.5, 71, 71.5, 72, 60, 99]
    trials = [trial(number, accuracy, 5, params={"a": number}) for number, accuracy in enumerate(accuracies)]
    (plot,) = slice_plots(sweep_info(), front_of(sweep_info(), trials), [])
    choice = plot.choices["accuracy"]
    assert choice["zoom"]["yaxis"] == pytest.approx([69.86, 72.14])
    assert choice["n_outliers"] == 2
    assert {"zoom", "n_outliers"}.isdisjoint(plot.choices["ece"])


# --- maps ---------------------------------------------------------------------------------------------


def map_of(mean, metric="accuracy"):
    effect_map = EffectMap(("a", "b"), np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0]), np.array(mean), 70.0)
    effects = [Effects("nll", skipped="few"), Effects(metric, {"a": 1.0}, maps=[effect_map])]
    (plot,) = map_plots(sweep_info(), front_of(sweep_info(), different_trials()), effects)
    return plot


def test_a_map_has_colors_around_the_mean_and_grey_cells_where_nothing_is_known():
    plot = map_of([[np.nan, 73.0, 70.5], [66.0, np.nan, np.nan]])
    grey, heat, trials = plot.traces
    assert (plot.name, plot.description) == ("map-0", "accuracy over a and b")
    assert grey["z"] == [[0, 0, 0], [0, 0, 0]]
    assert grey["showscale"] is False
    assert heat["z"] == [[None, 73, 70.5], [66, None, None]]
    assert (heat["x"], heat["y"]) == ([0, 1, 2], [0, 2])
    assert (heat["zmin"], heat["zmax"]) == (66, 74)
    assert heat["reversescale"] is False
    assert (trials["x"], trials["y"]) == ([0, 1, 2], [0, 1, 2])
    assert trials["marker"] == {"symbol": "circle-open", "size": 5, "color": INK}
    titles = [plot.layout[part]["title"]["text"] for part in ("xaxis", "yaxis")]
    assert (plot.layout["title"]["text"], titles) == ("accuracy", ["a", "b"])
    assert not plot.layout["showlegend"]
    assert not plot.layout["xaxis"]["showgrid"]
    assert not plot.layout["yaxis"]["showgrid"]
    assert (plot.layout["margin"]["t"], plot.layout["title"]["font"]["size"]) == (32, 12)  # room for the title
    assert heat["colorbar"] == {"thickness": 8}
    assert plot.layout["xaxis"]["tickvals"] == [0, 1, 2]
    assert map_of([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "ece").traces[1]["reversescale"] is True


def test_a_map_where_nothing_is_known_has_a_scale_of_one_unit():
    heat = map_of([[np.nan] * 3] * 2).traces[1]
    assert (heat["zmin"], heat["zmax"]) == (69, 71)


# --- the heat map of datasets -------------------------------------------------------------------------


def measured(number, accuracies, **changes):
    """Return a trial with these accuracies by dataset."""
    result = split_result(sum(accuracies.values()) / len(accuracies), 5.0, datasets=tuple(accuracies))
    datasets = {name: {"accuracy": value, "ece": value / 10} for name, value in accuracies.items()}
    return trial(number, results={"val": replace(result, datasets=datasets)}, **changes)


def heat_of(records, objectives=(ACCURACY, ECE)):
    info = sweep_info(objectives)
    return heat_map(info, front_of(info, records))


def test_a_heat_map_has_a_row_for_each_record_from_the_best_to_the_worst_and_then_the_baselines():
    records = [trial(number, accuracy, 5) for number, accuracy in enumerate([70, 72, 71])]
    plot = heat_of([baseline(ZERO_SHOT, 75, 5), *records])
    (trace,) = plot.traces
    assert trace["y"] == ["trial-0001", "trial-0002", "trial-0000", ZERO_SHOT]
    assert trace["meta"] == ["trial-0001", "trial-0002", "trial-0000", f"baseline-{ZERO_SHOT}"]
    assert trace["x"] == ["shapes", "textures", "digits"]
    assert plot.description == "4 trials and baselines on 3 datasets, minus each dataset's median"
    assert (plot.name, plot.choice_label) == ("heat", "metric")
    assert plot.layout["yaxis"] == {"autorange": "reversed", "type": "category", "showgrid": False}
    assert plot.layout["xaxis"] == {"type": "category", "showgrid": False}
    ece_first = [replace(record, values=[value]) for record, value in zip(records, (5.0, 3.0, 4.0), strict=True)]
    assert heat_of(ece_first, (ECE,)).traces[0]["y"] == ["trial-0001", "trial-0002", "trial-0000"]


@pytest.mark.parametrize(("count", "height"), [(2, 138), (40, 670), (60, 670)])
def test_a_heat_map_grows_with_its_rows_until_it_fills_a_printed_page(count, height):
    plot = heat_of([trial(number, 60 + number / 10, 5) for number in range(count)])
    assert plot.layout["height"] == height
    assert plot.min_width == 110 + 3 * 44  # a column of names, and three datasets


@pytest.mark.parametrize(
    ("records", "is_drawn"),
    [
        ([measured(0, {"a": 70, "b": 60}), measured(1, {"a": 70, "b": 61})], True),
        ([measured(0, {"a": 70, "b": 60})], False),
        ([measured(0, {"a": 70}), measured(1, {"a": 71})], False),
        ([measured(0, {"a": 70}), measured(1, {"b": 71})], True),
        ([], False),
    ],
)
def test_a_heat_map_needs_two_records_and_two_datasets(records, is_drawn):
    plot = heat_of(records)
    assert plot.name == "heat"
    assert bool(plot.traces) == is_drawn
    if not is_drawn:
        assert plot.placeholder == "Fewer than two datasets, or than two finished trials."


def test_a_cell_is_the_value_minus_the_median_of_its_dataset():
    records = [measured(0, {"a": 70.0, "b": 50.0}), measured(1, {"a": 71.0, "b": 53.0}), measured(2, {"a": 75.0})]
    choices = heat_of(records).choices
    assert list(choices) == ["accuracy", "ece"]  # no record has NLL or Brier score
    (accuracy,) = choices["accuracy"]["traces"]
    rows = dict(zip(heat_of(records).traces[0]["y"], accuracy["z"], strict=True))
    assert rows == {"trial-0000": [-1, -1.5], "trial-0001": [0, 1.5], "trial-0002": [4, None]}
    texts = dict(zip(heat_of(records).traces[0]["y"], accuracy["text"], strict=True))
    assert texts["trial-0002"] == ["75.00", None]
    assert accuracy["reversescale"] is False
    limit = np.quantile([1, 1.5, 0, 1.5, 4], 0.95)
    assert (accuracy["zmin"], accuracy["zmax"]) == pytest.approx((-limit, limit))
    (ece,) = choices["ece"]["traces"]
    assert ece["reversescale"] is True


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ([50.0] * 3, 1.0),  # all are equal
        ([50.0] * 39 + [58.0], 8.0),  # the quantile is 0
    ],
)
def test_equal_values_have_a_scale_that_is_not_empty(values, limit):
    records = [measured(number, {"a": value, "b": 50.0}) for number, value in enumerate(values)]
    (trace,) = heat_of(records).choices["accuracy"]["traces"]
    assert (trace["zmin"], trace["zmax"]) == (-limit, limit)


# --- sizes --------------------------------------------------------------------------------------------


def test_plots_reserve_their_height_so_that_the_page_does_not_move_while_it_loads():
    front = front_of(sweep_info(), different_trials())
    parallel = parallel_plot(sweep_info(), front)
    (first, _) = slice_plots(sweep_info(), front, [])
    heights = [plot.layout["height"] for plot in (parallel, first, map_of([[71.0] * 3] * 2))]
    assert heights == [440, 240, 280]
    assert parallel.layout["margin"] == {"l": 96, "r": 96, "t": 96, "b": 24}  # labels are turned by 20 degrees
    assert parallel.traces[0]["labelangle"] == -20
    heat = heat_of([trial(0), trial(1)])
    assert heat.layout["margin"] == {"l": 110, "r": 8, "t": 16, "b": 60}  # names of trials, and of datasets
    assert heat.traces[0]["colorbar"] == {"thickness": 10}
    assert parallel.traces[0]["line"]["colorbar"] == {"thickness": 10}
