"""The feature cache on disk: damaged files, full disks, and processes that share a cache."""

import contextlib
import dataclasses
import json
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch.nn import functional as F

from fpp_sweep.core.images.features import CHUNK
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError
from tests.core.images.caches import assert_close, everything, file_states, files, fill
from tests.kit.datasets import painted_dataset
from tests.kit.disks import mounted

REPOSITORY = Path(__file__).parents[3]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def replace_by_text(path):
    path.write_text("not a chunk")


def replace_by_other_tensors(path):
    save_file({"x": np.zeros(3)}, path)


@pytest.mark.parametrize("damage", [truncate, empty, replace_by_text, replace_by_other_tensors])
@pytest.mark.parametrize("index", [0, 1])
def test_a_damaged_chunk_is_reported_and_computed_again(tmp_path, damage, index):
    dataset = painted_dataset(70)
    expected = everything(fill(tmp_path, dataset)[0])
    damaged = files(tmp_path)[index]
    damage(damaged)
    features, log = fill(tmp_path, dataset)
    assert log.computed == (64, 6)[index]
    assert len(log.notes) == 1
    assert str(damaged) in log.notes[0]
    assert torch.equal(everything(features), expected)
    assert fill(tmp_path, dataset)[1].computed == 0


# --- files on disk


def test_the_manifest_describes_an_entry(tmp_path):
    fill(tmp_path, painted_dataset(3))
    manifest = json.loads(files(tmp_path, "manifest.json")[0].read_text())
    assert manifest["model"] == "random-0"
    assert (manifest["dataset"], manifest["split"], manifest["seed"]) == ("painted", "test", 0)
    assert (manifest["count"], manifest["augmix"], manifest["flip"]) == (3, False, True)
    assert manifest["dtype"] == "float16"
    assert manifest["created"].startswith("20")


def test_a_finished_entry_holds_chunks_and_a_manifest_only(tmp_path):
    fill(tmp_path, painted_dataset(70))
    folder = files(tmp_path)[0].parent
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}


def test_features_of_another_format_stay_on_disk_unused(tmp_path, monkeypatch):
    with monkeypatch.context() as other_format:
        other_format.setattr(keys, "FEATURES", "fpp_sweep features 1")
        fill(tmp_path, painted_dataset(3))
    before = {path: path.read_bytes() for path in files(tmp_path, "*")}
    _, log = fill(tmp_path, painted_dataset(3))
    assert (log.computed, log.notes) == (3, [])
    assert len(files(tmp_path, "*")) == 2 * len(before)
    assert {path: path.read_bytes() for path in before} == before


def test_features_can_be_read_after_their_files_are_removed(tmp_path):
    features, _ = fill(tmp_path, painted_dataset(70))
    expected = everything(features)
    for path in files(tmp_path):
        path.unlink()
    assert torch.equal(everything(features), expected)
    assert_close(F.normalize(expected, dim=-1), expected)


# --- full and read-only disks


def test_a_full_disk_is_reported_in_one_line_and_leaves_no_partial_file(tmp_path):
    with mounted(tmp_path / "small", "size=64k") as root:
        with pytest.raises(InputError) as caught:
            fill(root, painted_dataset(200), ViewConfig(count=16))
        assert files(root, ".*.partial") == files(root, "*.lock") == []
        message = str(caught.value)
        assert str(root) in message
        assert "no space left for features" in message
        assert "prune" in message
        assert "--set work.cache=DIR" in message
        assert "\n" not in message
        written = len(files(root))
        assert written == 1
        subprocess.run(["mount", "-o", "remount,size=4m", str(root)], check=True)
        assert fill(root, painted_dataset(200), ViewConfig(count=16))[1].cached == written * CHUNK


def test_a_read_only_cache_can_be_read_but_not_filled(tmp_path):
    with mounted(tmp_path / "fixed", "size=4m") as root:
        fill(root, painted_dataset(70))
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        assert fill(root, painted_dataset(70))[1].cached == 70
        for dataset in (painted_dataset(100), dataclasses.replace(painted_dataset(3), name="other")):
            with pytest.raises(InputError, match=r"Read-only file system.*--set work.cache=DIR"):
                fill(root, dataset)


def test_a_file_at_the_path_of_the_cache_is_refused(tmp_path):
    root = tmp_path / "file"
    root.write_text("")
    with pytest.raises(InputError, match=r"Not a directory.*--set work.cache=DIR"):
        fill(root, painted_dataset(3))


def test_a_limit_on_file_sizes_is_reported_like_a_full_disk(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InputError, match="no space left"):
            fill(tmp_path, painted_dataset(64), ViewConfig(count=16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == files(tmp_path, ".*") == []


# --- runs that share a cache


def test_two_concurrent_runs_share_the_work_and_both_get_all_features(tmp_path):
    """Two threads stand for two processes, because the locks belong to open files and not to processes."""
    dataset, both_are_ready = painted_dataset(6 * CHUNK), threading.Barrier(2)

    def fill_when_both_are_ready(_):
        both_are_ready.wait()
        return fill(tmp_path / "cache", dataset, exact=True)

    with ThreadPoolExecutor(2) as pool:
        (first, first_log), (second, second_log) = pool.map(fill_when_both_are_ready, range(2))
    assert first_log.computed + second_log.computed == 6 * CHUNK  # no image is computed twice
    assert first_log.cached + second_log.cached == 6 * CHUNK
    assert torch.equal(everything(first), everything(second))


# A run whose image tower prints a line before every batch, and then waits for a line of input.
STEPPED_RUN = """
    import dataclasses, sys, torch
    from pathlib import Path
    from fpp_sweep.core.images.features import CHUNK
    from tests.core.images.caches import CLIP, fill
    from tests.kit.datasets import painted_dataset

    class Stepped(torch.nn.Module):
        def forward(self, pixels):
            print("tower", flush=True)
            sys.stdin.readline()
            return CLIP.visual(pixels)

    torch.set_num_threads(1)
    clip = dataclasses.replace(CLIP, visual=Stepped())
    fill(Path(sys.argv[1]), painted_dataset(6 * CHUNK), clip=clip, exact=True)
"""


@contextlib.contextmanager
def stepped_run(root):
    line = [sys.executable, "-c", textwrap.dedent(STEPPED_RUN), str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(line, cwd=REPOSITORY, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_word(process, word):
    assert word in map(str.strip, process.stdout), f"the run ended without printing {word}"


def expected_features(tmp_path):
    return everything(fill(tmp_path / "expected", painted_dataset(6 * CHUNK), exact=True)[0])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_after_a_killed_run_computes_only_the_missing_chunks(tmp_path):
    root = tmp_path / "cache"
    with stepped_run(root) as process:
        for _ in range(2):
            wait_for_word(process, "tower")
            process.stdin.write("\n")
        wait_for_word(process, "tower")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = file_states(root)
    assert len(before) == 2
    assert files(root, "*.lock")  # the lock ended with the process, but the lock's file is still there
    features, log = fill(root, painted_dataset(6 * CHUNK), exact=True)
    assert log.cached == len(before) * CHUNK
    assert log.computed == (6 - len(before)) * CHUNK
    assert before.items() <= file_states(root).items()
    assert files(root, "*.lock") == files(root, ".*") == []
    assert_close(everything(features), expected_features(tmp_path))
