"""The searcher as Tune calls it: the next trial and the end of the search. The tests set how trials end."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ray.tune.search import Searcher

from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.front import front_of
from fpp_sweep.search import searcher
from fpp_sweep.search.searcher import AbortTune, SweepSearcher
from fpp_sweep.search.trial_runner import ABORT_REASON
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.trial.trial import Plan
from tests.kit.names import TPT, ZERO_SHOT, named
from tests.kit.records import split_result, sweep_info
from tests.kit.tasks import dataset_info

SPACE = named("""
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
search: {trials: 4, concurrency: 2, sampler: random, finalists: {seeds: 1}}
work: {datasets: [scenes], baselines: [zero_shot, tpt]}
""")


class Sweep:
    """A searcher and stand-ins for Ray Tune and for the trials' processes."""

    def __init__(self, path, *overrides, text=SPACE, spent=0.0, fatal=None):
        self.space = parse_space(text, "space.yaml", overrides)
        self.folder = SweepFolder(path)
        objectives = self.space.objectives
        info = sweep_info(name=path.name, spent=spent, space=self.space.plain(), objectives=objectives)
        self.folder.write_info(replace(info, state="running", reference=[0.0, 100.0], engine=ENGINE_NAME))
        self.changes = []
        self.workers = SimpleNamespace(workers=1, fatal=fatal)
        self.plan = Plan(datasets={"val": (dataset_info("scenes"),)}, seeds=(0,))
        self.ran = []
        self.asked = 0
        self.start_driver()

    def start_driver(self):
        record = SweepRecord(self.folder, self.folder.info())
        poller = SimpleNamespace(status=self.workers)
        self.searcher = SweepSearcher(self.space, record, plan=self.plan, poller=poller, listeners=[self])
        self.searcher.prepare_jobs()

    def on_change(self, change):
        self.changes.append((change.record.name, change.record.state, change.split))
        assert change.on_search_split == (change.split == self.space.search.split)

    def ask(self):
        self.asked += 1
        return self.searcher.suggest(f"t{self.asked}"), f"t{self.asked}"

    def end(self, trial, job, accuracy=50.0, ece=10.0, reason=None, error=False, pid=1):
        """Write the record that a trial's process writes, and report its end to the searcher as Tune does."""
        record = self.folder.trial(job["name"])
        if reason:
            self.folder.write_trial(replace(record, state="failed", reason=reason, finished=record.started + 1))
        elif not error:
            result = replace(split_result(accuracy, ece), worker_seconds=3600.0)
            record = replace(record, results={**record.results, job["split"]: result})
            if job["split"] == "val":
                record = replace(record, state="complete", values=[accuracy, ece], finished=record.started + 1)
            self.folder.write_trial(record)
        self.ran.append((job["name"], job["split"]))
        self.searcher.on_trial_complete(trial, {} if error else {"pid": pid}, error)

    def run_baselines(self, states):
        """Run the two baselines; `states` has how a baseline ends by its name."""
        for _ in range(2):
            job, trial = self.ask()
            state = states.get(job["name"])
            if state == "stopped":
                stop_trial(self, trial, job)
            else:
                self.end(trial, job, reason="out of memory" if state == "failed" else None)

    def run(self, **ends):
        """Run all jobs, one at a time; `ends` has the arguments of `end` by the job's name."""
        while True:
            job, trial = self.ask()
            if job == Searcher.FINISHED:
                return [name if split == "val" else f"{name} on {split}" for name, split in self.ran]
            self.end(trial, job, **ends.get(job["name"].replace("-", "_"), {}))


def test_baselines_come_first_then_the_search_then_the_front_on_the_test_split(tmp_path):
    better = {"trial_0002": {"accuracy": 60.0, "ece": 5.0}}
    assert Sweep(tmp_path / "sweep").run(**better) == [
        *(f"baseline-{ZERO_SHOT}", f"baseline-{TPT}", "trial-0000", "trial-0001", "trial-0002", "trial-0003"),
        *(f"baseline-{ZERO_SHOT} on test", f"baseline-{TPT} on test", "trial-0002 on test"),
    ]


def test_the_time_spent_is_recorded_when_a_trial_ends(tmp_path):
    sweep = Sweep(tmp_path / "sweep", spent=100.0)
    job, trial = sweep.ask()
    sweep.end(trial, job)
    assert sweep.folder.info().spent > 100.0


def test_a_trial_may_end_before_another_process_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(searcher, "START_SECONDS", math.inf)
    sweep = Sweep(tmp_path / "sweep", "search.concurrency=2")
    for pid in (1, 1, 2):
        first, trial = sweep.ask()
        assert sweep.ask()[0] is None
        sweep.end(trial, first, pid=pid)
    first, second = sweep.ask(), sweep.ask()
    assert first[0]
    assert second[0]
    monkeypatch.setattr(searcher, "START_SECONDS", 0.0)
    long = Sweep(tmp_path / "long", "search.concurrency=2")
    assert long.ask()[0]
    assert long.ask()[0]


