"""The feature cache: whole chunks or none, shared, resumed, checked, and clear about what it cannot do."""

import contextlib
import dataclasses
import fcntl
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.images import choose_renderer, chunks, device_views
from fpp_sweep.core.images.cache import Entry, default_cache, unused
from fpp_sweep.core.images.chunks import CHUNK, Chunk, chunk_path, sample_digests
from fpp_sweep.core.images.device_views import Drawer
from fpp_sweep.core.images.features import FeatureCache, computed_in
from fpp_sweep.core.images.reading import Reader, silence_lost_parent, watched
from fpp_sweep.core.images.views import make_views, sample_rng
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.keys import FeatureKey
from fpp_sweep.spec.specs import Precision
from tests.clips import random_clip
from tests.painted import Painter, painted

REPOSITORY = Path(__file__).parents[3]
VIEWS = ViewConfig(count=3)
CLIP = random_clip()


class Log:
    """What a progress bar would be told."""

    def __init__(self):
        self.cached = 0
        self.computed = 0
        self.notes = []

    def found(self, count):
        self.cached += count

    def advance(self, count):
        self.computed += count

    def note(self, line):
        self.notes.append(line)


def fill(root, dataset, views=VIEWS, *, clip=CLIP, seed=0, exact=False, **options):
    log = Log()
    features = FeatureCache(root, exact=exact).features(clip, dataset, views, seed, progress=log, **options)
    return features, log


def everything(features):
    return features.batch(0, len(features))


