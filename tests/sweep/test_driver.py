"""The driver: the record that it keeps of the sweep, the time left that it shows, and its end."""

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import FINAL, WorkTotals, waiting_record
from fpp_sweep.search.searcher import Progress, TrialChange
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.sweep import driver as driver_module
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.driver import SweepDriver
from fpp_sweep.sweep.live_status import seconds_left
from fpp_sweep.sweep.opening import OpenedSweep
from fpp_sweep.sweep.recording import SweepRecorder, recording_end
from fpp_sweep.sweep.resume import load_for_resume, undo_if_refused
from fpp_sweep.workers.status import SchedulerStatus, WorkCounts
from tests.kit.names import ZERO_SHOT
from tests.kit.records import baseline, running, split_result, sweep_info, trial
from tests.kit.spaces import small_space

COUNTS = WorkCounts(loads=2, lost=1, executions=8, done=7, cached=5, images=70, worker_seconds=9.0)
STATUS = SchedulerStatus(workers=2, pids=(1, 2), counts=COUNTS)


def test_bad_input_before_the_record_exists_is_reported_itself(tmp_path):
    recorder = SweepRecorder(SweepFolder(tmp_path / "sweep"), sweep_info())
    with pytest.raises(InputError, match=r"^the input is bad$"), recording_end(recorder):
        raise InputError("the input is bad")


@pytest.fixture
def make_driver(monkeypatch):
    """Return a function that makes a driver without workers and study for a sweep's folder."""
    study = SimpleNamespace(export=lambda *_: None)
    monkeypatch.setattr("fpp_sweep.sweep.searching.SweepStudy", lambda *_: study)

    def make(folder, requested):
        opened = OpenedSweep(pool=None, plan=None, later_plans={}, gpus_per_worker=0.0)
        driver = SweepDriver(requested, folder, opened, Options(), "sqlite:///none.db")
        driver.poller.poll = lambda: None
        driver.poller.status = STATUS
        return driver

    return make


@pytest.mark.parametrize(
    ("objectives", "ends", "reference"),
    [
        ("[accuracy, ece]", [(60.0, 12.0), (55.0, 8.0)], [55.0, 12.0]),
        ("[accuracy, {metric: ece, reference: 100}]", [(60.0, 12.0), (55.0, 8.0)], [55.0, 100.0]),
        ("[accuracy, ece]", [(60.0, 12.0), "failed"], [60.0, 12.0]),
        ("[accuracy, ece]", [(60.0, 12.0), "running"], None),
        ("[accuracy, ece]", [(60.0, 12.0), "waiting"], None),
        ("[accuracy, ece]", [(60.0, 12.0), "interrupted"], None),  # --resume runs it again
        ("[accuracy, ece]", ["failed"], None),
    ],
)
def test_the_corner_is_the_worst_of_the_baselines_or_the_reference_of_the_space(
    tmp_path, make_driver, objectives, ends, reference
):
    requested = small_space(f"objectives={objectives}")
    folder = SweepFolder(tmp_path)
    folder.write_info(replace(sweep_info(name="sweep"), objectives=requested.objectives, reference=None))
    for number, end in enumerate(ends):
        changes = {"state": end, "values": None} if isinstance(end, str) else {"values": end}
        folder.write_trial(replace(baseline(f"number_{number}", 53.0 + number, 11.5), **changes))
    make_driver(folder, requested).recorder.record_reference(folder.trials())
    assert folder.info().reference == reference


@pytest.mark.parametrize(
    ("points", "note"),
    [
        ([(70.0, 9.0), (3.0, 0.5)], "front of 2, best accuracy 70.00, ece 9.00"),
        ([(70.0, 9.0), (72.0, 11.0), (3.0, 0.5)], "front of 3, best accuracy 72.00, ece 9.00"),
        ([(3.0, 0.5)], "front of 1, all below the floor of accuracy"),
    ],
)
def test_the_best_values_of_the_status_are_those_of_trials_above_the_floor(tmp_path, make_driver, capsys, points, note):
    """A trial that has lost its accuracy is on the front by its small calibration error, but no table calls it best."""
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep"))
    folder.write_trial(baseline(ZERO_SHOT, 69.0, 9.0))
    for number, (accuracy, ece) in enumerate(points):
        folder.write_trial(trial(number, accuracy, ece))
    driver = make_driver(folder, small_space())
    driver._show_status(STATUS)
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_search", "has_ended", "is_recorded"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_corner_is_recorded_when_a_trial_ends_on_the_split_of_the_search(
    tmp_path, make_driver, is_search, has_ended, is_recorded
):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", reference=None))
    record = baseline("tpt", 60.0, 12.0)
    change = TrialChange(record, "val", is_search, has_ended, records=[record], front=[])
    make_driver(folder, small_space()).recorder.on_change(change)
    assert (folder.info().reference is not None) == is_recorded


