"""Checks that views rendered on a device have the bits of Pillow's, and the speed of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fpp_sweep.core.images import views
from fpp_sweep.core.images.device_views import PlannedImage, ViewRenderer, render
from fpp_sweep.core.images.fused_kernels import fused_runner
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import ViewConfig
from fpp_sweep.trial import proof
from fpp_sweep.trial.proof import CheckResult
from fpp_sweep.trial.proof_bench import PRETRAINING_STEPS, Bench

VIEW_SIZE, VIEWS_OF_IMAGE = 32, 5
LONG_SIDES = ((1, 1), (1, 300), (300, 1), (640, 480), (1000, 40))  # sizes of images that are always checked
WHOLE_VIEWS = 64  # views of an image in a sweep
SPEED_SECONDS = 1.0  # length of each measurement of speed
# speed of an H100 with 16 CPU cores, measured on 2026-11-26 (benchmarks/RESULTS.md); printed beside another GPU's
H100_RATES = {
    "images/s, views by Pillow": 3.49,
    "images/s, views on the device": 67.2,
    "views/s, image tower": 38700.0,
    "images/s, tpt": 651.0,
    "steps/s, pretraining": 111.0,
}


def check_views(bench: Bench, images: int) -> CheckResult:
    """Compare the bits of views that the device renders with Pillow's, copies to the device included."""
    preprocess = Preprocess(size=VIEW_SIZE)
    renderer = ViewRenderer(preprocess, bench.device)
    pixels = torch.zeros(1, VIEWS_OF_IMAGE, 3, VIEW_SIZE, VIEW_SIZE, device=bench.device)
    differing = 0
    for planned, expected in _planned_images(images, preprocess):
        if bench.device.type == "cuda":
            planned = planned.pin_memory()
        renderer.fill(pixels, {0: planned})
        differing += not same_bits(pixels[0].cpu(), expected)
    return _judge_views(proof.VIEWS, images, differing)


def check_compiled_views(bench: Bench, images: int) -> CheckResult:
    """Compare the bits of views that compiled kernels render with Pillow's."""
    preprocess = Preprocess(size=VIEW_SIZE)
    runner = fused_runner(bench.device)
    differing = 0
    for planned, expected in _planned_images(images, preprocess):
        if runner.failure:
            return CheckResult(name=proof.COMPILED_VIEWS, state="failed", text=runner.failure)
        on_device = replace(planned, data=planned.data.to(bench.device))
        differing += not same_bits(render([on_device], preprocess, runner)[0].cpu(), expected)
    return _judge_views(proof.COMPILED_VIEWS, images, differing)


def same_bits(ours: Tensor, expected: Tensor) -> bool:
    return torch.equal(ours.contiguous().view(torch.int32), expected.contiguous().view(torch.int32))


def _judge_views(name: str, images: int, differing: int) -> CheckResult:
    text = f"{differing} of {images} images of odd sizes differ from Pillow's, with AugMix and without"
    state = proof.pass_or_fail(differing == 0)
    return CheckResult(name=name, state=state, text=text, figures={"differing": differing})


def _planned_images(count: int, preprocess: Preprocess) -> Iterator[tuple[PlannedImage, Tensor]]:
    """Yield images of odd sizes with their views as Pillow renders them, with AugMix every other time."""
    rng = np.random.default_rng(0)
    config = ViewConfig(count=VIEWS_OF_IMAGE)
    for number in range(count):
        width, height = rng.integers(1, 400, 2).tolist()
        if number < len(LONG_SIDES):
            width, height = LONG_SIDES[number]
        image = Image.fromarray(_picture(rng, width, height, smooth=number % 3 == 0))
        stream = views.sample_rng(number, "proof", "test", "0")
        plan = views.plan_views(image.size, config, augmix=number % 2 == 0, flip=True, rng=stream)
        by_pillow = torch.from_numpy(views.render_with_pillow(image, plan, preprocess.size))
        yield PlannedImage.of(image, plan, preprocess.size), views.normalize(by_pillow, preprocess)


def _picture(rng: np.random.Generator, width: int, height: int, *, smooth: bool) -> NDArray[np.uint8]:
    """Return noise, or a ramp with a little noise."""
    noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if not smooth:
        return noise
    ramp = np.linspace(0, 250, width)[None, :, None] + noise % 5
    return ramp.astype(np.uint8)


def measure_speed(bench: Bench) -> CheckResult:
    """Measure each stage: 64 views of an image of 500 x 400 pixels at 224, and the embedded model."""
    preprocess = Preprocess(size=224)
    rng = np.random.default_rng(0)
    image = Image.fromarray(_picture(rng, 500, 400, smooth=False))
    config = ViewConfig(count=WHOLE_VIEWS)
    plan = views.plan_views(image.size, config, augmix=True, flip=True, rng=rng)
    planned = PlannedImage.of(image, plan, preprocess.size)
    on_device = replace(planned, data=planned.data.to(bench.device))

    def render_on_device() -> None:
        render([on_device], preprocess).sum().item()  # waits for the device

    figures = {
        "images/s, views by Pillow": _rate(1, partial(views.render_with_pillow, image, plan, preprocess.size)),
        "images/s, views on the device": _rate(1, render_on_device),
        "views/s, image tower": _rate(len(bench.pixels), partial(bench.tower_features, "float32")),
        "images/s, tpt": _rate(len(bench.features), partial(bench.probabilities, bench.clip, catalogue.TPT)),
        "steps/s, pretraining": _rate(PRETRAINING_STEPS, partial(bench.context, bench.clip)),
    }
    text = describe_rates(figures, beside_h100=bench.device.type == "cuda")
    return CheckResult(name=proof.SPEED, state="noted", text=text, figures=figures)


def describe_rates(rates: Mapping[str, float], *, beside_h100: bool) -> str:
    """Return the rates of the stages as text, each beside an H100's if asked for.

    >>> describe_rates({"images/s, tpt": 100.0}, beside_h100=True)
    '100 (H100: 651) images/s, tpt'
    """
    parts = []
    for name, rate in rates.items():
        value = f"{rate:.3g}"
        if beside_h100:
            value += f" (H100: {H100_RATES[name]:.3g})"
        parts.append(f"{value} {name}")
    return ", ".join(parts)


def _rate(count: float, work: Callable[[], object]) -> float:
    """Return units per second, after a first call that is not timed."""
    work()
    began, calls = perf_counter(), 0
    while calls == 0 or perf_counter() - began < SPEED_SECONDS:
        work()
        calls += 1
    return count * calls / (perf_counter() - began)