def assert_close(ours, theirs, tolerance=1e-6):
    """torch.testing would load for seconds."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance


def files(root, pattern="*.safetensors"):
    return sorted(root.glob(f"features/*/{pattern}"))


def states(root):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files(root)}


# --- what is computed


def test_features_are_those_of_the_views_one_by_one(tmp_path):
    dataset = painted(70, augmix=True)
    features, _ = fill(tmp_path, dataset, exact=True)
    assert len(features) == 70
    for index in (0, 5, 63, 64, 69):
        sample = dataset.ids[index]
        rng = sample_rng(0, "painted", "test", sample)
        image = dataset.source.image(sample)
        views = make_views(image, VIEWS, CLIP.preprocess, augmix=True, flip=True, rng=rng)
        assert_close(features.batch(index, index + 1)[0], CLIP.image_features(views))


def test_half_precision_is_the_default_and_comes_back_with_unit_norm(tmp_path):
    dataset = painted(10)
    half, exact = fill(tmp_path, dataset)[0], fill(tmp_path, dataset, exact=True)[0]
    assert everything(half).dtype == everything(exact).dtype == torch.float32
    assert_close(everything(half), everything(exact), tolerance=1e-3)
    assert not torch.equal(everything(half), everything(exact))
    assert_close(everything(half).norm(dim=-1), torch.ones(10, 3))


def test_batches_join_to_the_whole_across_chunks(tmp_path):
    features, _ = fill(tmp_path, painted(150))
    whole = everything(features)
    for start, stop in ((0, 1), (60, 70), (63, 64), (64, 129), (149, 150), (140, 999)):
        assert torch.equal(features.batch(start, stop), whole[start:stop])
    assert features.batch(5, 5).shape == (0, 3, 16)
    for indices in ([149, 0, 70, 1, 64], [3], [], list(range(149, -1, -1))):
        assert torch.equal(features.of(np.array(indices, np.int64)), whole[indices])


def test_only_the_chunks_of_the_samples_that_are_asked_for_are_there(tmp_path):
    features, _ = fill(tmp_path, painted(150), samples=[140, 3])
    assert features.kept.tolist() == [*range(64), *range(128, 150)]


def test_a_second_run_computes_nothing(tmp_path):
    first, log = fill(tmp_path, painted(70))
    assert (log.cached, log.computed) == (0, 70)
    before = states(tmp_path)
    again, log = fill(tmp_path, painted(70))
    assert (log.cached, log.computed) == (70, 0)
    assert states(tmp_path) == before
    assert torch.equal(everything(first), everything(again))


def test_the_global_random_stream_is_left_alone(tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    fill(tmp_path, painted(3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "change",
    [
        {"views": ViewConfig(count=4)},
        {"views": ViewConfig(count=3, min_area=0.5)},
        {"views": ViewConfig(count=3, max_area=0.5)},
        {"views": ViewConfig(count=3, augmix="on")},
        {"views": ViewConfig(count=3, flip="off")},
        {"seed": 1},
        {"exact": True},
        {"clip": random_clip(seed=1)},
        {"dataset": dataclasses.replace(painted(3), name="other")},
        {"dataset": dataclasses.replace(painted(3), split="val")},
        {"dataset": dataclasses.replace(painted(3), ids=("7.png", "1.png", "2.png"))},
        {"dataset": dataclasses.replace(painted(3), source=Painter(size=(30, 30)))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_features_depend_on_names_them(tmp_path, change):
    fill(tmp_path, painted(3))
    _, log = fill(tmp_path, **{"dataset": painted(3), **change})
    assert log.computed == 3


def test_every_field_of_a_key_names_its_entry():
    key = FeatureKey(**{field.name: 0 for field in dataclasses.fields(FeatureKey)})
    others = [dataclasses.replace(key, **{field.name: 1}) for field in dataclasses.fields(FeatureKey)]
    assert len({key.name() for key in (key, *others)}) == 1 + len(others)


def test_other_rules_for_views_name_other_features(tmp_path, monkeypatch):
    fill(tmp_path, painted(3))
    monkeypatch.setattr("fpp_sweep.core.images.features.FeatureKey", partial(FeatureKey, views_version=keys.VIEWS + 1))
    assert fill(tmp_path, painted(3))[1].computed == 3


def test_features_of_another_format_are_left_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(keys, "FEATURES", "fpp_sweep features 1")
        fill(tmp_path, painted(3))
    before = {path: path.read_bytes() for path in files(tmp_path, "*")}
    _, log = fill(tmp_path, painted(3))
    assert (log.computed, log.notes) == (3, [])
    assert len(files(tmp_path, "*")) == 2 * len(before)
    assert {path: path.read_bytes() for path in before} == before


class OnGpu:
    """The same model, as if its tower were on a GPU."""

    device = SimpleNamespace(type="cuda")

    def __getattr__(self, name):
        return getattr(CLIP, name)


@pytest.mark.parametrize("exact", [False, True])
def test_a_gpu_shares_features_in_float32_with_a_cpu_however_they_are_kept(tmp_path, exact, monkeypatch):
    monkeypatch.setattr(
        "fpp_sweep.core.images.features.Drawer", lambda preprocess, device: Drawer(preprocess, CLIP.device)
    )
    monkeypatch.setattr("fpp_sweep.core.images.features.faster", lambda tower, reader, *others: reader)
    fill(tmp_path, painted(3), exact=exact)
    assert fill(tmp_path, painted(3), clip=OnGpu(), exact=exact)[1].cached == 3


def test_features_of_one_precision_are_never_taken_for_those_of_another(tmp_path):
    exact, half = (fill(tmp_path, painted(3), precision=precision) for precision in ("float32", "fp16"))
    assert half[1].computed == 3
    assert 0 < (everything(half[0]) - everything(exact[0])).abs().max() < 0.01
    again = [fill(tmp_path, painted(3), precision=precision)[1].computed for precision in ("float32", "fp16")]
    assert again == [0, 0]
    kinds = [torch.device(kind) for kind in ("cpu", "cuda", "cuda:1")]
    told = {precision: [computed_in(precision, kind) for kind in kinds] for precision in get_args(Precision)}
    assert told == {"float32": ["float32"] * 3, "tf32": ["tf32"] * 3, "fp16": ["float16 on cpu", "float16", "float16"]}


@pytest.mark.parametrize("views", [ViewConfig(count=3, augmix="off", flip="on"), ViewConfig(count=3)])
def test_switches_count_as_they_are_resolved(tmp_path, views):
    fill(tmp_path, painted(3))
    assert fill(tmp_path, painted(3), views)[1].computed == 0


def test_a_dataset_without_images_is_refused(tmp_path):
    with pytest.raises(InputError, match="painted, split test: no images"):
        fill(tmp_path, painted(5).head(0))


def test_a_tower_that_gives_nan_is_not_cached(tmp_path):
    with torch.no_grad():
        broken = random_clip()
        broken.visual.project.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        fill(tmp_path, painted(3), clip=broken)
    assert files(tmp_path) == []


# --- limited runs


def test_a_longer_run_takes_over_whole_chunks_and_replaces_the_shorter_one(tmp_path):
    whole = painted(200)
    limited, log = fill(tmp_path, whole.head(70))
    assert log.computed == 70
    before = states(tmp_path)
    full, log = fill(tmp_path, whole)
    assert (log.cached, log.computed) == (CHUNK, 200 - CHUNK)
    after = states(tmp_path)
    assert len(after) == 4  # the chunk of 6 samples is gone
    assert len(set(before.items()) & set(after.items())) == 1
    assert torch.equal(everything(full)[:70], everything(limited))  # its file is gone, its map is not


def test_a_shorter_run_is_served_from_longer_chunks(tmp_path):
    full, _ = fill(tmp_path, painted(100))
    for count in (1, 64, 70, 99):
        limited, log = fill(tmp_path, painted(100).head(count))
        assert (len(limited), log.computed) == (count, 0)
        assert torch.equal(everything(limited), everything(full)[:count])
    assert len(files(tmp_path)) == 2


def test_features_are_the_same_bits_however_a_run_is_cut(tmp_path):
    at_once, _ = fill(tmp_path / "at_once", painted(75), exact=True)
    for count in (3, 66, 70):
        limited, _ = fill(tmp_path / f"{count}", painted(75).head(count), exact=True)
        assert torch.equal(everything(limited), everything(at_once)[:count])


def test_the_size_of_batches_changes_rounding_only(tmp_path):
    many, few = (fill(tmp_path / f"{batch}", painted(20), exact=True, batch=batch)[0] for batch in (1000, 1))
    assert_close(everything(many), everything(few))


# --- images that cannot be read


BAD = frozenset({"1.png", "66.png"})


def test_a_bad_image_fails_the_run_with_its_path_and_leaves_nothing_half_done(tmp_path):
    with pytest.raises(InputError, match=r"/images/1.png: not an image; .*--set work.on_bad_image=skip"):
        fill(tmp_path, painted(70, bad=BAD))
    assert files(tmp_path) == files(tmp_path, ".*") == files(tmp_path, "*.lock") == []
    assert fill(tmp_path, painted(70))[1].computed == 70


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_skipped_image_is_named_and_leaves_the_others_as_they_were(tmp_path, workers):
    good, _ = fill(tmp_path / "good", painted(70))
    features, _ = fill(tmp_path / "bad", painted(70, bad=BAD), on_bad_image="skip", workers=workers)
    kept = [index for index in range(70) if index not in (1, 66)]
    assert features.kept.tolist() == kept
    assert [(item.sample_id, item.reason) for item in features.skipped] == [
        ("1.png", "/images/1.png: not an image"),
        ("66.png", "/images/66.png: not an image"),
    ]
    assert torch.equal(everything(features), everything(good)[kept])
    assert torch.equal(features.batch(60, 66), everything(good)[kept[60:66]])
    first = Chunk.read(files(tmp_path / "bad")[0]).features[:]
    assert [row for row in range(CHUNK) if not first[row].any()] == [1]
    limited, _ = fill(tmp_path / "bad", painted(70, bad=BAD).head(65), on_bad_image="skip")
    assert [item.sample_id for item in limited.skipped] == ["1.png"]


def test_a_run_that_must_not_skip_fails_on_what_an_earlier_one_has_skipped(tmp_path):
    fill(tmp_path, painted(70, bad=BAD), on_bad_image="skip")
    with pytest.raises(InputError, match=r"/images/1.png"):
        fill(tmp_path, painted(70, bad=BAD))


def test_a_skipped_image_is_tried_again_and_kept_once_it_can_be_read(tmp_path):
    fill(tmp_path, painted(70, bad=BAD), on_bad_image="skip")
    _, log = fill(tmp_path, painted(70, bad=BAD), on_bad_image="skip")
    assert log.computed == 0
    features, log = fill(tmp_path, painted(70, bad=frozenset({"66.png"})), on_bad_image="skip")
    assert (log.cached, log.computed) == (6, 64)
    assert len(features) == 69


def test_a_dataset_of_bad_images_only_gives_no_features(tmp_path):
    features, _ = fill(tmp_path, painted(2, bad=frozenset({"0.png", "1.png"})), on_bad_image="skip")
    assert (len(features), len(features.skipped), features.batch(0, 9).shape) == (0, 2, (0, 3, 16))


# --- damage


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def replace_by_text(path):
    path.write_text("not a chunk")


def replace_by_other_tensors(path):
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3)}, path)


def change_the_format(path):
    path.write_bytes(path.read_bytes().replace(keys.FEATURES.encode(), b"fpp_sweep features 1"))
    assert keys.FEATURES.encode() not in path.read_bytes()


def change_the_skipped(path):
    data = path.read_bytes()
    assert b'"skipped":"[]"' in data
    path.write_bytes(data.replace(b'"skipped":"[]"', b'"skipped":"{}"'))


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, truncate, empty, replace_by_text, replace_by_other_tensors, change_the_format, change_the_skipped],
)
@pytest.mark.parametrize("index", [0, 1])
def test_a_damaged_chunk_is_told_and_computed_again(tmp_path, damage, index):
    dataset = painted(70)
    expected = everything(fill(tmp_path, dataset)[0])
    damaged = files(tmp_path)[index]
    damage(damaged)
    features, log = fill(tmp_path, dataset)
    assert log.computed == (64, 6)[index]
    assert len(log.notes) == 1
    assert str(damaged) in log.notes[0]
    assert torch.equal(everything(features), expected)
    assert fill(tmp_path, dataset)[1].computed == 0


def test_without_a_progress_bar_damage_is_logged(tmp_path, caplog):
    fill(tmp_path, painted(3))
    truncate(files(tmp_path)[0])
    FeatureCache(tmp_path).features(CLIP, painted(3), VIEWS, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_chunk_of_other_samples_under_a_wrong_name_is_not_used(tmp_path):
    expected = everything(fill(tmp_path, painted(3))[0])
    other = dataclasses.replace(painted(3), ids=("7.png", "8.png", "9.png"))
    fill(tmp_path, other)
    digests = sample_digests((f"{index}.png", "(24, 20)") for index in range(3))
    mine = chunk_path(files(tmp_path)[0].parent, 0, digests)
    theirs = next(path for path in files(tmp_path) if path != mine)
    mine.write_bytes(theirs.read_bytes())
    features, log = fill(tmp_path, painted(3))
    assert log.computed == 3
    assert torch.equal(everything(features), expected)


def test_a_checksum_is_computed_once_in_a_process(tmp_path, monkeypatch):
    fill(tmp_path, painted(70))
    monkeypatch.setattr(chunks, "_checksum", lambda *_: pytest.fail("computed again"))
    fill(tmp_path, painted(70))


# --- what lies on disk


def test_the_manifest_tells_people_what_an_entry_holds(tmp_path):
    fill(tmp_path, painted(3))
    manifest = json.loads(files(tmp_path, "manifest.json")[0].read_text())
    assert manifest["model"] == "random-0"
    assert (manifest["dataset"], manifest["split"], manifest["seed"]) == ("painted", "test", 0)
    assert (manifest["count"], manifest["augmix"], manifest["flip"]) == (3, False, True)
    assert manifest["dtype"] == "float16"
    assert manifest["created"].startswith("20")


def test_nothing_but_chunks_and_a_manifest_is_left(tmp_path):
    fill(tmp_path, painted(70))
    folder = files(tmp_path)[0].parent
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}


def test_leftovers_of_dead_processes_are_removed_by_the_next_fill(tmp_path):
    fill(tmp_path, painted(3))
    folder = files(tmp_path)[0].parent
    left, active = (folder / f".0000{index}-abc.safetensors.1.2.partial" for index in (7, 8))
    for path in (left, active):
        path.write_bytes(b"half")
    with Entry(folder).lock(8, blocking=False) as held:
        assert held
        fill(tmp_path, painted(70))
    assert not left.exists()
    assert active.exists()


def test_the_default_folder_can_be_named(monkeypatch):
    monkeypatch.setenv("FPP_SWEEP_CACHE", "~/elsewhere")
    assert default_cache() == Path.home() / "elsewhere"
    monkeypatch.delenv("FPP_SWEEP_CACHE")
    assert default_cache() == Path.home() / ".cache" / "fpp_sweep"


# --- no room, no permission


@contextlib.contextmanager
def mounted(folder, options):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_one_clear_line_and_leaves_no_partial_file(tmp_path):
    with mounted(tmp_path / "small", "size=64k") as root:
        with pytest.raises(InputError) as caught:
            fill(root, painted(200), ViewConfig(count=16))
        assert files(root, ".*.partial") == files(root, "*.lock") == []
        message = str(caught.value)
        assert str(root) in message
        assert "no space left for features, 3" in message  # a chunk: 64 images x 16 views x 16 numbers x 2 bytes
        assert "prune" in message
        assert "--cache" in message
        assert "\n" not in message
        written = len(files(root))
        assert written == 1
        subprocess.run(["mount", "-o", "remount,size=4m", str(root)], check=True)
        assert fill(root, painted(200), ViewConfig(count=16))[1].cached == written * CHUNK


def test_a_read_only_cache_can_be_read_but_not_filled(tmp_path):
    with mounted(tmp_path / "fixed", "size=4m") as root:
        fill(root, painted(70))
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        assert fill(root, painted(70))[1].cached == 70
        for dataset in (painted(100), dataclasses.replace(painted(3), name="other")):
            with pytest.raises(InputError, match=r"Read-only file system.*--cache"):
                fill(root, dataset)


def test_a_file_in_place_of_the_cache_is_refused(tmp_path):
    root = tmp_path / "file"
    root.write_text("")
    with pytest.raises(InputError, match=r"Not a directory.*--cache"):
        fill(root, painted(3))


def test_a_limit_on_the_size_of_files_is_reported_like_a_full_disk(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InputError, match="no space left"):
            fill(tmp_path, painted(64), ViewConfig(count=16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == files(tmp_path, ".*") == []


# --- sharing


def test_two_runs_at_once_share_the_work_and_both_get_all_of_it(tmp_path):
    """Threads: locks are between open files, so that they are told apart like processes."""
    dataset, together = painted(6 * CHUNK), threading.Barrier(2)

    def both(_):
        together.wait()
        return fill(tmp_path / "cache", dataset, exact=True)

    with ThreadPoolExecutor(2) as pool:
        (first, first_log), (second, second_log) = pool.map(both, range(2))
    assert first_log.computed + second_log.computed == 6 * CHUNK  # nothing twice
    assert first_log.cached + second_log.cached == 6 * CHUNK
    assert torch.equal(everything(first), everything(second))


def test_a_lock_has_one_holder_though_its_file_comes_and_goes(tmp_path, monkeypatch):
    """Between our opening the file and locking it, its holder goes, and with it the file; another comes."""
    entry, flock, steps = Entry(tmp_path), fcntl.flock, []
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        assert first.enter_context(entry.lock(0, blocking=False))

        def step(descriptor, operation):
            steps.append(operation)
            if len(steps) == 1:
                first.close()
                assert second.enter_context(entry.lock(0, blocking=False))
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", step)
        with entry.lock(0, blocking=False) as held:
            assert not held
        second.close()
        with entry.lock(0, blocking=False) as held:
            assert held
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_waits_for_a_chunk_that_another_is_computing_and_then_looks_again(tmp_path, monkeypatch, finished):
    fill(tmp_path, painted(3))
    entry, lock, asked, waited = Entry(files(tmp_path)[0].parent), Entry.lock, [], []
    with contextlib.ExitStack() as other:
        assert other.enter_context(entry.lock(1, blocking=False))

        def step(entry, number, *, blocking):
            asked.append(number)
            assert len(asked) < 20, "asks again and again"
            if blocking:
                waited.append((number, len(files(tmp_path))))
                other.close()
                if finished:
                    fill(tmp_path, painted(2 * CHUNK))
            return lock(entry, number, blocking=blocking)

        monkeypatch.setattr(Entry, "lock", step)
        _, log = fill(tmp_path, painted(3 * CHUNK))
    assert waited == [(1, 2)]
    assert log.computed == (2 if finished else 3) * CHUNK


# a run whose tower tells when it is at work, and goes on when it is told to, or once nobody is left to tell it
STEPPED = """
    from tests.core.images.test_cache import *

    def says(line):
        print(line, flush=True)

    class Stepped(torch.nn.Module):
        def forward(self, pixels):
            says("tower")
            sys.stdin.readline()
            return CLIP.visual(pixels)

    def telling(entry, number, *, blocking, lock=Entry.lock):
        if blocking:
            says("waits")
        return lock(entry, number, blocking=blocking)

    Entry.lock = telling
    torch.set_num_threads(1)
    clip = dataclasses.replace(CLIP, visual=Stepped())
    features, log = fill(Path(sys.argv[1]), painted(6 * CHUNK), clip=clip, exact=True)
    says(f"computed {log.computed} notes {len(log.notes)}")
