"""Views that torch renders against Pillow's: bytes are equal for any box, size, operation and level."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fpp_sweep.core.compute.compiling import eagerly
from fpp_sweep.core.images import augmix, device_views, fused_kernels, views
from fpp_sweep.core.images.device_views import PlannedImage, ViewRenderer
from fpp_sweep.core.images.distorting import mix
from fpp_sweep.core.images.resampling import pack, unpack
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec.config import ViewConfig
from tests.kit.drawn_views import NAMES, Count, operations, picture, resizes, subjects, whole_views
from tests.kit.views import make_views

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = pytest.mark.parametrize("device_name", ["cpu", GPU])


@DEVICES
def test_random_boxes_of_any_image_are_resized_to_pillows_bytes(device_name):
    """Images have sides of one pixel, 4,000 x 3,000 pixels, or sides with a ratio of 1,000; boxes shrink or grow."""
    rng, count = np.random.default_rng(1), Count()
    for _, (pixels, size) in zip(range(60), subjects(rng), strict=False):
        resizes(rng, pixels, min(size, 96), 4 if pixels.size > 1e6 else 8, torch.device(device_name), eagerly, count)
    assert count.cases > 400
    assert count.differ == 0


@DEVICES
def test_every_operation_gives_pillows_bytes(device_name):
    rng, counts = np.random.default_rng(2), {name: Count() for name in NAMES}
    for size in (8, 33, 48):
        operations(rng, size, torch.device(device_name), eagerly, counts)
    assert {name: (count.cases, count.differ) for name, count in counts.items()} == dict.fromkeys(NAMES, (192, 0))


@DEVICES
def test_whole_views_of_several_images_are_equal_to_the_last_bit(device_name):
    rng, count = np.random.default_rng(3), Count()
    while count.cases < 200:
        whole_views(rng, torch.device(device_name), eagerly, count)
    assert count.differ == 0


@DEVICES
@pytest.mark.parametrize("augmixed", [True, False])
def test_rows_are_filled_with_the_same_bits_by_both_renderers(device_name, augmixed):
    """On CUDA, images are copied from pinned memory on a separate stream while the previous group may still render."""
    rng, preprocess = np.random.default_rng(7), Preprocess(size=33)
    config, renderer = ViewConfig(count=4), ViewRenderer(preprocess, torch.device(device_name))
    pixels = torch.zeros(2, 4, 3, 33, 33, device=device_name)
    for number in range(12):
        image = Image.fromarray(picture(rng, *rng.integers(1, 300, 2).tolist()))
        first_rng, second_rng = (views.sample_rng(number, "any", "test", "0") for _ in range(2))
        expected = make_views(image, config, preprocess, augmix=augmixed, flip=True, rng=first_rng)
        plan = views.plan_views(image.size, config, augmix=augmixed, flip=True, rng=second_rng)
        by_pillow = torch.from_numpy(views.render_with_pillow(image, plan, 33))
        if augmixed:
            by_pillow = views.normalize(by_pillow, preprocess)
        planned = PlannedImage.of(image, plan, 33)
        if device_name == "cuda":
            planned, by_pillow = planned.pin_memory(), by_pillow.pin_memory()
        renderer.fill(pixels, {0: planned, 1: by_pillow})
        for row in pixels.clone().cpu():
            assert torch.equal(row.view(torch.int32), expected.view(torch.int32))


def test_the_benchmark_counts_a_case_that_differs_in_one_bit():
    count = Count()
    expected = np.zeros((3, 2, 2), np.uint8)
    actual = torch.zeros(3, 2, 2, dtype=torch.uint8)
    actual[1, 0, 0] = 1
    count.add(actual, expected)
    assert (count.cases, count.differ) == (3, 1)


def test_mixing_rounds_each_product_and_each_sum():
    """If each product and sum were rounded together, more than a tenth of the values would differ."""
    rng = np.random.default_rng(4)
    pictures = np.stack([picture(rng, 33, 33) for _ in range(40)])
    mixing = augmix.plan_mixing(rng.random((10, augmix.N_DRAWS)))
    words = pack(torch.from_numpy(pictures)).view(4, 10, 33, 33)
    actual = mix(words[0], words[1:].transpose(0, 1), torch.from_numpy(mixing.weights))
    parts = pictures.reshape(4, 10, 33, 33, 3).astype(np.float32)
    weights = mixing.weights.T[..., None, None, None]
    expected = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        expected = expected + part * weight
    assert np.array_equal(actual.permute(0, 2, 3, 1).numpy(), expected)
    rounded_once = (parts.astype(np.float64) * weights).sum(0).astype(np.float32)
    assert (rounded_once != expected).mean() > 0.1


def test_packing_and_unpacking_return_the_same_bytes():
    pixels = torch.from_numpy(picture(np.random.default_rng(5), 7, 5))
    assert torch.equal(unpack(pack(pixels)), pixels)


@pytest.mark.parametrize("device_name", [pytest.param("cpu", marks=[pytest.mark.slow, pytest.mark.nightly]), GPU])
def test_fused_kernels_give_the_same_bytes(device_name):
    device = torch.device(device_name)
    runner = fused_kernels.fused_runner(device)
    rng, resized = np.random.default_rng(6), Count()
    for width, height in ((60, 50), (40, 2000)):  # images of the second size are rendered eagerly
        for _ in range(8):
            resizes(rng, picture(rng, width, height), 48, 8, device, runner, resized)
    counts = {name: Count() for name in NAMES}
    if device_name != "cpu":  # on a CPU this takes minutes
        operations(rng, 48, device, runner, counts)
        whole_views(rng, device, runner, counts[NAMES[0]], size=48)
    assert resized.cases > 0
    assert [count.differ for count in (resized, *counts.values())] == [0] * (1 + len(NAMES))
    assert not runner.failure


@pytest.mark.nightly
@pytest.mark.slow
def test_a_compiler_that_rounds_products_and_sums_together_is_not_used(monkeypatch, caplog):
    monkeypatch.setattr(fused_kernels, "ROUND_EACH_STEP", {"cpp.enable_floating_point_contract_flag": "fast"})
    runner = fused_kernels.fused_runner(CPU)
    assert runner.failure == "torch.compile rounds a product and a sum together on cpu"
    assert runner.failure in caplog.text


@pytest.mark.nightly
@pytest.mark.slow
def test_without_a_compiler_views_are_rendered_eagerly_and_the_log_says_so(tmp_path):
    code = """
        import torch
        from fpp_sweep.core.images.fused_kernels import fused_runner
        assert fused_runner(torch.device("cpu")).failure
    """
    environment = {"PATH": "/nowhere", "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "CXX": "none"}
    line = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "views are rendered eagerly from now on: torch.compile failed" in done.stderr


def test_a_compiled_kernel_that_fails_is_logged_once_and_eager_code_takes_over(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("out of registers\nmore lines")

    monkeypatch.setattr(torch, "compile", lambda function, **options: fail)
    runner = fused_kernels.FusedRunner()
    values = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(runner(torch.neg, values), -values)
    assert runner.failure == "torch.compile failed (out of registers)"
    expected = f"views are rendered eagerly from now on: {runner.failure}"
    assert [record.getMessage() for record in caplog.records] == [expected]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("Triton Error [CUDA]: out of memory")]
)
def test_a_kernel_that_runs_out_of_memory_raises_and_is_not_a_failure_of_the_compiler(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(torch, "compile", lambda function, **options: fail)
    runner = fused_kernels.FusedRunner()
    with pytest.raises(type(error)):
        runner(torch.neg, torch.arange(3.0))
    assert not runner.failure


def test_kernels_are_compiled_once_after_some_images_and_only_if_compiling_is_allowed(monkeypatch):
    monkeypatch.setattr(device_views, "EAGER_IMAGES", 5)
    monkeypatch.setattr(device_views, "fused_runner", lambda device: object())
    for compiles, is_eager in ((False, [True] * 4), (True, [True, True, False, False])):
        renderer = ViewRenderer(Preprocess(size=8), CPU, compiles=compiles)
        runners = []
        for _ in range(4):
            renderer._compile_once_it_pays(2)
            runners.append(renderer._run)
        assert [runner is eagerly for runner in runners] == is_eager
        assert len({id(runner) for runner in runners}) == len(set(is_eager))
