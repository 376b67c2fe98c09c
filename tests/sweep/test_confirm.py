"""A sweep that confirms, on Ray: begun with it, killed and resumed it decides as one that goes on with it later."""

import json

import pytest

from fpp_sweep.records.records import CONFIRMED
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.sweep.plan import make_plan
from fpp_sweep.sweep.worker_spec import worker_spec
from fpp_sweep.trial.local_runner import LocalExecutor
from fpp_sweep.trial.trial import run_trial
from fpp_sweep.trial.worker import Worker
from tests.drivers import ended, kill, only_sweep, started
from tests.names import named
from tests.waiting import wait_for

# most of a trial is pretraining, and prompts are at hand later: a quarter of it pays for all four small rounds
SPACE = named("""
base: {method: tpt, fpp.steps: 100, views.count: 2, adapt.selection: 0.5}
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
objectives: [accuracy, ece]
search: {trials: 6, concurrency: 1, sampler: random}
work: {datasets: [digits], limit: 64, baselines: [zero_shot], workers: 1}
""")
CONFIRM = "search.confirm={top: 3, images: 4}"


def run(folder, *words):
    with ended(started(folder, *words, space=SPACE)) as process:
        out, errors = process.communicate()
    return process.returncode, out, errors


def steps(sweep):
    """What was decided; how long it was expected to take and took is another matter in another sweep."""
    known = json.loads((sweep.path / "confirm.json").read_text())["steps"]
    return [{key: value for key, value in step.items() if key not in ("seconds", "spent")} for step in known]


def values(sweep):
    return {
        record.name: {split: (dict(result.average), result.samples) for split, result in record.results.items()}
        for record in sweep.trials()
    }


@pytest.mark.slow
def test_a_confirmation_that_is_killed_and_resumed(tmp_path):
    later, killed = tmp_path / "later", tmp_path / "killed"
    later.mkdir()
    killed.mkdir()
    status, _, errors = run(later)
    assert status == 0, errors
    whole = only_sweep(later)
    searched = {name: splits["val"] for name, splits in values(whole).items()}
    tasks = whole.info().work.tasks
    status, output, errors = run(later, "--resume", "--set", CONFIRM)
    assert status == 0, errors
    assert {name: splits["val"] for name, splits in values(whole).items()} == searched
    last = steps(whole)[-1]
    assert last["ended"] in ("no round is left", "the expected regret is under 0.1 points in every objective")
    rounds = len(steps(whole)) - 1
    assert rounds >= 2
    told = whole.info().confirmed
    assert told.startswith(f"on {4 * rounds} fresh images of each dataset: {last['best'][0]} best accuracy ")
    assert f"{rounds} rounds, " in told
    assert f"ended as {last['ended']}" in told
    shown = " ".join(output.split())
    assert f"confirmed {told}" in shown
    assert f"confirmed {told.split(';')[0]}" in (whole.report / "sweep.html").read_text()
    assert any(
        line.startswith("confirmed on ") for line in json.loads((whole.report / "front.json").read_text())["says"]
    )
    runs = sum(len(step["trials"]) + len(step["baselines"]) for step in steps(whole))
    tested = sum("test" in record.results for record in whole.trials())
    assert whole.info().work.tasks <= tasks + runs + tested  # nothing of the search again

    with ended(started(killed, "--set", CONFIRM, space=SPACE)) as process:
        wait_for(lambda: [*killed.glob("sweeps/*/confirm.json")] and len(steps(only_sweep(killed))) == 2)
        kill(process.pid)  # in the second round
    sweep = only_sweep(killed)
    known = (sweep.path / "confirm.json").read_text()
    status, _, errors = run(killed, "--resume", "--set", CONFIRM)
    assert status == 0, errors
    before, after = json.loads(known)["steps"], json.loads((sweep.path / "confirm.json").read_text())["steps"]
    assert [step | {"late": []} for step in before] == after[: len(before)]  # all of a round have run in the end
    assert steps(sweep) == steps(whole)
    ours, theirs = values(sweep), values(whole)
    assert {name: splits.get(CONFIRMED) for name, splits in ours.items()} == {
        name: splits.get(CONFIRMED) for name, splits in theirs.items()
    }
    on_test = {name for name, splits in ours.items() if "test" in splits}
    assert {*last["front"], "baseline-zero_shot"} <= on_test

    # the same bits as in one process
    space = parse_space(SPACE, "small.yaml", [CONFIRM, f"work.cache={tmp_path / 'features'}"])
    worker = Worker(worker_spec(space, gpus=0.0))
    plan = make_plan(space, worker)
    inline = LocalExecutor(worker, TaskKeys(worker.facts(), plan.known()))
    record = sweep.trial(steps(sweep)[rounds - 1]["trials"][0])
    plan = plan.of_round(plan.rounds[rounds - 1])
    result, _ = run_trial(plan, TrialConfig().replace(record.config), CONFIRMED, inline)
    assert dict(result.average) == dict(record.results[CONFIRMED].average)

    # with its decisions damaged, and two trials more, all begins anew: what has run is at hand, and the new ones join
    confirmed = {name for name, splits in ours.items() if CONFIRMED in splits}
    spent = sum(record.results[CONFIRMED].device_seconds for record in sweep.trials() if record.name in confirmed)
    sweep.confirm_file.write_text(known[: len(known) // 2])
    status, out, errors = run(killed, "--resume", "--set", CONFIRM, "search.trials=8")
    assert status == 0, errors
    (note,) = [line for line in errors.splitlines() if "confirm.json" in line]
    assert note.startswith(f"note: {sweep.confirm_file}: not readable as a record of a sweep (")
    assert note.endswith("; the confirmation begins anew, and what has run is at hand")
    first, *_ = sweep.steps()
    assert (first.finished, first.spent) == (8, pytest.approx(spent))
    again = {name: splits.get(CONFIRMED) for name, splits in values(sweep).items()}
    assert {name for name, found in again.items() if found} == confirmed | {*first.trials, *first.baselines}
    rerun = [name for name in first.trials if name in confirmed]
    assert rerun
    assert all(sweep.trial(name).results[CONFIRMED].device_seconds < 2 * spent for name in rerun)

    status, out, errors = run(killed, "--set", CONFIRM, "work.limit=100000", "--name", "none")
    assert (status, out) == (2, "")
    assert "search.confirm: digits has " in errors.splitlines()[-1]
    assert errors.splitlines()[-1].endswith("and work.limit takes them all: lower it, or give search.confirm.seeds")
