"""Effects of the settings, on the page and in its file."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.records.front import front_of
from fpp_sweep.report.effects import (
    MAX_TRIALS,
    Effects,
    _Column,
    _reason_to_skip,
    _some_of,
    compute_effects,
    moved_into_range,
    moved_values_note,
)
from fpp_sweep.report.plots import importance_plot
from fpp_sweep.report.settings_plots import axes_of, round_ticks, slice_plots
from fpp_sweep.report.writing import write_report
from fpp_sweep.statistics.surface import Dimension, Surface
from tests.kit.names import ZERO_SHOT
from tests.kit.records import baseline, searched_trials, sweep_info, sweep_with_effects, trial, write_sweep
from tests.report.test_page import plots


@pytest.fixture(scope="module")
def effects():
    return effects_of(*sweep_with_effects())


def effects_of(information, trials):
    return compute_effects(information, front_of(information, trials))


def test_the_setting_that_changes_an_objective_most_is_the_most_important_one(effects):
    accuracy, ece = effects
    assert (accuracy.metric, ece.metric) == ("accuracy", "ece")
    assert (list(accuracy.shares)[:2], list(ece.shares)[:2]) == (["b", "a"], ["d", "c"])


def sweep_with_a_fall(count=40, seed=3):
    """Return a sweep in which `a` decides the accuracy; if `b` is high, the accuracy falls far below zero-shot."""
    generator = random.Random(seed)
    records = [baseline(ZERO_SHOT, 68.0, 5.0)]
    for number in range(count):
        params = {key: generator.random() for key in "abcd"}
        accuracy = 66 + 5 * params["a"] + generator.gauss(0, 0.6)
        if params["b"] > 0.88:
            accuracy -= 25 + 8 * generator.random()
        records.append(trial(number, accuracy, 5 + accuracy / 100, params=params))
    return sweep_info(space={"params": {key: {"low": 0.0, "high": 1.0} for key in "abcd"}}), records


def width(curve):
    return (curve.high - curve.low).mean()


def test_trials_far_below_zero_shot_do_not_hide_the_effect_of_another_setting():
    information, records = sweep_with_a_fall()
    front = front_of(information, records)
    n_fallen = sum(map(front.is_below_floor, front.finished))
    assert 0 < n_fallen < 8
    effects = compute_effects(information, front)
    for row in effects:
        assert set(list(row.shares)[:2]) == {"a", "b"}
    assert moved_values_note(front).startswith(f"For the model, values of {n_fallen} trials more than 5 points below")
    without_zero_shot = effects_of(information, records[1:])[0]
    assert (
        without_zero_shot.shares["a"] < effects[0].shares["a"] / 3
    )  # without zero-shot no value is moved into the range
    assert width(without_zero_shot.curves["a"]) > 1.5 * width(effects[0].curves["a"])


def test_trials_far_below_zero_shot_do_not_widen_axes_and_color_ranges(tmp_path):
    written = write_sweep(tmp_path, *sweep_with_a_fall(20))
    write_report(written, pages=True)
    drawn = plots(written.report)
    low, high = drawn["slice-0"]["choices"]["accuracy"]["zoom"]["yaxis"]
    assert 60 < low < high < 75
    (heat,) = drawn["heat"]["choices"]["accuracy"]["traces"]
    assert heat["zmax"] < 6 < 20 < -min(min(row) for row in heat["z"])
    (line,) = drawn["parallel"]["choices"]["accuracy"]["traces"]
    assert line["line"]["cmin"] > 60
    page = (written.report / "sweep.html").read_text()
    n_fallen = sum("more than 5 points below" in row for row in page.partition('id="all-trials"')[2].split("<tr"))
    assert (
        page.count(f"Show all: {n_fallen} more") >= 2
    )  # one button for the front, one for the settings; each counts a trial once


def test_values_are_moved_only_if_enough_other_trials_give_a_range():
    values = np.array([20.0, *np.linspace(66, 70, 9)])
    is_fallen = values < 60
    assert moved_into_range(values, is_fallen) is values
    assert moved_into_range(np.append(values, 71.0), np.append(is_fallen, False))[0] == 66


def test_every_bar_lies_within_its_whisker(effects):
    accuracy = effects[0]
    (low_of_most, _), (_, high_of_least) = accuracy.spread["b"], accuracy.spread["d"]
    assert low_of_most > 0.5 > 0.1 > high_of_least  # a whisker has the draws of one setting
    for row in effects:
        for key, share in row.shares.items():
            low, high = row.spread[key]
            assert 0 <= low <= share <= high <= 1


def test_a_curve_follows_the_objective_and_is_flat_without_an_effect(effects):
    accuracy = effects[0]
    curve, other = accuracy.curves["b"], accuracy.curves["d"]
    assert curve.mean[0] - curve.mean[-1] > 10
    assert (curve.low < curve.mean).all()
    assert (curve.mean < curve.high).all()
    assert np.ptp(other.mean) < 4


def test_a_curve_follows_the_objective_over_the_whole_range_of_its_setting():
    generator = random.Random(2)
    trials = []
    for number in range(30):
        params = {"linear": generator.uniform(2, 6), "log": 10 ** generator.uniform(-2, 1)}
        trials.append(trial(number, 60 + params["linear"], 5 + params["linear"], params=params))
    ranges = {"linear": {"low": 2.0, "high": 6.0}, "log": {"low": 0.01, "high": 10.0, "log": True}}
    curves = effects_of(sweep_info(space={"params": ranges}), trials)[0].curves
    assert curves["linear"].positions[[0, -1]] == pytest.approx([2, 6])
    assert curves["log"].positions[[0, -1]] == pytest.approx([-2, 1])
    positions, means = curves["linear"].positions, curves["linear"].mean
    assert np.interp([3, 5], positions, means) == pytest.approx([63, 65], abs=0.3)


def test_a_map_shows_only_cells_that_differ_from_the_mean(effects):
    known = np.isfinite(effects[0].maps[0].mean)
    assert effects[0].maps[0].keys == ("b", "a")
    assert known[:, -1].all()  # b = 1 loses 20 points
    assert 0.1 < known.mean() < 0.95


def test_thirty_trials_are_enough_for_effects_and_29_are_not():
    information, trials = sweep_with_effects(30)
    assert [bool(row.shares) for row in effects_of(information, trials)] == [True, True]
    reasons = [row.skipped for row in effects_of(information, trials[:29])]
    assert reasons == ["29 finished trials; effects need 30"] * 2


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([trial(0)], "1 finished trial;"),
        ([trial(number, 70 + number, params={"fpp.gamma2": 0.15}) for number in range(32)], "fewer than two settings"),
        ([trial(number, 70, 5, params={"a": number, "b": -number}) for number in range(32)], "the same accuracy"),
    ],
)
def test_a_reason_replaces_effects_that_cannot_be_computed(records, reason):
    found = effects_of(sweep_info(), records)[0]
    assert reason in found.skipped
    assert not found.shares


def test_a_large_sweep_has_the_effects_of_some_of_its_trials(monkeypatch):
    """The time for a surface grows with the cube of the number of trials."""
    counts = []

    class CountedSurface(Surface):
        def __init__(self, dimensions, points, values):
            counts.append(len(np.unique(points, axis=0)))  # no trial is used twice
            super().__init__(dimensions, points, values)

    monkeypatch.setattr("fpp_sweep.report.effects.Surface", CountedSurface)
    information, trials = sweep_with_effects(MAX_TRIALS + 30)
    effects = effects_of(information, trials)
    assert counts == [MAX_TRIALS] * len(effects)
    assert all(effect.shares for effect in effects)


def test_page_and_file_have_the_effects_on_each_objective(tmp_path):
    """The searched settings have a logarithmic and a linear range, choices, and a value that some trials lack."""
    trials = [record for record in searched_trials(50) if record.values]
    written = write_sweep(tmp_path, sweep_info(), trials)
    write_report(written, pages=True)
    accuracy, ece = effects_of(sweep_info(), trials)
    shares = json.loads((written.report / "importances.json").read_text())
    assert {key: effect["share"] for key, effect in shares["ece"].items()} == pytest.approx(dict(ece.shares))
    drawn = plots(written.report)
    bars = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in drawn["importances"]["traces"]}
    assert bars["accuracy"] == pytest.approx(dict(accuracy.shares))
    markers, band, line = drawn["slice-0"]["choices"]["accuracy"]["traces"]
    assert len(band["x"]) == 2 * len(line["x"])
    assert min(markers["y"]) < min(line["y"])
    assert drawn["slice-0"]["choices"]["nll"]["traces"][1:] == [{"x": [], "y": []}] * 2
    assert [name for name in drawn if name.startswith("map-")] == [f"map-{index}" for index in range(6)]
    grey, cells, _ = drawn["map-0"]["traces"]
    assert any(None in row for row in cells["z"])
    assert not any(None in row for row in grey["z"])


def test_settings_are_ordered_by_their_largest_share():
    """The least important settings come last, and after them a setting that only trials outside the model have."""
    information, trials = sweep_with_effects(10)
    effects = [Effects("accuracy", {"b": 0.9, "d": 0.03}), Effects("ece", {"b": 0.5, "d": 0.01, "c": 0.06})]
    slices = slice_plots(information, front_of(information, trials), effects)
    assert [plot.layout["xaxis"]["title"]["text"] for plot in slices] == ["b", "c", "d", "a"]
    effects = [Effects("accuracy", {"b": 0.9, "d": 0.03, "c": 0.01}), Effects("ece", {"b": 0.5, "d": 0.01, "c": 0.06})]
    effects = [replace(row, spread={key: (0.0, 1.0) for key in row.shares}) for row in effects]
    for bars in importance_plot(effects).traces:
        assert bars["y"] == ["d", "c", "b"]  # from the bottom to the top


def test_importances_that_are_not_known_have_a_sentence_for_each_objective():
    plot = importance_plot([Effects("accuracy", skipped="no trial"), Effects("ece", skipped="one setting")])
    assert (plot.name, plot.traces, plot.placeholder) == ("importances", (), "accuracy: no trial. ece: one setting.")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.3, 7.2, [1, 2, 3, 4, 5, 6, 7]),
        (99.0, 101.0, [99, 99.5, 100, 100.5, 101]),
        (-4.0, 4.0, [-4, -2, 0, 2, 4]),
    ],
)
def test_ticks_are_round_numbers_at_the_distance_that_the_range_needs(low, high, ticks):
    assert round_ticks(low, high, log=False).tolist() == pytest.approx(ticks)


def test_a_choice_keeps_its_position_on_the_axis_if_the_model_lacks_its_trials():
    """One trial took `ctpt`, and the model of 150 of 160 trials leaves it out."""
    count = MAX_TRIALS + 10
    chosen = np.random.default_rng(0).choice(count, MAX_TRIALS, replace=False)
    left_out = sorted(set(range(count)) - set(chosen.tolist()))[0]
    generator = np.random.default_rng(1)
    records = []
    for number in range(count):
        method = ("otpt", "tpt")[number % 2]
        if number == left_out:
            method = "ctpt"
        params = {"method": method, "fpp.gamma2": float(generator.uniform(0.1, 15))}
        accuracy = 70 + 5 * (method == "tpt") + 0.1 * generator.standard_normal()
        records.append(trial(number, accuracy, 5 + 0.1 * generator.standard_normal(), params=params))
    space = {"params": {"method": ["ctpt", "otpt", "tpt"], "fpp.gamma2": {"low": 0.1, "high": 15}}}
    information = sweep_info(space=space)
    axis = axes_of(information, front_of(information, records).finished)["method"]
    accuracy, _ = effects_of(information, records)
    curve = accuracy.curves["method"]
    means = dict(zip(curve.positions, curve.mean, strict=True))
    by_text = {text: means[position] for position, text in zip(axis.tick_positions, axis.tick_texts, strict=True)}
    assert by_text["otpt"] == pytest.approx(70, abs=0.5)
    assert by_text["tpt"] == pytest.approx(75, abs=0.5)


@pytest.mark.parametrize(
    ("n_settings", "reason"),
    [
        (31, "31 settings; effects are computed of 30 at most"),
        (30, ""),
        (2, ""),
        (1, "fewer than two settings took more than one value"),
    ],
)
def test_the_model_takes_two_to_thirty_settings(n_settings, reason):
    values = np.arange(30.0)
    columns = [_Column(f"s{number}", Dimension(), values) for number in range(n_settings)]
    assert _reason_to_skip("ece", columns, values) == reason


def test_two_different_values_are_enough_for_effects():
    values = np.arange(30.0) % 2
    columns = [_Column(f"s{number}", Dimension(), values) for number in range(2)]
    assert _reason_to_skip("ece", columns, values) == ""
    assert _reason_to_skip("ece", columns, 0 * values) == "all trials have the same ece"


def test_two_settings_are_enough_for_effects():
    generator = random.Random(0)
    records = []
    for number in range(30):
        params = {"a": generator.random(), "b": generator.random(), "constant": 1}
        records.append(trial(number, 70 + 5 * params["a"], 5 + params["b"], params=params))
    accuracy, _ = effects_of(sweep_info(space={}), records)
    assert set(accuracy.shares) == {"a", "b"}
    assert [effect_map.keys for effect_map in accuracy.maps] == [("a", "b")]


def test_the_three_most_important_settings_have_maps(effects):
    for row in effects:
        first, second, third, *_ = row.shares
        assert [effect_map.keys for effect_map in row.maps] == [(first, second), (first, third), (second, third)]


def test_a_map_has_rows_along_the_second_setting_and_the_value_of_its_cells():
    """The accuracy grows by 10 points along the more important setting, and falls by 4 along the other one."""
    generator = random.Random(4)
    records = []
    for number in range(60):
        params = {"a": generator.uniform(0, 2), "method": generator.choice(["x", "y"])}
        accuracy = 60 + 5 * params["a"] - 4 * (params["method"] == "y") + 0.05 * generator.gauss(0, 1)
        records.append(trial(number, accuracy, 5 + accuracy / 100, params=params))
    space = {"params": {"a": {"low": 0.0, "high": 2.0}, "method": ["x", "y"]}}
    accuracy, _ = effects_of(sweep_info(space=space), records)
    (effect_map,) = accuracy.maps
    assert effect_map.keys == ("a", "method")
    assert (effect_map.xs[0], effect_map.xs[-1], len(effect_map.xs)) == (0, 2, 15)
    assert effect_map.ys.tolist() == [0, 1]
    assert effect_map.mean.shape == (2, 15)
    assert effect_map.center == pytest.approx(63, abs=0.2)
    corners = [effect_map.mean[0, 0], effect_map.mean[0, -1], effect_map.mean[1, 0], effect_map.mean[1, -1]]
    assert corners == pytest.approx([60, 70, 56, 66], abs=0.5)
    curve = accuracy.curves["a"]
    assert (len(curve.positions), curve.positions[0], curve.positions[-1]) == (21, 0, 2)
    middle = (curve.low + curve.high) / 2
    assert middle == pytest.approx(curve.mean)


def test_a_range_covers_the_points_outside_the_searched_one_and_a_missing_value_stands_in_the_middle():
    generator = random.Random(1)
    records = []
    for number in range(32):
        params = {"a": generator.uniform(0, 2.5), "b": generator.random()}
        if number == 0:
            params["a"] = 3.0
        if number == 1:
            del params["a"]
        records.append(trial(number, 60 + 5 * params.get("a", 1.0), 5 + params["b"], params=params))
    space = {"params": {"a": {"low": -1.0, "high": 2.0}, "b": {"low": 0.0, "high": 1.0}}}
    accuracy, _ = effects_of(sweep_info(space=space), records)
    curve = accuracy.curves["a"]
    assert (curve.positions[0], curve.positions[-1]) == (-1, 3)
    assert np.interp([0.5, 3.0], curve.positions, curve.mean) == pytest.approx([62.5, 75], abs=0.5)


@pytest.mark.parametrize(
    ("low", "log", "ends"), [(0.0, True, (0, 100)), (0.01, False, (0.01, 100)), (0.01, True, (-2, 2))]
)
def test_only_a_positive_range_is_logarithmic(low, log, ends):
    generator = random.Random(1)
    records = []
    for number in range(30):
        params = {"a": 10 ** generator.uniform(-1, 1), "b": generator.random()}
        records.append(trial(number, 60 + params["b"], 5 + params["b"], params=params))
    space = {"params": {"a": {"low": low, "high": 100.0, "log": log}}}
    curve = effects_of(sweep_info(space=space), records)[0].curves["a"]
    assert (curve.positions[0], curve.positions[-1]) == pytest.approx(ends)


@pytest.mark.parametrize(
    "space",
    [{"params": {"a": {"choices": [0, 0.15, 15]}, "b": {"low": 0, "high": 1}}}, {"grid": [{"a": [0, 0.15, 15]}]}],
)
def test_numbers_that_the_space_lists_are_choices(space):
    """As a range from 0 to 15, most of which no trial has, `a` would leave a part of its effect to other settings."""
    generator = random.Random(1)
    records = []
    for number in range(45):
        params = {"a": [0, 0.15, 15][number % 3], "b": generator.random(), "c": generator.choice(["x", "y"])}
        accuracy = 70 + 2 * (params["a"] == 0.15) + generator.gauss(0, 0.3)
        records.append(trial(number, accuracy, 5, params=params))
    accuracy = effects_of(sweep_info(space=space), records)[0]
    assert accuracy.shares["c"] < 0.1 < 0.9 < accuracy.shares["a"]
    curve = accuracy.curves["a"]
    assert curve.positions.tolist() == [0, 0.15, 15]
    assert curve.mean == pytest.approx([70, 72, 70], abs=0.4)


def test_trials_without_a_listed_number_are_a_choice_below_the_numbers():
    generator = random.Random(1)
    records = []
    for number in range(45):
        weight = [None, 1, 30][number % 3]
        params = {"weight": weight, "b": generator.random()}
        if number % 6 == 0:
            del params["weight"]  # by a condition
        accuracy = 70 + 2 * (weight is None) + generator.gauss(0, 0.3)
        records.append(trial(number, accuracy, 5, params=params))
    information = sweep_info(space={"params": {"weight": {"choices": [None, 1, 30]}, "b": {"low": 0, "high": 1}}})
    axis = axes_of(information, records)["weight"]
    curve = effects_of(information, records)[0].curves["weight"]
    assert curve.positions == pytest.approx(sorted(set(axis.positions)), abs=1e-3)
    assert axis.tick_texts == ["not set", "1", "30"]
    assert curve.mean == pytest.approx([72, 70, 70], abs=0.4)


def test_numbers_and_words_of_one_setting_are_choices():
    generator = random.Random(1)
    records = []
    for number in range(30):
        params = {"a": generator.choice([1, "x"]), "b": generator.random()}
        records.append(trial(number, 60 + 5 * (params["a"] == "x"), 5 + params["b"], params=params))
    curve = effects_of(sweep_info(space={}), records)[0].curves["a"]
    assert curve.positions.tolist() == [0, 1]
    assert curve.mean == pytest.approx([60, 65], abs=0.5)


@pytest.mark.parametrize(
    ("n_above", "n_below", "note"),
    [
        (10, 1, "For the model, values of 1 trial more than 5 points below zero_shot are moved into the range"),
        (9, 1, ""),  # too few for a range
        (12, 0, ""),
        (10, 2, "For the model, values of 2 trials more than 5 points below zero_shot are moved into the range"),
    ],
)
def test_a_note_names_the_trials_whose_values_are_moved(n_above, n_below, note):
    records = [baseline(ZERO_SHOT, 68.0, 5.0)]
    for number in range(n_above + n_below):
        records.append(trial(number, 70.0 if number < n_above else 20.0, 5.0))
    text = moved_values_note(front_of(sweep_info(), records))
    assert text.startswith(note)
    assert bool(text) == bool(note)


def test_a_sweep_as_large_as_the_model_takes_is_used_whole_and_in_its_order():
    trials = [trial(number) for number in range(MAX_TRIALS + 2)]
    assert _some_of(trials[:MAX_TRIALS]) == trials[:MAX_TRIALS]
    some = _some_of(trials)
    numbers = [record.number for record in some]
    assert numbers == sorted(set(numbers))
    assert len(some) == MAX_TRIALS
    assert numbers == [record.number for record in _some_of(trials)]