def test_more_trials_run_when_workers_join(tmp_path):
    sweep = Sweep(tmp_path / "sweep", "search.concurrency=null", "work.baselines=[tpt]")
    jobs = [sweep.ask() for _ in range(2)]
    assert sweep.ask()[0] is None
    sweep.workers.workers = 2
    jobs += [sweep.ask() for _ in range(2)]
    assert sweep.ask()[0] is None
    sweep.workers.workers = 1
    for job, trial_id in jobs[:2]:
        sweep.end(trial_id, job)
        assert sweep.ask()[0] is None
    sweep.end(jobs[2][1], jobs[2][0])
    assert sweep.ask()[0] is not None


@pytest.mark.parametrize(
    ("workers", "seeds", "datasets", "overrides", "trials"),
    [
        (8, 1, 1, [], 16),  # each worker computes one trial while another waits
        (8, 3, 2, [], 3),
        (8, 1, 1, ["work.shards=4"], 4),
        (1, 3, 2, [], 2),
        (8, 3, 2, ["search.concurrency=1"], 1),
    ],
)
def test_the_number_of_simultaneous_trials_keeps_all_workers_busy(workers, seeds, datasets, overrides, trials):
    space = parse_space(SPACE, "space.yaml", ["search.concurrency=null", *overrides])
    described = tuple(dataset_info(f"number {index}") for index in range(datasets))
    plan = Plan(datasets={"val": described}, seeds=tuple(range(seeds)), shards=space.work.shards)
    assert plan.concurrent_trials(space.search, workers) == trials


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [([], 0), ([named("constraints=[{metric: accuracy, at_least: -0.5, baseline: tpt}]")], 1)],
    ids=["the floor needs zero-shot", "a constraint needs TPT"],
)
def test_trials_wait_for_the_baselines_that_constraints_refer_to(tmp_path, overrides, needed):
    sweep = Sweep(tmp_path / "sweep", *overrides)
    jobs = [sweep.ask(), sweep.ask()]
    job, trial = jobs.pop(1 - needed)
    sweep.end(trial, job)
    assert sweep.ask()[0] is None
    ((job, trial),) = jobs
    sweep.end(trial, job)
    assert sweep.ask()[0]["name"] == "trial-0000"


def test_a_search_goes_on_without_a_floor_if_zero_shot_has_no_result(tmp_path):
    sweep = Sweep(tmp_path / "sweep", "search.concurrency=1")
    sweep.run_baselines({f"baseline-{ZERO_SHOT}": "failed"})
    assert sweep.ask()[0]["name"] == "trial-0000"


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_baseline_without_result_that_a_constraint_needs_ends_the_search_before_its_first_trial(tmp_path, state):
    words = named("constraints=[{metric: accuracy, at_least: -0.5, baseline: tpt}]")
    sweep = Sweep(tmp_path / "sweep", words, "search.concurrency=1")
    sweep.run_baselines({f"baseline-{TPT}": state})
    assert sweep.ask()[0]["split"] == "test"  # of the other baseline
    assert not [record for record in sweep.folder.trials() if record.kind == "trial"]
    reason = f"which has no result: {'out of memory' if state == 'failed' else 'stopped by `steer`'}"
    assert sweep.searcher.why_stopped == f"constraint accuracy_vs_{TPT} needs baseline {TPT}, {reason}"


def test_a_baseline_that_a_constraint_needs_runs_again_in_the_next_driver(tmp_path):
    words = [named("constraints=[{metric: accuracy, at_least: -0.5, baseline: tpt}]"), "search.concurrency=1"]
    sweep = Sweep(tmp_path / "sweep", *words)
    sweep.run_baselines({f"baseline-{TPT}": "failed"})
    ran = Sweep(tmp_path / "sweep", *words).run()
    assert ran[:2] == [f"baseline-{TPT}", "trial-0000"]


def test_infeasible_trials_are_not_on_the_front(tmp_path):
    sweep = Sweep(tmp_path / "sweep", named("constraints=[{metric: accuracy, at_least: -0.5, baseline: tpt}]"))
    sweep.run(**{f"baseline_{TPT}": {"accuracy": 55.0}})
    again = Sweep(tmp_path / "sweep", named("constraints=[{metric: accuracy, at_least: -0.5, baseline: tpt}]"))
    broken = again.folder.trial("trial-0000").constraints[f"accuracy_vs_{TPT}"]
    assert broken == pytest.approx(4.5)  # the accuracy is 50, and the constraint asks for 55 - 0.5
    assert "trial-0000" not in {record.name for record in front_of(again.folder.info(), again.folder.trials()).members}


