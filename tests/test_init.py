"""The command `init`: the files that it writes, and the folders that it refuses."""

from pathlib import Path

import pytest

from fpp_sweep import init
from fpp_sweep.core.datasets import read_custom
from fpp_sweep.space.reading import load_space, parse_space
from fpp_sweep.spec.errors import InputError


def test_init_writes_a_space_that_runs_and_a_dataset_file_that_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    init.main(["mine"])
    printed = capsys.readouterr().out
    space = load_space("mine/space.yaml")
    assert space.question.endswith("?")
    assert space.notes() == []
    assert list(read_custom(Path("mine/datasets.yaml"))) == ["mine"]
    assert "--space mine/space.yaml --dry-run" in printed
    assert "--space mine/space.yaml --dataset-file mine/datasets.yaml" in printed


def test_init_without_a_folder_writes_into_the_current_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    init.main([])
    assert {path.name for path in tmp_path.iterdir()} == {init.SPACE, init.DATASETS}
    assert "--space space.yaml --dry-run" in capsys.readouterr().out


def test_the_space_of_init_takes_the_datasets_of_its_dataset_file(tmp_path):
    init.write_templates(tmp_path)
    space = load_space(tmp_path / "space.yaml", [f"work.dataset_file={tmp_path / 'datasets.yaml'}"])
    assert space.work.datasets == ()


@pytest.mark.parametrize("name", [init.SPACE, init.DATASETS])
def test_init_overwrites_no_file_and_writes_all_files_or_none(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"{name}: exists, and is not overwritten; give another folder"):
        init.main([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_every_commented_key_of_the_templates_is_valid():
    """The reader must know every key that a template suggests in a comment."""
    text = (init.TEMPLATES / init.SPACE).read_text()
    for key in ("wall_clock: 2h", "limit: 200", "data_root: /data"):
        commented = next(line for line in text.splitlines() if line.strip().startswith(f"# {key}"))
        text = text.replace(commented, commented.replace("# ", "", 1))
    text = text.replace("  # method: [tpt, otpt]\n  # adapt", "  method: [tpt, otpt]\n  adapt")
    space = parse_space(text, "space.yaml")
    assert (space.search.wall_clock, space.work.limit) == (7200, 200)
    assert len(space.params) == 4
