"""A trial that the user stops: results on disk, the record, Optuna and MLflow."""

from contextlib import closing

import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import STOPPED_BY_STEER
from fpp_sweep.search.job import TrialContext, run_job
from fpp_sweep.search.searcher import SweepSearcher
from fpp_sweep.space.reading import parse_space
from fpp_sweep.tracking.runs import trial_run
from fpp_sweep.trial import worker as worker_module
from fpp_sweep.workers.session import StatusPoller
from tests.kit.names import named
from tests.kit.records import sweep_info
from tests.kit.workers import Gate, executing, plan_of

SPACE = named("""
base: {method: tpt, prompt: a photo of a, views.count: 2}
params: {adapt.lr: {low: 0.001, high: 0.1, log: true}}
search: {trials: 2, concurrency: 1, sampler: random, finalists: {seeds: 1}}
work: {datasets: [digits], baselines: []}
""")


def run_of(folder, record):
    """Return the run of a record in MLflow."""
    return trial_run(record, statistics_of(folder, folder.info(), folder.trials()))


class UserStops:
    """An executor during whose n-th task the user stops the trial."""

    def __init__(self, executor, folder, trial, number):
        self.executor, self.folder, self.trial, self.number = executor, folder, trial, number

    def results(self, tasks, order=0):
        with closing(self.executor.results(tasks, order)) as results:
            for number, task_and_result in enumerate(results, 1):
                if number == self.number:
                    self.folder.send_command("stop", [self.trial])
                yield task_and_result


class Sweep:
    """A searcher and the calls that Ray Tune makes to it."""

    def __init__(self, path, worker):
        self.space = parse_space(SPACE, "space.yaml")
        self.folder = SweepFolder(path)
        if not self.folder.info_file.exists():
            self.folder.write_info(sweep_info(name="sweep", state="running", space=self.space.plain()))
        self.plan = plan_of(worker, seeds=(0, 1), splits=("val", "test"), shards=3)
        self.changes = []
        self.searcher = SweepSearcher(
            self.space,
            SweepRecord(self.folder, self.folder.info()),
            plan=self.plan,
            poller=StatusPoller(None),
            listeners=[self],
        )
        self.searcher.prepare_jobs()

    def on_change(self, change):
        self.changes.append((change.record.name, change.record.state, change.split))

    def run(self, executor, *, stop_during=None, reported=True):
        """Run the next job to its end; with `reported=False`, Optuna gets no result."""
        job = self.searcher.suggest("t")
        if stop_during:
            executor = UserStops(executor, self.folder, job["name"], stop_during)
        context = TrialContext(folder=self.folder, executor=executor, plan=self.plan, space=self.space)
        run_job(context, **job)
        if reported:
            self.searcher.on_trial_complete("t", {"done": True, "pid": 1})
        return self.folder.trial(job["name"])

    @property
    def states(self):
        return [trial.state.name for trial in self.searcher.study.trials()]


@pytest.mark.parametrize("kind", ["inline", "scheduled"])
@pytest.mark.parametrize("reported", [True, False], ids=["reported", "the driver died before its report"])
def test_a_stopped_trial_is_recorded_everywhere_and_not_restarted(worker, tmp_path, kind, reported):
    sweep = Sweep(tmp_path, worker)
    gate = Gate(2)
    with executing(kind, worker, sweep.plan, sweep.folder.tasks, workers=1, around=gate) as executor:
        record = sweep.run(executor, stop_during=2, reported=reported)
        assert gate.open(executor) == (2 if kind == "inline" else 3)
    assert (record.name, record.state, record.reason, record.details) == ("trial-0000", "stopped", STOPPED_BY_STEER, "")
    assert (record.values, record.results) == (None, {})
    assert record.finished >= record.started
    assert record.seconds_without_result > 0
    assert sweep.states == ["PRUNED" if reported else "RUNNING"]
    assert [path.name for path in sweep.folder.artifacts("trial-0000").iterdir()] == ["log.txt"]

    run = run_of(sweep.folder, record)
    assert (run.status, run.tags["state"], run.tags["reason"], run.metrics) == (
        "FINISHED",
        "stopped",
        STOPPED_BY_STEER,
        {},
    )

    later = Sweep(tmp_path, worker)
    assert later.states == ["PRUNED"]
    assert later.searcher.ended() == {"stopped": 1}
    with executing(kind, worker, later.plan, later.folder.tasks) as executor:
        assert later.run(executor).name == "trial-0001"
    assert later.states == ["PRUNED", "COMPLETE"]
    assert later.searcher.total == 2
    assert later.searcher.suggest("t")["split"] == "test"  # the search is over, and the front is tested


def test_a_stopped_trial_is_not_a_failed_one(worker, tmp_path):
    sweep = Sweep(tmp_path, worker)
    with executing("inline", worker, sweep.plan, sweep.folder.tasks) as executor:
        sweep.run(executor, stop_during=2)
    assert sweep.searcher.ended() == {"stopped": 1}
    assert sweep.changes == [("trial-0000", "running", "val"), ("trial-0000", "stopped", "val")]


def test_a_trial_stopped_on_the_test_split_keeps_its_validation_results(worker, tmp_path):
    sweep = Sweep(tmp_path, worker)
    with executing("inline", worker, sweep.plan, sweep.folder.tasks) as executor:
        before = sweep.run(executor)
        sweep.run(executor)
        record = sweep.run(executor, stop_during=2)
    assert (record.state, record.reason) == ("complete", f"on test: {STOPPED_BY_STEER}")
    assert set(record.results) == {"val"}
    assert record.values is not None
    assert before.state == "complete"


def test_a_failed_trial_records_the_cause(worker, tmp_path, monkeypatch):
    def broken_evaluate(*how, **options):
        raise RuntimeError("CUDA error: an illegal address")

    sweep = Sweep(tmp_path, worker)
    monkeypatch.setattr(worker_module, "evaluate", broken_evaluate)
    with executing("inline", worker, sweep.plan, sweep.folder.tasks) as executor:
        record = sweep.run(executor)
    where = f"digits, val samples 0..64, seed 0, {worker.model_info().where}"
    assert (record.state, record.reason) == ("failed", f"{where}: RuntimeError: CUDA error: an illegal address")
    assert "in broken_evaluate" in record.details