@pytest.mark.parametrize(
    ("overrides", "options", "why", "trials"),
    [
        (["search.trials=2"], {}, "all 2 trials", 2),
        (["search.wall_clock=100", "search.trials=null"], {"spent": 101.0}, "wall clock of 100 s used up", 0),
    ],
)
def test_a_used_up_budget_ends_the_search_after_the_running_trials(tmp_path, overrides, options, why, trials):
    sweep = Sweep(tmp_path / "sweep", *overrides, **options)
    sweep.run()
    assert sweep.searcher.why_stopped == why
    searched = [name for name, split in sweep.ran if name.startswith("trial") and split == "val"]
    assert len(searched) == trials


def test_consecutive_failures_end_the_sweep_and_a_success_resets_their_count(tmp_path):
    bad = {"reason": "ValueError: no"}
    sweep = Sweep(tmp_path / "one", "search.trials=9", "search.max_failures=2")
    sweep.run(trial_0000=bad, trial_0002=bad, trial_0003=bad)
    assert sweep.searcher.why_stopped == "2 trials in a row failed"
    assert sweep.searcher.ended() == {"complete": 1, "failed": 3}
    states = [record.state.name for record in sweep.searcher.study.trials()]
    assert states == ["FAIL", "COMPLETE", "FAIL", "FAIL"]


CROSSING = named("""
params: {views.min_area: {low: 0.4, high: 0.9}, views.max_area: {low: 0.5, high: 1.0}}
search: {trials: 20, concurrency: 1, sampler: random, max_failures: 1, finalists: {seeds: 1}}
work: {datasets: [scenes], baselines: []}
""")


def test_a_failed_trial_runs_again_when_the_sweep_is_resumed_and_the_study_gets_its_values(tmp_path):
    path = tmp_path / "sweep"
    Sweep(path).run(trial_0001={"reason": "scenes: not an image"})
    assert SweepFolder(path).trial("trial-0001").state == "failed"
    again = Sweep(path)
    assert again.run(trial_0001={"accuracy": 70.0, "ece": 5.0})[0] == "trial-0001"
    record = again.folder.trial("trial-0001")
    assert (record.state, record.reason, record.attempt, record.values) == ("complete", None, 2, [70.0, 5.0])
    study_trial = again.searcher.study.trials()[1]
    assert (study_trial.state.name, study_trial.values) == ("COMPLETE", [70.0, 5.0])
    assert again.searcher.ended()["failed"] == 0


def test_a_trial_whose_settings_exclude_each_other_fails_and_the_search_goes_on(tmp_path):
    sweep = Sweep(tmp_path / "sweep", text=CROSSING)
    sweep.run()
    records = sweep.folder.trials()
    assert [record.number for record in records] == list(range(20))
    impossible = [record for record in records if record.params["views.min_area"] > record.params["views.max_area"]]
    assert [record for record in records if record.state == "failed"] == impossible != []
    reason = "no trial can have these settings: views.min_area must be <= views.max_area"
    assert all(record.reason.startswith(reason) for record in impossible)
    assert sweep.searcher.ended()["failed"] == len(impossible)
    states = [study_trial.state.name for study_trial in sweep.searcher.study.trials()]
    assert states.count("FAIL") == len(impossible)
    assert (impossible[0].name, "failed", "val") in sweep.changes
    assert Sweep(tmp_path / "sweep", text=CROSSING).run() == []  # these would fail again


def test_a_search_ends_if_the_settings_of_many_trials_in_a_row_exclude_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(searcher, "MAX_IMPOSSIBLE", 3)
    never = CROSSING.replace("{low: 0.4, high: 0.9}", "{low: 0.8, high: 0.9}").replace("high: 1.0", "high: 0.6")
    sweep = Sweep(tmp_path / "sweep", "search.trials=null", "search.wall_clock=1h", text=never)
    assert sweep.run() == []
    assert sweep.searcher.why_stopped == "the settings of 3 trials in a row exclude each other; narrow the ranges"
    assert len(sweep.folder.trials()) == 3


@pytest.mark.parametrize(
    ("split", "losses", "state", "reason"),
    [
        ("val", 2, "complete", None),
        ("val", 3, "failed", "the trial's process died 3 times"),
        ("test", 2, "complete", None),
        ("test", 3, "complete", "on test: the trial's process died 3 times"),
    ],
)
def test_a_job_whose_process_died_runs_again_until_its_attempts_are_used_up(tmp_path, split, losses, state, reason):
    sweep = Sweep(tmp_path / "sweep", "search.trials=1", "work.baselines=[]")
    job, trial = sweep.ask()
    if split == "test":
        sweep.end(trial, job)
        job, trial = sweep.ask()
    for _ in range(losses):
        assert (job["name"], job["split"]) == ("trial-0000", split)
        sweep.end(trial, job, error=True)
        job, trial = sweep.ask()
    if job != Searcher.FINISHED:
        sweep.end(trial, job)
    sweep.run()
    record = sweep.folder.trial("trial-0000")
    assert (record.state, record.reason) == (state, reason)
    assert (split in record.results) == (reason is None)
    (study_trial,) = sweep.searcher.study.trials()
    assert study_trial.state.name == ("FAIL" if state == "failed" else "COMPLETE")


