"""Results that all sweeps of a machine share: found by any, and no fault of theirs costs one of them anything."""

import subprocess
import sys
from dataclasses import replace

import pytest

from fpp_sweep.core.images.chunks import Skipped
from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep.preflight import shared_results
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.store import TaskStore, file_of, folder_for, is_whole
from fpp_sweep.trial.worker import made_with
from tests.disks import mounted
from tests.drivers import SMALL
from tests.trial.made import MODEL

KEY = "ab" * 12
RESULT = TaskResult(prompt=b"a prompt", seconds={"pretrain": 2.0})


@pytest.fixture
def shared(tmp_path):
    return tmp_path / "cache"


def test_a_result_of_one_sweep_is_at_hand_in_the_next_which_then_has_it_itself(tmp_path, shared):
    TaskStore(tmp_path / "one", shared).put(KEY, RESULT)
    other = TaskStore(tmp_path / "other", shared)
    assert other.get(KEY).prompt == RESULT.prompt
    assert file_of(tmp_path / "other", KEY).samefile(file_of(tmp_path / "one", KEY))  # it takes room once
    file_of(shared, KEY).unlink()  # pruned
    assert other.get(KEY).prompt == RESULT.prompt
    assert TaskStore(tmp_path / "third").get(KEY) is None


def test_a_sweep_that_shares_nothing_neither_takes_nor_gives(tmp_path, shared):
    TaskStore(tmp_path / "one").put(KEY, RESULT)
    assert TaskStore(tmp_path / "other", shared).get(KEY) is None


def test_a_damaged_result_is_computed_again_and_made_whole_for_all(tmp_path, shared):
    store = TaskStore(tmp_path / "one", shared)
    store.put(KEY, RESULT)
    with file_of(shared, KEY).open("r+b") as file:  # and so the sweep's own
        file.truncate(50)
    assert store.get(KEY) is None
    assert not is_whole(file_of(shared, KEY))
    store.put(KEY, RESULT)
    assert TaskStore(tmp_path / "other", shared).get(KEY).prompt == RESULT.prompt
    assert not list(tmp_path.rglob("*.partial"))


def test_a_sweeps_damaged_file_is_mended_from_what_is_shared(tmp_path, shared):
    TaskStore(tmp_path / "one", shared).put(KEY, RESULT)
    own = file_of(tmp_path / "other", KEY)
    own.parent.mkdir(parents=True)
    own.write_bytes(b"no result")
    assert TaskStore(tmp_path / "other", shared).get(KEY).prompt == RESULT.prompt
    assert is_whole(own)


def test_images_that_were_skipped_are_skipped_in_that_sweep_only(tmp_path, shared):
    skipped = replace(RESULT, skipped=(Skipped(sample_id="a", reason="cut"),))
    TaskStore(tmp_path / "one", shared).put(KEY, skipped)
    assert TaskStore(tmp_path / "one", shared).get(KEY) is not None
    assert TaskStore(tmp_path / "other", shared).get(KEY) is None


def test_a_full_or_forbidden_place_for_all_costs_a_sweep_nothing(tmp_path):
    with mounted(tmp_path / "full", "size=64k") as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk / "fill").write_bytes(bytes(2**17))
        store = TaskStore(tmp_path / "one", disk / "cache")
        store.put(KEY, RESULT)
        assert store.get(KEY).prompt == RESULT.prompt
        assert folder_for(disk / "cache", MODEL).name
    with mounted(tmp_path / "forbidden", "size=64k,ro") as disk:
        TaskStore(tmp_path / "two", disk / "cache").put(KEY, RESULT)
        assert TaskStore(tmp_path / "two").get(KEY).prompt == RESULT.prompt


def test_a_full_disk_of_the_sweep_is_told_and_what_is_shared_is_at_hand_all_the_same(tmp_path, shared):
    TaskStore(tmp_path / "one", shared).put(KEY, RESULT)
    with mounted(tmp_path / "full", "size=64k") as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk / "fill").write_bytes(bytes(2**17))
        store = TaskStore(disk / "tasks", shared)
        assert store.get(KEY).prompt == RESULT.prompt  # on another disk, where it would be a copy
        with pytest.raises(OSError, match="No space left"):
            store.put(KEY, RESULT)


def test_another_disk_has_a_copy(tmp_path):
    with mounted(tmp_path / "disk", "size=1m") as disk:
        TaskStore(tmp_path / "one", disk / "cache").put(KEY, RESULT)
        assert TaskStore(tmp_path / "other", disk / "cache").get(KEY).prompt == RESULT.prompt
        assert file_of(tmp_path / "other", KEY).stat().st_nlink == 1


WRITES = """
import sys
from pathlib import Path
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.store import TaskStore
own, shared = map(Path, sys.argv[1:])
store = TaskStore(own, shared)
for turn in range(200):
    key = f"{turn % 5:024x}"
    found = store.get(key)
    assert found is None or found.prompt == b"x" * 1000
    store.put(key, TaskResult(prompt=b"x" * 1000))
    (shared / key[:2] / f"{key}.task").unlink(missing_ok=True) if turn % 7 == 0 else None
"""


def test_sweeps_at_the_same_time_and_a_prune_between_them_lose_nothing(tmp_path, shared):
    words = [[sys.executable, "-c", WRITES, str(tmp_path / name), str(shared)] for name in ("one", "two", "three")]
    running = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in words]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    for name in ("one", "two", "three"):
        assert all(is_whole(file) for file in (tmp_path / name).rglob("*.task"))
        assert len(list((tmp_path / name).rglob("*.task"))) == 5
    assert not list(tmp_path.rglob("*.partial"))


def test_what_was_made_with_something_else_is_not_found(tmp_path, shared):
    here, there = (replace(MODEL, made_with=words) for words in ("torch 2.9", "torch 2.10"))
    TaskStore(tmp_path / "one", folder_for(shared, here)).put(KEY, RESULT)
    assert TaskStore(tmp_path / "other", folder_for(shared, here)).get(KEY) is not None
    assert TaskStore(tmp_path / "other2", folder_for(shared, there)).get(KEY) is None


def test_code_libraries_and_processor_are_what_it_was_made_with(tmp_path, monkeypatch):
    told = made_with()
    assert all(name in told for name in ("code ", "torch ", "numpy ", "pillow "))
    package = tmp_path / "fpp_sweep"
    for room in ("core", "tiny", "trial"):
        (package / room).mkdir(parents=True)
    for name in ("catalogue", "config", "tasks"):
        (package / f"{name}.py").touch()
    (package / "core" / "one.py").write_text("x = 1")
    monkeypatch.setattr("fpp_sweep.spec.plugins.__file__", str(package / "plugins.py"))
    before = made_with()
    (package / "core" / "one.py").write_text("x = 2")
    assert made_with() != before != told


@pytest.mark.parametrize(
    ("overrides", "shares"),
    [
        ((), True),
        (("work.on_bad_image=skip",), True),
        (("base.method=dynaprompt",), True),
        (("base.method=dynaprompt", "work.on_bad_image=skip"), False),  # a later shard goes on from another state
        (("objectives=[accuracy, seconds]",), False),
        (("work.reuse_results=false",), False),
    ],
)
def test_which_sweeps_share(overrides, shares):
    space = parse_space(SMALL, "small.yaml", ["work.baselines=[]", *overrides])
    assert (shared_results(space) is not None) == shares
