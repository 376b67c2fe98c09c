import os
import socket
import sqlite3
import threading
from dataclasses import replace

import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import written_whole
from fpp_sweep.tracking import DEFAULT_URI, Shipper, check_store, ship, ship_whole, to_look
from fpp_sweep.tracking.store import Store
from fpp_sweep.tracking.uri import connect, one_line, ui_command
from fpp_sweep.tracking.view import view_key
from tests.names import PLAIN
from tests.sweeps import build_sweep, split_result, trial
from tests.tracking.stores import as_sets, contents, free_port, rows
from tests.waiting import LONG, wait_for


def runs(database):
    return dict(rows(database, "select name, status from runs where lifecycle_stage = 'active'"))


def tags(database, name):
    return dict(rows(database, "select key, value from tags join runs using (run_uuid) where name = ?", name))


def latest(database, name):
    return dict(rows(database, "select key, value from latest_metrics join runs using (run_uuid) where name = ?", name))


def test_a_sweep_becomes_a_run_with_a_child_for_each_trial_and_baseline(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1")
    delivered = ship(folder, uri)
    assert (delivered.records, delivered.created) == (10, 10)
    found_runs = runs(database)
    assert found_runs["perturb-1"] == "FINISHED"
    assert found_runs["0003 gamma2=0.491 class_var=0.004"] == "FAILED"
    assert found_runs[f"baseline {PLAIN} 53/11.5"] == "FINISHED"
    ((parent,),) = rows(database, "select run_uuid from runs where name = 'perturb-1'")
    children = rows(database, "select count(*) from tags where key = 'mlflow.parentRunId' and value = ?", parent)
    assert children == [(9,)]
    assert latest(database, "0005 58/8 gamma2=1.42 class_var=0.006")["test/accuracy"] == 57.0
    assert tags(database, "0005 58/8 gamma2=1.42 class_var=0.006")["on_front"] == "true"
    assert tags(database, "0004 57/8.7 gamma2=0.835 class_var=0.005")["on_front"] == "false"
    assert "non-finite" in tags(database, "0003 gamma2=0.491 class_var=0.004")["reason"]


def test_sweeps_that_belong_together_stand_under_one_run(tmp_path, database, uri):
    page = tmp_path / "reproduction.html"
    page.write_text("<title>all tables</title>")
    for name in ("main", "seeds"):
        folder = build_sweep(tmp_path / name, trials=2, failed=(), baselines=())
        folder.write_info(replace(folder.info(), group="tiny@123.000"))
        for _ in range(2):  # a second delivery finds what the first has made
            ship(folder, uri)
            ship_whole(folder, uri, [page])
    ((above,),) = rows(database, "select run_uuid from runs where name = 'tiny'")
    below = "select name from tags join runs using (run_uuid) where key = 'mlflow.parentRunId' and value = ?"
    assert sorted(rows(database, below, above)) == [("main",), ("seeds",)]
    assert runs(database)["tiny"] == "FINISHED"
    assert list((tmp_path / "mlartifacts").rglob("reproduction.html"))


def test_artifacts_lie_beside_the_database_wherever_the_command_is_started(
    tmp_path, database, uri, monkeypatch, tmp_path_factory
):
    folder = build_sweep(tmp_path / "perturb-1", baselines=())
    monkeypatch.chdir(database.parent)
    relative = "sqlite:///mlflow.db"
    check_store(relative)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    ship(folder, uri)
    artifacts = tmp_path / "mlartifacts" / "fpp_sweep"
    for name in (
        "report/sweep.html",
        "report/best/trial-0005.yaml",
        "space.yaml",
        "metrics.csv",
        "traceback.txt",
        "prompts/tiny_digits-0.safetensors",
    ):
        assert list(artifacts.glob(f"*/artifacts/{name}")), name


def test_delivering_again_changes_nothing_even_without_the_memory(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1")
    ship(folder, uri)
    before = as_sets(contents(database))
    assert ship(folder, uri).records == 0
    (folder.path / "shipped.json").unlink()
    assert ship(folder, uri).created == 0
    assert as_sets(contents(database)) == before


def test_a_spoiled_memory_is_no_memory(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    ship(folder, uri)
    before = as_sets(contents(database))
    for spoiled in ("", "[]", '{"runs": 3}', '{"runs": {"sweep": {"what": 1}}}'):
        (folder.path / "shipped.json").write_text(spoiled)
        ship(folder, uri)
    assert as_sets(contents(database)) == before


def test_a_new_database_gets_everything(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    ship(folder, uri)
    before = as_sets(contents(database))
    rows_to_delete = ("metrics", "latest_metrics", "params", "tags", "runs")
    with sqlite3.connect(database) as connection:
        for table in rows_to_delete:
            connection.execute(f"delete from {table}")
    connection.close()
    ship(folder, uri)
    assert as_sets(contents(database)) == before


def test_a_trial_is_shown_while_it_runs_then_with_what_it_found(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=3, running=(2,), state="running", report=False)
    ship(folder, uri)
    assert runs(database)["0002 gamma2=0.289 class_var=0.003"] == "RUNNING"
    folder.write_trial(trial(2))
    assert ship(folder, uri).records == 2  # the trial, and the sweep that counts it
    name = "0002 55/10.1 gamma2=0.289 class_var=0.003"
    assert runs(database)[name] == "FINISHED"
    assert latest(database, name)["accuracy"] == split_result(2).average["accuracy"]


def test_a_trial_that_runs_again_after_an_interruption_is_running_and_has_no_reason(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    name = "0000 code gamma2=0.1 class_var=0.001"
    stopped = replace(trial(0, running=True), state="interrupted", reason="Ctrl-C", finished=trial(0).finished)
    folder.write_trial(stopped)
    ship(folder, uri)
    assert (runs(database)[name], tags(database, name)["reason"]) == ("KILLED", "Ctrl-C")
    folder.write_trial(replace(trial(0, running=True), attempt=2))
    ship(folder, uri)
    assert runs(database)[name] == "RUNNING"
    assert "reason" not in tags(database, name)
    assert tags(database, name)["attempt"] == "2"


def test_a_waiting_trial_is_scheduled_without_an_end_and_a_stopped_one_says_why(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, failed=(1,), running=(0,), report=False)
    folder.write_trial(replace(trial(0, running=True), state="waiting"))
    folder.write_trial(replace(trial(1, failed=True), state="stopped", reason="lower after 2 of 5 datasets"))
    waiting, stopped = "0000 code gamma2=0.1 class_var=0.001", "0001 gamma2=0.17 class_var=0.002"
    ship(folder, uri)
    assert (runs(database)[waiting], runs(database)[stopped]) == ("SCHEDULED", "FINISHED")
    assert rows(database, "select end_time from runs where name = ?", waiting) == [(None,)]
    assert tags(database, waiting)["state"] == "waiting"
    assert tags(database, stopped)["state"] == "stopped"
    assert tags(database, stopped)["reason"] == "lower after 2 of 5 datasets"


def test_a_changed_value_replaces_the_one_before_even_if_it_is_smaller_and_as_old(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    ship(folder, uri)
    record = trial(1)
    lower = replace(split_result(1), average={**split_result(1).average, "accuracy": 1.5})
    folder.write_trial(replace(record, results={"val": lower}))
    ship(folder, uri)
    (folder.path / "shipped.json").unlink()
    ship(folder, uri)
    name = "0001 54/10.8 gamma2=0.17 class_var=0.002"
    assert latest(database, name)["accuracy"] == 1.5
    history = rows(
        database, "select value from metrics join runs using (run_uuid) where name = ? and key = 'accuracy'", name
    )
    assert sorted(history) == [(1.5,), (split_result(1).average["accuracy"],)]


def test_a_changed_param_is_told_because_mlflow_keeps_the_first(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    ship(folder, uri)
    record = trial(0)
    folder.write_trial(replace(record, config={**record.config, "fpp.draws": 9}))
    ship(folder, uri)
    assert tags(database, "0000 53/11.5 code gamma2=0.1 class_var=0.001")["changed_params"] == "fpp.draws: 4 -> 9"


def test_the_report_is_uploaded_again_only_when_it_changed(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2)
    ship(folder, uri)
    (page,) = (tmp_path / "mlartifacts").glob("*/*/artifacts/report/sweep.html")
    (table,) = (tmp_path / "mlartifacts").glob("*/*/artifacts/report/front.csv")
    table.unlink()
    (folder.report / "sweep.html").write_text("<h1>new</h1>")
    ship(folder, uri)
    assert page.read_text() == "<h1>new</h1>"
    assert not table.exists()


def test_a_file_that_is_being_written_is_no_artifact_yet(tmp_path, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    names = folder.report / "front.csv", folder.artifacts("trial-0000") / "prompts" / "new.safetensors"
    with written_whole(names[0]) as one, written_whole(names[1]) as other:
        one.write_text("half")
        other.write_text("half")
        ship(folder, uri)
        stored = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file()]
        assert not [path for path in stored if path.read_text() == "half"]
    ship(folder, uri)
    stored = [path for path in (tmp_path / "mlartifacts").rglob("*") if path.is_file()]
    assert {path.name for path in stored if path.read_text() == "half"} == {"front.csv", "new.safetensors"}


def test_hostile_names_arrive(tmp_path, database, uri):
    hostile = ["my data (new)!", "../../etc/passwd", "größe", "a'b; drop table runs --", "x" * 400, "a//b", "50%#?"]
    folder = build_sweep(tmp_path / "it's a 'sweep'", baselines=(), trials=1, datasets=hostile[:1], report=False)
    record = trial(0, hostile)
    folder.write_trial(replace(record, config={**record.config, "prompt": "y" * 7000, "odd key (1)": "'"}))
    artifact = folder.artifacts(record.name) / "prompts" / "50%#? größe (1).txt"
    artifact.write_text("safe and sound")
    ship(folder, uri)
    keys = rows(database, "select distinct key from metrics where key like 'ece/%'")
    assert len(keys) == len(hostile)
    stored = (tmp_path / "mlartifacts").glob("*/*/artifacts/prompts/50*")
    assert [path.read_text() for path in stored] == ["safe and sound"]


def test_a_run_that_a_user_deleted_stays_so_until_sync_is_asked(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    ship(folder, uri)
    name = "0001 54/10.8 gamma2=0.17 class_var=0.002"
    ((run,),) = rows(database, "select run_uuid from runs where name = ?", name)
    connect(uri).delete_run(run)
    folder.write_trial(replace(trial(1), origin="point"))
    shipper = Shipper(folder, uri)
    shipper.start()
    assert shipper.close(LONG) == 0
    assert name not in runs(database)
    assert shipper.status().error is None
    folder.write_trial(trial(1))
    assert ship(folder, uri).restored == (name,)
    assert name in runs(database)
    assert rows(database, "select count(*) from runs") == [(6,)]


def test_a_deleted_experiment_is_an_error_that_says_how_to_get_it_back(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    ship(folder, uri)
    client = connect(uri)
    client.delete_experiment(client.get_experiment_by_name("fpp_sweep").experiment_id)
    for attempt in (lambda: ship(folder, uri), lambda: check_store(uri)):
        with pytest.raises(InputError, match="experiments restore"):
            attempt()


def test_two_sweeps_of_one_name_have_runs_of_their_own(tmp_path, database, uri):
    first = build_sweep(tmp_path / "a" / "perturb-1", trials=1)
    second = build_sweep(tmp_path / "b" / "perturb-1", trials=1)
    second.write_info(replace(second.info(), created=second.info().created + 1))
    ship(first, uri)
    assert ship(second, uri).created == 5
    assert rows(database, "select count(*) from runs") == [(10,)]


def test_a_run_created_twice_by_a_slow_server_is_one_again(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    ship(folder, uri)
    before = as_sets(contents(database))
    client = connect(uri)
    for run in client.search_runs([client.get_experiment_by_name("fpp_sweep").experiment_id]):
        client.create_run(run.info.experiment_id, run.info.start_time, run.data.tags, run.info.run_name)
    ship(folder, uri)
    assert as_sets(contents(database)) == before


@pytest.mark.parametrize(
    ("started", "in_bin", "forgotten"),
    [(-1000, False, False), (1000, False, True), (-1000, True, True)],
    ids=["older, but not written to", "younger", "older, but in the bin"],
)
def test_of_a_run_created_twice_the_right_one_stays(tmp_path, database, uri, started, in_bin, forgotten):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    ship(folder, uri)
    active = "select run_uuid from runs where lifecycle_stage = 'active'"
    before = set(rows(database, active))
    client = connect(uri)
    for run in client.search_runs([client.get_experiment_by_name("fpp_sweep").experiment_id]):
        at = run.info.start_time + started
        twin = client.create_run(run.info.experiment_id, at, run.data.tags, run.info.run_name)
        if in_bin:
            client.delete_run(twin.info.run_id)
    if forgotten:
        (folder.path / "shipped.json").unlink()
    ship(folder, uri)
    assert set(rows(database, active)) == before


def test_runs_are_found_however_many_pages_they_fill(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=4)
    ship(folder, uri)
    (folder.path / "shipped.json").unlink()
    monkeypatch.setattr("fpp_sweep.tracking.store.PAGE", 3)
    assert ship(folder, uri).created == 0
    assert rows(database, "select count(*) from runs") == [(8,)]


def test_only_one_process_delivers_a_sweep(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    shipper = Shipper(folder, uri)
    shipper.start()
    wait_for(lambda: shipper.status().delivered == 5)
    with pytest.raises(InputError, match="another process"):
        ship(SweepFolder(folder.path), uri)
    assert shipper.close(LONG) == 0
    assert ship(folder, uri).records == 0


def test_the_shipper_follows_the_folder_and_ends_with_all_delivered(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2, running=(0, 1), state="running", report=False)
    shipper = Shipper(folder, uri)
    shipper.start()
    wait_for(lambda: shipper.status().delivered == 6)
    for number in (0, 1):
        folder.write_trial(trial(number))
        shipper.nudge()
    folder.write_info(replace(folder.info(), state="finished", finished=folder.info().created + 100))
    assert shipper.close(LONG) == 0
    assert set(runs(database).values()) == {"FINISHED"}
    assert shipper.status().pending == 0


def test_a_record_that_mlflow_refuses_does_not_hold_up_the_others(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=3, report=False)
    monkeypatch.setattr("fpp_sweep.tracking.sync.trial_run", with_a_bad_param("trial-0001"))
    with pytest.raises(InputError, match=r"trial-0001: .*; 6 records delivered, 1 left"):
        ship(folder, uri)
    assert "0002 55/10.1 gamma2=0.289 class_var=0.003" in runs(database)


def failing_once(monkeypatch, name):
    """One call of a store's method fails, then all go well."""
    method, calls = getattr(Store, name), []

    def call(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("no such luck")
        return method(*arguments, **named)

    monkeypatch.setattr(Store, name, call)


def test_a_refused_call_is_tried_again_at_the_next_nudge(tmp_path, database, uri, monkeypatch):
    monkeypatch.setattr("fpp_sweep.tracking.sync.REST", 0.0)
    failing_once(monkeypatch, "update")
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    shipper = Shipper(folder, uri)
    shipper.start()
    wait_for(lambda: shipper.status().error)
    assert shipper.status().error == "trial-0000: no such luck"
    assert shipper.status().delivered == 2
    shipper.nudge()
    wait_for(lambda: not shipper.status().error)
    assert shipper.status().delivered == 3
    assert "0000 53/11.5 code gamma2=0.1 class_var=0.001" in runs(database)
    assert shipper.close(LONG) == 0


def test_a_call_without_an_answer_is_tried_again_by_itself(tmp_path, uri, monkeypatch):
    monkeypatch.setattr("fpp_sweep.tracking.sync.FIRST_PAUSE", 0.0)
    monkeypatch.setattr(Store, "alive", lambda self: False)
    failing_once(monkeypatch, "update")
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    shipper = Shipper(folder, uri)
    shipper.start()
    wait_for(lambda: shipper.status().delivered == 3)
    assert shipper.close(LONG) == 0


def test_a_run_that_could_not_be_ended_is_ended_by_the_next_delivery(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    with monkeypatch.context() as patched:
        failing_once(patched, "end")
        with pytest.raises(InputError, match="no such luck"):
            ship(folder, uri)
    assert list(runs(database).values()).count("RUNNING") == 1
    ship(folder, uri)
    assert set(runs(database).values()) == {"FINISHED"}


def with_a_bad_param(name):
    from fpp_sweep.tracking.desired import trial_run

    def changed(info, record, **known):
        run = trial_run(info, record, **known)
        return replace(run, params={"not (allowed)": "1"}) if record.name == name else run

    return changed


def test_a_store_that_hangs_holds_up_neither_a_nudge_nor_the_end(tmp_path, uri, monkeypatch):
    answer, waited = threading.Event(), []

    def hanging(*_):
        waited.append(answer.wait(LONG))
        raise OSError("no such luck")

    monkeypatch.setattr("fpp_sweep.tracking.sync.Store", hanging)
    shipper = Shipper(build_sweep(tmp_path / "perturb-1", trials=2), uri)
    shipper.start()
    wait_for(lambda: shipper.status().pending == 6)
    for _ in range(100):
        shipper.nudge()
    assert shipper.close(0.0) == 6
    assert not waited  # it hangs still
    answer.set()
    shipper.close(LONG)


def test_an_unreachable_server_is_reported_with_what_it_lacks(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    shipper = Shipper(folder, f"http://127.0.0.1:{free_port()}")
    shipper.start()
    wait_for(lambda: shipper.status().error)
    status = shipper.status()
    assert (status.error, status.pending, status.delivered) == ("connection refused", 6, 0)
    assert shipper.close(0.0) == 6


@pytest.mark.parametrize("kind", ["refused", "hanging"])
def test_a_server_that_is_not_there_at_the_start_is_one_line_before_mlflow_is_asked(kind, monkeypatch):
    """MLflow would try for minutes."""
    monkeypatch.setattr("fpp_sweep.tracking.uri.load", lambda: pytest.fail("MLflow was asked"))
    monkeypatch.setattr("fpp_sweep.tracking.uri.CHECK_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # accepts, and never answers
        port = hanging.getsockname()[1] if kind == "hanging" else free_port()
        with pytest.raises(InputError, match="cannot be used") as refusal:
            check_store(f"http://127.0.0.1:{port}")
    assert "\n" not in str(refusal.value)
    assert ("connection refused" if kind == "refused" else "no answer in time") in str(refusal.value)


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "ftp://x", "sqlite:///", "databricks"])
def test_a_store_of_another_kind_is_refused(uri):
    with pytest.raises(InputError, match="give sqlite:///FILE"):
        check_store(uri)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "notes.db").write_text("no database" * 100)
    with pytest.raises(InputError, match="not usable as MLflow's database"):
        check_store(f"sqlite:///{tmp_path}/notes.db")
    with pytest.raises(InputError, match="not usable as MLflow's database"):
        check_store(f"sqlite:///{tmp_path}")


def test_a_database_of_a_newer_mlflow_is_refused(database, uri):
    with sqlite3.connect(database) as connection:
        connection.execute("update alembic_version set version_num = 'abcdef012345'")
    connection.close()
    with pytest.raises(InputError, match="MLflow cannot use this database"):
        check_store(uri)


def test_a_password_is_not_shown():
    assert "secret" not in ui_command("postgresql://me:secret@db/mlflow")
    with pytest.raises(InputError) as refusal:
        check_store("ftp://me:secret@db/mlflow")
    assert "secret" not in str(refusal.value)


def test_a_password_in_anothers_words_is_not_shown(tmp_path, monkeypatch):
    uri = "postgresql://me:secret@db/mlflow"
    for before in range(200):  # wherever the text is cut
        assert "sec" not in one_line(ValueError(f"{'x' * before} {uri} {'y' * 100}"), 120)

    def refusing(*_):
        raise OSError(f"{uri}: no such luck")

    for name in ("uri.connect", "sync.Store"):
        monkeypatch.setattr(f"fpp_sweep.tracking.{name}", refusing)
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    for attempt in (lambda: check_store(uri), lambda: ship(folder, uri)):
        with pytest.raises(InputError, match="no such luck") as refusal:
            attempt()
        assert "secret" not in str(refusal.value)


def test_the_command_that_opens_the_ui_works_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ui_command(DEFAULT_URI) == f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db"
    assert ui_command("sqlite:////data/my runs.db") == "mlflow ui --backend-store-uri 'sqlite:////data/my runs.db'"
    assert ui_command("http://127.0.0.1:5000") == "http://127.0.0.1:5000"


def test_a_link_opens_the_sweeps_runs_where_mlflow_has_them(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=1)
    server, file = "http://127.0.0.1:7000", "sqlite:////data/mlflow.db"
    assert to_look(folder, server) == [server]
    assert to_look(folder, file) == [ui_command(file)]
    (folder.path / "shipped.json").write_text('{"experiment": "7", "runs": {"sweep": {"run": "abc"}}}')
    view = f"/#/experiments/7/runs?viewStateShareKey={view_key(folder.info())}&compareRunsMode=CHART"
    assert to_look(folder, f"{server}/") == [f"{server}{view}"]
    assert to_look(folder, file) == [ui_command(file), f"http://127.0.0.1:5000{view}"]


def test_the_surroundings_that_a_user_chose_stay(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    connect("http://127.0.0.1:1")
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
