"""The command `cache`, on a cache that real runs have filled."""

import io
import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from fpp_sweep.cache import main
from fpp_sweep.checks.cache_entries import find_entries
from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.results import TaskResult, TaskStore, file_of, folder_for
from tests.kit.datasets import painted_dataset
from tests.kit.models import random_clip
from tests.kit.tasks import MODEL

CLIP = random_clip()
DAY = 86400


@pytest.fixture
def cache(tmp_path):
    """A cache of two entries: a small one, last used 40 days ago, and a larger one, used today."""
    store = FeatureCache(tmp_path / "cache")
    store.features(CLIP, painted_dataset(3), ViewConfig(count=2, flip="off"), 0)
    for manifest in store.root.glob("features/*/manifest.json"):
        os.utime(manifest, (time.time() - 40 * DAY,) * 2)
    store.features(CLIP, painted_dataset(70), ViewConfig(count=4, min_area=0.5, augmix="on"), 7)
    return store.root


def command(capsys, *words):
    main([str(word) for word in words])
    return capsys.readouterr().out


def entries(cache):
    return sorted(path for path in cache.glob("features/*"))


def entries_by_age(cache):
    """Return the old entry and the new one."""
    return sorted(entries(cache), key=lambda folder: (folder / "manifest.json").stat().st_mtime)


def test_list_shows_content_size_and_last_use_of_each_entry(cache, capsys):
    lines = command(capsys, "list", "--cache", cache).splitlines()
    assert len(lines) == 4
    assert lines[0].split() == ["entry", "model", "dataset", "seed", "views", "type", "size", "used"]
    assert re.search(r"random-0 +painted/test +0 +2 of area 0.08-1.0 +float16 .* 40 d ago", lines[1])
    assert re.search(r"random-0 +painted/test +7 +4 of area 0.5-1.0 augmix flip +float16 .* just now", lines[2])
    total = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
    assert lines[3] == f"{cache}: 2 entries, {total / 1000:.1f} kB"
    assert sum(entry.size for entry in find_entries(cache)) == total


def test_a_use_renews_the_time_of_an_entry(cache, capsys):
    FeatureCache(cache).features(CLIP, painted_dataset(3), ViewConfig(count=2, flip="off"), 0)
    assert "d ago" not in command(capsys, "list", "--cache", cache)


@pytest.mark.parametrize("data", [b"[]", b"\x00\xff"])
def test_list_survives_an_entry_whose_manifest_is_damaged(cache, capsys, data):
    (entries_by_age(cache)[0] / "manifest.json").write_bytes(data)
    assert "no readable manifest" in command(capsys, "list", "--cache", cache)


def test_foreign_files_are_neither_listed_nor_removed(tmp_path, capsys):
    (tmp_path / "features").mkdir()
    (tmp_path / "features" / "manifest.json").write_text('{"format": "something else"}')
    (tmp_path / "features" / "0123456789abcdef").write_text("a file, not an entry")
    assert "0 entries" in command(capsys, "list", "--cache", tmp_path)
    command(capsys, "prune", "--cache", tmp_path, "--all", "--yes")
    assert len(entries(tmp_path)) == 2
    FeatureCache(tmp_path).features(CLIP, painted_dataset(3), ViewConfig(count=2), 0)
    assert "1 entries" in command(capsys, "list", "--cache", tmp_path)


def test_the_environment_can_name_the_folder(cache, capsys, monkeypatch):
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(cache))
    assert "2 entries" in command(capsys, "list")


def test_a_missing_cache_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"nothing: there is no cache here; give its folder with --cache"):
        main(["list", "--cache", str(tmp_path / "nothing")])


def test_prune_removes_nothing_without_confirmation(cache, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(InputError, match="removes nothing without a terminal to ask on; repeat with --yes"):
        main(["prune", "--cache", str(cache), "--all"])
    assert "2 to remove" in capsys.readouterr().out
    assert len(entries(cache)) == 2


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("", 2), ("n", 2)])
def test_prune_asks_on_a_terminal(cache, monkeypatch, answer, left):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    main(["prune", "--cache", str(cache), "--all"])
    assert len(entries(cache)) == left


@pytest.mark.parametrize(
    ("conditions", "left"), [(["--all"], 0), (["--older-than", "30d"], 1), (["--older-than", "8w"], 2)]
)
def test_prune_removes_the_entries_that_were_not_used_for_an_age_or_all(cache, conditions, left):
    main(["prune", "--cache", str(cache), "--yes", *conditions])
    assert len(entries(cache)) == left


