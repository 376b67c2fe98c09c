"""Commands to a sweep: the running driver or the next one applies each exactly once, whatever is killed."""

import os
import signal
import sys

import pytest
from ray.tune.search import Searcher

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.search.job import LoggingExecutor, TrialContext, TrialStopped, run_job
from fpp_sweep.search.question import asked_space
from fpp_sweep.space.reading import space_of
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.sweep_record import resumed_info
from tests.search.test_searcher import SPACE, Sweep

POINT = {"fpp.gamma1": 3.0}
GRID = SPACE.replace("{low: 0.1, high: 10, log: true}", "[1, 2, 3]").replace("sampler: random", "sampler: grid")


class Steered(Sweep):
    """A sweep that can be resumed by a further driver."""

    def resume(self, space=None):
        """Replace the driver, as `run_sweep` does when it resumes a sweep."""
        before = self.folder.info()
        space = space or space_of(before.space, "sweep.json")
        self.space, answers = asked_space(self.folder, space, {})
        self.folder.write_info(resumed_info(before, self.space, "", Options(), answers))
        self.start_driver()
        return self

    def run_next_job(self):
        """Run the next job to its end and return its record."""
        job, trial = self.ask()
        assert job != Searcher.FINISHED
        self.end(trial, job)
        return self.folder.trial(job["name"])

    def trials(self):
        return [record for record in self.folder.trials() if record.kind == "trial"]

    def values(self, origin):
        """Return the values of the searched setting of the trials of an origin."""
        return [record.params["fpp.gamma1"] for record in self.trials() if record.origin == origin]


def test_an_added_point_is_the_next_trial_and_raises_the_number_of_trials(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):  # two baselines, and trials with the code's and the paper's settings
        sweep.run_next_job()
    sweep.folder.send_command("add", ["fpp.gamma1=3"])
    record = sweep.run_next_job()
    assert (record.name, record.origin, record.params) == ("trial-0002", "point", POINT)
    assert sweep.searcher.total == 5
    assert sweep.folder.info().answers == ["taken over"]
    sweep.run()
    assert len(sweep.trials()) == 5
    assert sweep.values("point") == [3.0]


def test_a_finished_grid_accepts_a_point(tmp_path):
    sweep = Steered(tmp_path / "sweep", "search.trials=null", "search.include_published=false", text=GRID)
    for _ in range(5):
        sweep.run_next_job()
    job, trial = sweep.ask()
    assert job["split"] == "test"
    sweep.folder.send_command("set", ["params.fpp.gamma1=[1, 2, 3, 4]"])
    assert sweep.ask()[0] is None
    sweep.end(trial, job)
    assert sweep.ask()[0] == Searcher.FINISHED  # the driver makes plans for the other space
    sweep.resume()
    assert sweep.run_next_job().params == {"fpp.gamma1": 4.0}


def test_the_latest_budget_counts_and_continues_a_search_that_had_ended(tmp_path):
    sweep = Steered(tmp_path / "sweep", "search.concurrency=1")
    for _ in range(6):
        sweep.run_next_job()
    job, trial = sweep.ask()  # the search is over: this job is on the test split
    assert job["split"] == "test"
    sweep.folder.send_command("set", ["search.trials=5", "search.concurrency=2"])
    other, second = sweep.ask()
    assert (other["name"], other["split"]) == ("trial-0004", "val")
    sweep.end(trial, job)
    sweep.end(second, other, accuracy=70.0, ece=1.0)
    rest = sweep.run()
    assert len(sweep.trials()) == 5
    assert len(rest) == len(set(rest))  # no job runs twice
    assert "test" in sweep.folder.trial("trial-0004").results
    info = sweep.folder.info()
    assert [question.space["search"]["trials"] for question in info.earlier] == [4]
    assert info.space["search"]["trials"] == 5
    assert sweep.resume().searcher.search.trials == 5


