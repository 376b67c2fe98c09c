"""Results that all sweeps of a machine share; no fault of the shared folder stops a sweep."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fpp_sweep
from fpp_sweep.space.reading import parse_space
from fpp_sweep.sweep.worker_pool import shared_results_folder
from fpp_sweep.trial import worker
from fpp_sweep.trial.results import TaskResult, TaskStore, file_of, folder_for
from tests.kit.disks import mounted
from tests.kit.processes import SMALL_SPACE
from tests.kit.tasks import MODEL

KEY = "ab" * 12
RESULT = TaskResult(prompt=b"a prompt", seconds={"pretrain": 2.0})


@pytest.fixture
def shared(tmp_path):
    return tmp_path / "cache"


def test_the_next_sweep_finds_a_shared_result_and_keeps_it_if_the_cache_is_pruned(tmp_path, shared):
    TaskStore(tmp_path / "one", shared).put(KEY, RESULT)
    other = TaskStore(tmp_path / "other", shared)
    assert other.get(KEY).prompt == RESULT.prompt
    assert file_of(tmp_path / "other", KEY).samefile(
        file_of(tmp_path / "one", KEY)
    )  # both names are one file on the disk
    file_of(shared, KEY).unlink()  # as `cache prune` does
    assert other.get(KEY).prompt == RESULT.prompt
    assert TaskStore(tmp_path / "third").get(KEY) is None


def test_a_sweep_without_sharing_neither_reads_nor_writes_shared_results(tmp_path, shared):
    TaskStore(tmp_path / "one").put(KEY, RESULT)
    assert TaskStore(tmp_path / "other", shared).get(KEY) is None


def test_a_damaged_shared_result_is_computed_again_and_replaced_for_all(tmp_path, shared):
    store = TaskStore(tmp_path / "one", shared)
    store.put(KEY, RESULT)
    with file_of(shared, KEY).open("r+b") as file:  # this damages the sweep's own file too: both names are one file
        file.truncate(50)
    assert store.get(KEY) is None
    store.put(KEY, RESULT)
    assert TaskStore(tmp_path / "other", shared).get(KEY).prompt == RESULT.prompt
    assert not list(tmp_path.rglob("*.partial"))


def test_a_sweeps_damaged_file_is_replaced_by_the_shared_one(tmp_path, shared):
    TaskStore(tmp_path / "one", shared).put(KEY, RESULT)
    own = file_of(tmp_path / "other", KEY)
    own.parent.mkdir(parents=True)
    own.write_bytes(b"no result")
    assert TaskStore(tmp_path / "other", shared).get(KEY).prompt == RESULT.prompt
    assert own.read_bytes() == file_of(shared, KEY).read_bytes()


def test_a_full_disk_of_the_sweep_is_an_error_and_shared_results_are_still_found(tmp_path, shared):
    TaskStore(tmp_path / "one", shared).put(KEY, RESULT)
    with mounted(tmp_path / "full", "size=64k") as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk / "fill").write_bytes(bytes(2**17))
        store = TaskStore(disk / "tasks", shared)
        assert store.get(KEY).prompt == RESULT.prompt  # read from the shared folder: there is no room for a copy
        with pytest.raises(OSError, match="No space left"):
            store.put(KEY, RESULT)


WRITER_PROGRAM = """
import sys
from pathlib import Path
from fpp_sweep.trial.results import TaskResult, TaskStore
own, shared = map(Path, sys.argv[1:])
store = TaskStore(own, shared)
for turn in range(200):
    key = f"{turn % 5:024x}"
    found = store.get(key)
    assert found is None or found.prompt == b"x" * 1000
    store.put(key, TaskResult(prompt=b"x" * 1000))
    if turn % 7 == 0:
        (shared / key[:2] / f"{key}.task").unlink(missing_ok=True)
"""


@pytest.mark.slow  # starts three processes
def test_simultaneous_sweeps_and_pruning_lose_nothing(tmp_path, shared):
    running = []
    for name in ("one", "two", "three"):
        command = [sys.executable, "-c", WRITER_PROGRAM, str(tmp_path / name), str(shared)]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], errors
    for name in ("one", "two", "three"):
        own = TaskStore(tmp_path / name, None)
        files = list((tmp_path / name).rglob("*.task"))
        assert len([file for file in files if own.get(file.stem) is not None]) == len(files) == 5
    assert not list(tmp_path.rglob("*.partial"))


def test_results_of_other_libraries_are_not_found(tmp_path, shared):
    here, there = (replace(MODEL, made_with=words) for words in ("torch 2.9", "torch 2.10"))
    TaskStore(tmp_path / "one", folder_for(shared, here)).put(KEY, RESULT)
    assert TaskStore(tmp_path / "other", folder_for(shared, here)).get(KEY) is not None
    assert TaskStore(tmp_path / "other2", folder_for(shared, there)).get(KEY) is None


def test_results_are_marked_with_all_code_that_can_change_them():
    package = Path(fpp_sweep.__file__).parent
    files = {str(file.relative_to(package)) for file in worker.code_files(package)}
    assert {"core/fpp.py", "core/methods/tpt.py", "trial/adapting.py", "tiny/world.py", "spec/config.py"} <= files
    assert not [file for file in files if not (package / file).is_file()]
    assert "report/page.py" not in files


@pytest.mark.parametrize(
    ("overrides", "shares"),
    [
        ((), True),
        (("base.method=dynaprompt",), True),
        (("objectives=[accuracy, seconds]",), False),
        (("work.reuse_results=false",), False),
    ],
)
def test_sweeps_share_results_unless_their_settings_forbid_it(overrides, shares):
    space = parse_space(SMALL_SPACE, "small.yaml", ["work.baselines=[]", *overrides])
    assert (shared_results_folder(space) is not None) == shares
