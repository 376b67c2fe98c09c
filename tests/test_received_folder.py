"""A sweep's folder from another person is data: nothing in it is run, and no file outside it is read or changed."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep import doctor, evaluate, show, sync, tune
from fpp_sweep.cli import run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.writing import write_report
from tests.kit.records import build_sweep

RED = "\x1b[31mred"
SCRIPT = "<script>alert(1)</script>"
SECRET = "hunter2"
TRIAL = "trial-0001"


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """Return a folder whose maker chose every text in it, and would like its receiver to run something."""
    monkeypatch.chdir(tmp_path)
    Path("plugin.py").write_text("open('ran', 'w')")
    folder = build_sweep(tmp_path / "sweeps/sent")
    info = folder.info()
    changed = replace(
        info,
        space={**info.space, "question": f"{RED} {SCRIPT}"},
        model=f"{RED} {SCRIPT}",
        command="fpp-sweep tune; touch ran",
        plugin_files={"plugin": str(tmp_path / "plugin.py")},
    )
    folder.write_info(changed)
    folder.write_trial(replace(folder.trial(TRIAL), reason=f"{RED} {SCRIPT}"))
    folder.log_file(TRIAL).parent.mkdir(parents=True, exist_ok=True)
    folder.log_file(TRIAL).write_text(f"{RED} {SCRIPT}\n")
    return folder


def outcome(command, *words):
    """Return the status with which a command ends."""
    with pytest.raises(SystemExit) as end:
        run(lambda: command.main([str(word) for word in words]))
    return end.value.code


def error_line(capsys):
    """Return the only line of stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_received_folder_is_shown_and_delivered_and_nothing_in_it_is_run(sent, capsys):
    for words in (["sent"], ["sent", TRIAL], [], ["sent", "--page"]):
        assert outcome(show, *words) == 0
    assert outcome(sync, "sent", "--into", "sqlite:///mlflow.db") == 0
    printed = capsys.readouterr()
    assert "red" in printed.out
    assert "\x1b" not in printed.out + printed.err
    page = (sent.report / "sweep.html").read_text()
    assert "red" in page
    assert SCRIPT not in page
    assert not Path("ran").exists()


def test_a_link_in_place_of_a_file_is_replaced_and_never_followed(sent, tmp_path, capsys):
    mine = tmp_path / "mine.txt"
    mine.write_text(SECRET)
    for file in (sent.report / "sweep.html", sent.report / "front.csv", sent.log_file(TRIAL), sent.lock_file):
        file.unlink(missing_ok=True)
        file.symlink_to(mine)
    outcome(show, "sent", TRIAL)
    assert outcome(show, "sent", "--page") == 0
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err + (sent.report / "sweep.html").read_text()
    assert not (sent.report / "front.csv").is_symlink()
    with pytest.raises(Exception, match="lock"), sent.locked():
        pass
    assert mine.read_text() == SECRET


def test_a_report_deletes_only_files_that_a_report_wrote(sent):
    best = sent.report / "best"
    shutil.rmtree(best)
    write_report(sent, pages=False)
    (best / "mine.yaml").write_text("config: {}\n")
    written = {path.name for path in best.glob("trial-*.yaml")}
    for name in written:
        sent.trial_file(name.removesuffix(".yaml")).unlink()
    write_report(sent, pages=False)
    left = {path.name for path in best.glob("*.yaml")}
    assert written
    assert not written & left
    assert "mine.yaml" in left


def make_self_link(path):
    path.symlink_to(path)


UNREADABLE = {"a pipe": os.mkfifo, "a link to itself": make_self_link, "a folder": Path.mkdir}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("part", ["sweep.json", f"trials/{TRIAL}.json"])
@pytest.mark.parametrize("command", [(show, "sweeps/sent"), (sync, "sweeps/sent", "--into", "sqlite:///new.db")])
def test_anything_but_a_file_in_place_of_a_record_is_refused_in_one_line(sent, capsys, make, part, command):
    (sent.path / part).unlink()
    make(sent.path / part)
    assert outcome(*command) == 2
    line = error_line(capsys)
    assert line.startswith("error: ")
    assert "sent" in line
    assert not Path("new.db").exists()


@pytest.mark.parametrize("make", [os.mkfifo, make_self_link, Path.touch])
def test_anything_but_a_folder_in_place_of_a_sweep_is_refused_in_one_line(tmp_path, monkeypatch, capsys, make):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "odd")
    for command, words in ((show, ["odd"]), (show, [tmp_path / "odd"]), (sync, ["odd", "--into", "sqlite:///new.db"])):
        assert outcome(command, *words) == 2
        assert "odd" in error_line(capsys)
    assert not Path("new.db").exists()


class Attack:
    def __reduce__(self):
        return (os.system, ("touch ran",))


CONTENTS = {
    "cut off": b'{"format": 8, "name',
    "not text": b"\xff\xfe",
    "a pickle": pickle.dumps(Attack()),
    "nested too deeply": b'{"a":' * 100_000,
    "a number that is not finite": b'{"format": 8, "started": NaN}',
    "other types": b'{"format": 8, "name": 7, "results": []}',
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_damaged_record_is_named_with_what_to_do(sent, capsys, content):
    sent.trial_file(TRIAL).write_bytes(content)
    assert outcome(show, "sent") == 2
    line = error_line(capsys)
    assert f"{TRIAL}.json: not readable as a record of a sweep" in line
    assert line.endswith("delete it; the trial runs again")
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ""])
def test_a_name_in_a_record_that_would_lead_out_of_the_folder_is_refused(sent, capsys, name):
    document = json.loads(sent.trial_file(TRIAL).read_text())
    (result,) = document["results"].values()
    sent.trial_file(TRIAL).write_text(json.dumps({**document, "results": {name: result}}))
    assert outcome(show, "sent") == 2
    assert "must be a name without" in error_line(capsys)


@pytest.mark.parametrize(
    "text",
    ["config: !!python/object/apply:os.system ['touch ran']", f"root:{SECRET}:0:0\nmore:", f"- {SECRET}", SECRET],
)
def test_a_config_is_data_and_a_file_that_is_none_is_not_quoted(sent, tmp_path, capsys, text):
    (tmp_path / "theirs.txt").write_text(text)
    config = sent.report / "best/knee.yaml"
    config.unlink(missing_ok=True)
    config.symlink_to(tmp_path / "theirs.txt")
    for command in ((evaluate, "--config"), (tune, "--space"), (doctor, "--dataset-file")):
        assert outcome(*command, config) == 2
        line = error_line(capsys)
        assert "knee.yaml" in line
        assert SECRET not in line
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["prompt.pt", "prompt.safetensors", "prompt.pth.tar-50", "prompt.yaml", "prompt.npz"])
def test_a_prompt_is_data_and_a_file_that_is_none_is_not_quoted(sent, capsys, name):
    for content in (pickle.dumps(Attack()), f"root:{SECRET}:0:0\n".encode()):
        Path(name).write_bytes(content)
        (sent.report / "best/knee.yaml").write_text(f"config: {{prompt: ./{name}}}\n")
        assert outcome(evaluate, "--config", sent.report / "best/knee.yaml") == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert SECRET not in line
        assert not Path("ran").exists()


def test_a_copied_folder_is_a_sweep_of_its_own(sent):
    copy = SweepFolder(shutil.copytree(sent.path, sent.path.parent / "copy"))
    assert [record.name for record in copy.trials()] == [record.name for record in sent.trials()]
