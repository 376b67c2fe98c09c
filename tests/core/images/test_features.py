"""Image features: their values, their keys, limited runs, and images that cannot be read."""

import dataclasses

import numpy as np
import pytest
import torch

from fpp_sweep.core.images.features import CHUNK
from fpp_sweep.core.images.views import sample_rng
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.spec.errors import InputError
from tests.core.images.caches import BAD, CLIP, VIEWS, ShortOfMemory, assert_close, everything, file_states, files, fill
from tests.kit.datasets import Painter, painted_dataset
from tests.kit.models import random_clip
from tests.kit.views import make_views

# --- values and keys


def test_features_equal_those_of_each_images_views(tmp_path):
    dataset = painted_dataset(70, augmix=True)
    features, _ = fill(tmp_path, dataset, exact=True)
    for index in (0, 5, 63, 64, 69):
        sample = dataset.ids[index]
        rng = sample_rng(0, "painted", "test", sample)
        image = dataset.source.image(sample)
        views = make_views(image, VIEWS, CLIP.preprocess, augmix=True, flip=True, rng=rng)
        assert_close(features.of(np.array([index]))[0], CLIP.image_features(views))


def test_features_are_stored_in_half_precision_by_default_and_read_with_unit_norm(tmp_path):
    dataset = painted_dataset(10)
    half, exact = fill(tmp_path, dataset)[0], fill(tmp_path, dataset, exact=True)[0]
    assert everything(half).dtype == everything(exact).dtype == torch.float32
    assert_close(everything(half), everything(exact), tolerance=1e-3)
    assert not torch.equal(everything(half), everything(exact))
    assert_close(everything(half).norm(dim=-1), torch.ones(10, 3))


def test_batches_of_features_join_across_chunks(tmp_path):
    features, _ = fill(tmp_path, painted_dataset(150))
    whole = everything(features)
    for indices in ([149, 0, 70, 1, 64], [3], range(60, 70), range(64, 129), range(149, -1, -1)):
        assert torch.equal(features.of(np.array(indices)), whole[list(indices)])


def test_only_chunks_that_hold_requested_samples_are_computed(tmp_path):
    _, log = fill(tmp_path, painted_dataset(150), samples=[140, 3])
    assert log.computed == 64 + 22


def test_a_second_run_computes_nothing(tmp_path):
    first, log = fill(tmp_path, painted_dataset(70))
    assert (log.cached, log.computed) == (0, 70)
    before = file_states(tmp_path)
    again, log = fill(tmp_path, painted_dataset(70))
    assert (log.cached, log.computed) == (70, 0)
    assert file_states(tmp_path) == before
    assert torch.equal(everything(first), everything(again))


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
        {"dataset": dataclasses.replace(painted_dataset(3), name="other")},
        {"dataset": dataclasses.replace(painted_dataset(3), split="val")},
        {"dataset": dataclasses.replace(painted_dataset(3), ids=("7.png", "1.png", "2.png"))},
        {"dataset": dataclasses.replace(painted_dataset(3), source=Painter(size=(30, 30)))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_input_of_features_is_part_of_their_key(tmp_path, change):
    fill(tmp_path, painted_dataset(3))
    _, log = fill(tmp_path, **{"dataset": painted_dataset(3), **change})
    assert log.computed == 3


def test_features_of_different_precisions_have_different_entries(tmp_path):
    exact, _ = fill(tmp_path, painted_dataset(3), precision="float32")
    half, log = fill(tmp_path, painted_dataset(3), precision="fp16")
    assert log.computed == 3
    assert 0 < (everything(half) - everything(exact)).abs().max() < 0.01
    for precision in ("float32", "fp16"):
        assert fill(tmp_path, painted_dataset(3), precision=precision)[1].computed == 0


@pytest.mark.parametrize("views", [ViewConfig(count=3, augmix="off", flip="on"), ViewConfig(count=3)])
def test_auto_shares_features_with_the_setting_that_it_resolves_to(tmp_path, views):
    fill(tmp_path, painted_dataset(3))
    assert fill(tmp_path, painted_dataset(3), views)[1].computed == 0


def test_a_dataset_without_images_is_refused(tmp_path):
    with pytest.raises(InputError, match="painted, split test: no images"):
        fill(tmp_path, painted_dataset(5).head(0))


def test_features_that_are_not_finite_are_not_cached(tmp_path):
    with torch.no_grad():
        broken = random_clip()
        broken.visual.project.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        fill(tmp_path, painted_dataset(3), clip=broken)
    assert files(tmp_path) == []


# --- limited runs


def test_runs_on_the_first_samples_and_on_all_share_full_chunks(tmp_path):
    whole = painted_dataset(200)
    limited, log = fill(tmp_path, whole.head(70))
    assert log.computed == 70
    full, log = fill(tmp_path, whole)
    assert (log.cached, log.computed) == (CHUNK, 200 - CHUNK)
    assert torch.equal(everything(full)[:70], everything(limited))
    assert fill(tmp_path, whole.head(2 * CHUNK))[1].computed == 0


def test_a_limited_run_gives_the_same_bits_as_a_whole_run(tmp_path):
    at_once, _ = fill(tmp_path / "at_once", painted_dataset(75), exact=True)
    for count in (3, 66, 70):
        limited, _ = fill(tmp_path / f"{count}", painted_dataset(75).head(count), exact=True)
        assert torch.equal(everything(limited), everything(at_once)[:count])


# --- images that cannot be read


def test_a_bad_image_fails_the_run_and_leaves_no_partial_files(tmp_path):
    with pytest.raises(InputError, match=r"/images/1.png: not an image; .*doctor --verify"):
        fill(tmp_path, painted_dataset(70, bad=BAD))
    assert files(tmp_path) == files(tmp_path, ".*") == files(tmp_path, "*.lock") == []
    assert fill(tmp_path, painted_dataset(70))[1].computed == 70


# --- cost and memory


def test_the_cost_counts_computed_images_and_seconds_by_stage(tmp_path):
    features, _ = fill(tmp_path, painted_dataset(3))
    assert {*features.cost} == {"images", "reading and rendering", "tower", "disk"}
    assert features.cost["images"] == 3
    assert min(features.cost.values()) > 0
    more, _ = fill(tmp_path, painted_dataset(3), samples=[0, 1])
    assert more.cost == {}


def test_batches_are_halved_when_memory_runs_out(tmp_path):
    dataset = painted_dataset(10, augmix=True)
    expected, _ = fill(tmp_path / "whole", dataset, exact=True)
    tower = ShortOfMemory(CLIP.visual, max_rows=8)
    clip = dataclasses.replace(CLIP, visual=tower)
    halved, _ = fill(tmp_path / "halved", dataset, exact=True, clip=clip, batch=30)
    assert tower.sizes[:3] == [30, 15, 7]
    assert_close(everything(halved), everything(expected))
