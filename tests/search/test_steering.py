"""Commands to a sweep: each is done once, whatever is killed, by the driver that runs or by the next one."""

import os
import signal
import sys
from dataclasses import replace

import optuna
import pytest
from ray.tune.search import Searcher
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.steering import Queue
from fpp_sweep.search.job import LoggingExecutor, TrialContext, run_job
from fpp_sweep.search.searcher import SweepSearcher
from fpp_sweep.search.study import SweepStudy
from fpp_sweep.space.reading import parse_space
from fpp_sweep.spec.errors import InputError
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.resume import load_for_resume, merge_resume_request
from fpp_sweep.sweep.sweep_info import resumed_info
from fpp_sweep.trial.trial import Plan, TrialStopped
from tests.kit.tasks import dataset_info
from tests.search.test_searcher import SPACE, Sweep

POINT = {"fpp.gamma1": 3.0}


class Steered(Sweep):
    """A sweep, and the next driver of it."""

    def __init__(self, path, *overrides):
        super().__init__(path, *overrides)
        info = replace(self.folder.info(), space=self.space.plain(), objectives=self.space.objectives)
        self.folder.write_info(info)

    def resumed(self, *overrides, text=SPACE):
        """As `run_sweep` goes on."""
        space = parse_space(text, "space.yaml", overrides)
        options = Options(resume=True)
        before = load_for_resume(space, options, self.folder)
        self.space = merge_resume_request(space, before, self.folder)
        self.folder.write_info(resumed_info(before, self.space, ""))
        self.searcher = SweepSearcher(
            self.space,
            self.folder,
            SweepStudy(
                self.folder.study_file,
                "sweep",
                self.space,
                Queue.of(self.folder, self.folder.info()),
                self.folder.trials(),
            ),
            plan=Plan(datasets={"val": (dataset_info("scenes"),)}, seeds=(0,)),
            poller=self.poller,
            gpus_per_worker=0.0,
        )
        self.searcher.prepare_jobs()
        return self

    def one(self):
        """The next job, to its end."""
        job, trial = self.ask()
        assert job != Searcher.FINISHED
        self.end(trial, job)
        return self.folder.trial(job["name"])

    def trials(self):
        return [record for record in self.folder.trials() if record.kind == "trial"]

    def points(self):
        """Return the values of the added trials by the number of the trial."""
        return {record.number: record.params for record in self.trials() if record.origin == "added"}


def test_a_point_that_is_added_is_the_next_trial_and_one_trial_more(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):  # two baselines, the code's and the paper's settings
        sweep.one()
    sweep.folder.send_command("add", POINT)
    record = sweep.one()
    assert (record.name, record.origin, record.params) == ("trial-0002", "added", POINT)
    assert sweep.searcher.progress.total == 5
    (command,) = sweep.folder.commands()
    assert (command.number, command.words) == (2, "add fpp.gamma1=3: trial-0002")
    assert sweep.folder.info().steered == [command.words]
    sweep.run()
    assert len(sweep.trials()) == 5
    assert list(sweep.points()) == [2]


def test_an_added_point_does_not_replace_the_equal_point_of_the_grid(tmp_path):
    grid = SPACE.replace("{low: 0.1, high: 10, log: true}", "[1, 2, 3]").replace("sampler: random", "sampler: grid")
    sweep = Steered(tmp_path / "sweep")
    sweep.space = parse_space(grid, "space.yaml", ["search.trials=null", "search.include_published=false"])
    sweep.folder.write_info(replace(sweep.folder.info(), space=sweep.space.plain()))
    sweep.resumed("search.trials=null", "search.include_published=false", text=grid)
    for _ in range(3):
        sweep.one()
    sweep.folder.send_command("add", POINT)
    sweep.run()
    assert [record.params["fpp.gamma1"] for record in sweep.trials()] == [1.0, 3.0, 2.0, 3.0]
    assert [record.origin for record in sweep.trials()] == ["grid", "added", "grid", "grid"]


