"""`sync_folder` writes every run, param, metric, tag and artifact of a sweep exactly once."""

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.reproduce.running import deliver
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.files import exclusive_lock, written_whole
from fpp_sweep.spec.messages import runnable
from fpp_sweep.spec.progress import Bar
from fpp_sweep.tracking import DEFAULT_URI, check_store, mlflow_links, sync_folder, trusted_uri, upload_group_files
from fpp_sweep.tracking.folder_sync import LOCK_FILE, FolderSync, SweepRuns
from fpp_sweep.tracking.sync import is_synced, last_uri
from fpp_sweep.tracking.sync_state import STATE_FILE
from fpp_sweep.tracking.uri import connect, ui_command
from tests.kit.names import ZERO_SHOT
from tests.kit.records import build_sweep, failed, running, split_result, trial
from tests.kit.stores import as_sets, contents, rows

ROOT = Path(__file__).parent.parent.parent


def statuses(database):
    return dict(rows(database, "select name, status from runs where lifecycle_stage = 'active'"))


def tags(database, name):
    return dict(rows(database, "select key, value from tags join runs using (run_uuid) where name = ?", name))


def params(database, name):
    return dict(rows(database, "select key, value from params join runs using (run_uuid) where name = ?", name))


def latest_metrics(database, name):
    return dict(rows(database, "select key, value from latest_metrics join runs using (run_uuid) where name = ?", name))


def metric_history(database, name, key):
    """Return the points of a metric as pairs of step and value."""
    query = "select step, value from metrics join runs using (run_uuid) where name = ? and key = ? order by step, value"
    return rows(database, query, name, key)


def artifact_names(folder):
    """Return the names of all artifacts beside a database, without the run."""
    files = [path for path in (folder / "mlartifacts").rglob("*") if path.is_file()]
    return {path.relative_to(folder / "mlartifacts").as_posix().partition("/artifacts/")[2] for path in files}


def test_a_sweep_becomes_a_run_with_a_child_for_each_trial_and_baseline(tmp_path, database, uri):
    result = sync_folder(build_sweep(tmp_path / "perturb-1"), uri)
    assert (result.updated, result.created) == (10, 10)
    assert statuses(database)["perturb-1"] == "FINISHED"
    assert statuses(database)["0003 gamma2=0.491 class_var=0.004"] == "FAILED"
    assert statuses(database)[f"baseline {ZERO_SHOT} 53/11.5"] == "FINISHED"
    ((parent,),) = rows(database, "select run_uuid from runs where name = 'perturb-1'")
    children = rows(database, "select count(*) from tags where key = 'mlflow.parentRunId' and value = ?", parent)
    assert children == [(9,)]
    member, other = "0005 58/8 gamma2=1.42 class_var=0.006", "0004 57/8.7 gamma2=0.835 class_var=0.005"
    assert latest_metrics(database, member)["test/accuracy"] == 57.3
    assert params(database, member)["fpp.gamma2"] == "1.41986"
    assert (tags(database, member)["on_front"], tags(database, other)["on_front"]) == ("true", "false")
    assert "non-finite" in tags(database, "0003 gamma2=0.491 class_var=0.004")["reason"]


def test_a_groups_run_is_in_progress_while_one_of_its_sweeps_is(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "main", trials=1, failed_trials=(), baselines=())
    group_statuses = []
    for state in ("running", "interrupted", "running", "finished"):
        folder.write_info(replace(folder.info(), group="tiny@123.000", state=state))
        sync_folder(folder, uri)
        group_statuses.append(statuses(database)["tiny"])
    assert group_statuses == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]


def test_sweeps_of_one_group_have_one_parent_run(tmp_path, database, uri):
    page = tmp_path / "reproduction.html"
    page.write_text("<title>all tables</title>")
    for name in ("main", "seeds"):
        folder = build_sweep(tmp_path / name, trials=2, failed_trials=(), baselines=())
        folder.write_info(replace(folder.info(), group="tiny@123.000"))
        for _ in range(2):  # the second sync finds the runs of the first
            sync_folder(folder, uri)
            upload_group_files(folder, uri, [page])
    ((above,),) = rows(database, "select run_uuid from runs where name = 'tiny'")
    below = "select name from tags join runs using (run_uuid) where key = 'mlflow.parentRunId' and value = ?"
    assert sorted(rows(database, below, above)) == [("main",), ("seeds",)]
    assert statuses(database)["tiny"] == "FINISHED"
    assert "reproduction.html" in artifact_names(tmp_path)


