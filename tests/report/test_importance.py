"""Importances of the settings."""

import json
from types import SimpleNamespace

import pytest

from fpp_sweep.report.importance import compute_importances
from fpp_sweep.report.writing import write_report
from tests.kit.records import searched_trials, sweep_info, sweep_with_effects, trial, write_sweep
from tests.report.test_page import plots


def test_the_setting_that_makes_the_best_trials_is_the_most_important_one():
    accuracy, ece = compute_importances(*sweep_with_effects())
    assert (accuracy.metric, ece.metric) == ("accuracy", "ece")
    assert (next(iter(accuracy.shares)), next(iter(ece.shares))) == ("a", "c")
    for importance in (accuracy, ece):
        assert sum(importance.shares.values()) == pytest.approx(1)
        assert all(0 <= low <= high <= 1 for low, high in importance.spread.values())
        assert any(low < importance.shares[key] < high for key, (low, high) in importance.spread.items())
        assert list(importance.shares.values()) == sorted(importance.shares.values(), reverse=True)


def test_page_and_file_have_the_importances_of_each_objective(tmp_path):
    information, trials = sweep_with_effects()
    written = write_sweep(tmp_path, information, trials)
    write_report(written, pages=True)
    shares = {importance.metric: dict(importance.shares) for importance in compute_importances(information, trials)}
    assert json.loads((written.report / "importances.json").read_text()) == shares
    plot = plots(written.report)["importances"]
    bars = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in plot["traces"]}
    assert bars == {metric: pytest.approx(importance) for metric, importance in shares.items()}


def test_ten_trials_are_enough_for_importances_and_nine_are_not():
    information, trials = sweep_with_effects()
    assert [bool(importance.shares) for importance in compute_importances(information, trials[:10])] == [True, True]
    assert [importance.skipped for importance in compute_importances(information, trials[:9])] == [
        "9 finished trials; importances need 10"
    ] * 2


@pytest.fixture
def last_study(monkeypatch):
    """The last study that importances were asked for, and which share of its trials counted as good."""
    import optuna.importance

    evaluator, evaluate = optuna.importance.PedAnovaImportanceEvaluator, optuna.importance.get_param_importances
    asked = SimpleNamespace()

    def made(*, target_quantile):
        asked.good = target_quantile
        return evaluator(target_quantile=target_quantile)

    def called(study, **named):
        asked.study = study
        return evaluate(study, **named)

    monkeypatch.setattr(optuna.importance, "PedAnovaImportanceEvaluator", made)
    monkeypatch.setattr(optuna.importance, "get_param_importances", called)
    return asked


@pytest.mark.parametrize(("count", "good"), [(10, 0.5), (20, 0.25), (50, 0.1), (200, 0.1)])
def test_good_trials_are_a_tenth_but_never_fewer_than_five(last_study, count, good):
    compute_importances(*sweep_with_effects(count))
    assert last_study.good == good


def test_importances_are_over_the_range_that_was_searched_and_points_beside_it(last_study):
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    space = {
        "log": {"low": 1e-5, "high": 1e-2, "log": True},
        "log and zero": {"low": 1e-5, "high": 1e-2, "log": True},
        "beside": {"low": 1.0, "high": 2.0},
        "words": {"choices": ["x", 1]},
    }
    trials = [
        trial(number, 70 + number, params={"log": 1e-4 * (1 + number), "log and zero": 1e-4 * number, "beside": 1.5})
        for number in range(10)
    ]
    beside = [{"beside": 0.5, "words": "x"}, {"beside": 4.0, "words": 1}]
    trials += [trial(number, 60 + number, params=importance) for number, importance in enumerate(beside, start=10)]
    compute_importances(sweep_info(space={"params": space}), trials)
    ranges = {key: importance for one in last_study.study.trials for key, importance in one.distributions.items()}
    assert ranges == {
        "log": FloatDistribution(1e-5, 1e-2, log=True),
        "log and zero": FloatDistribution(0.0, 1e-2),
        "beside": FloatDistribution(0.5, 4.0),
        "words": CategoricalDistribution(["1", "x"]),
    }


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([trial(0)], "1 finished trials"),
        ([trial(number, 70 + number, params={"fpp.gamma2": 0.15}) for number in range(12)], "fewer than two settings"),
        ([trial(number, 70, 5, params={"a": number, "b": -number}) for number in range(12)], "the same accuracy"),
    ],
)
def test_a_reason_replaces_importances_that_cannot_be_computed(records, reason):
    importance = compute_importances(sweep_info(), records)[0]
    assert reason in importance.skipped
    assert not importance.shares


def test_importances_leave_optunas_log_level_alone(capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    compute_importances(sweep_info(), [importance for importance in searched_trials() if importance.values])
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")
