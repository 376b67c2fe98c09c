"""A race on Ray: a killed and resumed sweep makes the same decisions; stopped trials can be continued."""

import json
from dataclasses import replace

import pytest

from fpp_sweep.search.study_file import load_study
from fpp_sweep.space.reading import parse_space
from tests.kit.names import named
from tests.kit.processes import assert_same_as_in_one_process, kill_tree, killed_at_end, only_sweep, start_tune
from tests.kit.waiting import wait_for

# two points with good learning rates, and random learning rates that mostly ruin the prompt
SPACE = named("""
base: {method: tpt, prompt: a photo of a, views.count: 2, adapt.view_fraction: 0.5}
params: {adapt.lr: {low: 0.0001, high: 2.0}}
points: [{adapt.lr: 0.003}, {adapt.lr: 0.005}]
objectives: [accuracy, ece]
search: {trials: 6, concurrency: 1, sampler: random, race: {rungs: [1/3, 2/3], reserve: 2}}
work: {datasets: [digits], limit: 192, baselines: [zero_shot], workers: 1}
""")


def run(folder, *words):
    with killed_at_end(start_tune(folder, *words, space=SPACE)) as process:
        out, errors = process.communicate()
    return process.returncode, out, errors


def read_decisions(sweep):
    files = sweep.path.glob("race/*/decisions.json")
    return {path.parent.name: json.loads(path.read_text())["decisions"] for path in files}


def comparable_records(sweep):
    """Return the records without the fields that differ between runs, such as times."""
    fields_that_differ = {"started": 0.0, "finished": None, "attempt": 1, "seconds_without_result": 0.0, "results": {}}
    return [replace(record, **fields_that_differ) for record in sweep.trials()]


def study_trials(sweep):
    trials = load_study(sweep.study_file, sweep.info().name).trials
    return [(trial.state, trial.values, trial.params, trial.user_attrs) for trial in trials]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_and_resumed_race_decides_as_an_undisturbed_one_and_its_losers_can_be_continued(tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    status, output, errors = run(undisturbed)
    assert status == 0, errors
    whole = only_sweep(undisturbed)
    losers = [record.name for record in whole.trials() if record.state == "stopped"]
    assert losers
    assert f"race        {len(losers)} of 6 trials stopped early; that saved " in output

    with killed_at_end(start_tune(killed, space=SPACE)) as process:
        wait_for(lambda: list(killed.glob(f"sweeps/*/race/{losers[0]}/*")))  # the first rung of the trial is done
        kill_tree(process.pid)
    before = read_decisions(only_sweep(killed))
    status, _, errors = run(killed, "--resume")
    assert status == 0, errors
    sweep = only_sweep(killed)
    assert {name: read_decisions(sweep)[name][: len(decisions)] for name, decisions in before.items()} == before
    assert read_decisions(sweep) == read_decisions(whole)
    assert comparable_records(sweep) == comparable_records(whole)
    assert study_trials(sweep) == study_trials(whole)

    status, output, errors = run(killed, "--resume", "--continue-trials", *losers)
    assert status == 0, errors
    assert "race        no trial was stopped for good; nothing was saved" in output
    for name in losers:
        record = sweep.trial(name)
        assert (record.state, record.estimate) == ("complete", whole.trial(name).estimate)
    assert study_trials(sweep) == study_trials(whole)
    finished = [record for record in sweep.trials() if record.state == "complete"]
    assert len(finished) == 6 + 1
    space = parse_space(SPACE, "small.yaml", ["search.race=false"])
    assert_same_as_in_one_process(sweep, space, tmp_path / "features", finished)

    status, out, errors = run(killed, "--resume", "--continue-trials", "trial-0000")
    assert (status, out) == (2, "")
    assert (
        errors.splitlines()[-1]
        == "error: --continue-trials trial-0000: cannot be continued; no trial failed or was stopped early"
    )
