"""The table at the end of a sweep: front and baselines on every split, at any width."""

from dataclasses import replace

import pytest

from fpp_sweep.records.answer import statistics_of, statistics_of_samples
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import FINAL
from fpp_sweep.sweep.summary import final_table
from tests.kit.measured import World, write_measured_sweep
from tests.kit.names import CTPT, OTPT, TPT, ZERO_SHOT
from tests.kit.records import (
    ACCURACY,
    ECE,
    NLL,
    all_baselines,
    failed,
    searched_trials,
    split_result,
    sweep_info,
    trial,
    write_sweep,
)


def table_without_statistics(records, width=100, info=None):
    """Return the terminal's table of records that have no block statistics."""
    info = info or sweep_info()
    return final_table(info, statistics_of_samples(info, front_of(info, records), {}), width)


def test_the_table_has_the_front_and_the_baselines_on_every_split():
    settings = {"fpp.gamma2": 0.15}
    trials = [
        trial(0, 70.5, 4.0, params=settings, test=True),
        trial(1, 72.0, 6.0, params=settings),
        trial(2, 60, 9, params=settings),
    ]
    records = [*all_baselines(), *trials]
    lines = table_without_statistics(records).splitlines()
    lines = lines[lines.index("") + 1 :]
    goals = "by accuracy (max) and ece (min) on val"
    assert lines[0] == f"front of perturb-20261120-185232: 2 of 3 finished trials, {goals}"
    assert lines[1].split() == ["val", "val", "test", "test"]
    marks = {name: ", ".join(texts) for name, texts in front_of(sweep_info(), records).marks.items()}
    assert lines[3].split()[:3] == ["trial-0001", "72.00", "6.00"]
    assert lines[3].endswith(f"  {marks['trial-0001']}")
    assert lines[4].split()[:5] == ["trial-0000", "70.50", "4.00", "69.80", "4.00"]
    assert lines[4].endswith(f"  {marks['trial-0000']}, code")
    assert marks["trial-0000"].startswith("best ece")
    assert lines[5] == ""
    assert [line.split()[0] for line in lines[6:12]] == [ZERO_SHOT, TPT, CTPT, OTPT, "fpp_paper", "fpp_code"]
    assert lines[-3:] == ["trial       fpp.gamma2", "trial-0001        0.15", "trial-0000        0.15"]
    assert "trial-0002" not in "\n".join(lines)


def test_a_sweep_that_only_evaluates_says_that_no_trial_has_finished(tmp_path):
    folder = write_sweep(tmp_path, sweep_info(space={"search": {"evaluate_only": True}}), [failed(0)])
    info = folder.info()
    table = final_table(info, statistics_of(folder, info, folder.trials()), 100)
    assert table.strip() == f"no trial of {info.name} has finished"


def test_the_settings_of_finalists_are_shown_once_with_the_answer(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.15), TPT: (0.60, 0.25), "trial-0002": (0.64, 0.05)}
    folder = write_measured_sweep(tmp_path / "sweep", World(300), sides, ("val", FINAL))
    info, records = folder.info(), folder.trials()
    table = final_table(info, statistics_of(folder, info, records), 100)
    assert "Settings of these finalists" in table
    assert "Settings of the front" not in table


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_fits_the_terminal_and_shows_every_setting(width):
    goals = (ACCURACY, ECE, NLL)
    trials = []
    for record in searched_trials():
        if record.results:
            results = {"val": record.results["val"], "test": split_result(70, 5)}
            values = (*record.values, record.results["val"].average["nll"])
            trials.append(replace(record, results=results, values=values))
    records = [*all_baselines(goals), *trials]
    long = table_without_statistics(records, width, sweep_info(goals, name="x" * 150))
    table = table_without_statistics(records, width, sweep_info(goals))
    assert max(map(len, [*table.splitlines(), *long.splitlines()])) <= width
    assert "adapt.penalty_weight" in table
    assert "…" not in table
    for remark in ("best ece", "best nll", "knee"):
        assert remark in " ".join(table.split())


def test_a_sweep_with_baselines_alone_has_a_table():
    assert ZERO_SHOT in table_without_statistics(all_baselines())