def test_a_reproduction_delivers_its_tables_and_its_page(tmp_path, database, uri, monkeypatch):
    monkeypatch.chdir(tmp_path)  # `database` is the default store there
    page = tmp_path / "reproduction.html"
    page.write_text("<title>all tables</title>")
    folders = []
    for name in ("main", "seeds"):
        folder = build_sweep(tmp_path / name, trials=1, failed_trials=(), baselines=())
        folder.write_info(replace(folder.info(), group="tiny@123.000"))
        folders.append(folder)
    assert deliver(folders, [page]) is None
    assert all(is_synced(folder, uri) for folder in folders)
    assert {"main", "seeds", "tiny"} <= statuses(database).keys()
    assert "reproduction.html" in artifact_names(tmp_path)
    folder.write_info(replace(folder.info(), tracking_uri="ftp://nowhere"))
    (folder.path / STATE_FILE).unlink()
    assert "have not used its MLflow" in deliver(folders, [page])


def test_artifacts_are_not_waited_for_on_their_way_to_the_disk(tmp_path, database, uri, monkeypatch):
    """A sweep has thousands of them, and a later sync writes what a power failure has lost."""
    synced = []
    fsync = os.fsync

    def recorded_fsync(file):
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    monkeypatch.setattr(os, "fsync", recorded_fsync)
    sync_folder(folder, uri)
    assert {"config.yaml", "prompts/digits-0.safetensors"} <= artifact_names(tmp_path)
    assert not [path for path in synced if "/mlartifacts/" in path]


def test_texts_are_utf_8_in_any_locale(tmp_path, database, uri, ascii_locale):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    record = folder.trials()[0]
    folder.write_trial(replace(record, config={**record.config, "prompt": "ein Foto einer Straße"}))
    sync_folder(folder, uri)
    (file,) = (tmp_path / "mlartifacts").rglob("config.yaml")
    assert "ein Foto einer Straße" in file.read_text(encoding="utf-8")


# Repeated calls.


