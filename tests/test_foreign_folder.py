"""A sweep's folder from another person may contain links: no command follows a link out of the folder."""

import ast
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fpp_sweep import show
from fpp_sweep.records.front import front_of
from fpp_sweep.records.state import last_change
from fpp_sweep.report.trial_contents import trial_contents
from fpp_sweep.report.writing import write_report
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import FileTooLargeError, read_end_inside, read_inside
from fpp_sweep.sweep.received import read_settings
from fpp_sweep.tracking.folder_files import find_artifacts
from tests.kit.records import build_sweep

ROOT = Path(__file__).parent.parent


@pytest.fixture
def sweep(tmp_path):
    return build_sweep(tmp_path / "sent")


def link_out(path, target):
    """Replace a file or folder with a link to a path outside the sweep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(f"{path}.before")
    path.symlink_to(target)


def test_a_report_deletes_nothing_behind_a_link(sweep, tmp_path):
    outside = tmp_path / "my_configs"
    outside.mkdir()
    (outside / "mine.yaml").write_text("config: {}\n")
    link_out(sweep.report / "best", outside)
    with pytest.raises(InputError, match=r"report/best: a link leads out of .*sent; remove the link"):
        write_report(sweep, pages=False)
    assert [path.name for path in outside.iterdir()] == ["mine.yaml"]


def test_a_report_deletes_only_configs_that_a_report_wrote(sweep):
    best = sweep.report / "best"
    (best / "mine.yaml").write_text("config: {}\n")
    (best / "knee.yaml").write_text("# of the user\n")
    write_report(sweep, pages=False)
    written = {path.name for path in best.glob("[!.]*")}
    (member,) = [record.name for record in sweep.trials() if f"{record.name}.yaml" in written][:1]
    sweep.trial_file(member).unlink()
    write_report(sweep, pages=False)
    left = {path.name for path in best.glob("[!.]*")}
    assert "mine.yaml" in left
    (kept,) = best.glob("knee.yaml.damaged-*")
    assert kept.read_text() == "# of the user\n"
    assert f"{member}.yaml" not in left


def test_a_file_may_be_as_large_as_the_limit(tmp_path):
    file = tmp_path / "record.json"
    file.write_bytes(b"12345")
    assert read_inside(tmp_path, file, 5) == b"12345"
    with pytest.raises(FileTooLargeError):
        read_inside(tmp_path, file, 4)


def test_the_end_of_a_long_file_is_read(tmp_path):
    file = tmp_path / "log.txt"
    file.write_text("first\nlast\n")
    assert read_end_inside(tmp_path, file, 5) == "last\n"
    assert read_end_inside(tmp_path, file, 100) == "first\nlast\n"


@pytest.mark.parametrize("part", ["log.txt", "prompts", ""])
def test_show_prints_nothing_that_lies_behind_a_link(sweep, tmp_path, part, capsys):
    secret = tmp_path / "secret"
    if part == "log.txt":
        secret.write_text("password\n")
    else:
        secret.mkdir()
        (secret / "log.txt").write_text("password\n")
    link_out(sweep.artifacts("trial-0001") / part, secret)
    with pytest.raises(InputError, match="a link leads out of"):
        show.main([str(sweep.path), "trial-0001"])
    assert "password" not in capsys.readouterr().out


def test_sync_does_not_walk_a_folder_behind_a_link(sweep, tmp_path, monkeypatch):
    outside = tmp_path / "large"
    outside.mkdir()
    (outside / "file").write_text("")
    link_out(sweep.artifacts("trial-0001"), outside)
    artifacts = find_artifacts(sweep, sweep.path / "artifacts/trial-0001")
    assert not artifacts.files
    assert artifacts.left_out == {"artifacts/trial-0001"}


@pytest.mark.parametrize("subfolder", ["trials", "logs"])
def test_the_time_of_the_last_change_is_that_of_files_inside(sweep, tmp_path, subfolder):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("")
    os.utime(outside / "file", (2e9, 2e9))
    link_out(sweep.path / subfolder, outside)
    assert last_change(sweep) < 2e9


@pytest.mark.parametrize("trial", [None, 7, ["trial-0001"], {"trial-0001": 1}])
def test_a_command_that_stops_no_trial_by_name_is_damaged(sweep, trial):
    command = sweep.send_command("stop", {"trial": trial})
    with pytest.raises(InputError, match="values: must have the name of a trial"):
        sweep.command(sweep.path / f"steering/{command.name}.json")
    assert sweep.commands() == []


def test_a_config_of_a_sweep_with_control_characters_in_its_texts_is_valid_yaml(sweep):
    sweep.write_info(replace(sweep.info(), name="\x1b[31msent", model="\x1b]0;model\x07"))
    write_report(sweep, pages=False)
    for file in sorted((sweep.report / "best").glob("*.yaml")):
        assert "\x1b" not in file.read_text()
        assert read_settings(file)
    contents = trial_contents(sweep, sweep.info(), sweep.trials(), front_of(sweep.info(), sweep.trials()))
    assert not [name for name, values in contents.items() if "\x1b" in values["yaml"]]


LIBRARY_PROGRAM = """
import logging, threading, warnings
from fpp_sweep.cli.command import run

