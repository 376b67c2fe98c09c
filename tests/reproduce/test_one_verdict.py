"""A pair has the same verdict in a sweep's answer, in its table, in `compare` and in a claim of the paper."""

from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.measurements import read_block_stats
from fpp_sweep.records.records import FINAL
from fpp_sweep.report.comparison import compare, trial_entries
from fpp_sweep.reproduce.claims import judge_claims
from fpp_sweep.reproduce.experiments import Claim, find
from tests.kit.experiments import result_from_stats, write_experiment
from tests.kit.measured import World, write_measured_sweep
from tests.kit.names import TPT, ZERO_SHOT

SETS = ("dtd", "pets")
METRICS = ("accuracy", "ece")
CHAMPION = "trial-0002"
SIDES = {ZERO_SHOT: (0.60, 0.15), TPT: (0.63, 0.25), "otpt": (0.70, 0.05), CHAMPION: (0.64, 0.05)}
ROWS = {ZERO_SHOT: "zero_shot", TPT: "tpt", "otpt": "otpt", CHAMPION: "ctpt"}  # rows of the paper's table
VERDICTS = {"+": "holds", "-": "does not hold", "": "undecided"}


@pytest.fixture
def folder(tmp_path):
    splits = ("val", FINAL, "test")
    world = World(1000, datasets=SETS)
    return write_measured_sweep(tmp_path / "sweep", world, SIDES, splits, seeds=(0, 1), is_search_apart=True)


def answer_of(folder):
    return statistics_of(folder, folder.info(), folder.trials()).answer


def marks_of(folder):
    """Return the marks of the champion's differences by baseline and metric."""
    return {pair: difference.mark for pair, difference in answer_of(folder).differences.items()}


def test_a_pair_has_the_same_verdict_in_a_comparison(folder):
    for (baseline, metric), mark in marks_of(folder).items():
        label = baseline.removeprefix("baseline-")
        compared = compare(trial_entries(folder, [CHAMPION, label])).differences[CHAMPION, label, metric]
        assert compared.mark == mark


def test_a_pair_has_the_same_verdict_as_a_claim_of_the_paper(folder, tmp_path):
    marks = marks_of(folder)
    assert set(marks.values()) == set(VERDICTS)
    claims = []
    for baseline, metric in marks:
        rival = ROWS[baseline.removeprefix("baseline-")]
        claims.append(Claim(says="better", row=ROWS[CHAMPION], than=[rival], column=metric))
    stats = {}
    for name, row in ROWS.items():
        record = name if name.startswith("trial") else f"baseline-{name}"
        stats[row] = read_block_stats(folder.artifacts(record), "test")
    results = {row: result_from_stats(table, sce=1.0) for row, table in stats.items()}
    experiment = replace(find("main"), claims=tuple(claims))
    table = write_experiment(tmp_path / "experiment", experiment, SETS, results, stats=stats)
    assert [claim.verdict for claim in judge_claims(table)] == [VERDICTS[mark] for mark in marks.values()]
