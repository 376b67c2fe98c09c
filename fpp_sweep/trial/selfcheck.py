"""Comparison of a device with this machine's CPU: `doctor --device cuda`.

The embedded model computes the same on both: normalised views, features of both towers, probabilities of every method
and a short pretraining. The CPU computes in float32; tests compare it with a naive reference (tests/reference).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import PIL
import torch
from torch import Tensor

from fpp_sweep.core.compute import choose_device, computing, require_precision_support
from fpp_sweep.core.datasets import Dataset, open_dataset
from fpp_sweep.core.images.reading import Reader
from fpp_sweep.core.images.views import as_tower_input
from fpp_sweep.core.models.clip import Clip, load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.errors import InputError, type_and_message
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.trial.adapting import make_adapter
from fpp_sweep.trial.prompts import make_prompt, prompt_model

FEW_CLASSES, MANY_CLASSES = "textures", "letters"  # embedded datasets without a nearly certain prediction
SAMPLES, VIEWS, PRETRAINING_STEPS = 8, 16, 20
SETTINGS = {
    "views.count": VIEWS,
    "views.augmix": "off",  # such views come as bytes, and the device normalises them
    "fpp.steps": PRETRAINING_STEPS,
}
# largest difference of a component of a unit feature; half precision and TF32 keep 10 bits of each factor
TOWER_TOLERANCE: dict[StagePrecision, float] = {"float32": 1e-5, "tf32": 3e-3, "fp16": 3e-3}
PROBABILITY_TOLERANCE = 1e-4  # largest difference of a class probability
CONTEXT_TOLERANCE = 1e-4  # largest difference of a component of a learned context; components are about 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a comparison."""

    name: str
    passed: bool
    text: str

    def __str__(self) -> str:
        state = "passed" if self.passed else "failed"
        return f"{self.name:28} {state}  {self.text}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A computation that gives the same on the device and on the CPU, up to a tolerance."""

    name: str
    compute: Callable[[Clip], Tensor]
    tolerance: float
    precision: StagePrecision = "float32"  # on the device

    def result(self, clip: Clip, reference: Clip) -> Result:
        """Compare a model on the device with the same model on the CPU."""
        with computing("float32", reference.device):
            expected = self.compute(reference).double()
        try:
            with computing(self.precision, clip.device):
                ours = self.compute(clip).double().cpu()
        except Exception as error:
            return Result(self.name, False, type_and_message(error))
        difference = (ours - expected).abs().max().item()  # nan passes no comparison of numbers
        text = f"differs by at most {difference:.1e}, tolerance {self.tolerance:.0e}"
        return Result(self.name, difference <= self.tolerance, text)


class Inputs:
    """Some images of the embedded datasets, and what the embedded model computes from them."""

    def __init__(self, reference: Clip) -> None:
        self.config = preset("tiny").replace(SETTINGS)
        self.few_classes = open_dataset(FEW_CLASSES, "test")
        self.many_classes = open_dataset(MANY_CLASSES, "test")
        reader = Reader.of(self.few_classes, self.config.views, reference.preprocess, 0)
        images = [reader(sample_id) for sample_id in self.few_classes.ids[:SAMPLES]]
        self._views = torch.stack([image for image in images if isinstance(image, Tensor)])  # (samples, views, ...)
        self._features = self.image_features(reference).unflatten(0, (SAMPLES, VIEWS))

    def pixels(self, clip: Clip) -> Tensor:
        """Return (samples * views, 3, size, size) normalised pixels."""
        return as_tower_input(self._views.flatten(0, 1).to(clip.device), clip.preprocess)

    def image_features(self, clip: Clip) -> Tensor:
        return clip.image_features(self.pixels(clip))

    @torch.no_grad()
    def text_features(self, clip: Clip) -> Tensor:
        """Return (classes, D) features of many class texts."""
        prompt = open_prompt(clip, self.config.anchor_prompt)
        return prompt_model(clip, prompt, self.many_classes).features(prompt.context)

    @torch.no_grad()
    def probabilities(self, clip: Clip, method: str, dataset: Dataset) -> Tensor:
        """Return (samples, classes) probabilities of a method, from the CPU's image features.

        The size of the dataset decides in which form the first gradient is computed.
        """
        config = replace(self.config, method=method, prompt=self.config.anchor_prompt)
        adapter = make_adapter(clip, config, dataset, open_prompt(clip, config.prompt))
        features = self._features[:, : adapter.row.views].to(clip.device)
        logits, _ = adapter.method.predict(adapter.model, adapter.state, features)
        return logits.float().softmax(-1)

    def context(self, clip: Clip, dataset: Dataset) -> Tensor:
        """Return the context after some steps of pretraining."""
        return make_prompt(clip, PretrainTask(config=self.config, dataset=dataset.name, seed=0), dataset).context


def comparisons(inputs: Inputs, device: torch.device) -> Iterator[Comparison]:
    """Yield all comparisons that a device can make."""
    yield Comparison("views", inputs.pixels, tolerance=0)
    for precision in _precisions_of(device):
        tolerance = TOWER_TOLERANCE[precision]
        yield Comparison(f"image tower, {precision}", inputs.image_features, tolerance, precision)
        yield Comparison(f"text tower, {precision}", inputs.text_features, tolerance, precision)
    few, many = inputs.few_classes, inputs.many_classes
    for method in catalogue.BUILT_IN:
        compute = partial(inputs.probabilities, method=method, dataset=few.head(SAMPLES))
        yield Comparison(method, compute, PROBABILITY_TOLERANCE)
    for title, dataset in (("many images", few), ("many classes", many.head(SAMPLES))):
        compute = partial(inputs.probabilities, method=catalogue.TPT, dataset=dataset)
        yield Comparison(f"{catalogue.TPT}, {title}", compute, PROBABILITY_TOLERANCE)
    for dataset in (few, many):
        yield Comparison(f"pretraining, {dataset.name}", partial(inputs.context, dataset=dataset), CONTEXT_TOLERANCE)


def _precisions_of(device: torch.device) -> Iterable[StagePrecision]:
    for precision in get_args(StagePrecision):
        try:
            require_precision_support(precision, device)
        except InputError:
            continue
        yield precision


def check_device(name: str) -> bool:
    """Print a line for each comparison, and return True if all have passed."""
    device = torch.device(choose_device(name))
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    print(f"{kind}, torch {torch.__version__}, cudnn {torch.backends.cudnn.version()}, pillow {PIL.__version__}")
    clip, reference = load("tiny", str(device)), load("tiny", "cpu")
    failed = []
    for comparison in comparisons(Inputs(reference), device):
        result = comparison.result(clip, reference)
        print(result, flush=True)
        if not result.passed:
            failed.append(result.name)
    if failed:
        print(f"failed: {', '.join(failed)}; compute with work.device=cpu, and report these lines")
    return not failed