def fail():
    raise ValueError("a name \x1b]0;title\x07")

class Leftover:
    def __del__(self):
        fail()

def main():
    try:
        fail()
    except ValueError:
        logging.getLogger("mlflow").warning("failed", exc_info=True)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    Leftover()
    warnings.warn("image \x1b[31m of a name")
    logging.getLogger("mlflow").warning("%s", "file \x1b]0;title\x07 of a name")

run(main)
"""


def test_warnings_and_logs_of_libraries_do_not_control_the_terminal(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIBRARY_PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "\x1b" not in done.stderr
    assert done.stderr.count(r"ValueError: a name \x1b]0;title\x07") == 3
    assert done.stderr.splitlines()[-2:] == [
        r"note: UserWarning: image \x1b[31m of a name",
        r"file \x1b]0;title\x07 of a name",
    ]


def test_names_in_a_folder_do_not_control_the_terminal(sweep, capsys):
    info = sweep.info()
    space = {**info.space, "question": "\x1b[31mred?", "params": {"\x1b[2J": {"low": 0.1, "high": 1}}}
    sweep.write_info(replace(info, space=space, model="\x1b]0;model\x07"))
    record = sweep.trial("trial-0001")
    result = record.results["val"]
    datasets = {f"{name}\x1b[31m": values for name, values in result.datasets.items()}
    results = {"val": replace(result, datasets=datasets)}
    sweep.write_trial(replace(record, results=results, params={"\x1b[2J": "\x1b[31m"}, reason="\x1b[2J"))
    for words in ([str(sweep.path)], [str(sweep.path), "trial-0001"], [str(sweep.path.parent)]):
        with suppress(InputError):
            show.main(words)
    out, err = capsys.readouterr()
    assert "\\x1b[31m" in out
    assert "\x1b" not in out + err


READS = {"open", "read_text", "read_bytes", "iterdir", "glob", "rglob", "walk", "scandir", "listdir", "rmtree"}
OTHER_READERS = {  # modules of these packages that read other files, or read in another way, and the reason
    "records/folder.py": "the lock, which is opened without following links; `SweepFolder.open`",
    "records/log.py": "a log, for appending without following links",
    "report/html.py": "writes a page; style sheets of this package",
    "report/front_files.py": "writes front.csv",
    "report/comparison_files.py": "`SweepFolder.open`",
    "sweep/inspection.py": "a cluster file of the user's",
    "sweep/folders.py": "the folder of sweeps",
    "sweep/timing.py": "datasets",
    "sweep/driver.py": "Ray Tune's folder, which the driver made",
    "sweep/resume.py": "removes a folder that this driver began; rmtree follows no links",
    "sweep/worker_pool.py": "opens a model",
    "sweep/api.py": "`SweepFolder.open`",
    "sweep/delivery.py": "`SweepFolder.open`",
    "sweep/importing.py": "`SweepFolder.open`, and the file that the user imports",
    "report/page_command.py": "`SweepFolder.open`",
    "sweep/showing.py": "`SweepFolder.open`",
    "sweep/steering.py": "`SweepFolder.open`",
    "search/study_file.py": "the study, for appending without following links",
    "tracking/uri.py": "MLflow's stores",
    "tracking/folder_sync.py": "opens runs of MLflow",
    "tracking/folder_files.py": "walks artifacts, each of which is checked",
    "trial/imported.py": "the file that the user imports",
    "trial/store.py": "",
    "trial/templates.py": "the file of templates that the user names",
    "trial/worker.py": "opens datasets",
    "trial/worker_datasets.py": "opens datasets",
    "trial/code.py": "this package's code",
    "trial/worker_model.py": "the processor's name",
}


def modules_that_read():
    """Yield the modules that read files themselves, in the packages that handle sweep folders."""
    for package in ("records", "report", "search", "sweep", "tracking", "trial"):
        for file in sorted((ROOT / "fpp_sweep" / package).glob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    if name in READS:
                        yield f"{package}/{file.name}"


def test_files_of_a_sweeps_folder_are_read_by_the_functions_of_one_module():
    """The functions are `open_inside`, `read_inside` and `files_inside` of `spec/files.py`."""
    assert set(modules_that_read()) - OTHER_READERS.keys() == set()
