"""`~` in a path means the home folder wherever a user may write a path: a shell replaces it only in plain words."""

import shlex
from pathlib import Path

import pytest

from fpp_sweep import init
from fpp_sweep.checks.datasets import survey_datasets
from fpp_sweep.cli import FLAGS, find_folder, find_sweep
from fpp_sweep.core.datasets.opening import custom_datasets
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import default_cache
from fpp_sweep.sweep.api import Sweep
from fpp_sweep.tracking.stores import absolute
from tests.kit.records import build_sweep

SPACE = """\
params: {fpp.gamma1: {low: 0.1, high: 10, log: true}}
work: {data_root: ~/data, dataset_file: ~/sets.yaml, cache: ~/cache}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder; the current folder is another one, which stays empty."""
    home, current = tmp_path / "home", tmp_path / "current"
    home.mkdir()
    current.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(current)
    yield home
    assert list(current.iterdir()) == []


@pytest.fixture
def sweep(home):
    return build_sweep(home / "out" / "made", trials=2, failed_trials=(), report=False)


def test_init_writes_into_the_home_folder_and_prints_commands_that_work_there(home, capsys):
    init.main(["~/mine"])
    assert (home / "mine" / "space.yaml").is_file()
    commands = [line for line in capsys.readouterr().out.splitlines() if "--space" in line]
    for command in commands:
        words = shlex.split(command)
        assert words[words.index("--space") + 1] == str(home / "mine" / "space.yaml")


def test_a_sweep_in_the_home_folder_is_found(home, sweep):
    assert find_sweep("~/out/made") == sweep.path
    assert find_folder("~/out") == home / "out"
    with pytest.raises(InputError, match="~/out is not a sweep's folder"):
        find_sweep("~/out")
    assert Sweep.open("~/out/made").folder.path == sweep.path


def test_flags_with_a_path_name_the_home_folder(home):
    for flag in ("--out", "--plugin"):
        assert FLAGS[flag].type("~/x") == home / "x"


def test_datasets_are_found_in_the_home_folder(home):
    for name in ("cat", "dog"):
        (home / "photos" / name).mkdir(parents=True)
        (home / "photos" / name / "1.png").touch()
    (home / "data").mkdir()
    (home / "sets.yaml").write_text("mine: {layout: folders, images: ~/photos}\n")
    specs = custom_datasets(["theirs=~/photos"], "~/sets.yaml")
    assert [specs[name].layout.images for name in ("mine", "theirs")] == [f"{home}/photos"] * 2
    assert survey_datasets(["mine"], "~/data", "~/sets.yaml")[0].is_requested


def test_mlflows_file_and_the_cache_are_in_the_home_folder(home, monkeypatch):
    monkeypatch.setenv("FPP_SWEEP_CACHE", "~/cache")
    assert default_cache() == home / "cache"
    assert absolute("sqlite:///~/mlflow.db") == f"sqlite:///{home}/mlflow.db"
    assert absolute("sqlite:///./~/mlflow.db") == f"sqlite:///{Path.cwd()}/~/mlflow.db"
