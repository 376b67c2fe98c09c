"""The summary at the end of a sweep and in show, with its table of the front and the baselines."""

from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import FINAL, IMPOSSIBLE, WorkTotals
from fpp_sweep.report.progress import repeat_command, use_command
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec import plugins
from fpp_sweep.spec.messages import runnable
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.command_line import recorded_trial, space_to_evaluate
from fpp_sweep.sweep.summary import failure_lines, final_table, front_notes, state_line, summary_lines, work_texts
from fpp_sweep.sweep.sweep_record import new_info
from tests.kit.measured import World, statistics_without_files, write_measured_sweep
from tests.kit.names import CTPT, OTPT, TPT, ZERO_SHOT
from tests.kit.records import all_baselines, baseline, failed, sweep_info, trial, write_sweep

WORK = {"model": "ViT-B-16/openai", "data_root": "my data", "limit": 10, "threads": None, "workers": 2, "seeds": [0, 1]}
COMMAND = "fpp-sweep tune --space mine.yaml"
RAN = {"space": {"work": WORK}, "plugin_files": {"mine": "/code/mine.py"}}


def notes(*records, **changes):
    return list(front_notes(front_of(sweep_info(**changes), records)))


def test_the_state_comes_with_the_reason_for_the_end_and_the_number_of_trials(tmp_path):
    folder = write_sweep(tmp_path, sweep_info(), [])
    line = state_line(
        folder, sweep_info(end_reason="all 2 trials"), [trial(0), trial(1), failed(2), baseline(TPT, 65, 9)]
    )
    assert line == "perturb-20261120-185232 is finished (all 2 trials); trials: 2 complete, 1 failed."
    folder.write_info(sweep_info(state="running"))
    running = state_line(folder, folder.info(), [])
    assert running.startswith("perturb-20261120-185232 stopped without notice ")
    assert running.endswith(" ago; no trial has begun.")
    assert state_line(folder, sweep_info(state="failed"), []).endswith(" has failed; no trial has begun.")


def test_failures_have_cause_traceback_and_command_and_more_than_three_are_counted(tmp_path):
    reason = "pets, pretraining, seed 1, worker 7 on here: FloatingPointError: not finite"
    records = [failed(number, reason, details="Traceback") for number in range(5)]
    folder = write_sweep(tmp_path, sweep_info(**RAN, command=COMMAND), records)
    log = folder.log_file("trial-0000")
    log.parent.mkdir(parents=True)
    log.touch()
    *lines, run_again = failure_lines(folder, folder.info(), records)
    resume = runnable(f"fpp-sweep tune --resume {folder.path} --plugin /code/mine.py")
    assert run_again == f"run again   {resume}"
    assert "traceback" not in lines[3]  # a trial that failed before its start has no log
    assert lines[:2] == [f"trial-0000 failed: {reason}", f"    traceback   {folder.artifacts('trial-0000')}/log.txt"]
    assert lines[-2:] == [
        "and 2 more failed: trial-0003, trial-0004",
        f"    reason      {runnable(f'fpp-sweep show {folder.path} trial-0003')}",
    ]
    command = lines[2].removeprefix("    repeat      ")
    assert command == runnable(f"fpp-sweep evaluate --trial {folder.path}/trial-0000 --plugin /code/mine.py")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"state": "running"}, "out of memory"), ({}, f"{IMPOSSIBLE}: views.min_area: must be <= views.max_area")],
)
def test_no_command_runs_failed_trials_again_where_none_could(tmp_path, changes, reason):
    info = sweep_info(**{**RAN, "command": COMMAND, **changes})
    folder = write_sweep(tmp_path, info, [])
    assert not [line for line in failure_lines(folder, info, [failed(0, reason)]) if line.startswith("run again")]


def test_a_repeated_trial_has_the_model_data_seeds_and_metrics_of_its_sweep(tmp_path):
    work = WORK | {"datasets": ["fine_grained", "mine=my photos"], "posthoc": ["temperature_transfer"]}
    objectives = (Objective(metric="ece@temperature_transfer"), Objective(metric="lac_90_size"))
    space = {
        "work": work,
        "objectives": [{"metric": objective.metric, "goal": objective.goal} for objective in objectives],
    }
    tested = replace(trial(1), reason="on test: dtd: OSError", reason_split="test")
    folder = write_sweep(tmp_path, sweep_info(objectives, space=space, reference=None), [trial(0), tested])
    config, assignments = recorded_trial(folder.path, "trial-0000")
    repeated = space_to_evaluate([*assignments, "work.limit=20"], config=config)
    (trial_config,) = repeated.points_by_config()
    assert trial_config.flat() == dict(trial(0).config)
    assert repeated.objectives == objectives
    assert repeated.search.split == "val"
    assert repeated.work.threads == 1
    for key in ("model", "data_root", "datasets", "seeds", "posthoc"):
        assert getattr(repeated.work, key) == (tuple(work[key]) if isinstance(work[key], list) else work[key])
    assert repeated.work.limit == 20
    assert "search.split=test" in recorded_trial(folder.path, "trial-0001")[1]


