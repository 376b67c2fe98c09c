"""Commands to a sweep: the running driver or the next one applies each exactly once, whatever is killed."""

import os
import signal
import sys
from dataclasses import replace

import pytest
from ray.tune.search import Searcher

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.steering import Queue
from fpp_sweep.search.job import LoggingExecutor, TrialContext, TrialStopped, run_job
from fpp_sweep.search.searcher import SweepSearcher
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.resume import load_for_resume, merge_resume_request
from fpp_sweep.sweep.sweep_info import resumed_info
from fpp_sweep.trial.plan import Plan
from tests.kit.tasks import dataset_info
from tests.search.test_searcher import SPACE, Sweep

POINT = {"fpp.gamma1": 3.0}


class Steered(Sweep):
    """A sweep that can be resumed by a further driver."""

    def __init__(self, path, *overrides):
        super().__init__(path, *overrides)
        info = replace(self.folder.info(), space=self.space.plain(), objectives=self.space.objectives)
        self.folder.write_info(info)

    def resume(self, *overrides, text=SPACE):
        """Replace the driver, as `run_sweep` does when it resumes a sweep."""
        space = parse_space(text, "space.yaml", overrides)
        options = Options(resume=True)
        before = load_for_resume(space, options, self.folder)
        self.space, request = merge_resume_request(space, before, self.folder)
        request.send(self.folder)
        self.folder.write_info(resumed_info(before, self.space, "", options))
        self.searcher = SweepSearcher(
            self.space,
            self.folder,
            SweepStudy(self.space, Queue.of(self.folder, self.folder.info()), self.folder.trials()),
            plan=Plan(datasets={"val": (dataset_info("scenes"),)}, seeds=(0,)),
            poller=self.poller,
            gpus_per_worker=0.0,
        )
        self.searcher.prepare_jobs()
        return self

    def run_next_job(self):
        """Run the next job to its end and return its record."""
        job, trial = self.ask()
        assert job != Searcher.FINISHED
        self.end(trial, job)
        return self.folder.trial(job["name"])

    def trials(self):
        return [record for record in self.folder.trials() if record.kind == "trial"]

    def added_points(self):
        """Return the settings of the trials that `steer add` made, by trial number."""
        return {record.number: record.params for record in self.trials() if record.origin == "added"}


def test_an_added_point_is_the_next_trial_and_raises_the_number_of_trials(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):  # two baselines, and trials with the code's and the paper's settings
        sweep.run_next_job()
    sweep.folder.send_command("add", POINT)
    record = sweep.run_next_job()
    assert (record.name, record.origin, record.params) == ("trial-0002", "added", POINT)
    assert sweep.searcher.progress.total == 5
    (command,) = sweep.folder.commands()
    assert (command.number, command.text) == (2, "add fpp.gamma1=3: trial-0002")
    assert sweep.folder.info().steered == [command.text]
    sweep.run()
    assert len(sweep.trials()) == 5
    assert list(sweep.added_points()) == [2]


def test_an_added_point_does_not_replace_the_equal_point_of_the_grid(tmp_path):
    grid = SPACE.replace("{low: 0.1, high: 10, log: true}", "[1, 2, 3]").replace("sampler: random", "sampler: grid")
    sweep = Steered(tmp_path / "sweep")
    sweep.space = parse_space(grid, "space.yaml", ["search.trials=null", "search.include_published=false"])
    sweep.folder.write_info(replace(sweep.folder.info(), space=sweep.space.plain()))
    sweep.resume("search.trials=null", "search.include_published=false", text=grid)
    for _ in range(3):
        sweep.run_next_job()
    sweep.folder.send_command("add", POINT)
    sweep.run()
    assert [record.params["fpp.gamma1"] for record in sweep.trials()] == [1.0, 3.0, 2.0, 3.0]
    assert [record.origin for record in sweep.trials()] == ["grid", "added", "grid", "grid"]


def test_the_latest_budget_counts_and_continues_a_search_that_had_ended(tmp_path):
    sweep = Steered(tmp_path / "sweep", "search.concurrency=1")
    for _ in range(6):
        sweep.run_next_job()
    job, trial = sweep.ask()  # the search is over: this job is on the test split
    assert job["split"] == "test"
    sweep.folder.send_command("budget", {"trials": 5, "concurrency": 2})
    other, second = sweep.ask()
    assert (other["name"], other["split"]) == ("trial-0004", "val")
    sweep.end(trial, job)
    sweep.end(second, other, accuracy=70.0, ece=1.0)
    rest = sweep.run()
    assert len(sweep.trials()) == 5
    assert len(rest) == len(set(rest))  # no job runs twice
    assert "test" in sweep.folder.trial("trial-0004").results
    info = sweep.folder.info()
    assert (info.space["search"]["trials"], info.initial_space["search"]["trials"]) == (5, 4)
    assert "budget trials=5 concurrency=2" in "; ".join(info.steered)
    assert Steered.resume(sweep, "search.concurrency=1").searcher.search.trials == 5  # the file still says 4
    assert sweep.resume("search.trials=6").searcher.search.trials == 6
    assert sweep.resume().searcher.search.trials == 6


