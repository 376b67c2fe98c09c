"""Sentences on the cost of a sweep, and on what is left of its budget."""

import pytest

from fpp_sweep.report.timeline import cost_sentences
from tests.kit.records import baseline, sweep_info, trial

RECORDS = [baseline("tpt", 69.0, 9.8), trial(0), trial(1)]


@pytest.mark.parametrize(
    ("search", "end_reason", "sentence"),
    [
        ({"trials": 8}, "", "Budget: trials 8."),
        (
            {"trials": 8, "gpu_hours": 2, "wall_clock": None},
            "all 8 trials",
            "Budget: trials 8, gpu_hours 2; ended: all 8 trials.",
        ),
        ({}, "", None),
    ],
)
def test_the_budget_is_named_with_the_reason_for_the_end(search, end_reason, sentence):
    info = sweep_info(space={"search": search}, end_reason=end_reason)
    sentences = cost_sentences(info, RECORDS)
    assert sentences[0].startswith("0.05 device hours for 3 trials, including baselines, in ")
    assert sentences[1:] == ([sentence] if sentence else [])
