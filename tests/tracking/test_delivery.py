"""A delivery writes each run, param, metric, tag and artifact of a sweep once, also after kills and outages."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.front import front_of
from fpp_sweep.records.recommendation import Answer
from fpp_sweep.reproduce.running import deliver_all
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.tracking import delivery
from fpp_sweep.tracking.delivery import DeliveryThread, deliver
from fpp_sweep.tracking.stores import connect, open_store
from tests.kit.names import ZERO_SHOT
from tests.kit.records import build_sweep, failed, running, split_result, trial
from tests.kit.stores import as_sets, contents, faulty_proxy, free_port, proxy, rows, server
from tests.kit.waiting import LONG, wait_for

ROOT = Path(__file__).parent.parent.parent
FIRST = "0000 53/11.5 code gamma2=0.1 class_var=0.001"  # the run of the first trial
SECOND = "0001 54/10.8 gamma2=0.17 class_var=0.002"


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
    """Return the names of all artifacts below a folder, without the run."""
    names = {path.as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name.partition("/artifacts/")[2] for name in names if "/artifacts/" in name}


def run_id(database, name):
    ((run,),) = rows(database, "select run_uuid from runs where name = ? and lifecycle_stage = 'active'", name)
    return run


def undisturbed(tmp_path, empty_database, name="perturb-1", **options):
    """Return the contents of a database after a delivery without faults."""
    other = tmp_path / "undisturbed.db"
    shutil.copyfile(empty_database, other)
    deliver(build_sweep(tmp_path / "copy" / name, **options), f"sqlite:///{other}")
    return comparable(other)


def comparable(database):
    """Return the contents of a database without the tags that differ between stores: digests and ids of runs."""
    tables = as_sets(contents(database))
    kept = set()
    for name, key, value in tables["tags"]:
        if key not in ("fpp_sweep.digest", "mlflow.note.content"):
            kept.add((name, key, value))
    return {**tables, "tags": kept}


def test_a_sweep_becomes_a_run_with_a_child_for_each_trial_and_baseline(tmp_path, database, uri):
    delivered = deliver(build_sweep(tmp_path / "perturb-1"), uri)
    assert (delivered.updated, delivered.created) == (10, 10)
    assert statuses(database)["perturb-1"] == "FINISHED"
    assert statuses(database)["0003 gamma2=0.491 class_var=0.004"] == "FAILED"
    assert statuses(database)[f"baseline {ZERO_SHOT} 53/11.5"] == "FINISHED"
    parent = run_id(database, "perturb-1")
    children = rows(database, "select count(*) from tags where key = 'mlflow.parentRunId' and value = ?", parent)
    assert children == [(9,)]
    assert delivered.links[-1].endswith(f"/#/experiments/1/runs/{parent}?workflowType=machine_learning")
    member, other = "0005 58/8 gamma2=1.42 class_var=0.006", "0004 57/8.7 gamma2=0.835 class_var=0.005"
    assert latest_metrics(database, member)["test/accuracy"] == 57.3
    assert params(database, member)["fpp.gamma2"] == "1.41986"
    assert (tags(database, member)["on_front"], tags(database, other)["on_front"]) == ("true", "false")
    assert "non-finite" in tags(database, "0003 gamma2=0.491 class_var=0.004")["reason"]


def test_artifacts_lie_beside_the_database_from_any_working_folder(tmp_path, database, uri, monkeypatch):
    folder = build_sweep(tmp_path / "perturb-1", baselines=())
    (folder.report / "front.png").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    deliver(folder, uri)
    expected = {"report/sweep.html", "report/best/trial-0005.yaml", "space.yaml", "config.yaml", "trial-0005.json"}
    assert artifact_names(tmp_path / "mlartifacts") >= expected | {"prompts/digits-0.safetensors"}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    picture = f"get-artifact?path=report%2Ffront.png&run_uuid={run_id(database, 'perturb-1')}"
    assert picture in tags(database, "perturb-1")["mlflow.note.content"]


def test_tables_of_a_reproduction_are_sweeps_that_a_tag_joins(tmp_path, database, uri):
    folders = [build_sweep(tmp_path / name, trials=1, failed_trials=(), baselines=()) for name in ("main", "seeds")]
    for folder in folders:
        folder.write_info(replace(folder.info(), group="tiny@123.000"))
    assert deliver_all(folders, uri) is None
    assert {tags(database, name)["reproduction"] for name in ("main", "seeds")} == {"tiny@123.000"}
    folders[0].info_file.write_text("no JSON")
    assert "main/sweep.json" in deliver_all(folders, uri)


# Repeated calls.


def test_a_second_delivery_changes_nothing(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1")
    deliver(folder, uri)
    before = as_sets(contents(database))
    assert deliver(folder, uri).updated == 0
    assert as_sets(contents(database)) == before


def test_a_store_that_was_deleted_or_another_one_gets_everything(tmp_path, database, uri, empty_database):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    deliver(folder, uri)
    before = comparable(database)
    other = shutil.copyfile(empty_database, tmp_path / "other.db")
    assert deliver(folder, f"sqlite:///{other}").created == 6
    assert comparable(other) == before
    database.rename(tmp_path / "old.db")
    shutil.rmtree(tmp_path / "mlartifacts")
    shutil.copyfile(empty_database, tmp_path / "third.db")
    assert deliver(folder, f"sqlite:///{tmp_path}/third.db").created == 6
    assert comparable(tmp_path / "third.db") == before
    assert "report/sweep.html" in artifact_names(tmp_path / "mlartifacts")


def test_a_run_that_a_user_deleted_comes_back_once(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    deliver(folder, uri)
    before = comparable(database)
    for name in (FIRST, "perturb-1"):
        connect(uri).delete_run(run_id(database, name))
    assert deliver(folder, uri).created == 2
    assert comparable(database) == before
    parent = run_id(database, "perturb-1")
    below = "select count(*) from tags join runs using (run_uuid) where key = 'mlflow.parentRunId' and value = ?"
    assert rows(database, f"{below} and lifecycle_stage = 'active'", parent) == [(5,)]


def test_a_run_that_stands_there_twice_is_deleted_once(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    deliver(folder, uri)
    before = as_sets(contents(database))
    store = open_store(uri)
    run = store.client.get_run(run_id(database, FIRST))
    identity = {key: run.data.tags[key] for key in ("fpp_sweep.id", "fpp_sweep.sweep")}
    for start in (1, 2_000_000_000_000):  # before and after the run that is complete
        store.client.create_run(store.experiment, start, identity)
    deliver(folder, uri)
    assert as_sets(contents(database)) == before


# Changes of a run.


def test_a_running_trial_is_shown_and_gets_its_results_when_it_ends(tmp_path, database, uri):
    folder = build_sweep(
        tmp_path / "perturb-1", baselines=(), trials=3, running_trials=(2,), state="running", report=False
    )
    with folder.locked():
        deliver(folder, uri)
        assert statuses(database)["0002 gamma2=0.289 class_var=0.003"] == "RUNNING"
        folder.write_trial(trial(2))
        deliver(folder, uri)
    name = "0002 55/10.1 gamma2=0.289 class_var=0.003"
    assert statuses(database)[name] == "FINISHED"
    assert latest_metrics(database, name)["accuracy"] == 55.0


def test_a_trial_that_runs_again_after_an_interruption_is_running_and_has_no_reason(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    name = "0000 code gamma2=0.1 class_var=0.001"
    stopped = replace(running(0), state="interrupted", reason="Ctrl-C", finished=trial(0).finished)
    folder.write_trial(stopped)
    deliver(folder, uri)
    assert (statuses(database)[name], tags(database, name)["reason"]) == ("KILLED", "Ctrl-C")
    folder.write_trial(replace(running(0), attempt=2))
    deliver(folder, uri)
    assert statuses(database)[name] == "RUNNING"
    assert "reason" not in tags(database, name)
    assert tags(database, name)["attempt"] == "2"


def test_a_trial_that_leaves_the_front_loses_the_tags_of_the_front(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1)
    support, answer = {"trial-0000": "likely"}, Answer(recommended="trial-0000")
    front = front_of(folder.info(), folder.trials())
    deliver(folder, uri, SweepStatistics(front, {}, support, answer))
    front_tags = {"on_front": "true", "front_support": "likely", "recommended": "true"}
    assert front_tags.items() <= tags(database, FIRST).items()
    assert tags(database, "perturb-1")["recommended"] == "trial-0000"
    folder.write_trial(trial(1))
    deliver(folder, uri, statistics_of(folder, folder.info(), folder.trials()))
    assert tags(database, FIRST)["on_front"] == "false"
    assert not {"front_support", "recommended"} & set(tags(database, FIRST))
    assert "recommended" not in tags(database, "perturb-1")


def test_a_changed_value_replaces_the_former_one_even_if_it_is_smaller_and_equally_old(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, report=False)
    deliver(folder, uri)
    folder.write_trial(replace(trial(1), results={"val": split_result(1.5, 10.8)}))
    for _ in range(2):
        deliver(folder, uri)
    assert latest_metrics(database, SECOND)["accuracy"] == 1.5
    assert metric_history(database, SECOND, "accuracy") == [(0, 1.5), (0, 54.0)]


def test_a_curve_has_a_point_for_each_trial_even_if_its_value_does_not_change(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=2, running_trials=(1,), report=False)
    for record in (trial(0), failed(1), trial(2)):
        folder.write_trial(record)
        deliver(folder, uri)
    assert metric_history(database, "perturb-1", "best/accuracy") == [(1, 53), (2, 53), (3, 55)]


def test_a_changed_param_is_named_in_a_tag_because_mlflow_keeps_the_first_value(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", baselines=(), trials=1, report=False)
    deliver(folder, uri)
    record = trial(0)
    folder.write_trial(replace(record, config={**record.config, "fpp.draws": 9}))
    deliver(folder, uri)
    assert tags(database, FIRST)["changed_params"] == "fpp.draws: 4 -> 9"


# Faults.


def test_a_record_that_cannot_be_read_is_named_and_no_database_is_made(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    folder.trial_file("trial-0001").write_text("{")
    with pytest.raises(InputError, match="trial-0001"):
        deliver(folder, f"sqlite:///{tmp_path}/new.db")
    assert not list(tmp_path.glob("*new.db*"))


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory, empty_database):
    """A server, and the proxies' way to it."""
    with server(tmp_path_factory.mktemp("server"), empty_database) as running:
        running.start()
        yield running


