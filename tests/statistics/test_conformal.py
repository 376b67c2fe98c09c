"""Conformal sets equal those of a naive implementation and contain the promised share of labels."""

from fractions import Fraction

import numpy as np
import pytest

from fpp_sweep.statistics.posthoc import class_scores, fit_threshold, scores_of_labels

FORMS = ("lac", "aps")


def random_probabilities(seed, samples, classes):
    """Return probabilities of an overconfident model, with ties, and labels."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(samples, classes)).round(1)
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    weights = np.exp(2 * logits)
    return weights / weights.sum(axis=1, keepdims=True), labels


def naive_score(form, row, label):
    if form == "lac":
        return 1 - row[label]
    ranked = sorted(range(len(row)), key=lambda other: (-row[other], other))
    total = 0.0
    for other in ranked[: ranked.index(label)]:
        total += row[other]
    return total


def naive_set(form, row, calibration, labels, percent):
    """Return the classes whose rank among the calibration labels, counting the class itself, is not too low."""
    members = set()
    for candidate in range(len(row)):
        score = naive_score(form, row, candidate)
        as_plausible = 1
        for other, label in zip(calibration, labels, strict=True):
            as_plausible += naive_score(form, other, label) >= score
        if Fraction(as_plausible, len(labels) + 1) > 1 - Fraction(percent, 100):
            members.add(candidate)
    return members


@pytest.mark.parametrize("percent", [90, 95])
@pytest.mark.parametrize("form", FORMS)
def test_sets_are_the_classes_that_a_rank_test_keeps(form, percent):
    for samples in (50, 59, 60, 79):  # sizes with and without an effect of rounding up
        calibration, labels = random_probabilities(samples, samples, 6)
        test, _ = random_probabilities(1, 30, 6)
        threshold = fit_threshold(scores_of_labels(class_scores(form, calibration), labels), percent)
        found = class_scores(form, test) <= threshold
        for row, is_in_set in zip(test, found, strict=True):
            assert set(np.flatnonzero(is_in_set)) == naive_set(form, row, calibration, labels, percent)


@pytest.mark.parametrize("percent", [90, 95])
@pytest.mark.parametrize("form", FORMS)
def test_sets_hold_the_promised_share_of_labels(form, percent):
    held = []
    for seed in range(200):
        probabilities, labels = random_probabilities(seed, 300, 5)
        label_scores = scores_of_labels(class_scores(form, probabilities), labels)
        held.append((label_scores[99:] <= fit_threshold(label_scores[:99], percent)).mean())
    # Without ties, coverage lies between the level and the level + 1 / (n + 1). The mean has a standard error of 0.002.
    assert percent / 100 - 0.01 < np.mean(held) < percent / 100 + 0.02


def test_aps_has_no_empty_set_and_lac_may_have_one():
    sure = np.array([[0.98, 0.01, 0.01]])
    unsure = np.array([[0.4, 0.35, 0.25]])
    threshold = fit_threshold(np.zeros(60), 90)  # every label is the most probable class
    assert (class_scores("aps", sure) <= threshold).tolist() == [[True, False, False]]
    strict = fit_threshold(scores_of_labels(class_scores("lac", sure.repeat(60, axis=0)), np.zeros(60, int)), 90)
    assert not (class_scores("lac", unsure) <= strict).any()


def test_too_few_images_for_a_level_give_sets_of_all_classes():
    assert fit_threshold(np.zeros(18), 95) == np.inf
    assert fit_threshold(np.zeros(19), 95) == 0.0
