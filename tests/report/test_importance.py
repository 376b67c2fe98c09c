"""Importances of the settings."""

import json
from types import SimpleNamespace

import pytest

from fpp_sweep.report.importance import compute_importances
from fpp_sweep.report.writing import write_report
from tests.report.made import driven, info, searched, trial, write
from tests.report.test_page import plots


def test_the_setting_that_makes_the_best_trials_is_the_most_important_one():
    accuracy, ece = compute_importances(*driven())
    assert (accuracy.metric, ece.metric) == ("accuracy", "ece")
    assert (next(iter(accuracy.shares)), next(iter(ece.shares))) == ("a", "c")
    for each in (accuracy, ece):
        assert sum(each.shares.values()) == pytest.approx(1)
        assert all(0 <= low <= high <= 1 for low, high in each.spread.values())
        assert any(low < each.shares[key] < high for key, (low, high) in each.spread.items())
        assert list(each.shares.values()) == sorted(each.shares.values(), reverse=True)


def test_page_and_file_have_the_importances_of_each_objective(tmp_path):
    information, trials = driven()
    written = write(tmp_path, information, trials)
    write_report(written, pages=True)
    shares = {each.metric: dict(each.shares) for each in compute_importances(information, trials)}
    assert json.loads((written.report / "importances.json").read_text()) == shares
    plot = plots(written.report)["importances"]
    bars = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in plot["traces"]}
    assert bars == {metric: pytest.approx(each) for metric, each in shares.items()}


def test_ten_trials_are_enough_for_importances_and_nine_are_not():
    information, trials = driven()
    assert [bool(each.shares) for each in compute_importances(information, trials[:10])] == [True, True]
    assert [each.skipped for each in compute_importances(information, trials[:9])] == [
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
    compute_importances(*driven(count))
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
    trials += [trial(number, 60 + number, params=each) for number, each in enumerate(beside, start=10)]
    compute_importances(info(space={"params": space}), trials)
    ranges = {key: each for one in last_study.study.trials for key, each in one.distributions.items()}
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
        ([trial(number, 70 + number) for number in range(12)], "fewer than two settings"),
        ([trial(number, params={"a": number, "b": -number}) for number in range(12)], "the same accuracy"),
    ],
)
def test_a_reason_replaces_importances_that_cannot_be_computed(records, reason):
    found = compute_importances(info(), records)[0]
    assert reason in found.skipped
    assert not found.shares


def test_importances_leave_optunas_log_level_alone(capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    compute_importances(info(), [each for each in searched() if each.values])
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")
