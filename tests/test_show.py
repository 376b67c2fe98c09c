"""`show`: a list of sweeps, one sweep or one trial, read from folders alone."""

import re
import shutil
from dataclasses import replace

import pytest

from fpp_sweep import show
from fpp_sweep.cli import run
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import runnable
from tests.kit.names import ZERO_SHOT
from tests.kit.records import build_sweep
from tests.kit.rights import without_root_rights


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Build a sweep's folder and move it to another path; the terminal is wide enough for every line."""
    monkeypatch.setenv("COLUMNS", "120")
    folder = build_sweep(tmp_path / "there" / "perturb-1", trials=6, failed_trials=(3,))
    (folder.artifacts("trial-0003") / "log.txt").parent.mkdir(parents=True, exist_ok=True)
    (folder.artifacts("trial-0003") / "log.txt").write_text("".join(f"line {number}\n" for number in range(9)))
    shutil.move(folder.path, tmp_path / "here")
    return type(folder)(tmp_path / "here")


def run_show(capsys, *words):
    show.main([str(word) for word in words])
    return capsys.readouterr().out


def test_a_sweep_is_shown_from_its_folder_alone(capsys, folder):
    text = run_show(capsys, folder.path)
    lines = text.splitlines()
    question = "question  How much noise should a prompt be pretrained with?"
    assert lines[:3] == ["sweep     here", question, "searches  accuracy (max) and ece (min) on val"]
    assert "budget    6 trials" in lines
    assert f"page      {(folder.report / 'sweep.html').as_uri()}" in lines
    assert "perturb-1 is finished; trials: 5 complete, 1 failed." in lines
    assert "front of perturb-1: 1 of 5 finished trials, by accuracy (max) and ece (min) on val" in lines
    assert "trial-0003 failed: FloatingPointError: non-finite objectives ['ece']" in lines
    assert f"    traceback   {folder.artifacts('trial-0003') / 'log.txt'}" in lines
    assert "/there" not in text


def test_a_running_sweep_shows_the_time_of_its_last_change(capsys, folder):
    folder.write_info(replace(folder.info(), state="running", finished=None))
    with folder.locked():
        text = run_show(capsys, folder.path)
    assert "\nperturb-1 is running; trials: " in text
    assert "\nchanged   " in text


def test_a_trial_is_shown_with_settings_numbers_files_and_the_command_to_repeat_it(capsys, folder):
    text = run_show(capsys, folder.path, "trial-0005")
    assert re.match(r"trial-0005  complete, begun 2026-11-20 \d\d:\d\d UTC, 50 s, ", text)
    assert "\n    fpp.class_var = x0.3\n" in text
    assert f"\nprompt      {folder.artifacts('trial-0005')}/prompts/shapes-0.safetensors\n" in text
    assert text.index("average") < text.index("fpp.class_var") < text.index("prompt      ")
    rows = [line.split() for line in text.splitlines()]
    assert ["val", "acc", "ECE", "NLL"] in rows
    assert ["textures", "58.00", "8.00", "0.6600"] in rows
    assert ["average", "58.00", "8.00", "0.6600"] in rows
    assert ["test", "acc", "ECE", "NLL"] in rows
    command = runnable(f"fpp-sweep evaluate --trial {folder.path}/trial-0005")
    assert text.splitlines()[-1] == f"repeat      {command}"


def test_a_baseline_is_shown_by_the_name_that_tables_have(capsys, folder):
    assert run_show(capsys, folder.path, ZERO_SHOT) == run_show(capsys, folder.path, f"baseline-{ZERO_SHOT}")


def test_the_numbers_after_posthoc_maps_have_a_table_that_begins_without_a_map(capsys, folder):
    record = folder.trial("trial-0005")
    result = record.results["val"]
    average = {**result.average, "ece@temperature_val": 2.0, "mine@temperature_val": 0.5, "mine": 0.25}
    folder.write_trial(replace(record, results={"val": replace(result, average=average)}))
    rows = [line.split() for line in run_show(capsys, folder.path, "trial-0005").splitlines()]
    assert ["val", "acc", "ECE", "NLL", "mine"] in rows  # neither metrics that tables leave out, nor those after maps
    first = rows.index(["post-hoc", "map", "ECE", "mine"])
    assert [cells[:2] for cells in rows[first + 1 : first + 3]] == [["none", "8.00"], ["temperature_val", "2.00"]]


def test_a_trial_that_failed_is_shown_with_its_reason_and_the_end_of_its_log(capsys, folder):
    lines = run_show(capsys, folder.path, "trial-0003").splitlines()
    assert "reason      FloatingPointError: non-finite objectives ['ece']" in lines
    assert [line for line in lines if "line" in line] == [f"    line {number}" for number in range(4, 9)]