@pytest.fixture
def emptied(mlflow, empty_database):
    """The server, which loses its runs after the test."""
    yield mlflow
    with closing(sqlite3.connect(mlflow.database, timeout=LONG)) as connection, connection:
        for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
            connection.execute(f"delete from {table}")


@pytest.mark.slow
def test_all_runs_arrive_once_although_a_third_of_all_requests_fail(tmp_path, empty_database, emptied, quick_retries):
    faults = []
    folder = build_sweep(tmp_path / "perturb-1")
    with faulty_proxy(emptied.uri, share=0.3, seed=0, faults=faults) as address:
        wait_for(lambda: delivered_at_last(folder, f"http://{address}"))
    assert set(faults) == {500, 503, "drop", "lost"}
    assert comparable(emptied.database) == undisturbed(tmp_path, empty_database)


def delivered_at_last(folder, uri):
    """Return whether a delivery succeeds; the check of the address, which MLflow does not repeat, may fail too."""
    try:
        deliver(folder, uri)
    except (InputError, MachineError):
        return False
    return True


@pytest.mark.nightly
@pytest.mark.slow
def test_a_creation_that_is_slower_than_the_clients_limit_leaves_one_run(
    tmp_path, empty_database, emptied, quick_retries, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    sent_again = threading.Event()
    creations = []

    def answer_late(request):
        if not request.path.endswith("/runs/create"):
            return None
        creations.append(request.path)
        if len(creations) == 2:
            sent_again.set()
        return sent_again if len(creations) == 1 else None

    with proxy(emptied.uri, answer_late) as address:
        deliver(folder, f"http://{address}")
    assert len(creations) > 6  # MLflow's client has sent one of six creations again
    deleted = rows(emptied.database, "select count(*) from runs where lifecycle_stage = 'deleted'")
    assert deleted == [(len(creations) - 6,)]
    assert comparable(emptied.database) == undisturbed(tmp_path, empty_database, trials=2)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_artifact_that_a_proxy_refuses_keeps_no_value_from_mlflow(tmp_path, empty_database, emptied):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    (folder.artifacts("trial-0001") / "a.large").write_bytes(bytes(100_000))
    limit = [100_000]

    def refuse_large(request):
        return 413 if int(request.headers.get("Content-Length", 0)) >= limit[0] else None

    with proxy(emptied.uri, refuse_large) as address:
        with pytest.raises(MachineError, match=r"413.*; 6 runs written, the rest waits for another sync"):
            deliver(folder, f"http://{address}")
        assert comparable(emptied.database) == undisturbed(tmp_path, empty_database, trials=2)
        limit[0] = 10**9
        deliver(folder, f"http://{address}")
        assert deliver(folder, f"http://{address}").updated == 0
    assert "a.large" in {Path(name).name for name in artifact_names(emptied.folder)}


# This program loads MLflow once. For every step number that it reads, it forks a process that delivers and is killed at
# that step, and prints the status of that process. A step is a commit of the database.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.tracking.delivery import deliver
from fpp_sweep.tracking.stores import connect
connect("sqlite://")
steps = 0

def step(_):
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "commit", step)
for line in sys.stdin:
    last = int(line)
    child = os.fork()
    if child == 0:
        deliver(SweepFolder(Path(sys.argv[1])), sys.argv[2])
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@contextmanager
def forked_deliveries(folder, uri):
    """Run a process whose children deliver: write the step that kills a child, then read the child's status."""
    command = [sys.executable, "-c", PROGRAM, str(folder.path), uri]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, env=environment, **pipes) as process:
        yield process


