"""A sweep's folder from another person chooses no file that is read, and no config that is run."""

import json
import os
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep import evaluate, show, sync
from fpp_sweep.cli.command import run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.log import write_line
from fpp_sweep.records.records import SplitResult, mean_of_shared
from fpp_sweep.records.skipped_images import read_skipped
from fpp_sweep.report import effects
from fpp_sweep.report.effects import MAX_SETTINGS
from fpp_sweep.report.writing import write_report
from fpp_sweep.reproduce.tables import EXPERIMENT_FILE, load_table
from fpp_sweep.space.validation import require_distinct
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import exclusive_lock
from fpp_sweep.sweep.api import Options
from fpp_sweep.sweep.local_run import _write_listed_trials, run_locally
from fpp_sweep.sweep.received import read_settings
from fpp_sweep.sweep.request import space_to_evaluate
from fpp_sweep.trial import templates
from fpp_sweep.trial.templates import file_digest, texts_by_class
from tests.kit.names import ZERO_SHOT
from tests.kit.records import build_sweep
from tests.kit.spaces import small_space

SECRET = "SECRET-hunter2"


# --- template files -----------------------------------------------------------------------------------

WRONG_FILES = {
    "a template": (json.dumps(["a {}.", SECRET]), r"once, for the class name \(entry 2 has 0\)"),
    "two names": (json.dumps([f"{{}} {{}} {SECRET}"]), r"\(entry 1 has 2\)"),
    "a list": (json.dumps(["a {}.", [SECRET]]), "entry 2 is empty or not a text; take it out"),
    "texts of a class": (json.dumps({"cat": [{"a": SECRET}]}), "class 'cat': entry 1 is empty or not a text"),
    "no text of a class": (json.dumps({"cat": SECRET}), "class 'cat': must be a list of texts"),
    "another class": (json.dumps({SECRET: ["a"]}), "has no texts for class 'cat'"),
    "no JSON": (SECRET, "not a readable JSON file"),
    "no UTF-8": (SECRET.encode() + b"\xff", "not a readable JSON file"),
    "deep": ("[" * 100_000, "not a readable JSON file"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_message_about_a_template_file_shows_nothing_of_its_content(tmp_path, name):
    content, message = WRONG_FILES[name]
    file = tmp_path / "t.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as raised:
        texts_by_class(str(file), "pets", ["cat"])
    assert str(raised.value).count(str(file)) == 1
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("read", [file_digest, lambda path: texts_by_class(path, "pets", ["cat"])])
def test_a_template_file_that_is_a_pipe_or_too_large_is_refused(tmp_path, monkeypatch, read):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match=r"pipe\.json: not a readable JSON file \(not a regular file\)"):
        read(str(tmp_path / "pipe.json"))
    monkeypatch.setattr(templates, "MAX_BYTES", 100)
    (tmp_path / "large.json").write_text(json.dumps(["a {}."] * 100))
    with pytest.raises(InputError, match=r"large\.json: not a readable JSON file \(larger than"):
        read(str(tmp_path / "large.json"))


# --- files that a config in a sweep's folder names ----------------------------------------------------


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return build_sweep(tmp_path / "sweeps" / "sent")


def write_config(sweep, key, file):
    config = sweep.report / "best" / "knee.yaml"
    settings = {"method": "zero_shot_ensemble" if key == "adapt.templates" else ZERO_SHOT, key: str(file)}
    config.write_text(json.dumps({"config": settings}))
    return config


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize("key", ["prompt", "anchor_prompt", "adapt.templates"])
def test_a_config_in_a_sweeps_folder_reads_no_file_behind_a_link_out_of_it(sweep, tmp_path, key, is_absolute, capsys):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps([SECRET]))
    link = sweep.path / "t.json"
    link.symlink_to(secret)
    file = link if is_absolute else link.relative_to(tmp_path)
    config = write_config(sweep, key, file)
    with pytest.raises(SystemExit) as exit_:
        run(lambda: evaluate.main(["--config", str(config), "--name", "mine"]))
    assert exit_.value.code
    lines = capsys.readouterr().err.splitlines()
    assert f"config.{key}: " in lines[-1]
    assert "a link leads out of" in lines[-1]
    assert not (tmp_path / "sweeps" / "mine").exists()