def test_no_point_is_lost_if_a_driver_is_killed_between_its_writes_to_folder_and_study(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):
        sweep.run_next_job()
    first = sweep.folder.send_command("add", POINT)
    sweep.folder.send_command("add", {"fpp.gamma1": 4.0})
    sweep.folder.record_applied(first, "trial-0002", 2)
    sweep.resume().run()
    assert sweep.added_points() == {2: POINT, 3: {"fpp.gamma1": 4.0}}
    assert len(sweep.trials()) == 6


def test_resuming_with_the_former_command_does_not_undo_later_steering(tmp_path):
    sweep = Steered(tmp_path / "sweep").resume("search.trials=6")
    sweep.folder.send_command("budget", {"trials": 8})
    sweep.run_next_job()
    assert sweep.resume("search.trials=6").searcher.search.trials == 8
    assert sweep.resume("search.trials=7").searcher.search.trials == 7


def test_a_finished_grid_without_a_limit_of_trials_accepts_a_point(tmp_path):
    grid = SPACE.replace("{low: 0.1, high: 10, log: true}", "[1, 2, 3]").replace("sampler: random", "sampler: grid")
    words = ["search.trials=null", "search.wall_clock=3600", "search.include_published=false"]
    sweep = Steered(tmp_path / "sweep")
    sweep.space = parse_space(grid, "space.yaml", words)
    sweep.folder.write_info(replace(sweep.folder.info(), space=sweep.space.plain()))
    sweep.resume(*words, text=grid)
    for _ in range(5):
        sweep.run_next_job()
    job, trial = sweep.ask()
    assert job["split"] == "test"
    sweep.folder.send_command("add", POINT)
    sweep.end(trial, job)
    assert sweep.run_next_job().params == POINT
    assert all(command.applied for command in sweep.folder.commands())


@pytest.mark.parametrize(
    ("overrides", "accuracy", "trials"),
    [
        (["search.gpu_hours=4"], 50.0, 2),  # each of the two baselines and trials takes an hour
        (["search.max_failures=2"], None, 2),
    ],
)
def test_a_point_is_tried_after_any_limit_has_ended_the_search(tmp_path, overrides, accuracy, trials):
    sweep = Steered(tmp_path / "sweep", "search.trials=null", "search.wall_clock=10h", *overrides)
    bad = {"reason": None if accuracy else "ValueError: no"}
    ended = {f"trial_{number:04d}": bad for number in range(trials)}
    sweep.run(**ended)
    assert len(sweep.trials()) == trials
    why = sweep.searcher.why_stopped
    sweep.folder.send_command("add", POINT)
    sweep.run(trial_0002={"accuracy": 70.0, "ece": 1.0})
    assert sweep.added_points() == {trials: POINT}
    assert len(sweep.trials()) == trials + 1  # no other trial begins
    assert sweep.searcher.why_stopped == why
    assert "test" in sweep.folder.trial("trial-0002").results
    assert all(command.applied for command in sweep.folder.commands())