@pytest.mark.parametrize(
    ("wall_clock", "total", "finished", "running", "left"),
    [
        ("null", None, 0, 2, None),
        ("null", 10, 0, 2, None),  # no trial has ended, so the duration of a trial is unknown
        ("1000", None, 0, 2, 850.0),
        ("120", None, 0, 2, 0.0),
        ("null", 10, 3, 2, 90.0),  # six trials of 30 s, two at a time
        ("null", 10, 3, 0, 180.0),
        ("null", 5, 3, 4, 30.0),  # one trial of 30 s is left
        ("null", 4, 3, 0, 0.0),
        ("1000", 10, 3, 2, 90.0),
        ("160", 10, 3, 2, 10.0),
    ],
)
def test_the_time_left_is_the_smaller_of_budget_and_remaining_trials(wall_clock, total, finished, running, left):
    progress = Progress(
        total=total,
        finished=finished,
        failed=1 if finished else 0,
        running=set(map(str, range(running))),
        durations=[20.0, 40.0, 30.0][:finished],
    )
    search = small_space(f"search.wall_clock={wall_clock}").search
    assert seconds_left(progress, search, spent=150.0) == left
    progress.phase = "final stage"
    assert seconds_left(progress, search, spent=150.0) is None


def test_work_and_time_of_a_second_driver_are_added_to_the_firsts(tmp_path, make_driver):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep"))
    once = WorkTotals(tasks=7, cached=5, model_loads=2, workers_lost=1)
    twice = WorkTotals(tasks=14, cached=10, model_loads=4, workers_lost=2)
    for expected_work, expected_spent in ((once, 100.0), (twice, 200.0)):
        driver = make_driver(folder, small_space())
        driver.recorder.seconds = lambda: 100.0
        driver.end("interrupted")
        assert folder.info().work == expected_work
        assert folder.info().spent == expected_spent


def test_an_interrupt_marks_the_trials_that_were_running(tmp_path, make_driver):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    folder.write_trial(trial(0))
    folder.write_trial(running(1))
    make_driver(folder, small_space()).end("interrupted")
    assert [record.state for record in folder.trials()] == ["complete", "interrupted"]
    assert folder.info().state == "interrupted"


def test_a_second_ctrl_c_skips_the_report_and_still_delivers_to_mlflow(tmp_path, make_driver):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    driver = make_driver(folder, small_space())
    deliveries = []

    def deliver(timeout):
        deliveries.append((timeout, signal.getsignal(signal.SIGINT)))

    driver.reporter = SimpleNamespace(close=lambda: signal.raise_signal(signal.SIGINT))
    driver.mlflow = SimpleNamespace(close=deliver)
    # In a background process of a shell, SIGINT is ignored, so the test installs the usual handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.close()
        # a notebook or program that goes on is interrupted as before
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    # meanwhile a third Ctrl-C ends the process
    assert deliveries == [(driver_module.HURRIED_DELIVERY_TIMEOUT, signal.SIG_DFL)]


@pytest.mark.parametrize("error", [InputError("sampler mine: no"), RuntimeError("a defect")])
def test_a_search_that_ends_with_any_error_is_recorded_as_interrupted(tmp_path, make_driver, error):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    folder.write_trial(running(0))
    driver = make_driver(folder, small_space())
    driver.reporter = SimpleNamespace(close=lambda: None)
    driver.mlflow = SimpleNamespace(close=lambda timeout: None)

    def search():
        raise error

    driver.search = search
    with pytest.raises(type(error), match=str(error)):
        driver.run()
    assert folder.info().state == "interrupted"
    assert folder.info().spent > 0
    assert folder.trials()[0].state == "interrupted"


def end_with_bad_input(folder, before, *, begins):
    sent = [folder.send_command("budget", {"trials": 9})]
    with undo_if_refused(folder, before, sent) as accept:
        folder.write_info(replace(before, state="interrupted"))
        if begins:
            accept()
        raise InputError("no")


