"""The driver: the record that it keeps of the sweep, the time left that it shows, and its end."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import WorkTotals
from fpp_sweep.search.job import TrialContext
from fpp_sweep.search.searcher import NextQuestion
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.sweep import driver as driver_module
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.driver import SweepDriver
from fpp_sweep.sweep.worker_pool import Workers
from fpp_sweep.trial.trial import Plan
from fpp_sweep.workers.session import SchedulerStatus, WorkCounts
from tests.kit.names import ZERO_SHOT
from tests.kit.records import baseline, below_floor, running, sweep_info, trial
from tests.kit.spaces import small_space
from tests.kit.tasks import dataset_info

COUNTS = WorkCounts(loads=2, lost=1, done=7, cached=5, images=70)
NO_STORE = "sqlite:///none.db"
STATUS = SchedulerStatus(workers=2, counts=COUNTS)


@pytest.fixture
def make_driver():
    """Return a function that makes a driver without workers and study for a sweep's folder."""

    def make(folder, requested):
        plan = Plan(datasets={"val": (dataset_info("scenes"),)}, seeds=(0,))
        workers = Workers(pool=None, model=None)
        context = TrialContext(folder=folder, executor=None, plan=plan, space=requested)
        info = replace(folder.info(), space=requested.plain(), objectives=requested.objectives, tracking_uri=NO_STORE)
        driver = SweepDriver(SweepRecord(folder, info), workers, context, Options())
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
    records = folder.trials()
    make_driver(folder, requested).recorder.record_reference(records)
    assert folder.info().reference == reference


@pytest.mark.parametrize(
    ("points", "note"),
    [
        ([(70.0, 9.0)], "front of 1, best accuracy 70.00, ece 9.00"),
        ([(70.0, 9.0), (72.0, 11.0)], "front of 2, best accuracy 72.00, ece 9.00"),
        ([], "0 running; 35 images/s on 2 workers"),
    ],
)
def test_the_status_has_the_best_values_of_the_front_without_trials_below_the_floor(
    tmp_path, make_driver, capsys, points, note
):
    """A trial that has lost its accuracy may have the smallest calibration error."""
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep"))
    folder.write_trial(baseline(ZERO_SHOT, 69.0, 9.0))
    for number, (accuracy, ece) in enumerate(points):
        folder.write_trial(trial(number, accuracy, ece))
    folder.write_trial(below_floor(len(points), 3.0, 0.5))
    driver = make_driver(folder, small_space())
    driver.recorder.seconds = lambda: 2.0
    doing = tuple(f"set{number}: features: 30/100 images" for number in range(5))
    driver._show_status(replace(STATUS, doing=doing))
    line = capsys.readouterr().err
    assert note in line
    assert ("front of" in line) == bool(points)
    assert f"; {'; '.join(doing[:3])}; and 2 tasks more" in line


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


def test_a_search_whose_workers_cannot_start_again_is_interrupted_not_finished(tmp_path, make_driver):
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    folder.write_trial(trial(0))
    driver = make_driver(folder, small_space())
    fatal = replace(STATUS, fatal="workers do not start: out of memory")
    driver.poller = SimpleNamespace(
        start=lambda: None, poll=lambda: None, close=lambda: None, status=fatal, failure=None, has_interrupted=False
    )
    driver.mlflow = SimpleNamespace(start=lambda: None, close=lambda timeout: None)
    driver.reporter = SimpleNamespace(start=lambda: None, close=lambda: None)
    driver._run_jobs = lambda: None
    with pytest.raises(MachineError, match="out of memory; put that right, then go on with --resume"):
        driver.run()
    assert folder.info().state == "interrupted"


def test_a_refused_question_keeps_what_was_taken_over_before(tmp_path, make_driver, monkeypatch):
    def refuse(*_):
        raise InputError("typo")

    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    driver = make_driver(folder, small_space())
    driver.mlflow = driver.reporter = driver.poller = SimpleNamespace(
        start=lambda: None, poll=lambda: None, status=STATUS
    )
    asked = []

    def run_jobs():
        asked.append(driver.searcher.space.search.trials)
        driver.searcher.space = small_space("search.trials=40")  # `steer set search.trials=40`
        driver.searcher.next_question = NextQuestion(small_space(), 0) if len(asked) == 1 else None

    driver._run_jobs = run_jobs
    monkeypatch.setattr(driver_module, "open_sweep", refuse)
    driver.search()
    assert asked[1] == 40
    assert folder.info().answers == ["refused: typo"]


@pytest.mark.parametrize("by_poller", [False, True])
@pytest.mark.parametrize("lost", [None, MachineError("Ray's raylet died; go on with --resume")])
def test_an_interrupted_search_is_recorded_reported_and_delivered(tmp_path, make_driver, lost, by_poller):
    """If the poller interrupts the search, its failure is the error; a batch system ends Ray's processes as well."""
    folder = SweepFolder(tmp_path)
    folder.write_info(sweep_info(name="sweep", state="running"))
    driver = make_driver(folder, small_space())
    ended = []
    driver.reporter = SimpleNamespace(close=lambda: ended.append("report"))
    driver.mlflow = SimpleNamespace(close=ended.append)

    def interrupted_search():
        driver.poller.failure, driver.poller.has_interrupted = lost, by_poller
        raise KeyboardInterrupt

    driver.search = interrupted_search
    with pytest.raises(MachineError if lost and by_poller else KeyboardInterrupt):
        driver.run()
    assert folder.info().state == "interrupted"
    assert ended == ["report", driver_module.INTERRUPTED_DELIVERY_TIMEOUT]
