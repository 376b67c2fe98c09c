"""The command `tune` as its users run it, with real processes, signals, studies and MLflow stores."""

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fpp_sweep.cli import run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec.messages import runnable
from fpp_sweep.tune import main
from tests.kit.layout import assert_same_layout
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.processes import (
    ROOT,
    SMALL_SPACE,
    assert_same_as_in_one_process,
    complete_records,
    descendants,
    environment,
    error_lines,
    killed_at_end,
    only_sweep,
    start_tune,
    tune_command,
)
from tests.kit.stores import free_port
from tests.kit.study import exported_study
from tests.kit.waiting import LONG, wait_for

FIRST_SWEEP = os.environ.get("FIRST_SWEEP")  # the folder of the sweep that the README's first command has run


def tune(folder, *words, space=SMALL_SPACE, code=0):
    done = subprocess.run(
        tune_command(folder, *words, space=space), cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def study_states(sweep):
    return [trial.state.name for trial in exported_study(sweep.study_file).trials]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_sweep_of_every_part_of_a_space_has_the_layout_that_users_know(tmp_path):
    done = tune(tmp_path, space=(ROOT / "search_spaces/smoke.yaml").read_text())
    assert "Traceback" not in done.stderr
    sweep = only_sweep(tmp_path)
    assert_output_is_complete(done, sweep)
    assert_same_layout(sweep, tmp_path / "mlflow.db")
    assert_sweep_is_complete(sweep, tmp_path / "mlflow.db")


@pytest.mark.slow
@pytest.mark.skipif(FIRST_SWEEP is None, reason="FIRST_SWEEP does not name the sweep of the README's first command")
def test_the_first_sweep_of_the_readme_is_complete_and_its_knee_can_be_evaluated(tmp_path):
    sweep = SweepFolder.open(Path(FIRST_SWEEP or ""))
    assert_sweep_is_complete(sweep, sweep.path.parent.parent / "mlflow.db")
    words = ["--config", sweep.report.resolve() / "best/knee.yaml", "--datasets", "scenes", "--limit", "10"]
    line = [sys.executable, "-m", "fpp_sweep.evaluate", *words]
    subprocess.run(line, check=True, capture_output=True, cwd=tmp_path, env=environment(tmp_path))


def assert_sweep_is_complete(sweep, database):
    info, records = sweep.info(), {record.name: record for record in sweep.trials()}
    assert info.state == "finished"
    assert info.work.model_loads < len(records)  # a worker loads its model once, not for every trial
    assert {"answer.md", "front.csv", "front.png", "sweep.html"} <= {path.name for path in sweep.report.iterdir()}
    assert front_of(info, sweep.trials()).members
    assert {"val", "test"} <= set(records[f"baseline-{TPT}"].results)
    trials = [record for record in records.values() if record.kind == "trial" and "val" in record.results]
    (champion,) = [record for record in trials if {"final", "test"} <= set(record.results)]
    dataset, *_ = champion.results["val"].datasets
    folder = sweep.artifacts(champion.name)
    artifacts = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    predictions = f"val/{dataset}.seed0.predictions.parquet"
    assert {f"prompts/{dataset}.seed0.safetensors", predictions, "test/reliability.png", "log.txt"} <= artifacts
    assert_logs_are_complete(sweep, trials[-1], dataset)  # the first ones may share results with baselines
    with closing(sqlite3.connect(database)) as store:
        assert store.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall() == [
            ("FINISHED", 1 + len(records))
        ]


def assert_output_is_complete(done, sweep):
    """Check a pipe's output: the header, the steps, then sentences, the table, and the files to open."""
    subjects = ["sweep", "question", "searches", "work", "budget", "then", "folder", "page"]
    assert [line.split()[0] for line in done.stderr.splitlines()[: len(subjects)]] == subjects
    begun = [line for line in done.stderr.splitlines() if line.endswith(" ...")]
    first, *rest = [line for line in begun if line != "opening MLflow's store ..."]
    assert first == "starting Ray ..."
    assert rest == [
        "loading tiny on 1 worker ...",
        "loading Ray Tune and Optuna ...",
        "looking at datasets and prompts ...",
        "writing the report, bringing MLflow up to date ...",
    ]
    assert "\033" not in done.stderr + done.stdout
    parts = [
        f"{sweep.path.name} is finished (all 4 trials); trials: 4 complete.",
        "\nAnswer\n",
        "front of small-",
        "\nwork        ",
        "\nfeatures    of ",
        "\npage        file://",
        f"\nbaseline    {runnable('fpp-sweep evaluate ')}",
    ]
    store = f"sqlite:///{sweep.path.parent.parent}/mlflow.db"
    parts += [f"\nMLflow      {runnable(f'mlflow ui --backend-store-uri {store}')}"]
    assert sorted(parts, key=done.stdout.index) == parts
    assert "/#/experiments/1/runs/" in done.stdout


def assert_logs_are_complete(sweep, record, dataset):
    """Check that the trial's log has its key and tasks, and that the named worker's log has the task."""
    lines = (sweep.artifacts(record.name) / "log.txt").read_text().splitlines()
    assert f"{record.name} begins on val: config {record.key}, attempt 1" in lines[0]
    assert any(line.endswith(f"{record.name} has ended on val: complete") for line in lines)
    (task,) = [line for line in lines if f"{dataset}, val samples 0.." in line]
    title, worker = re.fullmatch(r"\S+ \S+ (.*): [\d.]+ s, worker (\d+) on \S+", task).groups()
    (log,) = (sweep.path / "logs").glob(f"*-{worker}.log")
    assert f"{title}, config {record.key}: begins" in log.read_text()


@pytest.mark.nightly
@pytest.mark.slow  # runs several drivers one after the other
def test_killed_drivers_change_only_the_time():
    """Run `python -m benchmarks.resume` in its shortest form."""
    words = [sys.executable, "-m", "benchmarks.resume", "--kills", "1", "--trials", "3"]
    done = subprocess.run(words, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 1 | 3 | 0 | as in the undisturbed run |" in done.stdout


@pytest.mark.slow  # runs two drivers
def test_a_sweep_with_killed_workers_and_an_interrupt_is_resumed_without_loss(tmp_path):
    """The test kills two workers one after the other; it suspends them first, so that trials are left."""
    space = SMALL_SPACE.replace("workers: 1", "workers: 2")
    with killed_at_end(start_tune(tmp_path, "--trials", "1000", space=space)) as driver:
        wait_for(lambda: complete_records(tmp_path))
        for victim in wait_for(lambda: suspend_workers(driver.pid)):
            left = workers_of(driver.pid)
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda left=left: workers_of(driver.pid) - left)
        ended = len(complete_records(tmp_path))
        wait_for(lambda: len(complete_records(tmp_path)) > ended)
        processes, err = interrupt(tmp_path, driver, signal.SIGINT)
    sweep = only_sweep(tmp_path)
    assert sweep.info().work.workers_lost == 2
    command = runnable(f"fpp-sweep tune --resume {sweep.path.name}")
    assert err.splitlines()[-2:] == ["interrupted; to continue:", f"    {command}"]
    wait_for(lambda: not any(line == command_line_of(pid) for pid, line in processes.items()))
    before = {path.name: path.read_text() for path in complete_records(tmp_path)}
    changed = tune(tmp_path, "--resume", "--set", "work.limit=3", space=space, code=2)  # it decides the numbers
    (line,) = changed.stderr.splitlines()
    assert re.search(r"work\.limit: \d+ -> 3", line)
    sweep.study_file.unlink()  # no driver reads it
    count = len(before) + 2
    line = f"{command} --trials {count}"  # a resume may change the budget
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sweep.info().state == "finished"
    states = {record.name: record.state for record in sweep.trials()}
    assert states == {
        f"baseline-{ZERO_SHOT}": "complete",
        **{f"trial-{number:04d}": "complete" for number in range(count)},
    }
    assert study_states(sweep) == ["COMPLETE"] * count
    for name, text in before.items():
        now, then = json.loads((sweep.path / "trials" / name).read_text()), json.loads(text)
        assert (now["started"], now["attempt"], now["values"]) == (then["started"], then["attempt"], then["values"])
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        assert store.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall() == [("FINISHED", 1 + 1 + count)]
    first_records = sweep.trials()[:6]  # the baseline, and trials with lost workers
    assert_same_as_in_one_process(sweep, load_space(tmp_path / "small.yaml"), tmp_path / "cache", first_records)


def workers_of(driver):
    return {pid for pid, line in descendants(driver).items() if "ray::WorkerActor" in line}


def suspend_workers(driver):
    """Suspend the workers; return them if both are there."""
    pids = workers_of(driver)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return sorted(pids) if len(pids) == 2 else None


@pytest.mark.nightly
@pytest.mark.slow
def test_sigterm_interrupts_a_sweep_like_ctrl_c(tmp_path):
    with killed_at_end(start_tune(tmp_path, "--trials", "1000")) as driver:
        wait_for(lambda: complete_records(tmp_path))
        interrupt(tmp_path, driver, signal.SIGTERM)


def interrupt(folder, driver, kind):
    """Send a driver a signal; return its child processes and its standard error."""
    processes = descendants(driver.pid)
    assert any("WorkerActor" in line for line in processes.values())
    driver.send_signal(kind)
    out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 130, out + err
    assert "Traceback" not in err
    sweep = only_sweep(folder)
    assert sweep.info().state == "interrupted"
    assert not [record for record in sweep.trials() if record.state == "running"]
    parts = [f"{sweep.path.name} is interrupted; trials: ", "front of small-", "\npage        file://"]
    assert sorted(parts, key=out.index) == parts
    return processes, err


@pytest.mark.slow  # starts Ray
@pytest.mark.parametrize("kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_an_interrupt_while_ray_starts_prints_the_command_that_resumes(tmp_path, kind):
    with killed_at_end(start_tune(tmp_path)) as driver:
        while (line := driver.stderr.readline()) != "starting Ray ...\n":
            assert line
        driver.send_signal(kind)
        out, err = driver.communicate(timeout=LONG)
    assert driver.returncode == 130, out + err
    assert "Traceback" not in err
    assert "interrupted; Ray is left once it has started" in err
    sweep = only_sweep(tmp_path)
    assert sweep.info().state == "interrupted"
    assert out.startswith(f"{sweep.path.name} is interrupted; no trial has begun.\n")
    assert err.splitlines()[-2:] == [
        "interrupted; to continue:",
        f"    {runnable(f'fpp-sweep tune --resume {sweep.path.name}')}",
    ]


def command_line_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return None


PLUGIN = """
from fpp_sweep import method, metric
from fpp_sweep.core.methods.base import ZeroShot


@metric(goal="min")
def doubt(predictions):
    return float(1 - predictions.confidence.mean())


@method(name="as_it_is", views=1, learns=False, reads=[])
class AsItIs(ZeroShot):
    pass
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_an_error_in_a_trial_fails_only_that_trial_and_plugins_reach_every_process(tmp_path):
    """One learning rate makes numbers overflow; an objective and a baseline come from a plugin."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    space = """
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params: {fpp.lr: [0.01, 1e38]}
objectives: [accuracy, doubt]
search: {sampler: grid, concurrency: 1}
work: {datasets: [scenes], limit: 10, baselines: [as_it_is], workers: 1}
"""
    refused = tune(tmp_path, space=space, code=2)
    assert "unknown metric 'doubt'; choose from" in refused.stderr
    assert "the metric of a plugin needs --plugin FILE" in refused.stderr
    done = tune(tmp_path, "--plugin", "mine.py", space=space)
    sweep = only_sweep(tmp_path)
    baseline, *trials = sweep.trials()
    assert (baseline.state, baseline.config["method"]) == ("complete", "as_it_is")
    good, bad = sorted(trials, key=lambda record: record.params["fpp.lr"])
    assert (good.state, bad.state) == ("complete", "failed")
    assert good.values == [good.results["val"].average["accuracy"], good.results["val"].average["doubt"]]
    assert re.fullmatch(r"scenes, pretraining, seed 0, worker \d+ on \S+: FloatingPointError: .*finite.*", bad.reason)
    assert "Traceback" in bad.details
    assert bad.values is None
    assert sorted(study_states(sweep)) == ["COMPLETE", "FAIL"]
    assert bad.reason in done.stderr
    failure_text = (
        f"{bad.name} failed: {bad.reason}\n    traceback   {sweep.artifacts(bad.name)}/log.txt\n    repeat      "
    )
    words = shlex.split(done.stdout.partition(failure_text)[2].splitlines()[0])
    again = subprocess.run(words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert again.returncode == 1
    assert re.fullmatch(r"trial-0000  failed: scenes, pretraining, seed 0, .*finite.*", again.stderr.splitlines()[-1])
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        assert store.execute("SELECT count(*) FROM runs WHERE status = 'FAILED'").fetchone() == (1,)
        assert store.execute("SELECT count(*) FROM tags WHERE key = 'reason'").fetchone() == (1,)


@pytest.mark.nightly
@pytest.mark.slow
def test_tasks_that_take_too_long_end_the_sweep_with_their_reason_and_a_resume_runs_its_trials_again(tmp_path):
    words = ["--name", "mine", "--set", "work.attempts=1", "search.max_failures=2", "work.baselines=[]"]
    done = tune(tmp_path, *words, "work.task_timeout=0.01", code=1)
    sweep = only_sweep(tmp_path)
    assert {record.state for record in sweep.trials()} == {"failed"}
    assert all("no result after 0.01 s" in record.reason for record in sweep.trials())
    assert study_states(sweep) == ["FAIL", "FAIL"]
    assert "2 trials in a row failed" in done.stdout + done.stderr
    assert sweep.info().state == "failed"
    settings = [record.params for record in sweep.trials()]
    assert re.search(r"\nrun again   .* --resume\n", done.stdout)
    tune(tmp_path, *words, "--resume")
    first, second, *_ = sweep.trials()
    assert [(record.state, record.attempt, record.reason) for record in (first, second)] == [("complete", 2, None)] * 2
    assert [first.params, second.params] == settings
    assert sweep.info().state == "finished"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--resume"], "nothing to resume"),
        (["--resume", "gone"], "gone: there is no such sweep"),
        (["--resume", "gone", "--name", "other"], "take one out"),
        (["--name", "../out"], "--name '../out'"),
        (["--set", "search.trails=3"], "did you mean"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--trials", "none"], "search.trials"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_wrong_input_is_refused_at_once_in_one_line_and_leaves_no_files(
    tmp_path, monkeypatch, capsys, words, complaint
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL_SPACE)
    with pytest.raises(SystemExit) as ended:
        run(lambda: main(["--space", "small.yaml", *words]))
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
    assert not list((tmp_path / "sweeps").glob("*/*"))


def assert_reported(done, complaint):
    (line,) = error_lines(done.stderr)
    assert line.startswith("error: ")
    assert complaint in line


@pytest.mark.parametrize("words", [[], ["--model", "ViT-B-16/openai"]])
def test_a_missing_data_root_is_reported_before_ray_and_weights_are_loaded(tmp_path, words):
    done = tune(tmp_path, "--data-root", "nowhere", "--datasets", "dtd", *words, code=2)
    assert_reported(done, "dtd: data root nowhere is not there")
    assert " ...\n" not in done.stderr
    assert not list((tmp_path / "sweeps").glob("*/*"))


@pytest.mark.slow  # starts Ray
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--datasets", "scenes", "dtd"], "dtd"),
        pytest.param(["--set", "work.gpus_per_worker=3"], "this machine has 0 GPUs", marks=pytest.mark.nightly),
        pytest.param(
            ["--set", "work.cpus_per_worker=999"],
            "work.cpus_per_worker=999: this machine has",
            marks=pytest.mark.nightly,
        ),
        (["--address", "127.0.0.1:PORT"], "cannot be reached"),
        (["--tracking-uri", "http://127.0.0.1:PORT"], "MLflow"),
    ],
)
def test_missing_resources_are_reported_in_one_line_before_any_trial(tmp_path, words, complaint):
    done = tune(tmp_path, *(word.replace("PORT", str(free_port())) for word in words), code=2)
    assert_reported(done, complaint)
    assert not list((tmp_path / "sweeps").glob("*/*"))
