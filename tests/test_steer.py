"""`fpp-sweep steer` as its users run it: refused commands, and a real sweep that is steered, killed and resumed."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from fpp_sweep import steer as command
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.space.reading import load_space, space_of
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import ENGINE_NAME
from fpp_sweep.spec.messages import runnable
from fpp_sweep.steer import main
from fpp_sweep.sweep.command_line import space_to_tune
from tests.kit.names import OTPT, TPT, ZERO_SHOT
from tests.kit.processes import SMALL_SPACE, environment, kill_tree, killed_at_end, only_sweep, signal_tree, start_tune
from tests.kit.records import build_sweep
from tests.kit.waiting import LONG, wait_for
from tests.test_tune import tune as run_tune


@pytest.fixture
def folder(tmp_path):
    """A sweep of six trials: five have ended, and one runs."""
    folder = build_sweep(tmp_path / "made", running_trials=(5,), failed_trials=(3,), state="interrupted", report=False)
    info = folder.info()
    folder.write_info(replace(info, space=space_of(info.space, "made").plain(), engine=ENGINE_NAME))
    return folder


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["stop", "trial-0003"], "trial-0003 is failed; only a trial that has not ended can be stopped"),
        (["set", "work.limit=7"], "(work.limit: "),
        (["set", "objectives=[ece@temperature_val]"], "logits: is not stored with the predictions of its trials"),
        (["add", "fpp.gamma2=1", "fpp.gamma2=2"], "fpp.gamma2: comes twice; take one out"),
        (["add", "fpp.gamma2"], "'fpp.gamma2': expected key=value, such as fpp.gamma1=3"),
        (["add", "fpp.gamma2=20"], "fpp.gamma2: 20 is outside 0.1..15"),
        (["add", "fpp.gamma2=[1"], "fpp.gamma2=[1"),
        (["pause"], "invalid choice: 'pause'"),
    ],
)
def test_an_impossible_command_is_refused_in_one_line_and_leaves_no_files(folder, words, complaint):
    with pytest.raises(InputError) as refused:
        main([str(folder.path), *words])
    assert complaint in str(refused.value)
    assert not folder.commands()


def test_the_examples_of_the_help_work_on_the_first_space_of_the_readme(folder):
    space = load_space("perturb")
    folder.write_info(replace(folder.info(), space=space.plain()))
    for example in re.findall(r"steer SWEEP (.*?)  ", command.__doc__):
        main([str(folder.path), *example.replace("trial-0007", "trial-0005").split()])
    assert sorted(sent.kind for sent in folder.commands()) == ["add", "set", "stop"]


def test_a_point_whose_settings_exclude_each_other_is_refused_without_an_index(folder):
    params = {
        "method": {"choices": [TPT, OTPT]},
        "adapt.penalty_weight": {"low": 1, "high": 30, "when": {"method": OTPT}},
    }
    folder.write_info(replace(folder.info(), space=space_of({"params": params}, "made").plain()))
    with pytest.raises(InputError) as refused:
        main([str(folder.path), "add", f"method={TPT}", "adapt.penalty_weight=5"])
    assert str(refused.value) == f"adapt.penalty_weight exists only where method is {OTPT}; give that as well"


def test_a_command_is_stored_and_the_reply_says_when_it_applies(folder, capsys):
    folder.write_info(replace(folder.info(), command="fpp-sweep tune --space mine.yaml"))
    main([str(folder.path), "add", "fpp.gamma2=2", "fpp.class_var=0.01"])
    main([str(folder.path), "stop", "trial-0005"])
    folder.write_info(replace(folder.info(), state="running"))
    main([str(folder.path), "set", "search.trials=40", "search.wall_clock=2h"])
    first, second, third = capsys.readouterr().out.splitlines()
    resume = runnable(f"fpp-sweep tune --resume {folder.path}")
    how_to_apply = f"made is interrupted; to have it applied: {resume}"
    assert first == f"add fpp.gamma2=2 fpp.class_var=0.01: {how_to_apply}"
    assert second == f"stop trial-0005: {how_to_apply}"
    assert third.startswith("set search.trials=40 search.wall_clock=2h: the running sweep applies it within seconds")
    assert [(command.kind, list(command.words)) for command in folder.commands()] == [
        ("add", ["fpp.gamma2=2", "fpp.class_var=0.01"]),
        ("stop", ["trial-0005"]),
        ("set", ["search.trials=40", "search.wall_clock=2h"]),
    ]


@pytest.mark.parametrize(
    "recorded", ["fpp-sweep tune; touch evil #", "evil $(touch evil) `touch evil`", "tune it's; touch evil"]
)
def test_the_command_of_a_received_record_is_printed_so_that_a_shell_runs_nothing_else(
    folder, capsys, tmp_path, recorded
):
    folder.write_info(replace(folder.info(), command=recorded))
    main([str(folder.path), "stop", "trial-0005"])
    _, _, command = capsys.readouterr().out.partition("to have it applied: ")
    subprocess.run(["bash", "-c", f"true {command}"], cwd=tmp_path, check=True)
    assert not (tmp_path / "evil").exists()


def request_space(tmp_path, *overrides, space=SMALL_SPACE, **added_points):
    (tmp_path / "small.yaml").write_text(space)
    return space_to_tune(tmp_path / "small.yaml", overrides, **added_points)


def test_the_searched_settings_of_a_config_are_the_first_point(tmp_path, capsys):
    file = tmp_path / "knee.yaml"
    file.write_text(json.dumps({"config": {"fpp.gamma1": 3.0, "views.count": 8}}))
    space = request_space(tmp_path, config=file)
    assert space.queue()[0] == ("point", {"fpp.gamma1": 3.0})
    assert space.base["views.count"] == 8
    file.write_text(json.dumps({"config": {"fpp.gamma1": 30.0, "views.count": 8}}))
    space = request_space(tmp_path, config=file)
    assert (space.points, space.base["views.count"]) == ((), 8)
    note = f"note: {file}: its point is not tried first: 30 is outside 0.1..10"
    assert capsys.readouterr().err.splitlines() == [note]


def steer(sweep, *words):
    """Run the command `steer` in a new process, as a user does, and return its output."""
    command = [sys.executable, "-m", "fpp_sweep", "steer", str(sweep.path), *words]
    done = subprocess.run(command, env=environment(sweep.path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def running_trials(sweep):
    return [record.name for record in sweep.trials() if record.state == "running"]


def freeze_while_a_trial_runs(driver, sweep):
    """Suspend all processes of a driver; let them go on, and return False, if no trial runs then."""
    signal_tree(driver.pid, signal.SIGSTOP)
    if running_trials(sweep):
        return True
    signal_tree(driver.pid, signal.SIGCONT)
    return False


@pytest.mark.nightly
@pytest.mark.slow  # runs two drivers
def test_a_real_sweep_is_steered_while_it_runs_and_before_it_is_resumed(tmp_path):
    """The test adds a point and a budget, kills the driver, stops a trial, adds more, and resumes to the end."""
    space = SMALL_SPACE.replace("trials: 4", "trials: 1000, sampler: random")
    with killed_at_end(start_tune(tmp_path, space=space)) as driver:
        wait_for(lambda: list((tmp_path / "sweeps").glob("*/trials/trial-0002.json")))
        sweep = only_sweep(tmp_path)
        assert "the running sweep applies it" in steer(sweep, "add", "fpp.gamma1=3")
        wait_for(lambda: added_points(sweep))
        steer(sweep, "set", "search.concurrency=2")
        wait_for(lambda: sweep.info().space["search"]["concurrency"] == 2)
        steer(sweep, "set", f"work.baselines=[{ZERO_SHOT}, {TPT}]")  # needs other plans: running trials end before
        wait_for(lambda: sweep.trial_file(f"baseline-{TPT}").exists())
        wait_for(lambda: not pending_commands(sweep))
        wait_for(lambda: freeze_while_a_trial_runs(driver, sweep))
        kill_tree(driver.pid)
        driver.wait(LONG)
    count = len(list((sweep.path / "trials").glob("trial-*.json")))
    stopped = running_trials(sweep)[0]
    ended = {record.name: record for record in sweep.trials() if record.state == "complete"}
    steer(sweep, "stop", stopped)
    steer(sweep, "add", "fpp.gamma1=5")
    steer(sweep, "set", f"search.trials={count + 2}")
    done = run_tune(tmp_path, "--resume", sweep.path.name, "--set", "params.fpp.gamma1.high=20")
    assert sweep.info().state == "finished"
    assert sorted(added_points(sweep)) == [3.0, 5.0]
    assert not pending_commands(sweep)
    assert len(list((sweep.path / "trials").glob("trial-*.json"))) == count + 2
    assert sweep.trial(stopped).state == "stopped"
    for name, record in ended.items():
        now = sweep.trial(name)
        assert (now.started, now.attempt, now.values) == (record.started, record.attempt, record.values)
    assert "steered     add fpp.gamma1=3: taken over" in done.stdout.splitlines()
    assert "params.fpp.gamma1.high: 10 -> 20" in " ".join(done.stdout.split())
    page = (sweep.report / "sweep.html").read_text()
    assert "params.fpp.gamma1.high" in page


def added_points(sweep):
    return [record.params["fpp.gamma1"] for record in sweep.trials() if record.origin == "point"]


def pending_commands(sweep):
    return len(sweep.commands()) - sum(map(bool, sweep.info().answers))


@pytest.mark.nightly
@pytest.mark.slow  # runs three sweeps
def test_a_repeated_sweep_computes_no_task(tmp_path):
    """The second sweep uses the shared results of the first; without `work.reuse_results` a third computes all."""
    space = SMALL_SPACE.replace("trials: 4", "trials: 2")
    for name in ("one", "other"):
        run_tune(tmp_path, "--name", name, space=space)
    one, other = (SweepFolder.open(tmp_path / "sweeps" / name) for name in ("one", "other"))
    assert one.info().work.tasks > 0
    assert other.info().work.tasks == 0
    assert [record.values for record in one.trials()] == [record.values for record in other.trials()]
    tasks = [sorted(path.name for path in sweep.tasks.rglob("*.task")) for sweep in (one, other)]
    assert tasks[0] == tasks[1]
    run_tune(tmp_path, "--name", "alone", "--set", "work.reuse_results=false", space=space)
    assert SweepFolder.open(tmp_path / "sweeps/alone").info().work.tasks == one.info().work.tasks
