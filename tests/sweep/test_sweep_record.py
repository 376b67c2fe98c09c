"""The record of a sweep: at its start, at a resume, and how it ended."""

from dataclasses import replace

import pytest

from fpp_sweep.checks.versions import git_state, versions
from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import waiting_record
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.sweep import sweep_record
from fpp_sweep.sweep.api import InterruptedSweep, Options
from fpp_sweep.sweep.sweep_record import Start, SweepRecorder, begin, errors_for_command, recording_end, start_of
from tests.kit.records import CREATED, build_sweep, sweep_info
from tests.kit.spaces import small_space


@pytest.fixture
def start(tmp_path):
    info = sweep_info(name="sweep", state="interrupted", tracking_uri="")
    return Start(space=small_space(), record=SweepRecord(SweepFolder(tmp_path), info), before=None)


def test_the_page_that_is_announced_exists_from_the_start(tmp_path, start):
    folder = SweepFolder(tmp_path)
    begin(start)
    assert folder.info().state == "interrupted"  # as it is until its inputs are checked
    page = (folder.report / "sweep.html").read_text()
    assert "No report is written yet" in page
    assert 'data-reload-seconds="10"' in page


def test_a_resume_keeps_the_page_of_the_sweep(tmp_path, start):
    folder = SweepFolder(tmp_path)
    folder.report.mkdir(parents=True)
    (folder.report / "sweep.html").write_text("report")
    begin(start)
    assert (folder.report / "sweep.html").read_text() == "report"


@pytest.mark.parametrize(
    ("flag", "key", "variable", "store"),
    [
        (None, None, None, "sqlite:////work/mlflow.db"),
        (None, None, "http://group:5000", "http://group:5000"),
        (None, "http://key:5000", "http://group:5000", "http://key:5000"),
        ("sqlite:////mine.db", "http://key:5000", "http://group:5000", "sqlite:////mine.db"),
        ("sqlite:////mine.db", None, "./mlruns", "sqlite:////mine.db"),
    ],
)
def test_a_new_sweep_writes_to_the_store_that_is_named_most_closely(tmp_path, monkeypatch, flag, key, variable, store):
    monkeypatch.chdir(tmp_path)
    if variable is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    overrides = [f"work.tracking_uri={key}"] if key else []
    start = start_of(small_space(*overrides), Options(tracking_uri=flag), SweepFolder(tmp_path / "one"))
    assert start.tracking_uri == start.record.info.tracking_uri == store.replace("/work/", f"{tmp_path}/")


def test_the_space_in_a_folder_chooses_no_store_when_its_sweep_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, store = SweepFolder(tmp_path / "one"), "sqlite:////sender/mlflow.db"
    space = small_space(f"work.tracking_uri={store}")
    folder.write_info(sweep_info(name="one", space=space.plain(), tracking_uri=store))
    with pytest.raises(InputError, match=f"name the one to write to, such as --tracking-uri {store}"):
        start_of(space, Options(resume=True), folder)
    assert start_of(space, Options(resume=True, tracking_uri=store), folder).tracking_uri == store


@pytest.fixture
def stopped(tmp_path):
    """The folder of an interrupted sweep of two trials."""
    folder = SweepFolder(tmp_path / "sweep")
    space = small_space("search.trials=4")
    info = sweep_info(name="sweep", state="interrupted", space=space.plain(), objectives=space.objectives)
    folder.write_info(replace(info, command="fpp-sweep tune --space small.yaml"))
    for number, value in enumerate((1.0, 2.0)):
        point = {"fpp.gamma1": value}
        config = space.resolve(point)
        record = waiting_record(f"trial-{number:04d}", "trial", config, number=number, params=point)
        folder.write_trial(replace(record, state="failed", started=CREATED, finished=CREATED))
    return folder


def resumed(folder, *overrides, **options):
    request = Options(resume=True, **options)
    return start_of(small_space("search.trials=4", *overrides), request, folder)


def test_a_resume_with_other_software_says_so_once_and_the_record_has_both(stopped, capsys):
    commit = "9defbb8" * 5
    now = versions()
    stopped.write_info(replace(stopped.info(), versions={**now, "torch": "1.0"}, git_commit=commit))
    info = resumed(stopped).record.info
    assert info.versions == {**now, "torch": f"1.0, then {now['torch']}"}
    assert info.git_commit == f"{commit}, then {git_state()[0]}"
    changes = f"torch {info.versions['torch']}; commit {info.git_commit}"
    text = capsys.readouterr().err
    assert f"note: software has changed since the sweep began: {changes}; its results are of all these\n" in text
    stopped.write_info(info)
    assert resumed(stopped).record.info.versions == info.versions
    assert "software" not in capsys.readouterr().err


def test_results_of_another_engine_are_not_added_to_a_sweep(stopped):
    stopped.write_info(replace(stopped.info(), engine="1.1"))
    with pytest.raises(
        InputError, match=rf"^sweep cannot be resumed: .* \(engine: 1\.1 -> {ENGINE_NAME}\); keep it, or"
    ):
        resumed(stopped)


def test_a_new_sweep_records_the_commit_of_the_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_record, "git_state", lambda: ("9defbb8", True))
    info = sweep_record.new_info(small_space(), Options(command="tune"), SweepFolder(tmp_path / "new"), "")
    assert (info.name, info.state, info.command) == ("new", "interrupted", "tune")
    assert (info.git_commit, info.git_dirty) == ("9defbb8", True)


def recorder_of(folder):
    return SweepRecorder(SweepRecord(folder, folder.info()))


def test_an_interrupt_is_recorded_although_a_record_is_damaged(tmp_path):
    folder = build_sweep(tmp_path / "sweep", trials=3, running_trials=(2,), state="running", report=False)
    folder.trial_file("trial-0001").write_text("{")
    with pytest.raises(InterruptedSweep), errors_for_command(folder), recording_end(recorder_of(folder)):
        raise KeyboardInterrupt
    assert folder.info().state == "interrupted"
    assert folder.trial("trial-0002").state == "interrupted"


def test_a_sweep_without_a_trial_that_succeeded_has_failed_although_a_baseline_was_imported(tmp_path):
    folder = build_sweep(tmp_path / "sweep", trials=2, failed_trials=(0, 1), state="running", report=False)
    assert any(record.state == "complete" for record in folder.trials())  # the baseline
    with recording_end(recorder_of(folder)):
        pass
    assert folder.info().state == "failed"
