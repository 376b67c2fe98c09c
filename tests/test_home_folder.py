"""`~` in a path means the home folder wherever a user may write a path: a shell replaces it only in plain words."""

import json
import shlex
from pathlib import Path

import pytest

from fpp_sweep import init
from fpp_sweep.__main__ import main
from fpp_sweep.checks.datasets import survey_datasets
from fpp_sweep.cli import FLAGS, find_folder, find_sweep
from fpp_sweep.core.datasets.opening import custom_datasets
from fpp_sweep.core.models import names
from fpp_sweep.space.reading import load_space
from fpp_sweep.spec.config import require_prompt, require_templates
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import default_cache
from fpp_sweep.sweep.api import Sweep
from fpp_sweep.tracking.stores import absolute
from fpp_sweep.trial.templates import file_digest, texts_by_class
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


def test_an_evaluation_and_its_comparison_are_written_in_the_home_folder(home, capsys):
    words = ["--out", "~/out", "--name", "one", "--method", "zero_shot", "zero", "--prompt", "a photo of a"]
    main(["evaluate", *words, "--datasets", "scenes", "--limit", "4", "--set", "work.cache=~/cache"])
    assert f"{home}/out/one/results.json" in capsys.readouterr().out
    assert (home / "cache").is_dir()
    main(["compare", "~/out/one", "trial-0000", "trial-0001", "--out=~/compared"])
    assert f"Markdown  {home}/compared/comparison.md" in capsys.readouterr().out
    assert (home / "compared" / "comparison.md").is_file()


def test_paths_of_a_space_are_in_the_home_folder(home):
    (home / "space.yaml").write_text(SPACE)
    work = load_space("~/space.yaml", ["work.data_root=~/other"]).work
    paths = (work.data_root, work.dataset_file, work.cache)
    assert paths == (f"{home}/other", f"{home}/sets.yaml", f"{home}/cache")


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


def test_files_of_models_prompts_and_templates_are_found_in_the_home_folder(home):
    for name in ("clip.pt", "prompt.safetensors"):
        (home / name).touch()
    (home / "t.json").write_text(json.dumps(["a photo of a {}."]))
    names.require_model("ViT-B-16:~/clip.pt")
    require_prompt("~/prompt.safetensors")
    require_templates("~/t.json")
    assert file_digest("~/t.json") == file_digest(str(home / "t.json"))
    assert texts_by_class("~/t.json", "mine", ["cat"]) == [["a photo of a cat."]]


def test_mlflows_file_and_the_cache_are_in_the_home_folder(home, monkeypatch):
    monkeypatch.setenv("FPP_SWEEP_CACHE", "~/cache")
    assert default_cache() == home / "cache"
    assert absolute("sqlite:///~/mlflow.db") == f"sqlite:///{home}/mlflow.db"
    assert absolute("sqlite:///./~/mlflow.db") == f"sqlite:///{Path.cwd()}/~/mlflow.db"