def test_a_second_sync_changes_nothing_even_without_the_state_file(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1")
    sync_folder(folder, uri)
    before = as_sets(contents(database))
    assert sync_folder(folder, uri).updated == 0
    (folder.path / STATE_FILE).unlink()
    assert sync_folder(folder, uri).created == 0
    assert as_sets(contents(database)) == before


def test_a_damaged_state_file_is_ignored(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    sync_folder(folder, uri)
    before = as_sets(contents(database))
    for damaged in ("", "[]", '{"runs": 3}', '{"runs": {"sweep": {"what": 1}}}', '{"folders": []}'):
        (folder.path / STATE_FILE).write_text(damaged)
        sync_folder(folder, uri)
    assert as_sets(contents(database)) == before


def test_the_last_store_of_a_folder_is_not_that_of_its_copy(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    assert last_uri(folder, "recorded") == "recorded"
    sync_folder(folder, uri)
    assert last_uri(folder, "recorded") == uri
    shutil.copytree(folder.path, tmp_path / "copy")
    assert last_uri(SweepFolder(tmp_path / "copy"), "recorded") == "recorded"


def test_an_empty_database_gets_everything_again(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync_folder(folder, uri)
    before = as_sets(contents(database))
    with closing(sqlite3.connect(database)) as connection, connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"delete from {table}")
    sync_folder(folder, uri)
    assert as_sets(contents(database)) == before


def test_a_sync_into_another_store_copies_everything(tmp_path, database, uri, empty_database):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync_folder(folder, uri)
    other = shutil.copyfile(empty_database, tmp_path / "other.db")
    assert sync_folder(folder, f"sqlite:///{other}").created == 6
    assert as_sets(contents(other)) == as_sets(contents(database))
    assert sync_folder(folder, uri).created == 0


# Changes of a run.


def test_a_running_trial_is_shown_and_gets_its_results_when_it_ends(tmp_path, database, uri):
    folder = build_sweep(
        tmp_path / "perturb-1", baselines=(), trials=3, running_trials=(2,), state="running", report=False
    )
    sync_folder(folder, uri)
    assert statuses(database)["0002 gamma2=0.289 class_var=0.003"] == "RUNNING"
    folder.write_trial(trial(2))
    assert sync_folder(folder, uri).updated == 2  # the trial, and the sweep with its counts
    name = "0002 55/10.1 gamma2=0.289 class_var=0.003"
    assert statuses(database)[name] == "FINISHED"
    assert latest_metrics(database, name)["accuracy"] == 55.0


def test_a_trial_that_runs_again_after_an_interruption_is_running_and_has_no_reason(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    name = "0000 code gamma2=0.1 class_var=0.001"
    stopped = replace(running(0), state="interrupted", reason="Ctrl-C", finished=trial(0).finished)
    folder.write_trial(stopped)
    sync_folder(folder, uri)
    assert (statuses(database)[name], tags(database, name)["reason"]) == ("KILLED", "Ctrl-C")
    folder.write_trial(replace(running(0), attempt=2))
    sync_folder(folder, uri)
    assert statuses(database)[name] == "RUNNING"
    assert "reason" not in tags(database, name)
    assert tags(database, name)["attempt"] == "2"


def test_a_trial_that_leaves_the_front_loses_the_tags_of_the_front(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    front = folder.report / "front.json"
    front.write_text(
        '{"members": [{"name": "trial-0000"}], "support": {"trial-0000": "likely"}, "recommended": "trial-0000"}'
    )
    sync_folder(folder, uri)
    front_tags = {"on_front": "true", "front_support": "likely", "recommended": "true"}
    assert front_tags.items() <= tags(database, "0000 53/11.5 code gamma2=0.1 class_var=0.001").items()
    assert tags(database, "perturb-1")["recommended"] == "trial-0000"
    front.write_text('{"members": []}')
    sync_folder(folder, uri)
    left = tags(database, "0000 53/11.5 code gamma2=0.1 class_var=0.001")
    assert left["on_front"] == "false"
    assert not {"front_support", "recommended"} & set(left)
    assert "recommended" not in tags(database, "perturb-1")


def test_a_waiting_trial_has_a_run_from_its_start_on_and_a_stopped_trial_has_a_reason(tmp_path, database, uri):
    folder = build_sweep(
        tmp_path / "perturb-1", baselines=(), trials=2, failed_trials=(1,), running_trials=(0,), report=False
    )
    begun = running(0)
    folder.write_trial(replace(begun, state="waiting", started=0.0))
    folder.write_trial(replace(failed(1), state="stopped", reason="lower after 2 of 5 datasets"))
    waiting, stopped = "0000 code gamma2=0.1 class_var=0.001", "0001 gamma2=0.17 class_var=0.002"
    sync_folder(folder, uri)
    assert waiting not in statuses(database)
    assert statuses(database)[stopped] == "FINISHED"
    assert tags(database, stopped)["state"] == "stopped"
    assert tags(database, stopped)["reason"] == "lower after 2 of 5 datasets"
    folder.write_trial(begun)
    sync_folder(folder, uri)
    start = round(1000 * begun.started)
    assert rows(database, "select start_time, status from runs where name = ?", waiting) == [(start, "RUNNING")]
    folder.write_trial(replace(begun, state="waiting"))  # it waits to be continued
    sync_folder(folder, uri)
    assert rows(database, "select end_time, status from runs where name = ?", waiting) == [(None, "SCHEDULED")]
    assert tags(database, waiting)["state"] == "waiting"


def test_a_changed_value_replaces_the_former_one_even_if_it_is_smaller_and_equally_old(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    sync_folder(folder, uri)
    record = trial(1)
    lower = split_result(1.5, 10.8)
    folder.write_trial(replace(record, results={"val": lower}))
    sync_folder(folder, uri)
    (folder.path / STATE_FILE).unlink()
    sync_folder(folder, uri)
    name = "0001 54/10.8 gamma2=0.17 class_var=0.002"
    assert latest_metrics(database, name)["accuracy"] == 1.5
    assert metric_history(database, name, "accuracy") == [(0, 1.5), (0, 54.0)]


def test_a_curve_has_a_point_for_each_trial_even_if_its_value_does_not_change(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, running_trials=(1,), report=False)
    sync_folder(folder, uri)
    folder.write_trial(failed(1))
    sync_folder(folder, uri)
    (folder.path / STATE_FILE).unlink()
    folder.write_trial(trial(2))
    sync_folder(folder, uri)
    assert metric_history(database, "perturb-1", "trials_complete") == [(1, 1), (2, 1), (3, 2)]
    assert metric_history(database, "perturb-1", "best/accuracy") == [(1, 53), (2, 53), (3, 55)]


def test_a_changed_param_is_named_in_a_tag_because_mlflow_keeps_the_first_value(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    sync_folder(folder, uri)
    record = trial(0)
    folder.write_trial(replace(record, config={**record.config, "fpp.draws": 9}))
    sync_folder(folder, uri)
    assert tags(database, "0000 53/11.5 code gamma2=0.1 class_var=0.001")["changed_params"] == "fpp.draws: 4 -> 9"


# Artifacts.


def test_artifacts_are_stored_beside_the_database_from_any_working_folder(
    tmp_path, database, uri, monkeypatch, tmp_path_factory
):
    folder = build_sweep(tmp_path / "perturb-1", baselines=())
    monkeypatch.chdir(database.parent)
    check_store("sqlite:///mlflow.db")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    sync_folder(folder, uri)
    assert artifact_names(tmp_path) >= {
        "report/sweep.html",
        "report/best/trial-0005.yaml",
        "space.yaml",
        "config.yaml",
        "metrics.csv",
        "traceback.txt",
        "prompts/textures-0.safetensors",
    }


@pytest.mark.parametrize("refusal", [None, errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_files_are_linked_if_the_disk_allows_it_and_copied_otherwise(tmp_path, uri, monkeypatch, refusal):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    if refusal is not None:

        def refuse(*_):
            raise OSError(refusal, os.strerror(refusal))

        monkeypatch.setattr(os, "link", refuse)
    sync_folder(folder, uri)
    page = folder.report / "sweep.html"
    (stored,) = (tmp_path / "mlartifacts").glob("*/*/artifacts/report/sweep.html")
    assert stored.read_bytes() == page.read_bytes()
    for file in folder.report.rglob("*.*"):
        copy = stored.parent / file.relative_to(folder.report)
        assert copy.samefile(file) == (refusal is None)
    (folder.path / STATE_FILE).unlink()
    sync_folder(folder, uri)  # uploads the same files again
    assert stored.samefile(page) == (refusal is None)
    assert not [path for path in stored.parent.iterdir() if path.name.startswith(".")]
    shutil.rmtree(folder.path)  # MLflow's files do not depend on the folder
    assert stored.read_text().endswith("</script>")


def test_texts_for_a_store_on_this_machine_pass_no_client(tmp_path, uri, monkeypatch):
    """MLflow's client keeps an object with queues for each run."""
    monkeypatch.setattr("mlflow.tracking.MlflowClient.log_text", lambda *_: pytest.fail("the client wrote a text"))
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=(), report=False)
    sync_folder(folder, uri)
    assert artifact_names(tmp_path) >= {"config.yaml", "metrics.csv", "space.yaml"}


def test_only_changed_files_of_the_report_are_uploaded_again(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2)
    sync_folder(folder, uri)
    (page,) = (tmp_path / "mlartifacts").glob("*/*/artifacts/report/sweep.html")
    (table,) = (tmp_path / "mlartifacts").glob("*/*/artifacts/report/front.csv")
    table.unlink()
    with written_whole(folder.report / "sweep.html") as partial:
        partial.write_text("<h1>new</h1>")
    sync_folder(folder, uri)
    assert page.read_text() == "<h1>new</h1>"
    assert not table.exists()


def test_a_file_that_is_being_written_is_not_uploaded(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    table, prompt = folder.report / "front.csv", folder.artifacts("trial-0000") / "prompts" / "new.safetensors"
    with written_whole(table) as partial_table, written_whole(prompt) as partial_prompt:
        partial_table.write_text("half")
        partial_prompt.write_text("half")
        sync_folder(folder, uri)
        stored = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file()]
        assert not [path for path in stored if path.read_text() == "half"]
    sync_folder(folder, uri)
    stored = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file()]
    assert {path.name for path in stored if path.read_text() == "half"} == {"front.csv", "new.safetensors"}


@pytest.mark.parametrize("failing", [None, "_link_file", "_write_file", "artifact_folder"])
def test_names_with_strange_characters_arrive(tmp_path, database, uri, monkeypatch, failing):
    if failing is not None:  # MLflow's client delivers files, texts or both
        monkeypatch.setattr(f"fpp_sweep.tracking.folder_sync.{failing}", lambda *_: None)
    names = ["my data (new)!", "größe", "a'b; drop table runs --", "x" * 400, "50%#?"]
    folder = build_sweep(tmp_path / "it's a 'sweep'", baselines=(), trials=1, datasets=names[:1], report=False)
    record = trial(0, datasets=names)
    folder.write_trial(replace(record, config={**record.config, "prompt": "y" * 7000, "odd key (1)": "'"}))
    artifact = folder.artifacts(record.name) / "prompts" / "50%#? größe (1).txt"
    artifact.write_text("safe and sound")
    sync_folder(folder, uri)
    keys = rows(database, "select distinct key from metrics where key like 'ece/%'")
    assert len(keys) == len(names)
    stored = (tmp_path / "mlartifacts").glob("*/*/artifacts/prompts/50*")
    assert [path.read_text() for path in stored] == ["safe and sound"]
    (config,) = [path for path in (tmp_path / "mlartifacts").rglob("config.yaml") if "y" * 7000 in path.read_text()]
    assert stat.S_IMODE(config.stat().st_mode) == stat.S_IMODE(folder.info_file.stat().st_mode)


# Runs that were deleted or created twice.


def test_a_run_that_a_user_deleted_is_restored(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync_folder(folder, uri)
    name = "0001 54/10.8 gamma2=0.17 class_var=0.002"
    ((run,),) = rows(database, "select run_uuid from runs where name = ?", name)
    connect(uri).delete_run(run)
    assert sync_folder(folder, uri).restored == [name]
    assert name in statuses(database)
    assert rows(database, "select count(*) from runs") == [(6,)]


def test_a_deleted_experiment_is_an_error_with_the_command_that_restores_it(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    sync_folder(folder, uri)
    client = connect(uri)
    client.delete_experiment(client.get_experiment_by_name("fpp_sweep").experiment_id)
    for attempt in (lambda: sync_folder(folder, uri), lambda: check_store(uri)):
        with pytest.raises(InputError, match="experiments restore"):
            attempt()


def test_two_sweeps_of_one_name_have_separate_runs(tmp_path, database, uri):
    first = build_sweep(tmp_path / "a" / "perturb-1", trials=1)
    second = build_sweep(tmp_path / "b" / "perturb-1", trials=1)
    second.write_info(replace(second.info(), created=second.info().created + 1))
    sync_folder(first, uri)
    assert sync_folder(second, uri).created == 5
    assert rows(database, "select count(*) from runs") == [(10,)]


@pytest.mark.parametrize(
    ("started", "deleted", "forgotten"),
    [(0, False, False), (-1000, False, False), (1000, False, True), (-1000, True, True)],
    ids=["as old", "older, but not written to", "younger", "older, but deleted"],
)
def test_if_a_run_was_created_twice_the_right_one_is_kept(tmp_path, database, uri, started, deleted, forgotten):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    sync_folder(folder, uri)
    active = "select run_uuid from runs where lifecycle_stage = 'active'"
    runs_before, before = set(rows(database, active)), as_sets(contents(database))
    client = connect(uri)
    for run in client.search_runs([client.get_experiment_by_name("fpp_sweep").experiment_id]):
        start = run.info.start_time + started
        twin = client.create_run(run.info.experiment_id, start, run.data.tags, run.info.run_name)
        if deleted:
            client.delete_run(twin.info.run_id)
    if forgotten:
        (folder.path / STATE_FILE).unlink()
    sync_folder(folder, uri)
    assert set(rows(database, active)) == runs_before
    assert as_sets(contents(database)) == before


def test_a_search_for_runs_reads_all_pages(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=4)
    sync_folder(folder, uri)
    (folder.path / STATE_FILE).unlink()
    monkeypatch.setattr("fpp_sweep.tracking.folder_sync.SEARCH_PAGE", 3)
    assert sync_folder(folder, uri).created == 0
    assert rows(database, "select count(*) from runs") == [(8,)]


# Failures.


class FlakyClient:
    """An MLflow client with a fault for each call: fail `before` or `after` the call's effect, or None."""

    def __init__(self, client, faults, error=None):
        self._client = client
        self._faults = faults
        self._error = error

    def __getattr__(self, name):
        from mlflow.exceptions import MlflowException

        method = getattr(self._client, name)
        error = self._error or MlflowException("API request failed with error code 503 != 200")

        def call(*arguments, **options):
            fault = next(self._faults)
            if fault == "before":
                raise error
            answer = method(*arguments, **options)
            if fault == "after":
                raise error
            return answer

        return call


def make_flaky(monkeypatch, faults, error=None):
    monkeypatch.setattr("fpp_sweep.tracking.folder_sync.connect", lambda uri: FlakyClient(connect(uri), faults, error))


@pytest.mark.parametrize("kind", ["before", "after"])
def test_every_run_arrives_once_although_every_fifth_request_fails(
    tmp_path, database, uri, monkeypatch, empty_database, quick_retries, kind
):
    folder = build_sweep(tmp_path / "perturb-1", trials=11)

    def faults_at_every_fifth_call():
        while True:
            yield from (None, None, None, None, kind)

    make_flaky(monkeypatch, faults_at_every_fifth_call())
    result = sync_folder(folder, uri, show_progress=True)
    monkeypatch.undo()
    assert result.updated == 15
    undisturbed = shutil.copyfile(empty_database, tmp_path / "undisturbed.db")
    sync_folder(folder, f"sqlite:///{undisturbed}")
    assert as_sets(contents(database)) == as_sets(contents(undisturbed))


def test_the_progress_of_a_sync_counts_all_runs(tmp_path, uri, monkeypatch):
    counts = []

    class CountedBar(Bar):
        def advance(self, count=1):
            super().advance(count)
            counts.append((self.done, self.total))

    monkeypatch.setattr("fpp_sweep.tracking.sync.Bar", CountedBar)
    sync_folder(build_sweep(tmp_path / "perturb-1", trials=2, baselines=()), uri)
    assert counts == [(1, 3), (2, 3), (3, 3)]


def test_a_sync_without_progress_ends_in_time_and_names_the_cause(tmp_path, uri, monkeypatch, quick_retries, capsys):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())

    def faults_from_the_tenth_call():
        yield from [None] * 9
        while True:
            yield "before"

    make_flaky(monkeypatch, faults_from_the_tenth_call())
    with pytest.raises(MachineError, match=r"HTTP 503 Service Unavailable: .*; 1 runs written, 1 left for another"):
        sync_folder(folder, uri, retry_for=0.05, show_progress=True)
    retries = [line for line in capsys.readouterr().err.splitlines() if "next attempt in" in line]
    assert retries
    assert all("HTTP 503 Service Unavailable" in line and "s more without progress" in line for line in retries)


def test_a_sync_ends_if_a_file_fails_again_and_again_although_its_run_can_be_written(
    tmp_path, uri, monkeypatch, quick_retries
):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    sync_folder(folder, uri)
    (prompts,) = (tmp_path / "mlartifacts").glob("*/*/artifacts/prompts")
    (prompts.parent / "new").write_text("a file where the store needs a folder")
    (folder.artifacts("trial-0000") / "new").mkdir()
    (folder.artifacts("trial-0000") / "new" / "file").write_text("")
    pauses = []
    sleep = time.sleep

    def pause(seconds):
        pauses.append(seconds)
        assert len(pauses) < 200, "attempts go on without progress"
        sleep(seconds)

    monkeypatch.setattr("fpp_sweep.tracking.sync.time.sleep", pause)
    with pytest.raises(MachineError, match=r"trial-0000: .*; 0 runs written, 1 left for another sync"):
        sync_folder(folder, uri, retry_for=0.2)


def make_run_with_bad_param(name):
    from fpp_sweep.tracking.desired import trial_run

    def trial_run_with_bad_param(info, record, front):
        run = trial_run(info, record, front)
        if record.name == name:
            return replace(run, params={"not (allowed)": "1"})
        return run

    return trial_run_with_bad_param


def test_a_run_that_mlflow_refuses_is_reported_at_once_and_does_not_stop_the_others(
    tmp_path, database, uri, monkeypatch
):
    folder = build_sweep(tmp_path / "perturb-1", trials=3, report=False)
    monkeypatch.setattr("fpp_sweep.tracking.folder_sync.trial_run", make_run_with_bad_param("trial-0001"))
    monkeypatch.setattr(
        "fpp_sweep.tracking.sync.time.sleep",
        lambda _: pytest.fail("waits for another attempt, which MLflow would refuse too"),
    )
    with pytest.raises(InputError, match=r"trial-0001: .*; 6 runs written, 1 left"):
        sync_folder(folder, uri)
    assert "0002 55/10.1 gamma2=0.289 class_var=0.003" in statuses(database)


def test_a_run_whose_state_could_not_be_set_gets_it_with_the_next_sync(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    with monkeypatch.context() as patched:
        set_status, calls = SweepRuns.set_status, []

        def fails_once(*arguments):
            calls.append(arguments)
            if len(calls) == 1:
                raise OSError("no such luck")
            set_status(*arguments)

        patched.setattr(SweepRuns, "set_status", fails_once)
        with pytest.raises(MachineError, match="no such luck"):
            sync_folder(folder, uri, retry_for=0.0)
    assert list(statuses(database).values()).count("RUNNING") == 1
    sync_folder(folder, uri)
    assert set(statuses(database).values()) == {"FINISHED"}


# Folders that are up to date, and stores that may be used.


CHANGES = {
    "a record": lambda folder: folder.write_trial(replace(trial(0), attempt=2)),
    "a new record": lambda folder: folder.write_trial(trial(7)),
    "sweep.json": lambda folder: folder.write_info(replace(folder.info(), spent=5.0)),
    "an artifact": lambda folder: (folder.artifacts("trial-0000") / "prompts" / "new").write_text(""),
    "the report": lambda folder: (folder.report / "front.csv").write_text("new"),
    "a deleted file": lambda folder: (folder.report / "front.csv").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_is_synced_until_one_of_its_files_changes(tmp_path, uri, change):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    assert not is_synced(folder, uri)
    sync_folder(folder, uri)
    assert is_synced(folder, uri)
    CHANGES[change](folder)
    assert not is_synced(folder, uri)
    sync_folder(folder, uri)
    assert is_synced(folder, uri)


def test_a_folder_is_not_synced_with_another_store_or_after_a_failure(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sync_folder(folder, uri)
    assert not is_synced(folder, "http://host:5000")
    assert not is_synced(folder, f"sqlite:///{tmp_path}/other.db")
    database.rename(tmp_path / "elsewhere.db")
    assert not is_synced(folder, uri)
    (tmp_path / "elsewhere.db").rename(database)
    assert is_synced(folder, uri)
    with monkeypatch.context() as patched:
        patched.setattr("fpp_sweep.tracking.folder_sync.trial_run", make_run_with_bad_param("trial-0001"))
        with pytest.raises(InputError):
            sync_folder(folder, uri)
    assert not is_synced(folder, uri)


def test_a_folder_is_not_synced_after_a_connection_was_lost(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    sync_folder(folder, uri)
    ((run,),) = rows(database, "select run_uuid from runs where name like '0000%'")
    connect(uri).delete_run(run)

    def lose_the_connection(*_):
        raise OSError("no such luck")

    monkeypatch.setattr(SweepRuns, "write", lose_the_connection)
    monkeypatch.setattr(SweepRuns, "answers", lambda _: False)
    with pytest.raises(MachineError, match="no such luck"):
        sync_folder(folder, uri, retry_for=0.0)
    assert not is_synced(folder, uri)


def test_the_default_store_needs_no_earlier_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    for recorded in ("", DEFAULT_URI):
        assert trusted_uri(folder, recorded) == f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(InputError, match="you have not used its MLflow"):
        trusted_uri(folder, f"sqlite:///{tmp_path}/other.db")


def test_a_copy_of_a_folder_does_not_write_to_the_runs_of_the_original(tmp_path, uri, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    check_store(DEFAULT_URI)
    sync_folder(folder, uri)
    assert trusted_uri(folder, "") == uri
    copy = SweepFolder(shutil.copytree(folder.path, tmp_path / "copy"))
    with pytest.raises(
        InputError, match=r"belong to the folder .*/perturb-1; say where .*: --into sqlite:///mlflow.db"
    ):
        trusted_uri(copy, "", flag="--into")
    linked = tmp_path / "link"
    linked.symlink_to(folder.path)
    assert trusted_uri(SweepFolder(linked), "") == uri
    sync_folder(copy, uri)  # now the user has named the store for the copy
    assert trusted_uri(copy, "") == uri


# Databases from elsewhere, which may name any folder for artifacts.


def forget_artifacts(folder):
    """Delete the record of what was written, and all artifacts beside the database."""
    (folder.path / STATE_FILE).unlink()
    shutil.rmtree(folder.path.parent / "mlartifacts")


def execute(database, statement, *values):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize("address", ["file://{}", "file://{}?x", "{}", "s3://bucket{}", "file://{}/mlartifacts/../out"])
def test_a_database_does_not_choose_where_the_artifacts_of_a_run_go(tmp_path, database, uri, address):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    sync_folder(folder, uri)
    forget_artifacts(folder)
    victim = tmp_path / "home"
    execute(database, "update runs set artifact_uri = ? where name like '0000%'", address.format(victim))
    with pytest.raises(InputError, match=r"trial-0000: .*does not keep artifacts in mlartifacts/ .*would go to .*"):
        sync_folder(folder, uri)
    assert not victim.exists()
    assert artifact_names(tmp_path) >= {"report/front.csv", "space.yaml"}  # the other run has its artifacts


def test_a_database_does_not_choose_where_the_artifacts_of_new_runs_go(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    check_store(uri)
    execute(database, "update experiments set artifact_location = ?", (tmp_path / "home").as_uri())
    for write in (check_store, lambda store: sync_folder(folder, store)):
        with pytest.raises(InputError, match=r"does not keep artifacts in mlartifacts/ .*; give another file.*home"):
            write(uri)
    assert not (tmp_path / "home").exists()


def test_a_link_of_the_artifacts_to_another_disk_is_refused_with_the_address_of_a_store_there(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mlartifacts").symlink_to(disk)
    with pytest.raises(InputError, match=r"remove the link, or give a database on the other disk, such as sqlite:"):
        check_store(f"sqlite:///{tmp_path}/work/mlflow.db")
    check_store(f"sqlite:///{disk}/mlflow.db")


def test_links_lead_to_the_sweeps_run_where_it_was_written(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=1, baselines=())
    server = "http://127.0.0.1:7000"
    assert mlflow_links(folder, server) == [server]
    assert mlflow_links(folder, uri) == [ui_command(uri)]
    sync_folder(folder, uri)
    ((run,),) = rows(tmp_path / "mlflow.db", "select run_uuid from runs where name = 'perturb-1'")
    assert mlflow_links(folder, uri) == [ui_command(uri), f"http://127.0.0.1:5000/#/experiments/1/runs/{run}"]
    assert mlflow_links(folder, server) == [server]  # the sweep's runs are in another store
    command = runnable(f"fpp-sweep sync {folder.path} --into sqlite:///mlflow.db")
    assert mlflow_links(folder, "sqlite:////home/sender/mlflow.db")[1] == command


def test_a_sync_with_nothing_to_do_does_not_import_mlflow(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    code = (
        "import sys\nfrom fpp_sweep import sync\n"
        f"sync.main([{str(folder.path)!r}, '--into', 'sqlite:///{tmp_path}/mlflow.db'])\n"
        "print('mlflow' in sys.modules, 'sqlalchemy' in sys.modules)"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first.startswith("perturb-1: 5 runs brought up to date, 5 of them new")
    assert first.endswith("True True\n")
    assert second.startswith("perturb-1: up to date, nothing has changed since the last sync")
    assert second.endswith("False False\n")


def test_a_failed_connection_releases_the_folders_lock(tmp_path, uri, monkeypatch):
    def refuse(*arguments):
        raise ConnectionError("no answer")

    monkeypatch.setattr("fpp_sweep.tracking.folder_sync.SweepRuns", refuse)
    folder = build_sweep(tmp_path / "perturb-1")
    sync = FolderSync(folder, uri, restore=False)
    (failure,) = sync.make_pass(thorough=True, stop=lambda: False, on_update=print)
    assert "no answer" in failure.cause
    with (
        exclusive_lock(folder.path / LOCK_FILE, wait=False),  # raises LockHeldError if `sync` still holds it
        pytest.raises(InputError, match="perturb-1 is being synchronised with MLflow by"),
    ):
        sync.make_pass(thorough=True, stop=lambda: False, on_update=print)