def test_a_folder_that_is_reached_through_a_link_is_judged_by_its_real_path_too(sweep, tmp_path):
    (tmp_path / "secret.json").write_text(json.dumps([SECRET]))
    (sweep.path / "t.json").symlink_to(tmp_path / "secret.json")
    write_config(sweep, "adapt.templates", sweep.path / "t.json")
    (tmp_path / "received").symlink_to(sweep.path)
    with pytest.raises(InputError, match="a link leads out of"):
        read_settings(tmp_path / "received" / "report" / "best" / "knee.yaml")


def test_a_config_in_a_sweeps_folder_may_name_files_of_the_folder_and_of_the_user(sweep, tmp_path):
    for file in (tmp_path / "mine.json", sweep.path / "own.json"):
        file.write_text(json.dumps(["a {}."]))
        read_settings(write_config(sweep, "adapt.templates", file))


def test_a_config_outside_a_sweeps_folder_may_name_a_link(tmp_path):
    (tmp_path / "t.json").symlink_to(tmp_path / "user.json")
    config = tmp_path / "mine.yaml"
    config.write_text(json.dumps({"config": {"adapt.templates": str(tmp_path / "t.json")}}))
    read_settings(config)


@pytest.mark.parametrize("flag", ["prompts", "anchor_prompt"])
def test_a_flag_that_names_a_prompt_in_a_sweeps_folder_reads_no_file_behind_a_link_out_of_it(sweep, tmp_path, flag):
    prompt = sweep.artifacts("trial-0001") / "prompts/digits-0.safetensors"
    prompt.rename(tmp_path / "moved.safetensors")
    prompt.symlink_to(tmp_path / "moved.safetensors")
    relative = str(prompt.relative_to(tmp_path))
    values = {"prompts": [relative], "anchor_prompt": relative}
    with pytest.raises(
        InputError, match=r"prompt: .*digits-0\.safetensors: a link leads out of .*sent; remove the link"
    ):
        space_to_evaluate([], **{flag: values[flag]})


# --- a resumed evaluation -----------------------------------------------------------------------------

DIFFERENCES = {
    "its templates": lambda record: replace(record, config={**record.config, "adapt.templates": "/x/secret.json"}),
    "another method": lambda record: replace(record, config={**record.config, "method": "tpt_sam"}),
    "an unknown setting": lambda record: replace(record, config={**record.config, "fpp.gama": 1}),
    "its key": lambda record: replace(record, key="0123456789ab"),
    "its number": lambda record: replace(record, number=7),
    "its kind": lambda record: replace(record, kind="baseline"),
}


@pytest.mark.parametrize("state", ["waiting", "complete"])
@pytest.mark.parametrize("difference", DIFFERENCES)
def test_an_evaluation_runs_the_requested_config_whatever_the_record_says(tmp_path, difference, state, capsys):
    space = small_space("points=[{fpp.gamma1: 2}, {fpp.gamma1: 3}]")
    folder = SweepFolder(tmp_path)
    names = _write_listed_trials(space, folder)
    wanted = [folder.trial(name) for name in names]
    changed = DIFFERENCES[difference](replace(wanted[1], state=state))
    folder.write_trial(changed)
    assert _write_listed_trials(space, folder) == names
    assert [folder.trial(name) for name in names] == wanted
    (kept,) = folder.path.glob("trials/*.damaged-*")
    assert json.loads(kept.read_text())["state"] == state
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder.trial_file(names[1])}: " in line
    assert f"kept as {kept.name}, and the trial runs again" in line


def test_a_resumed_evaluation_does_not_read_the_file_of_a_record(tmp_path, capsys):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps([SECRET]))
    words = ["work.datasets=[digits]", "work.limit=12"]
    space = space_to_evaluate(words, methods=["zero_shot_ensemble"], prompts=["a photo of a"])
    options = Options(name="sent", root=str(tmp_path / "sweeps"))
    run_locally(space, options)
    folder = SweepFolder(tmp_path / "sweeps" / "sent")
    (before,) = folder.trials()
    config = {**before.config, "adapt.templates": str(secret)}
    folder.write_trial(replace(before, state="waiting", config=config, results={}, values=None, finished=None))
    run_locally(space, replace(options, resume=True))
    (after,) = folder.trials()
    assert (after.state, after.config, after.values) == ("complete", before.config, before.values)
    assert isinstance(after.results["test"], SplitResult)
    assert "SECRET" not in capsys.readouterr().err