def test_a_budget_is_what_was_said_last_and_a_search_that_had_ended_goes_on(tmp_path):
    sweep = Steered(tmp_path / "sweep", "search.concurrency=1")
    for _ in range(6):
        sweep.one()
    job, trial = sweep.ask()  # on the test split: the search is over
    assert job["split"] == "test"
    sweep.folder.send_command("budget", {"trials": 5, "concurrency": 2})
    other, second = sweep.ask()
    assert (other["name"], other["split"]) == ("trial-0004", "val")
    sweep.end(trial, job)
    sweep.end(second, other, accuracy=70.0, ece=1.0)
    rest = sweep.run()
    assert len(sweep.trials()) == 5
    assert len(rest) == len(set(rest))  # nothing twice
    assert "test" in sweep.folder.trial("trial-0004").results
    info = sweep.folder.info()
    assert (info.space["search"]["trials"], info.begun["search"]["trials"]) == (5, 4)
    assert "budget trials=5 concurrency=2" in "; ".join(info.steered)
    assert Steered.resumed(sweep, "search.concurrency=1").searcher.search.trials == 5  # the file still says 4
    assert sweep.resumed("search.trials=6").searcher.search.trials == 6
    assert sweep.resumed().searcher.search.trials == 6


def test_of_two_points_none_is_lost_where_a_driver_was_killed_between_folder_and_study(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):
        sweep.one()
    first = sweep.folder.send_command("add", POINT)
    sweep.folder.send_command("add", {"fpp.gamma1": 4.0})
    sweep.folder.record_applied(first, "trial-0002", 2)
    sweep.resumed().run()
    assert sweep.points() == {2: POINT, 3: {"fpp.gamma1": 4.0}}
    assert len(sweep.trials()) == 6


def test_the_command_that_went_on_before_does_not_undo_what_was_steered_since(tmp_path):
    sweep = Steered(tmp_path / "sweep").resumed("search.trials=6")
    sweep.folder.send_command("budget", {"trials": 8})
    sweep.one()
    assert sweep.resumed("search.trials=6").searcher.search.trials == 8
    assert sweep.resumed("search.trials=7").searcher.search.trials == 7


def test_a_grid_that_was_over_takes_a_point_without_a_budget_of_trials(tmp_path):
    grid = SPACE.replace("{low: 0.1, high: 10, log: true}", "[1, 2, 3]").replace("sampler: random", "sampler: grid")
    words = ["search.trials=null", "search.wall_clock=3600", "search.include_published=false"]
    sweep = Steered(tmp_path / "sweep")
    sweep.space = parse_space(grid, "space.yaml", words)
    sweep.folder.write_info(replace(sweep.folder.info(), space=sweep.space.plain()))
    sweep.resumed(*words, text=grid)
    for _ in range(5):
        sweep.one()
    job, trial = sweep.ask()
    assert job["split"] == "test"
    sweep.folder.send_command("add", POINT)
    sweep.end(trial, job)
    assert sweep.one().params == POINT
    assert all(command.applied for command in sweep.folder.commands())


def test_a_trial_that_waits_for_the_next_driver_is_stopped_before_it_begins(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    sweep.one(), sweep.one()
    job, _ = sweep.ask()
    assert job["name"] == "trial-0000"
    command = sweep.folder.send_command("stop", {"trial": "trial-0000"})
    sweep.resumed()  # the driver was killed
    job, trial = sweep.ask()
    assert job["name"] == "trial-0000"
    run_job(brief(sweep), job["name"], job["split"], job["order"])
    sweep.searcher.on_trial_complete(trial, {})
    sweep.run()
    assert sweep.folder.trial("trial-0000").state == "stopped"
    (stored_command,) = sweep.folder.commands()
    assert (stored_command.name, stored_command.words) == (command.name, "stop trial=trial-0000: stopped")
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep.folder.study_file}")
    assert study.trials[0].state.name == "PRUNED"


class IdleExecutor:
    """An executor whose tasks have no results."""

    def results(self, tasks, order=0):
        yield from ()


def test_a_command_to_stop_that_was_applied_stops_no_later_run_of_the_trial(tmp_path):
    folder = SweepFolder(tmp_path / "sweep")
    executor = LoggingExecutor(IdleExecutor(), tmp_path / "log.txt", folder, "trial-0000")
    folder.send_command("stop", {"trial": "trial-0001"})
    assert list(executor.results([])) == []
    command = folder.send_command("stop", {"trial": "trial-0000"})
    with pytest.raises(TrialStopped):
        list(executor.results([]))
    folder.record_applied(command, "stopped")
    assert list(executor.results([])) == []


def brief(sweep):
    """Return the context of a trial's process, without an executor: no test computes with it."""
    return TrialContext(
        folder=sweep.folder,
        executor=None,
        plan=sweep.searcher._plan,
        objectives=sweep.space.objectives,
        constraints=(),
        search_split="val",
    )