def test_texts_of_a_folder_cannot_control_the_terminal(capsys, folder):
    hostile = "\033[2Jgone\n"
    folder.write_info(replace(folder.info(), space={"question": hostile, "search": {"trials": 6}}))
    folder.write_trial(replace(folder.trial("trial-0003"), reason=hostile, params={hostile: hostile}))
    (folder.artifacts("trial-0003") / "log.txt").write_text(hostile)
    for words in ([], ["trial-0003"]):
        assert "\033" not in run_show(capsys, folder.path, *words)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], r"nowhere: neither a sweep \(it has no sweep\.json\), nor a reproduction"),
        (["./nowhere"], r"\./nowhere: does not exist; `show` lists the sweeps"),
        (["here", "--page", "trial-0005"], "--page: needs a sweep or a reproduction, without a trial"),
        (["--page"], "--page: needs a sweep or a reproduction, without a trial"),
        (["here", "trial-0050"], r"unknown trial of here 'trial-0050'; choose from"),
        (["here", "../sweep"], "unknown trial of here '../sweep'"),
    ],
)
def test_unknown_names_are_refused_in_one_line(capsys, monkeypatch, folder, words, complaint):
    monkeypatch.chdir(folder.path.parent)
    with pytest.raises(InputError, match=complaint):
        show.main(words)
    with pytest.raises(SystemExit) as ended:
        run(lambda: show.main(words))
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_sweeps_are_listed_with_state_progress_and_front(capsys, tmp_path):
    folder = build_sweep(tmp_path / "b", trials=4, failed_trials=(1,))
    folder.write_trial(replace(folder.trial("trial-0000"), state="stopped", values=None, results={}))
    running = build_sweep(tmp_path / "a", trials=3, failed_trials=(), running_trials=(2,), state="running")
    build_sweep(tmp_path / "empty", trials=0, baselines=(), state="interrupted")
    (build_sweep(tmp_path / "old", trials=1).info_file).write_text("not JSON\033[2J")
    (tmp_path / "other").mkdir()
    with running.locked():
        text = run_show(capsys, tmp_path)
    assert "\033" not in text
    header, *rows = ([cell.strip() for cell in line.split("  ") if cell] for line in text.splitlines())
    assert header == ["sweep", "state", "trials", "front", "changed"]
    assert [row[:4] for row in rows[:2]] == [
        ["a", "running", "2/6", "1 trial, knee accuracy 54.00, ece 10.80"],
        ["b", "finished", "2/6, 1 failed, 1 stopped", "1 trial, knee accuracy 56.00, ece 9.40"],
    ]
    assert rows[2][:4] == ["empty", "interrupted", "0/6", "0 trials"]
    assert rows[3][:2] == ["old", "unreadable"]
    assert all(row[-1].endswith(" ago") for row in rows)


def test_an_interrupted_sweep_is_shown_with_the_command_that_continues_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = build_sweep(tmp_path / "sweeps" / "made", trials=1, state="interrupted")
    folder.write_info(replace(folder.info(), command="fpp-sweep tune --space small.yaml"))
    command = runnable("fpp-sweep tune --resume made")
    assert run_show(capsys, "made").splitlines()[-1] == f"continue    {command}"
    folder.write_info(replace(folder.info(), state="finished"))
    assert "continue    " not in run_show(capsys, "made")


def test_a_sweep_that_cannot_be_read_does_not_hide_the_others(capsys, tmp_path):
    closed = build_sweep(tmp_path / "closed", trials=1)
    build_sweep(tmp_path / "open", trials=1)
    for part in (closed.path / "trials", closed.trial_file("trial-0000"), closed.info_file):
        mode = part.stat().st_mode
        part.chmod(0)
        with without_root_rights():
            text = run_show(capsys, tmp_path)
        part.chmod(mode)
        _, first, second = text.splitlines()
        assert first.split()[:2] == ["closed", "unreadable"]
        assert f"{part.name}: Permission denied; allow this user to read and write it" in " ".join(first.split())
        assert second.split()[:2] == ["open", "finished"]


def test_without_arguments_the_sweeps_of_this_folder_are_listed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="sweeps: has no sweeps; give the folder that --out named"):
        show.main([])
    build_sweep(tmp_path / "sweeps" / "a", trials=3)
    assert [line.split()[0] for line in run_show(capsys).splitlines()] == ["sweep", "a"]


def test_a_sweep_is_found_by_its_name_and_a_mistyped_name_gets_a_suggestion(capsys, monkeypatch, tmp_path):
    build_sweep(tmp_path / "sweeps" / "perturb-1", trials=3)
    monkeypatch.chdir(tmp_path)
    assert run_show(capsys, "perturb-1") == run_show(capsys, "sweeps/perturb-1")
    with pytest.raises(InputError, match="unknown sweep 'pertrub-1', did you mean 'perturb-1'"):
        show.main(["pertrub-1"])


def test_show_page_writes_the_page_of_a_sweep_again(capsys, monkeypatch, tmp_path):
    folder = build_sweep(tmp_path / "sweeps" / "perturb-1", trials=3)
    page = folder.report / "sweep.html"
    page.write_text("old")
    monkeypatch.chdir(tmp_path)
    assert run_show(capsys, "perturb-1", "--page") == f"page: {page.as_uri()}\n"
    assert "trial-0002" in page.read_text()