def test_a_trial_that_waits_for_the_next_driver_is_stopped_before_it_starts(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    sweep.run_next_job(), sweep.run_next_job()
    job, _ = sweep.ask()
    assert job["name"] == "trial-0000"
    command = sweep.folder.send_command("stop", {"trial": "trial-0000"})
    sweep.resume()  # the driver was killed
    job, trial = sweep.ask()
    assert job["name"] == "trial-0000"
    run_job(context_without_executor(sweep), job["name"], job["split"], job["order"])
    sweep.searcher.on_trial_complete(trial, {})
    sweep.run()
    assert sweep.folder.trial("trial-0000").state == "stopped"
    (stored_command,) = sweep.folder.commands()
    assert (stored_command.name, stored_command.text) == (command.name, "stop trial=trial-0000: stopped")
    assert sweep.searcher.study.trials()[0].state.name == "PRUNED"


class IdleExecutor:
    """An executor whose tasks have no results."""

    def results(self, tasks, order=0):
        yield from ()


def test_an_applied_stop_command_does_not_stop_a_later_run_of_the_trial(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    executor = LoggingExecutor(IdleExecutor(), tmp_path / "log.txt", folder, "trial-0000")
    folder.send_command("stop", {"trial": "trial-0001"})
    assert list(executor.results([])) == []
    command = folder.send_command("stop", {"trial": "trial-0000"})
    with pytest.raises(TrialStopped):
        list(executor.results([]))
    folder.record_applied(command, "stopped")
    assert list(executor.results([])) == []


def context_without_executor(sweep):
    """Return the context of a trial's process. It needs no executor: the tests stop the trial before any task."""
    return TrialContext(
        folder=sweep.folder,
        executor=None,
        plan=Plan(datasets={"val": (dataset_info("scenes"),)}, seeds=(0,)),
        objectives=sweep.space.objectives,
        constraints=(),
        search_split="val",
    )


def test_a_resume_accepts_wider_ranges_and_more_points_and_rewrites_the_study(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):
        sweep.run_next_job()
    before = [record.params for record in sweep.trials()]
    wider = SPACE.replace("high: 10", "high: 100") + "points: [{fpp.gamma1: 50}]\n"
    sweep.resume(text=wider)
    sweep.run()
    assert [record.params for record in sweep.trials()][:2] == before
    assert sweep.added_points() == {2: {"fpp.gamma1": 50.0}}
    assert len(sweep.trials()) == 5
    assert {trial.distributions["fpp.gamma1"].high for trial in sweep.searcher.study.trials()} == {100.0}
    again = sweep.resume(text=wider)
    again.run()
    assert len(sweep.trials()) == 5  # the point was added once only
    with pytest.raises(InputError, match=r"params.fpp.gamma1.high: 100 -> 10"):
        sweep.resume()


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("low: 0.1", "low: 0.2", "params.fpp.gamma1.low: 0.1 -> 0.2"),
        ("log: true", "log: false", "params.fpp.gamma1.log: true -> false"),
        ("fpp.gamma1:", "fpp.gamma2:", "params.fpp.gamma1.low: 0.1 -> none"),
        ("sampler: random", "sampler: tpe", "search.sampler: random -> tpe"),
    ],
)
def test_a_resume_refuses_other_changes_and_names_the_difference(tmp_path, old, new, difference):
    sweep = Steered(tmp_path / "sweep")
    with pytest.raises(InputError, match="cannot be resumed, its space has changed") as refused:
        sweep.resume(text=SPACE.replace(old, new))
    assert difference in str(refused.value)
    assert not sweep.folder.commands()


@pytest.mark.nightly
@pytest.mark.slow  # runs dozens of drivers
def test_each_command_is_applied_once_wherever_the_driver_is_killed(tmp_path):
    """Kill a driver before each of its writes in turn (records and commands); the next driver continues."""
    write_number = 0
    while True:
        write_number += 1
        sweep = Steered(tmp_path / str(write_number) / "sweep", "search.concurrency=1", "work.baselines=[]")
        sweep.run_next_job()
        sweep.folder.send_command("budget", {"trials": 3})
        sweep.folder.send_command("add", POINT)
        sweep.folder.send_command("stop", {"trial": "trial-0000"})  # the trial has finished already
        killed = run_and_kill_at_write(write_number, sweep)
        sweep.resume("search.concurrency=1", "work.baselines=[]").run()
        assert len(sweep.trials()) == 4, write_number
        assert list(sweep.added_points().values()) == [POINT], write_number
        assert [record.params for record in sweep.trials()].count(POINT) == 1, (
            write_number
        )  # no trial of another origin has the point
        commands = {command.kind: command for command in sweep.folder.commands()}
        assert all(command.applied for command in commands.values()), write_number
        assert commands["add"].number == next(iter(sweep.added_points())), write_number
        trials = sweep.searcher.study.trials()
        assert [trial.params for trial in trials] == [record.params for record in sweep.trials()], write_number
        if not killed:
            break
    assert write_number > 30


def run_and_kill_at_write(write_number, sweep):
    """Run the sweep in a forked process that is killed before its n-th write; return True if it was killed."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def count_rename(event_name, _):
            nonlocal count
            count += event_name == "os.rename"
            if count == write_number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count_rename)
        try:
            sweep.run()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_a_moved_sweep_keeps_its_commands(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    sweep.folder.send_command("add", POINT)
    moved = SweepFolder(sweep.folder.path.rename(tmp_path / "elsewhere"))
    assert [command.text for command in moved.commands()] == ["add fpp.gamma1=3: waits for a driver"]