@pytest.mark.slow
def test_a_delivery_killed_at_many_steps_leaves_everything_once(tmp_path, database, uri, empty_database):
    open_store(uri)
    folder = build_sweep(tmp_path / "perturb-1", trials=6)
    with forked_deliveries(folder, uri) as process:
        for step in (3, 7, 12, 13, 14, 25, 31, 40, 41, 55):
            print(step, file=process.stdin, flush=True)
            assert int(process.stdout.readline()) == signal.SIGKILL  # every delivery was killed before its end
    assert len(contents(database)["runs"]) > 0
    deliver(folder, uri)
    assert comparable(database) == undisturbed(tmp_path, empty_database)
    assert "RUNNING" not in statuses(database).values()


# The thread of the driver.


def test_the_thread_follows_the_folder_and_ends_with_all_runs_written(tmp_path, database, uri):
    folder = build_sweep(tmp_path / "perturb-1", trials=2, running_trials=(0, 1), state="running", report=False)
    errors = []
    with folder.locked():
        thread = DeliveryThread(folder, uri, errors.append)
        thread.start()
        thread.nudge(None)
        wait_for(lambda: thread.links)
        assert list(statuses(database).values()).count("RUNNING") == 3
        for number in (0, 1):
            folder.write_trial(trial(number))
        folder.write_info(replace(folder.info(), state="finished", finished=folder.info().created + 100))
        thread.nudge(None)
        assert thread.close(LONG) is None
    assert set(statuses(database).values()) == {"FINISHED"}
    assert errors == []