"""


@contextlib.contextmanager
def started(root):
    line = [sys.executable, "-c", textwrap.dedent(STEPPED), str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(line, cwd=REPOSITORY, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def hear(process, word):
    assert word in map(str.strip, process.stdout), f"ended without saying {word}"


def tell(process, steps=1):
    process.stdin.write("\n" * steps)


def computed(process):
    process.stdin.close()
    words = list(process.stdout)[-1].split()
    assert process.wait() == 0
    assert words[-1] == "0", "damaged chunks were met"
    return int(words[1])


def expected_features(tmp_path):
    return everything(fill(tmp_path / "expected", painted(6 * CHUNK), exact=True)[0])


@pytest.mark.slow
def test_a_killed_run_is_resumed_where_its_last_whole_chunk_ended(tmp_path):
    root = tmp_path / "cache"
    with started(root) as process:
        for _ in range(2):
            hear(process, "tower")
            tell(process)
        hear(process, "tower")
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = states(root)
    assert len(before) == 2
    assert files(root, "*.lock")  # its file is still there; the lock went with the process
    features, log = fill(root, painted(6 * CHUNK), exact=True)
    assert log.cached == len(before) * CHUNK
    assert log.computed == (6 - len(before)) * CHUNK
    assert before.items() <= states(root).items()
    assert files(root, "*.lock") == files(root, ".*") == []
    assert_close(everything(features), expected_features(tmp_path))


@pytest.mark.slow
def test_two_processes_share_the_work_and_both_get_all_of_it(tmp_path):
    root = tmp_path / "cache"
    with started(root) as first, started(root) as second:
        for process in (first, second):
            hear(process, "tower")
        tell(first)
        hear(first, "tower")
        tell(second, 4)
        hear(second, "waits")  # for the first's second chunk
        counts = [computed(process) for process in (first, second)]
    assert counts == [2 * CHUNK, 4 * CHUNK]  # nothing twice
    features, log = fill(root, painted(6 * CHUNK), exact=True)
    assert log.computed == 0
    assert_close(everything(features), expected_features(tmp_path))


@pytest.mark.slow
def test_a_process_that_waits_takes_over_when_the_other_is_killed(tmp_path):
    root = tmp_path / "cache"
    with started(root) as stuck, started(root) as waiting:
        hear(stuck, "tower")
        for _ in range(5):
            hear(waiting, "tower")
            tell(waiting)
        hear(waiting, "waits")
        assert len(files(root)) == 5
        stuck.kill()
        assert computed(waiting) == 6 * CHUNK


@pytest.mark.slow
def test_features_are_the_same_bits_for_any_number_of_workers(tmp_path):
    dataset = painted(150, augmix=True)
    inline, _ = fill(tmp_path / "0", dataset, exact=True)
    for workers in (1, 2):
        parallel, log = fill(tmp_path / f"{workers}", dataset, exact=True, workers=workers)
        assert log.computed == 150
        assert torch.equal(everything(inline), everything(parallel))


def test_what_was_computed_is_counted_and_what_took_its_time(tmp_path):
    features, _ = fill(tmp_path, painted(3))
    assert {*features.cost} == {"images", "reading and drawing", "tower", "disk"}
    assert features.cost["images"] == 3
    assert min(features.cost.values()) > 0
    more, _ = fill(tmp_path, painted(3), samples=[0, 1])
    assert more.cost == {}


def test_what_time_went_to_is_told_where_it_was_long(tmp_path, monkeypatch):
    assert fill(tmp_path / "short", painted(3))[1].notes == []
    monkeypatch.setattr("fpp_sweep.core.images.features.LOG", 0)
    (note,) = fill(tmp_path / "long", painted(3))[1].notes
    assert note.startswith("image features: time went to ")
    for stage in ("reading and drawing", "tower", "disk"):
        assert f" {stage} " in note
    shares = [int(word) for word in note.split() if word.isdigit()]
    assert 98 <= sum(shares) <= 102
    assert fill(tmp_path / "long", painted(3))[1].notes == []  # all of it was at hand


class ShortOfMemory(torch.nn.Module):
    """Fails as torch does when so many rows need more memory than there is."""

    def __init__(self, work, most):
        super().__init__()
        self.work, self.most, self.sizes = work, most, []

    def forward(self, rows, *others, **named):
        self.sizes.append(len(rows))
        if len(rows) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.work(rows, *others, **named)


def test_groups_are_halved_when_memory_runs_out(tmp_path, monkeypatch):
    dataset = painted(10, augmix=True)
    expected, _ = fill(tmp_path / "whole", dataset, exact=True)
    draw, tower = ShortOfMemory(device_views.draw, 3), ShortOfMemory(CLIP.visual, 8)
    monkeypatch.setattr(device_views, "draw", draw)
    planner = lambda tower, reader, *others: dataclasses.replace(reader, draws=False)  # noqa: E731
    monkeypatch.setattr("fpp_sweep.core.images.features.faster", planner)
    clip = dataclasses.replace(CLIP, visual=tower)
    found, _ = fill(tmp_path / "halved", dataset, exact=True, clip=clip, batch=30)
    assert draw.sizes == [10, 5, 2, 2, 2, 2, 2]
    assert tower.sizes[:3] == [30, 15, 7]
    assert_close(everything(found), everything(expected))


def test_an_image_that_is_timed_goes_through_the_tower_as_others_do(tmp_path, monkeypatch):
    """Where all views of one do not fit in memory at once, in parts."""
    tower, timed = ShortOfMemory(CLIP.visual, 2), []

    def chosen(tower, reader, drawer, *others):
        timed.append(choose_renderer.seconds(tower, dataclasses.replace(reader, draws=False), drawer, *others[:2]))
        return reader

    monkeypatch.setattr("fpp_sweep.core.images.features.faster", chosen)
    fill(tmp_path, painted(3), clip=dataclasses.replace(CLIP, visual=tower))
    assert len(timed) == 1


def test_a_device_is_taken_only_where_it_is_faster_and_that_is_told(monkeypatch):
    """A stand-in for the clock: seconds by whether readers draw."""
    reader = Reader.of(painted(3, bad=frozenset({"0.png"})), VIEWS, CLIP.preprocess, 0)
    for pillow, device in ((0.02, 0.01), (0.01, 0.02)):
        taken = {True: pillow, False: device}
        monkeypatch.setattr(choose_renderer, "seconds", lambda tower, each, *others, taken=taken: taken[each.draws])
        log = Log()
        assert choose_renderer.faster(CLIP.image_features, reader, OnGpu(), 0, 2, log).draws is (pillow < device)
        place = "by Pillow" if pillow < device else "on the device"
        rates = f"{1 / device:.1f} images/s on the device, {1 / pillow:.1f} by Pillow"
        assert log.notes == [f"views are drawn {place}: {rates}, with the image tower"]
        assert choose_renderer.faster(
            CLIP.image_features, reader, CLIP, 0, 2, log
        ).draws  # on a CPU nothing is measured


def test_a_reading_process_that_dies_while_a_gpu_fetches_is_one_line():
    """What torch says then: the thread that pins memory dies of it; without a GPU there is none."""
    shut_down = []
    views = SimpleNamespace(_shutdown_workers=lambda: shut_down.append(True))
    line = r"^a process that reads images has died \(Pin memory thread exited unexpectedly\); "
    with pytest.raises(MachineError, match=line), watched(views):
        raise RuntimeError("Pin memory thread exited unexpectedly")
    assert shut_down


@pytest.mark.parametrize("draws", [True, False])
def test_the_time_of_a_way_is_that_of_reader_and_tower(draws):
    """Measured, so that only what cannot vary is asserted."""
    reader = dataclasses.replace(Reader.of(painted(3), VIEWS, CLIP.preprocess, 0), draws=draws)
    drawer = Drawer(CLIP.preprocess, CLIP.device)
    assert choose_renderer.seconds(CLIP.image_features, reader, drawer, 0, 0) > 0
    assert choose_renderer.seconds(CLIP.image_features, reader, drawer, 0, 1) > 0


class Deadly(Painter):
    """Its reading process is killed at an image, as when memory runs out."""

    def image(self, sample_id):
        if sample_id == "66.png" and multiprocessing.parent_process():
            os.kill(os.getpid(), signal.SIGKILL)
        return Painter.image(self, sample_id)


@pytest.mark.slow
def test_a_reading_process_that_dies_is_one_line_and_the_run_can_be_repeated(tmp_path):
    deadly = dataclasses.replace(painted(70), source=Deadly())
    with pytest.raises(MachineError, match=r"^a process that reads images has died \(.+\); .*--set work.loaders=N"):
        fill(tmp_path, deadly, workers=2)
    assert files(tmp_path, "*.lock") == []
    for _ in range(3):  # torch would raise again as other processes end
        subprocess.run(["true"], check=True)
    assert fill(tmp_path, painted(70), workers=1)[1].computed in (6, 70)  # the first chunk may be whole or not


@pytest.mark.parametrize("augmix", [True, False])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_features_are_the_same_bits_wherever_views_are_drawn(tmp_path, monkeypatch, augmix, workers):
    """As on a GPU that is faster than Pillow: the readers give decoded images and plans."""
    dataset = painted(70, augmix=augmix, bad=BAD)
    expected, _ = fill(tmp_path / "pillow", dataset, exact=True, on_bad_image="skip")
    drawn = []

    def planner(clip, reader, drawer, *others):
        monkeypatch.setattr(
            device_views, "draw", lambda *each, draw=device_views.draw: drawn.append(len(each[0])) or draw(*each)
        )
        return dataclasses.replace(reader, draws=False)

    monkeypatch.setattr("fpp_sweep.core.images.features.faster", planner)
    found, _ = fill(tmp_path / "device", dataset, exact=True, on_bad_image="skip", workers=workers)
    assert sum(drawn) == 68
    assert found.kept.tolist() == expected.kept.tolist()
    assert torch.equal(everything(found), everything(expected))


@pytest.mark.slow
def test_a_bad_image_fails_a_run_with_workers_too(tmp_path):
    with pytest.raises(InputError, match=r"/images/66.png"):
        fill(tmp_path, painted(70, bad=frozenset({"66.png"})), workers=2)
    assert files(tmp_path, "*.lock") == []
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("pruned", [False, True])
def test_an_entry_is_in_use_while_a_run_fills_it_even_if_it_was_pruned_as_it_was_opened(tmp_path, monkeypatch, pruned):
    flock, steps, found = fcntl.flock, [], []

    def step(descriptor, operation):
        if pruned and not steps:
            next(tmp_path.glob("features/*")).rmdir()
        steps.append(operation)
        flock(descriptor, operation)

    def look(*_):
        with unused(next(tmp_path.glob("features/*"))) as free:
            found.append(free)

    monkeypatch.setattr(fcntl, "flock", step)
    monkeypatch.setattr(Log, "advance", look)
    fill(tmp_path, painted(70))
    look()
    assert found == [False, False, True]


def test_features_survive_their_files(tmp_path):
    features, _ = fill(tmp_path, painted(70))
    expected = everything(features)
    for path in files(tmp_path):
        path.unlink()
    assert torch.equal(everything(features), expected)
    assert_close(F.normalize(expected, dim=-1), expected)


def test_a_worker_whose_parent_has_ended_prints_no_traceback(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(kind))
    silence_lost_parent(0)
    for error in (EOFError(), ConnectionResetError(), ValueError()):
        sys.excepthook(type(error), error, None)
    assert printed == [ValueError]


STARTS_A_CHILD = """
import multiprocessing, os, signal

def child(line):
    line.send("child heard nothing")

if __name__ == "__main__":
    from fpp_sweep.core.images.reading import ctrl_c_for_parent_only

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    context = multiprocessing.get_context("spawn")
    line, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    try:
        with ctrl_c_for_parent_only(1):
            process.start()
            theirs.close()
            os.kill(process.pid, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            print("all started")
    except KeyboardInterrupt:
        print("interrupted")
    print(line.recv())
    process.join()
"""


@pytest.mark.slow  # two interpreters
def test_ctrl_c_while_children_start_is_for_the_parent_and_comes_when_they_have(tmp_path):
    (tmp_path / "starts.py").write_text(STARTS_A_CHILD)
    done = subprocess.run([sys.executable, tmp_path / "starts.py"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["all started", "interrupted", "child heard nothing"]
    assert not done.stderr