@pytest.mark.parametrize(
    ("reason", "is_listed"),
    [
        ("on test: dtd, test samples 0..64, seed 0: no result after 600 s; 3 of 3 attempts", True),
        ("on final: the trial's process died 3 times", True),
        ("on test: stopped by `steer`", False),
    ],
)
def test_a_trial_that_failed_on_a_later_split_is_listed_also_without_a_traceback(tmp_path, reason, is_listed):
    record = replace(trial(0), reason=reason, details="")
    folder = write_sweep(tmp_path, sweep_info(**RAN), [record])
    lines = list(failure_lines(folder, folder.info(), [record]))
    assert lines[:1] == ([f"trial-0000 failed: {reason}"] if is_listed else [])


def test_a_plugin_named_by_a_relative_path_is_repeated_by_its_full_path(tmp_path, monkeypatch):
    file = tmp_path / "my plugins" / "mine.py"
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.chdir(tmp_path)
    options = Options(plugins=plugins.read([Path("my plugins/mine.py")]))
    folder = write_sweep(tmp_path / "sweep", sweep_info(), [trial(0)])
    folder.write_info(new_info(load_space("perturb"), options, folder, tracking_uri="sqlite:///mlflow.db"))
    assert repeat_command(folder, folder.info(), trial(0)).endswith(f" --plugin '{file}'")
    assert f" --plugin '{file}' --set search.split=test" in use_command(folder, folder.info(), "trial-0000")


def test_the_state_comes_first_then_the_table_then_what_to_open(tmp_path):
    folder = write_sweep(tmp_path, sweep_info(**RAN), [baseline(ZERO_SHOT, 60, 5), trial(0, 66, 4)])
    (folder.report / "best").mkdir(parents=True)
    for name in ("sweep.html", "best/knee.yaml", "best/baseline.yaml"):
        (folder.report / name).touch()
    text = "\n".join(summary_lines(folder, 100))
    parts = ["is finished", "Use zero_shot: ", "front of perturb", "\npage        file://", "\nbaseline    ", "MLflow "]
    assert sorted(parts, key=text.index) == parts
    words = "--plugin /code/mine.py --set search.split=test work.limit=null"
    assert runnable(f"fpp-sweep evaluate --trial {folder.path}/baseline-{ZERO_SHOT} {words}") + "\n" in text
    folder.write_info(replace(folder.info(), state="interrupted"))
    text = "\n".join(summary_lines(folder, 100))
    assert f"\nthe knee    {runnable(f'fpp-sweep evaluate --trial {folder.path}/trial-0000 {words}')}\n" in text
    assert "use it" not in text


def test_work_is_shown_once_there_is_any():
    features = {"images": 100.0, "disk": 1.0, "tower": 3.0}
    measured = trial(0)
    measured = replace(measured, results={"val": replace(measured.results["val"], features=features)})
    work = WorkTotals(tasks=12, cached=1, model_loads=2, workers_lost=0)
    assert work_texts(sweep_info(work=work), [measured]) == {
        "work": "12 tasks run, 1 cached result, 2 model loads, 0 workers lost",
        "features": "of 100 images at 25 images/s a worker; time went to tower 75 %, disk 25 %",
    }
    assert work_texts(sweep_info(), [trial(0)]) == {}


def table_without_statistics(records, width=100, info=None):
    """Return the terminal's table of records that have no block statistics."""
    info = info or sweep_info()
    return final_table(statistics_without_files(info, records), width)


def test_the_table_has_the_front_and_the_baselines_on_every_split():
    settings = {"fpp.gamma2": 0.15}
    trials = [
        trial(0, 70.5, 4.0, params=settings, test=True),
        trial(1, 72.0, 6.0, params=settings),
        trial(2, 60, 9, params=settings),
    ]
    records = [*all_baselines(), *trials]
    lines = table_without_statistics(records).splitlines()
    lines = lines[lines.index("") + 1 :]
    goals = "by accuracy (max) and ece (min) on val"
    assert lines[0] == f"front of perturb-20261120-185232: 2 of 3 finished trials, {goals}"
    assert lines[1].split() == ["val", "val", "test", "test"]
    marks = {name: ", ".join(texts) for name, texts in front_of(sweep_info(), records).marks.items()}
    assert lines[3].split()[:3] == ["trial-0001", "72.00", "6.00"]
    assert lines[3].endswith(f"  {marks['trial-0001']}")
    assert lines[4].split()[:5] == ["trial-0000", "70.50", "4.00", "69.80", "4.00"]
    assert lines[4].endswith(f"  {marks['trial-0000']}, code")
    assert marks["trial-0000"].startswith("best ece")
    assert lines[5] == ""
    assert [line.split()[0] for line in lines[6:12]] == [ZERO_SHOT, TPT, CTPT, OTPT, "fpp_paper", "fpp_code"]
    assert lines[-3:] == ["trial       fpp.gamma2", "trial-0001        0.15", "trial-0000        0.15"]
    assert "trial-0002" not in "\n".join(lines)


def test_the_settings_of_finalists_are_shown_once_with_the_answer(tmp_path):
    sides = {ZERO_SHOT: (0.60, 0.15), TPT: (0.60, 0.25), "trial-0002": (0.64, 0.05)}
    folder = write_measured_sweep(tmp_path / "sweep", World(300), sides, ("val", FINAL))
    info, records = folder.info(), folder.trials()
    table = final_table(statistics_of(folder, info, records), 100)
    assert "Settings of these finalists" in table
    assert "Settings of the front" not in table
