"""A sweep that is asked another space: its trials are reused, and its answer is that of a fresh sweep of the space.

Trials run in this process on the embedded model. The searcher is called as Ray Tune calls it.
"""

import os
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from ray.tune.search import Searcher

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.texts import question_texts
from fpp_sweep.search.job import run_job
from fpp_sweep.search.question import (
    drop_outdated_results,
    is_taken_at_once,
    reassess,
    require_askable,
    require_no_start,
)
from fpp_sweep.search.searcher import SweepSearcher
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.command_line import space_of_sweep
from fpp_sweep.sweep.driver import open_sweep
from fpp_sweep.sweep.local_run import local_worker_spec
from fpp_sweep.sweep.sweep_record import SweepRecorder, begin, recording_end, start_of
from fpp_sweep.sweep.worker_pool import Workers
from fpp_sweep.trial.results import TaskStore
from fpp_sweep.trial.worker import LocalExecutor
from tests.kit.long_forms import short_and_long
from tests.kit.names import OTPT, TPT, ZERO_SHOT, named
from tests.kit.records import sweep_info

SPACE = named("""
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  adapt.lr: [0.005, 0.01]
objectives: [accuracy, ece]
search: {trials: 5, concurrency: 1, sampler: random, include_published: false, finalists: {count: 2, seeds: 2}}
work: {datasets: [scenes], limit: 8, baselines: [zero_shot], reuse_results: false}
""")


class WorkerInProcess:
    """The workers of a sweep: one, in this process. It counts the tasks that it computes."""

    def __init__(self, worker, folder):
        self.worker, self.folder = worker, folder
        self.describe, self.check = worker.describe, worker.check
        self.searched = 0  # tasks of the search that were computed

    def begin(self, keys):
        self.executor = LocalExecutor(self.worker, keys, TaskStore(self.folder.tasks, None))

    def results(self, tasks, order=0):
        for task, result in self.executor.results(tasks, order):
            self.searched += bool(result.worker_seconds) and getattr(task, "split", "") == "val"
            yield task, result


@pytest.fixture(scope="module")
def run(make_worker):
    """Return a function that asks a folder a space and runs what is missing."""

    def ask(folder, space):
        exists = folder.has_sweep
        options = Options(
            root=folder.path.parent, name=folder.path.name, resume=exists, tracking_uri="sqlite:////tmp/none.db"
        )
        start = start_of(space, options, folder)
        spec = asdict(local_worker_spec(start.space, ()))
        del spec["cache"]
        pool = WorkerInProcess(make_worker(**spec), folder)
        begin(start)
        context = open_sweep(start, Workers(pool, pool.worker.model_info()))
        recorder = SweepRecorder(start.record)
        with recording_end(recorder):
            run_jobs(start, context, recorder)
        return pool

    return ask


def run_jobs(start, context, recorder):
    status = SimpleNamespace(workers=1, fatal=None)
    searcher = SweepSearcher(
        context.space, start.record, plan=context.plan, poller=SimpleNamespace(status=status), listeners=[recorder]
    )
    searcher.prepare_jobs()
    recorder.record_reference(searcher.records())
    number = 0
    while (job := searcher.suggest(str(number))) != Searcher.FINISHED:
        run_job(context, **job)
        searcher.on_trial_complete(str(number), {"pid": os.getpid()})
        number += 1


def space_of_text(*overrides, text=SPACE):
    return parse_space(text, "space.yaml", list(overrides))


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    """The folder of a finished sweep."""
    folder = SweepFolder(tmp_path_factory.mktemp("measured") / "sweep")
    run(folder, space_of_text())
    return folder


EDITS = {
    "narrower range": ["params.fpp.gamma1.low=1"],
    "a choice added": ["params.adapt.lr=[0.005, 0.01, 0.02]"],
    "a setting added": ["params.fpp.gamma2={low: 1, high: 15}"],
    "a setting removed": ["adapt.lr=0.005"],
    "a method as a choice": [f"params.method=[{TPT}, {OTPT}]"],
    "another objective": ["objectives=[accuracy, brier]"],
    "a constraint on a new baseline": [
        f"work.baselines=[{ZERO_SHOT}, {TPT}]",
        f"constraints=[{{metric: accuracy, at_least: -100, baseline: {TPT}}}]",
    ],
    "another floor": ["search.floor=0.5"],
    "a larger budget": ["search.trials=7"],
    "other finalists": ["search.finalists={count: 1, seeds: 3}"],
    "more images after the search": ["search.finalists={count: 2, seeds: 2, images: 12}"],
}
SHORT_EDITS = (
    "a choice added",
    "a method as a choice",
    "another objective",
    "a constraint on a new baseline",
    "other finalists",
)
ANSWERED_BY_STORED_RESULTS = ("another objective", "another floor")


@pytest.mark.parametrize("name", short_and_long(EDITS, lambda name: name in SHORT_EDITS))
def test_an_edited_sweep_answers_as_a_fresh_one(run, measured, tmp_path, name):
    """Common trials have the same values, no measured trial runs again, and the folder answers the new space."""
    space = space_of_text(*EDITS[name])
    edited = SweepFolder(shutil.copytree(measured.path, tmp_path / "sweep"))
    work = run(edited, space)
    records = {record.name: record for record in edited.trials()}
    asked = [record for record in records.values() if record.kind == "trial" and not record.outside]
    assert (edited.info().state, len(asked)) == ("finished", space.search.trials)
    assert all(space.resolve(record.params).flat() == record.config for record in asked)
    for old in measured.trials():  # no trial is measured twice, and none is lost
        assert records[old.name].results["val"].average == old.results["val"].average
        assert records[old.name].attempt == old.attempt
    fresh = SweepFolder(tmp_path / "fresh")
    run(fresh, space)
    common = {record.key: record for record in fresh.trials() if record.kind == "trial"}
    for record in asked:
        if record.key in common:
            other = common[record.key]
            assert (record.values, record.constraints, record.params) == (other.values, other.constraints, other.params)
    if name in ANSWERED_BY_STORED_RESULTS:
        assert work.searched == 0
    (text,) = question_texts(edited.info())
    assert EDITS[name][0].partition("=")[0] in text