def test_wider_ranges_and_more_points_are_taken_on_resume_and_the_study_has_one_space(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    for _ in range(4):
        sweep.one()
    before = [record.params for record in sweep.trials()]
    wider = SPACE.replace("high: 10", "high: 100") + "points: [{fpp.gamma1: 50}]\n"
    sweep.resumed(text=wider)
    sweep.run()
    assert [record.params for record in sweep.trials()][:2] == before
    assert sweep.points() == {2: {"fpp.gamma1": 50.0}}
    assert len(sweep.trials()) == 5
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep.folder.study_file}")
    assert {trial.distributions["fpp.gamma1"].high for trial in study.trials} == {100.0}
    again = sweep.resumed(text=wider)
    again.run()
    assert len(sweep.trials()) == 5  # the point is known by now
    with pytest.raises(InputError, match=r"params.fpp.gamma1.high: 100 -> 10"):
        sweep.resumed()


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("low: 0.1", "low: 0.2", "params.fpp.gamma1.low: 0.1 -> 0.2"),
        ("log: true", "log: false", "params.fpp.gamma1.log: true -> false"),
        ("fpp.gamma1:", "fpp.gamma2:", "params.fpp.gamma1.low: 0.1 -> none"),
        ("sampler: random", "sampler: tpe", "search.sampler: random -> tpe"),
    ],
)
def test_what_may_not_change_is_refused_with_the_difference(tmp_path, old, new, difference):
    sweep = Steered(tmp_path / "sweep")
    with pytest.raises(InputError, match="cannot be resumed, its space has changed") as refused:
        sweep.resumed(text=SPACE.replace(old, new))
    assert difference in str(refused.value)
    assert not sweep.folder.commands()


def test_a_damaged_command_is_set_aside_and_reported_and_does_no_harm(tmp_path, capsys):
    sweep = Steered(tmp_path / "sweep")
    sweep.folder.send_command("add", POINT)
    (file,) = sweep.folder.command_files()
    file.write_text(file.read_text().replace("add", "ad"))
    sweep.one()
    sweep.resumed().run()
    assert f"{file}: not readable as a record of a sweep" in capsys.readouterr().err
    assert len(sweep.trials()) == 4


@pytest.mark.nightly
@pytest.mark.slow  # some hundred drivers
def test_each_command_is_applied_once_wherever_the_driver_is_killed(tmp_path):
    """SIGKILL before every single write of a driver, to records, commands and study; the next one goes on."""
    moment = 0
    while True:
        moment += 1
        sweep = Steered(tmp_path / str(moment) / "sweep", "search.concurrency=1", "work.baselines=[]")
        sweep.one()
        sweep.folder.send_command("budget", {"trials": 3})
        sweep.folder.send_command("add", POINT)
        sweep.folder.send_command("stop", {"trial": "trial-0000"})  # too late
        killed = killed_at(moment, sweep)
        sweep.resumed("search.concurrency=1", "work.baselines=[]").run()
        assert len(sweep.trials()) == 4, moment
        assert list(sweep.points().values()) == [POINT], moment
        assert [record.params for record in sweep.trials()].count(POINT) == 1, moment  # whatever it is called
        commands = {command.kind: command for command in sweep.folder.commands()}
        assert all(command.applied for command in commands.values()), moment
        assert commands["add"].number == next(iter(sweep.points())), moment
        study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep.folder.study_file}")
        assert [trial.params for trial in study.trials] == [record.params for record in sweep.trials()], moment
        if not killed:
            break
    assert moment > 30


def killed_at(moment, sweep):
    """Run the sweep in a forked process that is killed before its n-th write; return whether it was killed."""
    sweep.searcher._study._study._storage.remove_session()
    sweep.searcher._study._study._storage._backend.engine.dispose()
    pid = os.fork()
    if pid == 0:
        count = 0

        def write(*_):
            nonlocal count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(lambda name, words: write() if name == "os.rename" else None)
        event.listen(Engine, "commit", write)
        try:
            sweep.run()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_a_sweep_that_was_moved_has_its_commands(tmp_path):
    sweep = Steered(tmp_path / "sweep")
    sweep.folder.send_command("add", POINT)
    moved = SweepFolder(sweep.folder.path.rename(tmp_path / "elsewhere"))
    assert [command.words for command in moved.commands()] == ["add fpp.gamma1=3: waits for a driver"]
