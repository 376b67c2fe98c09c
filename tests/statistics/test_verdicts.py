"""The recommendation of a sweep and its reason."""

from dataclasses import replace

import pytest

from fpp_sweep.statistics.paired import Difference
from fpp_sweep.statistics.verdicts import Answer, BaselineComparison, best_baseline, margin_of, why_none_qualifies

METRICS = ("accuracy", "ece")
BASELINES = ("baseline-zero_shot", "baseline-tpt", "baseline-fpp_code")


def family(rows):
    """Return all differences; `rows` has value, standard error and adjusted p of some, and the rest are near zero."""
    differences = {}
    for finalist in {finalist for finalist, _, _ in rows}:
        for baseline in BASELINES:
            for metric in METRICS:
                value, error, p_value = rows.get((finalist, baseline, metric), (0.0, 0.1, 1.0))
                differences[finalist, baseline, metric] = Difference(
                    first=finalist, second=baseline, metric=metric, value=value, standard_error=error,
                    degrees_of_freedom=100, p_value=p_value, adjusted_p=p_value,
                )  # fmt: skip
    return differences


def comparison(rows, *, baselines=BASELINES, metrics=METRICS, margins=None):
    return BaselineComparison(
        differences=family(rows), baselines=baselines, reference=BASELINES[0], metrics=metrics, margins=margins or {}
    )


LOSS = ("trial-0001", "baseline-zero_shot", "accuracy"), (-0.2, 0.6, 0.9)
GAIN = ("trial-0001", "baseline-zero_shot", "ece"), (-3.0, 0.5, 0.001)


@pytest.mark.parametrize(
    ("rows", "margins", "qualifies"),
    [
        (dict([GAIN]), {}, True),
        # better than other baselines only: it may equal zero-shot, which costs nothing
        ({("trial-0001", "baseline-tpt", "accuracy"): (2.0, 0.5, 0.01)}, {}, False),
        ({("trial-0001", "baseline-fpp_code", "accuracy"): (4.0, 0.5, 0.01)}, {}, False),
        # a loss beyond the margin is not excluded
        (dict([GAIN, LOSS]), {}, False),
        (dict([GAIN, LOSS]), {"accuracy": 2.0}, True),
        # the loss is excluded at one-sided 5 %, though the two-sided interval contains it
        (dict([GAIN, (LOSS[0], (-0.2, 0.45, 0.9))]), {}, True),
        # a baseline beats it
        (dict([GAIN, (("trial-0001", "baseline-fpp_code", "accuracy"), (-1.0, 0.1, 0.001))]), {}, False),
        # no gain is significant
        ({("trial-0001", "baseline-zero_shot", "ece"): (-0.3, 0.2, 0.4)}, {}, False),
    ],
)  # fmt: skip
def test_a_finalist_qualifies_if_it_gains_without_a_loss(rows, margins, qualifies):
    assert comparison(rows, margins=margins).qualifies("trial-0001") == qualifies


@pytest.mark.parametrize(
    ("baselines", "metrics", "reason"),
    [((), METRICS, "there are no baselines to compare with"), (BASELINES, (), "no objective has a valid test")],
)
def test_without_a_test_nothing_is_recommended(baselines, metrics, reason):
    evidence = comparison({}, baselines=baselines, metrics=metrics)
    assert not evidence.qualifies("trial-0001")
    assert why_none_qualifies(("trial-0001",), evidence) == reason


def test_the_reason_names_the_gains():
    reason = comparison(dict([GAIN])).why_recommended("trial-0001")
    assert reason == "better in ece than zero_shot, not worse than zero_shot by more than 1 point"


def test_the_reason_names_the_metric_in_which_zero_shot_is_too_well_calibrated_to_show_a_loss():
    evidence = comparison(dict([GAIN]))
    key = ("trial-0001", "baseline-zero_shot", "ece")
    hiding = replace(evidence.differences[key], hidden_loss=9.0)
    evidence = replace(evidence, differences={**evidence.differences, key: hiding})
    assert not evidence.qualifies("trial-0001")
    reason = why_none_qualifies(["trial-0001"], evidence)
    assert reason == "these images are too few to show a loss of ece to zero_shot"


def test_a_gain_with_a_loss_is_not_denied():
    """Another finalist is safe and gains nothing: the reason must not say that no finalist gains."""
    rows = dict([GAIN, LOSS])
    rows |= {("trial-0002", "baseline-zero_shot", metric): (0.0, 0.1, 0.9) for metric in METRICS}
    reason = why_none_qualifies(("trial-0001", "trial-0002"), comparison(rows))
    assert reason == (
        "each finalist that is shown to be better than zero_shot may be worse than zero_shot by more than "
        "1 point, or is beaten by a baseline"
    )


def test_the_reason_names_the_missing_evidence():
    assert (
        why_none_qualifies(["trial-0001"], comparison(dict([GAIN, LOSS])))
        == "every finalist may be worse than zero_shot by more than 1 point"
    )
    several_margins = comparison(dict([GAIN, LOSS]), margins={"ece": 0.5})
    assert why_none_qualifies(["trial-0001"], several_margins).endswith("by more than 1 of accuracy or 0.5 of ece")
    beaten = dict([GAIN, (("trial-0001", "baseline-fpp_code", "accuracy"), (-1.0, 0.1, 0.001))])
    assert why_none_qualifies(["trial-0001"], comparison(beaten)).endswith("is beaten by a baseline")


@pytest.mark.parametrize(
    ("metric", "margin"),
    [
        ("accuracy", 1.0),
        ("ece", 1.0),
        ("ece/dtd", 1.0),
        ("ece@isotonic", 1.0),
        ("nll", 0.02),
        ("brier", 0.01),
        ("aurc", 0.01),
    ],
)
def test_margins_have_defaults(metric, margin):
    assert margin_of(metric, {}) == margin
    assert margin_of(metric, {metric: 7.0}) == 7.0


def test_margins_in_words_name_metrics_where_they_differ():
    assert comparison({}).margins_text() == "1 point"
    assert comparison({}, metrics=("accuracy", "nll")).margins_text() == "1 of accuracy or 0.02 of nll"


def test_the_best_baseline_is_not_dominated():
    values = {"a": (70.0, 5.0), "b": (70.0, 4.0), "c": (69.0, 1.0)}
    assert best_baseline(values, ["max", "min"]) == "b"
    assert best_baseline({}, ["max", "min"]) is None
    equal_but_for_rounding = {"a": (72.91666666666667, 5.0), "b": (72.91666666666666, 4.0)}
    assert best_baseline(equal_but_for_rounding, ["max", "min"]) == "b"


def test_the_design_of_an_answer_has_its_seeds_and_images():
    assert Answer(split="test", images={"a": 200, "b": 200}, seeds=3).design == "3 seeds, 2 x 200 test images"
    assert Answer(split="test", images={"a": 200, "b": 97}, seeds=1).design == (
        "one seed, 2 datasets of 97 to 200 test images"
    )
