"""Effects of the settings, as the page and its file show them."""

import json

import numpy as np
import pytest

from fpp_sweep.report.effects import MAX_TRIALS, compute_effects
from fpp_sweep.report.writing import write_report
from tests.kit.records import searched_trials, sweep_info, sweep_with_effects, trial, write_sweep
from tests.report.test_page import plots


@pytest.fixture(scope="module")
def effects():
    return compute_effects(*sweep_with_effects())


def test_the_setting_that_moves_an_objective_most_is_the_most_important_one(effects):
    accuracy, ece = effects
    assert (accuracy.metric, ece.metric) == ("accuracy", "ece")
    assert (list(accuracy.shares)[:2], list(ece.shares)[:2]) == (["b", "a"], ["d", "c"])


def test_every_bar_lies_within_its_whisker(effects):
    for row in effects:
        for key, share in row.shares.items():
            low, high = row.spread[key]
            assert 0 <= low <= share <= high <= 1


def test_a_curve_follows_the_objective_and_an_effectless_setting_is_flat(effects):
    accuracy = effects[0]
    curve, other = accuracy.curves["b"], accuracy.curves["d"]
    assert curve.mean[0] - curve.mean[-1] > 10
    assert (curve.low < curve.mean).all()
    assert (curve.mean < curve.high).all()
    assert np.ptp(other.mean) < 4


def test_a_map_is_empty_where_a_cell_may_be_as_good_as_the_mean(effects):
    known = np.isfinite(effects[0].maps[0].mean)
    assert effects[0].maps[0].keys == ("b", "a")
    assert known[:, -1].all()  # b = 1 loses 20 points
    assert 0.1 < known.mean() < 0.95


def test_thirty_trials_are_enough_for_effects_and_29_are_not():
    information, trials = sweep_with_effects(30)
    assert [bool(row.shares) for row in compute_effects(information, trials)] == [True, True]
    reasons = [row.skipped for row in compute_effects(information, trials[:29])]
    assert reasons == ["29 finished trials; effects need 30"] * 2


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([trial(0)], "1 finished trials"),
        ([trial(number, 70 + number, params={"fpp.gamma2": 0.15}) for number in range(32)], "fewer than two settings"),
        ([trial(number, 70, 5, params={"a": number, "b": -number}) for number in range(32)], "the same accuracy"),
    ],
)
def test_a_reason_replaces_effects_that_cannot_be_computed(records, reason):
    found = compute_effects(sweep_info(), records)[0]
    assert reason in found.skipped
    assert not found.shares


def test_a_large_sweep_takes_the_time_of_its_limit():
    information, trials = sweep_with_effects(MAX_TRIALS + 1)
    assert compute_effects(information, trials)[0].shares


def test_page_and_file_have_the_effects_on_each_objective(tmp_path):
    """A logarithmic range, one beside it, choices and a setting that some trials lack."""
    trials = [record for record in searched_trials(50) if record.values]
    written = write_sweep(tmp_path, sweep_info(), trials)
    write_report(written, pages=True)
    accuracy, ece = compute_effects(sweep_info(), trials)
    shares = json.loads((written.report / "importances.json").read_text())
    assert {key: each["share"] for key, each in shares["ece"].items()} == pytest.approx(dict(ece.shares))
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