@pytest.mark.parametrize(
    ("words", "message"), [(["--yes"], "--older-than"), (["--older-than", "soon"], "--older-than: must be a duration")]
)
def test_prune_needs_an_age_or_the_word_all(cache, words, message):
    with pytest.raises(InputError, match=message):
        main(["prune", "--cache", str(cache), *words])


def test_a_run_continues_with_features_that_were_pruned_meanwhile(cache):
    features = FeatureCache(cache).features(
        CLIP, painted_dataset(70), ViewConfig(count=4, min_area=0.5, augmix="on"), 7
    )
    before = features.of(np.arange(70))
    main(["prune", "--cache", str(cache), "--all", "--yes"])
    assert entries(cache) == []
    assert features.of(np.arange(70)).equal(before)


def test_prune_keeps_files_that_do_not_belong_to_the_cache(cache):
    (cache / "notes.txt").write_text("mine")
    other = cache / "features" / "mine"
    other.mkdir()
    (other / "file").write_text("mine")
    main(["prune", "--cache", str(cache), "--all", "--yes"])
    assert (cache / "notes.txt").exists()
    assert (other / "file").exists()


@pytest.fixture
def outside(tmp_path):
    """A folder that does not belong to the cache, with a file at each depth where the cache has files."""
    folder = tmp_path / "outside"
    (folder / "ab").mkdir(parents=True)
    for name in ("a.txt", "ab/b.txt"):
        (folder / name).write_text("mine")
    (folder / "manifest.json").write_text('{"model": "of-another-folder"}')
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("link", ["features/0123456789abcdef", "tasks/0123456789abcdef"])
def test_an_entry_that_is_a_link_is_neither_listed_nor_followed(tmp_path, outside, capsys, link):
    linked = tmp_path / "cache" / link
    linked.parent.mkdir(parents=True)
    linked.symlink_to(outside)
    before = contents(outside)
    assert command(capsys, "list", "--cache", tmp_path / "cache").endswith(": 0 entries, 0 B\n")
    assert "0 to remove" in command(capsys, "prune", "--all", "--yes", "--cache", tmp_path / "cache")
    assert contents(outside) == before
    assert linked.is_symlink()


def test_names_of_files_and_folders_cannot_control_the_terminal(tmp_path, capsys):
    folder = tmp_path / "cache\x1b[31m" / "features" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "00000-\x1b[32m.safetensors").write_text("damaged")
    for words in (["list"], ["prune", "--all", "--yes"]):
        shown = command(capsys, *words, "--cache", tmp_path / "cache\x1b[31m")
        assert "\x1b" not in shown
        assert r"cache\x1b[31m" in shown


@pytest.fixture
def tasks(cache):
    """Two results that all sweeps share, one of them last used 40 days ago, and a sweep that has both."""
    folder = folder_for(cache / "tasks", replace(MODEL, made_with="torch 2.9, some processor"))
    store = TaskStore(cache.parent / "sweep", folder)
    for key in ("a" * 24, "b" * 24):
        store.put(key, TaskResult(prompt=b"x" * 1000))
    os.utime(file_of(folder, "a" * 24), (time.time() - 40 * DAY,) * 2)
    return folder


def test_finished_tasks_are_pruned_by_age_and_sweeps_keep_their_own(cache, tasks, capsys):
    (line,) = [line for line in command(capsys, "list", "--cache", cache).splitlines() if tasks.name in line]
    assert re.search(r" 2 finished tasks of sweeps .* just now", line)
    output = command(capsys, "prune", "--cache", cache, "--older-than", "30d", "--yes")
    assert re.search(rf" {re.escape(str(tasks))}\n2 to remove", output)  # the old task and the old features
    assert [file.stem for file in tasks.glob("*/*.task")] == ["b" * 24]
    assert len(list((cache.parent / "sweep").rglob("*.task"))) == 2
    command(capsys, "prune", "--cache", cache, "--all", "--yes")
    assert not list(tasks.glob("*/*"))
    assert command(capsys, "prune", "--cache", cache, "--all", "--yes") == "0 to remove, 0 B\n"


def test_a_use_renews_the_time_of_a_finished_task(cache, tasks, capsys):
    assert TaskStore(cache.parent / "other", tasks).get("a" * 24).prompt == b"x" * 1000
    output = command(capsys, "prune", "--cache", cache, "--older-than", "30d", "--yes")
    assert "1 to remove" in output
    assert len(list(tasks.glob("*/*.task"))) == 2
