"""Checks of a device against this machine's CPU in float32.

Tests compare the CPU's results with a naive reference (tests/reference). Each check computes the same on the device
and on the CPU, and states its tolerance. The device may be the CPU itself: so the tests run every check without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fpp_sweep.core.compute.compiling import EAGER_CALLS, Compiler
from fpp_sweep.core.compute.devices import is_device_failure
from fpp_sweep.core.compute.memory import run_in_batches
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.methods.gradients import ByJacobian, ByPullback
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import first_sentence
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.trial import proof
from fpp_sweep.trial.proof import CheckResult
from fpp_sweep.trial.proof_bench import MANY_CLASSES, PRETRAINING_STEPS, SAMPLES, Bench, GradientForm

# largest difference of a component of a unit feature; half precision and TF32 keep 10 bits of each factor
TOWER_TOLERANCE: dict[StagePrecision, float] = {"float32": 1e-5, "tf32": 3e-3, "fp16": 3e-3}
# largest difference of a class probability, and of a component of a gradient in relation to the largest component
PROBABILITY_TOLERANCE = 1e-4
CONTEXT_TOLERANCE = 1e-4  # largest difference of a component of a learned context; components are about 0.1
COMPILED_TOLERANCE = 1e-4  # largest difference of a probability or a component with a compiled text tower
TOO_MANY_BYTES = 2**48  # 256 TiB, more memory than any machine has
LARGEST_BATCH = SAMPLES  # views that the check of memory pretends to have memory for

# forms of the first gradient: for few images, for many, and for many if J does not fit on a GPU
GRADIENT_FORMS: dict[str, GradientForm] = {
    "backward pass": ByPullback,
    "Jacobian": ByJacobian,
    "Jacobian in main memory": partial(ByJacobian, on_host=True),
}


def check_tower(bench: Bench, precision: StagePrecision) -> CheckResult:
    """Compare features of images and texts in a precision with the CPU's in float32."""
    expected_texts = bench.text_features(bench.reference, "float32")
    figures = {
        "images": _largest_difference(bench.tower_features(precision), bench.features.flatten(0, 1)),
        "texts": _largest_difference(bench.text_features(bench.clip, precision), expected_texts),
    }
    largest, tolerance = max(figures.values()), TOWER_TOLERANCE[precision]
    return _judge_difference(proof.tower_check(precision), "features", largest, tolerance, figures)


def check_methods(bench: Bench) -> CheckResult:
    """Compare the probabilities of every method with the CPU's, and the forms of the first gradient, in float32."""
    cases = {name: (name, bench.dataset) for name in catalogue.BUILT_IN}
    cases[f"{catalogue.TPT}, {MANY_CLASSES}"] = (catalogue.TPT, bench.many_classes)
    differences = {}
    for case, (name, dataset) in cases.items():
        expected = bench.probabilities(bench.reference, name, dataset)
        differences[case] = _largest_difference(bench.probabilities(bench.clip, name, dataset), expected)
    differences |= _gradient_differences(bench)
    worst = max(differences, key=lambda name: differences[name])
    text = f"{len(catalogue.BUILT_IN)} methods on {SAMPLES} images, the worst is {worst}"
    return _judge_difference(proof.METHODS, text, differences[worst], PROBABILITY_TOLERANCE, differences)


def _gradient_differences(bench: Bench) -> dict[str, float]:
    """Return the largest difference of each form of the first gradient, in relation to its largest component."""
    expected = bench.context_gradients(bench.reference, ByPullback)
    scale = expected.abs().max()
    differences = {}
    for form, build in GRADIENT_FORMS.items():
        gradients = bench.context_gradients(bench.clip, build)
        differences[form] = _largest_difference(gradients / scale, expected / scale)
    return differences


def check_pretraining(bench: Bench) -> CheckResult:
    """Compare the contexts after some steps of pretraining with the CPU's, with few classes and with many."""
    figures = {}
    for dataset in (bench.dataset, bench.many_classes):
        expected = bench.context(bench.reference, dataset)
        figures[dataset.name] = _largest_difference(bench.context(bench.clip, dataset), expected)
    text = f"contexts after {PRETRAINING_STEPS} steps"
    return _judge_difference(proof.PRETRAINING, text, max(figures.values()), CONTEXT_TOLERANCE, figures)