def test_a_result_counts_if_its_process_dies_after_writing_it(tmp_path):
    sweep = Sweep(tmp_path / "sweep", "search.trials=1", "work.baselines=[]")
    job, trial = sweep.ask()
    sweep.end(trial, job)
    job, trial = sweep.ask()
    record = sweep.folder.trial(job["name"])
    sweep.folder.write_trial(replace(record, results={**record.results, "test": record.results["val"]}))
    sweep.end(trial, job, error=True)
    assert sweep.ask()[0] == Searcher.FINISHED
    assert sweep.folder.trial(job["name"]).reason is None


def test_a_machine_error_ends_the_sweep_and_the_study_gets_no_report(tmp_path):
    sweep = Sweep(tmp_path / "sweep", "work.baselines=[]")
    _, trial = sweep.ask()
    with pytest.raises(AbortTune) as raised:
        sweep.searcher.on_trial_complete(trial, {"done": True, "pid": 1, ABORT_REASON: "a/b: No space left on device"})
    assert str(raised.value.__cause__) == "a/b: No space left on device"
    assert type(raised.value.__cause__) is MachineError
    assert [record.state.name for record in sweep.searcher.study.trials()] == ["RUNNING"]


def test_a_fatal_failure_of_the_workers_ends_the_search_at_once(tmp_path):
    sweep = Sweep(tmp_path / "sweep", "work.baselines=[]", fatal="no worker starts")
    assert sweep.ask()[0] == Searcher.FINISHED
    assert sweep.searcher.why_stopped == "no worker starts"


@pytest.mark.parametrize("ended", [False, True])
def test_a_new_driver_continues_the_recorded_trials(tmp_path, ended):
    before = Sweep(tmp_path / "sweep", "search.concurrency=1", "work.baselines=[]")
    job, trial = before.ask()
    before.end(trial, job)
    job, _ = before.ask()
    params = before.folder.trial(job["name"]).params
    if ended:  # the trial finished, and the driver died before its report to Optuna
        record = before.folder.trial(job["name"])
        before.folder.write_trial(replace(record, state="complete", values=[1.0, 2.0], finished=record.started))
    after = Sweep(tmp_path / "sweep", "search.concurrency=1", "work.baselines=[]")
    ran = after.run()
    again = [] if ended else ["trial-0001"]
    assert [name for name in ran if "test" not in name] == [*again, "trial-0002", "trial-0003"]
    record = after.folder.trial("trial-0001")
    assert record.params == params
    assert record.attempt == (1 if ended else 2)
    assert [study_trial.state.name for study_trial in after.searcher.study.trials()] == ["COMPLETE"] * 4


def test_a_begun_trial_is_continued_by_a_new_driver_though_the_budget_is_used_up(tmp_path):
    overrides = ("search.concurrency=1", "search.wall_clock=100", "search.trials=null", "work.baselines=[]")
    before = Sweep(tmp_path / "sweep", *overrides)
    job, _ = before.ask()
    after = Sweep(tmp_path / "sweep", *overrides, spent=101.0)
    assert after.run()[0] == job["name"]
    assert after.searcher.why_stopped == "wall clock of 100 s used up"
    assert [name for name, split in after.ran if split == "val"] == [job["name"]]


def stop_trial(sweep, trial, job):
    """End a trial as `steer stop` does."""
    record = sweep.folder.trial(job["name"])
    reason = "stopped by `steer`"
    sweep.folder.write_trial(replace(record, state="stopped", reason=reason, finished=record.started + 1))
    sweep.searcher.on_trial_complete(trial, {"pid": 1}, False)


def test_a_stopped_baseline_stays_stopped_when_the_sweep_is_resumed(tmp_path):
    sweep = Sweep(tmp_path / "sweep", "search.trials=1", "search.concurrency=1")
    job, trial = sweep.ask()
    assert job["name"] == f"baseline-{ZERO_SHOT}"
    stop_trial(sweep, trial, job)
    resumed = Sweep(tmp_path / "sweep", "search.trials=1", "search.concurrency=1")
    assert resumed.folder.trial(f"baseline-{ZERO_SHOT}").state == "stopped"
    ran = resumed.run()
    assert ran[:2] == [f"baseline-{TPT}", "trial-0000"]
    assert f"baseline-{ZERO_SHOT}" not in ran