def test_the_floor_is_a_constraint_of_every_trial_unless_zero_shot_is_no_baseline(run, measured, tmp_path):
    accuracy = {record.name: record.results["val"].average["accuracy"] for record in measured.trials()}
    for record in measured.trials():
        assert record.values[0] == accuracy[record.name]  # later stages and the test split change neither
        if record.kind == "trial":
            shortfall = accuracy[f"baseline-{ZERO_SHOT}"] - accuracy[record.name]
            assert record.constraints["floor"] == pytest.approx(shortfall - 5)
    without = SweepFolder(tmp_path / "sweep")
    run(without, space_of_text("work.baselines=[]", "search.trials=1"))
    assert "floor" not in without.trial("trial-0000").constraints


def test_a_trial_outside_the_space_stays_on_the_front_with_a_mark(run, measured, tmp_path):
    edited = SweepFolder(shutil.copytree(measured.path, tmp_path / "sweep"))
    values = [record.params["fpp.gamma1"] for record in measured.trials() if record.kind == "trial"]
    run(edited, space_of_text(f"params.fpp.gamma1.low={max(values) - 1e-6}"))
    outside = [record for record in edited.trials() if record.outside]
    assert len(outside) == len(values) - 1
    front = front_of(edited.info(), edited.trials())
    assert {record.name for record in outside} <= {record.name for record in front.finished}
    assert all("outside the space" in front.remarks(record) for record in outside)


def test_trials_outside_the_space_keep_their_results_if_a_metric_needs_more_than_is_stored(measured, tmp_path):
    edited = SweepFolder(shutil.copytree(measured.path, tmp_path / "sweep"))
    values = [record.params["fpp.gamma1"] for record in measured.trials() if record.kind == "trial"]
    space = space_of_text(f"params.fpp.gamma1.low={max(values) - 1e-6}", "objectives=[accuracy, lac_90_size]")
    drop_outdated_results(edited, edited.info().space, space)
    records = reassess(edited, space)
    assert sum(record.outside for record in records) == len(values) - 1
    for record in records:
        if record.outside:
            assert (record.state, record.values) == ("complete", None)
            assert record.results == measured.trial(record.name).results
        else:
            assert (record.state, record.results) == ("waiting", {})


@pytest.mark.parametrize("override", ["search.floor=1", "search.gate=0.2", "search.finalists.count=1"])
def test_settings_that_the_processes_of_trials_have_wait_for_these(override):
    assert is_taken_at_once(space_of_text(), space_of_text("search.trials=9"))
    assert not is_taken_at_once(space_of_text(), space_of_text(override))


@pytest.mark.parametrize("override", ["work.task_timeout=3h", "work.workers=2", "work.cache=elsewhere"])
def test_a_running_sweep_refuses_what_only_a_start_takes_over(override):
    with pytest.raises(InputError, match="only a start takes it over; stop the sweep"):
        require_no_start(space_of_text(), space_of_text(override))


def test_settings_of_views_that_a_space_spells_out_are_those_it_had_by_default(measured):
    require_askable(measured, space_of_text("views.augmix=auto", "views.min_area=0.5"), {})


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("work.limit=9", r"work\.limit: 8 -> 9"),
        ("work.seeds=[0, 1]", r"work\.seeds: \[0\] -> \[0, 1\]"),
        ("views.count=8", r"views\.count: 4 -> 8"),
        ("search.split=test", r"search\.split: val -> test"),
    ],
)
def test_what_decides_measured_numbers_is_fixed_by_the_folder(measured, run, override, change):
    before = measured.info()
    with pytest.raises(InputError, match=rf"^sweep cannot be resumed: .* \({change}\); keep it, or begin another"):
        run(measured, space_of_text(override))
    assert measured.info() == before


def test_a_metric_that_stored_predictions_cannot_give_is_refused(measured, run):
    with pytest.raises(InputError, match=r"^sweep: logits: is not stored with the predictions of its trials"):
        run(measured, space_of_text("objectives=[accuracy, ece@temperature_val]"))


def test_a_failed_trial_runs_again_and_one_outside_the_space_does_not(run, measured, tmp_path):
    edited = SweepFolder(shutil.copytree(measured.path, tmp_path / "sweep"))
    trials = sorted(
        (record for record in edited.trials() if record.kind == "trial"), key=lambda one: one.params["fpp.gamma1"]
    )
    for record in (trials[0], trials[-1]):
        edited.write_trial(replace(record, state="failed", reason="lost", results={}, values=None))
    run(edited, space_of_text(f"params.fpp.gamma1.low={trials[0].params['fpp.gamma1'] + 1e-6}"))
    assert [edited.trial(record.name).state for record in (trials[0], trials[-1])] == ["failed", "complete"]


def test_the_recorded_space_of_a_grid_can_gain_blocks(tmp_path):
    folder = SweepFolder(tmp_path)
    grid = parse_space("grid: [{adapt.lr: [0.005, 0.01]}]", "grid.yaml", ["prompt=a photo of a"])
    folder.write_info(sweep_info(space=grid.plain()))
    space = space_of_sweep(folder, ["grid=[{adapt.lr: [0.005, 0.01, 0.02]}]"])
    assert space.search.trials == 3