def test_bad_input_undoes_a_start_but_no_trial(tmp_path):
    folder = SweepFolder(tmp_path)
    before = sweep_info(name="sweep", state="finished")
    states = []
    for begins in (False, True):
        folder.write_info(before)
        with pytest.raises(InputError):
            end_with_bad_input(folder, before, begins=begins)
        states.append((folder.info().state, len(folder.commands())))
    assert states == [("finished", 0), ("interrupted", 1)]


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [
        ("seeds: 3", None),
        ("count: 2", None),
        ("seeds: 4", f"search.finalists.seeds: baseline-{ZERO_SHOT} has run with 3, and 4 is requested; resume with"),
        (
            "images: 50",
            f"search.finalists.images: baseline-{ZERO_SHOT} has run with the default, and 50 is requested; resume with",
        ),
    ],
)
def test_finalists_that_have_run_keep_their_seeds_and_images(tmp_path, requested, complaint):
    space = small_space(f"search.finalists={{{requested}}}")
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="interrupted", space=small_space().plain()))
    name, config = next(iter(space.baselines().items()))
    results = {"val": split_result(50.0, 10.0)}
    reference = replace(waiting_record(f"baseline-{name}", "baseline", config), state="complete", results=results)
    folder.write_trial(replace(reference, values=[50.0, 10.0]))
    load_for_resume(space, Options(), folder)  # no finalist has run yet
    folder.write_trial(replace(reference, values=[50.0, 10.0], results={**results, FINAL: results["val"]}))
    if complaint is None:
        load_for_resume(space, Options(), folder)
        return
    with pytest.raises(InputError) as refused:
        load_for_resume(space, Options(), folder)
    assert str(refused.value).startswith(complaint)


def test_trials_that_have_run_on_test_keep_their_seeds(tmp_path):
    space = small_space("search.finalists.seeds=1")
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="interrupted", space=space.plain()))
    name, config = next(iter(space.baselines().items()))
    result = split_result(50.0, 10.0)
    record = replace(waiting_record(f"baseline-{name}", "baseline", config), state="complete", values=[50.0, 10.0])
    folder.write_trial(replace(record, results={"val": result, "test": result}))
    with pytest.raises(InputError, match=r"search.finalists.seeds: baseline-.* has run with 1, and 3 is requested"):
        load_for_resume(small_space("search.finalists.seeds=3"), Options(), folder)
    load_for_resume(small_space("search.finalists={seeds: 1, images: 50}"), Options(), folder)  # for the final stage


def test_a_baseline_that_has_run_stays_a_baseline(tmp_path):
    space = small_space("work.baselines=[zero_shot, tpt]")
    fewer = small_space("work.baselines=[zero_shot]")
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="interrupted", space=space.plain()))
    tpt = waiting_record("baseline-tpt", "baseline", space.baselines()["tpt"])
    folder.write_trial(tpt)
    load_for_resume(fewer, Options(), folder)  # it has no results yet
    folder.write_trial(replace(tpt, state="complete", values=[50.0, 10.0], results={"val": split_result(50.0, 10.0)}))
    load_for_resume(space, Options(), folder)
    with pytest.raises(InputError, match=r"^work\.baselines: tpt is missing, but it has results, .*; list it again"):
        load_for_resume(fewer, Options(), folder)


def test_what_is_written_after_a_driver_was_killed_is_no_time_of_the_sweep(tmp_path):
    space = small_space()
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running", space=space.plain(), spent=100.0))
    (folder.path / "mlflow.json").write_text("{}")  # as `sync` does
    before = load_for_resume(space, Options(), folder)
    assert (before.state, before.spent) == ("interrupted", 100.0)


@pytest.mark.parametrize("lost", [None, MachineError("Ray's raylet died; go on with --resume")])
def test_an_interrupted_search_is_recorded_reported_and_delivered(tmp_path, make_driver, lost):
    """If the scheduler is lost, the poller interrupts the search, and its failure is the error."""
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    driver = make_driver(folder, small_space())
    ended = []
    driver.reporter = SimpleNamespace(close=lambda: ended.append("report"))
    driver.mlflow = SimpleNamespace(close=ended.append)

    def interrupted_search():
        driver.poller.failure = lost
        raise KeyboardInterrupt

    driver.search = interrupted_search
    with pytest.raises(MachineError if lost else KeyboardInterrupt):
        driver.run()
    assert folder.info().state == "interrupted"
    assert ended == ["report", driver_module.INTERRUPTED_DELIVERY_TIMEOUT]