# --- hard links, sizes and texts ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lock", "mlflow_sync.lock"])
def test_a_lock_that_is_a_hard_link_destroys_no_file(sweep, tmp_path, name):
    """An archive may hold a hard link to a file beside the folder that it is unpacked to."""
    theirs = tmp_path / "notes.txt"
    theirs.write_text("of the user\n")
    (sweep.path / name).unlink(missing_ok=True)
    os.link(theirs, sweep.path / name)
    with pytest.raises(OSError, match="has another name"), exclusive_lock(sweep.path / name, wait=False):
        pass
    assert theirs.read_text() == "of the user\n"


def test_a_log_that_is_a_hard_link_grows_alone(sweep, tmp_path):
    log = sweep.artifacts("trial-0001") / "log.txt"
    log.write_text("before\n")
    os.link(log, tmp_path / "other.txt")
    write_line(log, "after")
    assert (tmp_path / "other.txt").read_text() == "before\n"
    assert log.read_text().startswith("before\n")
    assert log.read_text().endswith(" after\n")


def test_the_lines_of_sync_cannot_control_the_terminal(sweep, monkeypatch, capsys):
    monkeypatch.setattr("fpp_sweep.sweep.delivery.deliver", lambda *_, **__: ["see \x1b]0;title\x07 it"])
    sync.main([str(sweep.path)])
    assert capsys.readouterr().out == "see \\x1b]0;title\\x07 it\n"


def test_a_record_with_too_few_values_is_refused_in_one_line(sweep, capsys):
    record = sweep.trial(f"baseline-{ZERO_SHOT}")
    sweep.write_trial(replace(record, values=record.values[:1]))
    for words in ([str(sweep.path)], [str(sweep.path.parent)]):
        with suppress(SystemExit):
            run(lambda words=words: show.main(words))
        captured = capsys.readouterr()
        assert "has 1 values of 2 objectives" in captured.out + captured.err
        assert "Traceback" not in captured.err


def test_metrics_that_some_datasets_lack_are_left_out_of_means(sweep):
    rows = [{"accuracy": 60.0, "ece": 3.0}, {"accuracy": 70.0}]
    assert mean_of_shared(rows) == {"accuracy": 65.0}


def test_half_a_character_in_a_setting_is_written_out_in_tables(sweep):
    record = sweep.trials()[-1]
    sweep.write_trial(replace(record, params={"fpp.gamma2": "\ud800"}))
    write_report(sweep, pages=False)
    assert (sweep.report / "front.csv").is_file()


@pytest.mark.parametrize("reason", ["NaN", "5", "null"])
def test_a_list_of_skipped_images_holds_texts_only(sweep, reason):
    file = sweep.artifacts("trial-0001") / "val" / "skipped.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    entry = '{"dataset": "digits", "seed": 0, "image": "a", "reason": REASON}'
    file.write_text(f"[{entry.replace('REASON', reason)}]")
    assert read_skipped(sweep, "trial-0001", "val") == []
    file.write_text(f"[{entry.replace('REASON', chr(34) + 'torn' + chr(34))}]")
    assert [image["reason"] for image in read_skipped(sweep, "trial-0001", "val")] == ["torn"]


@pytest.mark.parametrize(
    ("key", "value"), [("files", 5), ("files", {"a": 5}), ("ran", 5), ("ran", [5]), ("decimals", -3), ("decimals", 99)]
)
def test_a_saved_table_with_values_of_other_types_is_refused(sweep, key, value):
    plain = {"title": "t", "columns": [{"metric": "ece"}], "rows": [{"name": "a", "set": {"method": "tpt"}}]}
    document = {"experiment": plain, "files": {}, "ran": []}
    if key == "decimals":
        plain["columns"][0]["decimals"] = value
    else:
        document[key] = value
    (sweep.path / EXPERIMENT_FILE).write_text(json.dumps(document))
    with pytest.raises(InputError, match=f"{EXPERIMENT_FILE}.*{key}"):
        load_table(sweep)


def test_many_recorded_settings_cost_a_page_no_time():
    columns = [object()] * (MAX_SETTINGS + 1)
    reason = effects._reason_to_skip("ece", columns, np.arange(40.0))
    assert reason == f"{MAX_SETTINGS + 1} settings; effects are computed of {MAX_SETTINGS} at most"


def test_a_long_list_is_checked_for_repetitions_in_linear_time(monkeypatch):
    """Each item is compared with few others: its hash is asked for a few times."""

    class Item(str):
        compared = 0

        def __eq__(self, other):
            Item.compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    require_distinct([Item(number) for number in range(2000)])
    assert Item.compared < 2000
    with pytest.raises(InputError, match="comes twice"):
        require_distinct([[1], [2], [1]])
    require_distinct([[1], "[1]"])