def test_waiting_commands_are_applied_once_when_the_sweep_is_resumed(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):
        sweep.run_next_job()
    sweep.folder.send_command("add", ["fpp.gamma1=3"])
    sweep.folder.send_command("set", ["search.trials=6"])
    sweep.folder.send_command("set", ["work.limit=7"])
    sweep.resume().resume().run()
    assert sweep.values("point") == [3.0]
    assert len(sweep.trials()) == 6
    taken, budget, refused = sweep.folder.info().answers
    assert taken == budget == "taken over"
    assert refused.startswith("refused: ")
    assert "work.limit: none -> 7" in refused


class IdleExecutor:
    """An executor whose tasks have no results."""

    def results(self, tasks, order=0):
        yield from ()


def test_a_command_that_was_read_before_does_not_stop_a_later_run_of_the_trial(tmp_path):
    folder = SweepFolder(tmp_path)

    def run(commands_read):
        list(LoggingExecutor(IdleExecutor(), tmp_path / "log.txt", folder, "trial-0000", commands_read).results([]))

    folder.send_command("stop", ["trial-0001"])
    run(0)
    folder.send_command("stop", ["trial-0000"])
    with pytest.raises(TrialStopped):
        run(1)
    run(2)


def test_a_trial_that_waits_for_the_next_driver_is_stopped_before_it_starts(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    sweep.run_next_job(), sweep.run_next_job()
    job, _ = sweep.ask()
    sweep.folder.send_command("stop", [job["name"]])
    assert sweep.resume().ask()[0]["name"] != job["name"]
    assert (sweep.folder.trial(job["name"]).state, sweep.folder.info().answers) == ("stopped", ["stopped"])


def test_a_running_trial_is_stopped_in_its_own_process_before_its_next_task(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    sweep.run_next_job(), sweep.run_next_job()
    job, trial = sweep.ask()
    sweep.folder.send_command("stop", [job["name"]])
    sweep.ask()
    assert not sweep.folder.info().answers
    context = TrialContext(folder=sweep.folder, executor=None, plan=sweep.plan, space=sweep.space)
    run_job(context, **job)  # the trial stops before any task
    sweep.searcher.on_trial_complete(trial, {})
    sweep.ask()
    assert (sweep.folder.trial("trial-0000").state, sweep.folder.info().answers) == ("stopped", ["stopped"])
    assert sweep.searcher.study.trials()[0].state.name == "PRUNED"


@pytest.mark.nightly
@pytest.mark.slow  # runs dozens of drivers
def test_each_command_is_applied_once_wherever_the_driver_is_killed(tmp_path):
    """Kill a driver before each of its writes in turn; the next driver continues."""
    write_number = 0
    while True:
        write_number += 1
        sweep = Steered(tmp_path / str(write_number) / "sweep", "search.concurrency=1", "work.baselines=[]")
        sweep.run_next_job()
        sweep.folder.send_command("set", ["search.trials=3"])
        sweep.folder.send_command("add", ["fpp.gamma1=3"])
        sweep.folder.send_command("stop", ["trial-0000"])  # the trial has finished already
        killed = run_and_kill_at_write(write_number, sweep)
        sweep.resume().run()
        assert len(sweep.trials()) == 4, write_number
        assert sweep.values("point") == [3.0], write_number
        assert [record.params for record in sweep.trials()].count(POINT) == 1, write_number
        assert all(sweep.folder.info().answers), write_number
        trials = sweep.searcher.study.trials()
        assert [trial.params for trial in trials] == [record.params for record in sweep.trials()], write_number
        if not killed:
            break
    assert write_number > 15


def run_and_kill_at_write(write_number, sweep):
    """Run the sweep in a forked process that is killed before its n-th write; return True if it was killed."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def count_rename(event_name, _):
            nonlocal count
            if event_name != "os.rename":  # such as that of `os.kill`
                return
            count += 1
            if count == write_number:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count_rename)
        try:
            sweep.run()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL
