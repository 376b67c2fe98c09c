"""The choice between Pillow and a GPU as renderer of views, which does not change any bit of a feature."""

import dataclasses

import pytest
import torch

from fpp_sweep.core.images import choose_renderer, device_views
from fpp_sweep.core.images.device_views import ViewRenderer
from fpp_sweep.core.images.reading import Reader
from tests.core.images.caches import BAD, CLIP, VIEWS, Log, OnGpu, ShortOfMemory, everything, fill
from tests.kit.datasets import painted_dataset


@pytest.mark.parametrize(("pillow", "device", "chosen"), [(0.02, 0.01, "device"), (0.01, 0.02, "pillow")])
def test_a_gpu_renders_only_if_it_is_faster_and_the_choice_is_noted(monkeypatch, pillow, device, chosen):
    """The measured seconds are replaced by numbers that depend on the renderer."""
    reader = Reader.of(painted_dataset(3, bad=frozenset({"0.png"})), VIEWS, CLIP.preprocess, 0)
    seconds = {"pillow": pillow, "device": device}
    monkeypatch.setattr(choose_renderer, "seconds_per_image", lambda tower, reader, *_: seconds[reader.renderer])
    log = Log()
    assert choose_renderer.choose_renderer(CLIP.image_features, reader, OnGpu(), 0, 2, log) == chosen
    words = {"pillow": "by Pillow", "device": "on the device"}
    rates = f"{1 / device:.1f} images/s on the device, {1 / pillow:.1f} by Pillow"
    assert log.notes == [f"views are rendered {words[chosen]}: {rates}, with the image tower"]


def test_on_a_cpu_pillow_is_chosen_without_a_measurement(monkeypatch):
    reader = Reader.of(painted_dataset(3), VIEWS, CLIP.preprocess, 0)
    monkeypatch.setattr(choose_renderer, "seconds_per_image", lambda *_: pytest.fail("measured"))
    renderer = ViewRenderer(CLIP.preprocess, CLIP.device)
    assert choose_renderer.choose_renderer(CLIP.image_features, reader, renderer, 0, 2, Log()) == "pillow"


def test_without_a_readable_image_pillow_is_chosen():
    reader = Reader.of(painted_dataset(2, bad=frozenset({"0.png", "1.png"})), VIEWS, CLIP.preprocess, 0)
    log = Log()
    assert choose_renderer.choose_renderer(CLIP.image_features, reader, OnGpu(), 0, 2, log) == "pillow"
    assert log.notes == []


@pytest.mark.parametrize("renderer", ["pillow", "device"])
def test_a_timed_image_is_read_drawn_and_encoded_in_all_its_views(renderer):
    encoded = []

    def tower(views):
        encoded.append(len(views))
        return CLIP.image_features(views)

    reader = dataclasses.replace(Reader.of(painted_dataset(3), VIEWS, CLIP.preprocess, 0), renderer=renderer)
    view_renderer = ViewRenderer(CLIP.preprocess, CLIP.device)
    assert choose_renderer.seconds_per_image(tower, reader, view_renderer, 0, 0) > 0
    assert encoded == [VIEWS.count] * choose_renderer.REPEATS


@pytest.mark.parametrize(("workers", "seconds"), [(0, 5.0), (1, 3.0), (2, 2.0)])
def test_with_readers_the_slower_of_reading_and_computing_decides(monkeypatch, workers, seconds):
    measured = iter([3.0, 2.0])  # seconds to read and to compute
    monkeypatch.setattr(choose_renderer, "_fastest", lambda work: next(measured))
    reader = Reader.of(painted_dataset(3), VIEWS, CLIP.preprocess, 0)
    view_renderer = ViewRenderer(CLIP.preprocess, CLIP.device)
    assert choose_renderer.seconds_per_image(CLIP.image_features, reader, view_renderer, 0, workers) == seconds


def test_a_timed_image_goes_through_the_tower_in_smaller_batches_if_memory_is_short(tmp_path, monkeypatch):
    tower, seconds = ShortOfMemory(CLIP.visual, max_rows=2), []

    def measure(tower, reader, view_renderer, index, workers, progress):
        by_device = dataclasses.replace(reader, renderer="device")
        seconds.append(choose_renderer.seconds_per_image(tower, by_device, view_renderer, index, workers))
        return "pillow"

    monkeypatch.setattr("fpp_sweep.core.images.features.choose_renderer", measure)
    fill(tmp_path, painted_dataset(3), clip=dataclasses.replace(CLIP, visual=tower, device_views="eager"))
    assert len(seconds) == 1


@pytest.mark.parametrize("augmix", [True, False])
def test_images_that_a_device_has_no_memory_to_render_are_measured_and_rendered_by_pillow(
    tmp_path, monkeypatch, augmix
):
    dataset, seconds = painted_dataset(3, augmix=augmix), []
    by_pillow, _ = fill(tmp_path / "pillow", dataset, exact=True)

    def measure(tower, reader, view_renderer, index, workers, progress):
        by_device = dataclasses.replace(reader, renderer="device")
        seconds.append(choose_renderer.seconds_per_image(tower, by_device, view_renderer, index, workers))
        return "device"

    monkeypatch.setattr("fpp_sweep.core.images.features.choose_renderer", measure)
    monkeypatch.setattr(device_views, "render", ShortOfMemory(device_views.render, max_rows=0))
    clip = dataclasses.replace(CLIP, device_views="eager")
    by_device, _ = fill(tmp_path / "device", dataset, clip=clip, exact=True)
    assert seconds[0] > 0
    assert torch.equal(everything(by_device), everything(by_pillow))


def test_any_other_error_of_a_device_that_renders_is_raised(monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device_views, "render", fail)
    reader = dataclasses.replace(Reader.of(painted_dataset(3), VIEWS, CLIP.preprocess, 0), renderer="device")
    view_renderer = ViewRenderer(CLIP.preprocess, CLIP.device)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        choose_renderer.seconds_per_image(CLIP.image_features, reader, view_renderer, 0, 0)


@pytest.mark.parametrize("augmix", [True, False])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.nightly])])
def test_features_are_the_same_bits_with_either_renderer(tmp_path, monkeypatch, augmix, workers):
    dataset = painted_dataset(70, augmix=augmix, bad=BAD)
    by_pillow, _ = fill(tmp_path / "pillow", dataset, exact=True, on_bad_image="skip")
    group_sizes, render = [], device_views.render

    def count_and_render(images, *others):
        group_sizes.append(len(images))
        return render(images, *others)

    monkeypatch.setattr(device_views, "render", count_and_render)
    monkeypatch.setattr("fpp_sweep.core.images.features.choose_renderer", lambda *_: "device")
    clip = dataclasses.replace(CLIP, device_views="eager")
    by_device, _ = fill(tmp_path / "device", dataset, clip=clip, exact=True, on_bad_image="skip", workers=workers)
    assert sum(group_sizes) == 68
    assert by_device.sample_indices.tolist() == by_pillow.sample_indices.tolist()
    assert torch.equal(everything(by_device), everything(by_pillow))