@pytest.mark.slow
def test_a_server_down_for_the_whole_sweep_gets_everything_when_it_is_up(tmp_path, empty_database, monkeypatch):
    monkeypatch.setattr(delivery, "MIN_REST", 0.0)
    monkeypatch.setattr(delivery, "REST_FACTOR", 0.0)
    errors = []
    with server(tmp_path, empty_database) as mlflow:
        folder = build_sweep(tmp_path / "perturb-1", trials=2, running_trials=(0, 1), state="running", report=False)
        thread = DeliveryThread(folder, mlflow.uri, errors.append)
        thread.start()
        for _ in range(3):
            thread.nudge(None)
            wait_for(lambda: errors)
        folder = build_sweep(tmp_path / "perturb-1")
        assert "Connection refused" in thread.close(LONG)
        assert len(errors) == 1  # an error is reported once
        assert errors[0].startswith("MLflow is behind: ")
        with pytest.raises(InputError, match="Connection refused"):
            deliver(folder, mlflow.uri)
        mlflow.start()
        assert deliver(folder, mlflow.uri).created == 10
        assert comparable(mlflow.database) == undisturbed(tmp_path, empty_database)
        assert "report/sweep.html" in artifact_names(tmp_path)


HANGING_PROGRAM = """
import sys, threading
from pathlib import Path
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.tracking.delivery import DeliveryThread
thread = DeliveryThread(SweepFolder(Path(sys.argv[1])), sys.argv[2], print)
thread.start()
thread.nudge(None)
print(thread.close(0.0))
"""


def test_a_store_that_hangs_delays_neither_a_nudge_nor_the_end(tmp_path):
    folder = build_sweep(tmp_path / "perturb-1", trials=2)
    hanging = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", HANGING_PROGRAM, folder.path, hanging]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (0, "it was too slow\n"), done.stderr