def check_repeat(bench: Bench) -> CheckResult:
    """Compute the same twice on the device: kernels whose order of summation varies give different last bits."""
    computations: dict[str, Callable[[], Tensor]] = {
        "image tower": partial(bench.tower_features, "float32"),
        "pretraining": partial(bench.context, bench.clip),
        f"pretraining, {MANY_CLASSES}": partial(bench.context, bench.clip, bench.many_classes),
    }
    for name in catalogue.BUILT_IN:
        computations[name] = partial(bench.probabilities, bench.clip, name)
    differences = {name: _largest_difference(compute(), compute()) for name, compute in computations.items()}
    unequal = [name for name, difference in differences.items() if difference > 0]
    if not unequal:
        return CheckResult(name=proof.REPEAT, state="passed", text="the same bits twice", figures=differences)
    worst = max(unequal, key=lambda name: differences[name])
    text = f"other last bits the second time: {', '.join(unequal)}; at most {differences[worst]:.1e} ({worst})"
    return CheckResult(name=proof.REPEAT, state="noted", text=text, figures=differences)


def check_memory(bench: Bench) -> CheckResult:
    """Provoke a shortage of memory in the allocator; the tower has to continue with smaller batches.

    A batch of more than LARGEST_BATCH views requests more memory than any machine has.
    """
    shortages = 0

    def features_of(batch: Tensor) -> Tensor:
        nonlocal shortages
        if len(batch) > LARGEST_BATCH:
            shortages += 1
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device=bench.device)  # raises
        return bench.clip.image_features(batch)

    try:
        with computing("float32", bench.device):
            features = run_in_batches(features_of, bench.pixels, len(bench.pixels)).cpu()
    except RuntimeError as error:
        if is_device_failure(error):
            raise
        text = f"a shortage of memory was not survived: {first_sentence(error)}"
        return CheckResult(name=proof.MEMORY, state="failed", text=text)
    difference = _largest_difference(features, bench.features.flatten(0, 1))
    text = f"features after {shortages} shortages of memory"
    return _judge_difference(proof.MEMORY, text, difference, TOWER_TOLERANCE["float32"])


def check_compiled_text(bench: Bench) -> CheckResult:
    """Compare a compiled text tower with the CPU's uncompiled one, in an adaptation and in pretraining.

    On a GPU its kernels are CUDA graphs. The tower is compiled after EAGER_CALLS calls; one call more replays the
    graph. Pretraining has more steps than that.
    """
    try:
        compiled = bench.clip.compiled()
        for _ in range(EAGER_CALLS + 2):
            probabilities = bench.probabilities(compiled, catalogue.TPT)
        context = bench.context(compiled)
    except Exception as error:
        if is_device_failure(error):
            raise
        text = f"torch.compile fails: {first_sentence(error)}"
        return CheckResult(name=proof.COMPILED_TEXT, state="failed", text=text)
    runner = compiled.text.run
    if isinstance(runner, Compiler) and runner.failures:
        return CheckResult(name=proof.COMPILED_TEXT, state="failed", text="; ".join(runner.failures.values()))
    expected = bench.probabilities(bench.reference, catalogue.TPT)
    figures = {
        "probabilities": _largest_difference(probabilities, expected),
        "context": _largest_difference(context, bench.context(bench.reference)),
    }
    text = "probabilities and pretrained context"
    return _judge_difference(proof.COMPILED_TEXT, text, max(figures.values()), COMPILED_TOLERANCE, figures)


def _largest_difference(ours: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference; infinite if it is not a finite number."""
    difference = (ours.double() - expected.double()).abs().max().item()
    if not np.isfinite(difference):
        return float("inf")
    return float(difference)


def _judge_difference(
    name: str, text: str, difference: float, tolerance: float, figures: dict[str, float] | None = None
) -> CheckResult:
    """Return the result of a check that passes if the difference is within the tolerance."""
    judged = f"{text}: differs by at most {difference:.1e}, tolerance {tolerance:.0e}"
    state = proof.pass_or_fail(difference <= tolerance)
    return CheckResult(name=name, state=state, text=judged, figures=figures or {"largest": difference})
