"""Checks of a device against this machine's CPU in float32, whose results the tests hold to the naive reference.

Each check computes the same on both and states its tolerance. `device` may be a CPU, which is then checked against
itself: so the tests run every check, and see it fail on broken code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fpp_sweep.core.compute.compiling import EAGER_CALLS
from fpp_sweep.core.compute.memory import run_in_batches
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.trial import proof
from fpp_sweep.trial.proof import CheckResult
from fpp_sweep.trial.proof_bench import PRETRAINING_STEPS, SAMPLE_VIEWS, SAMPLES, Bench

# largest difference of a component of a unit feature; half precision and TF32 keep 10 bits of each factor
TOWER_TOLERANCE: dict[StagePrecision, float] = {"float32": 1e-5, "tf32": 3e-3, "fp16": 3e-3}
PROBABILITY_TOLERANCE = 1e-4
CONTEXT_TOLERANCE = 1e-4  # of a learned context, whose components are about 0.1
TOO_MANY_BYTES = 2**48  # more than any machine has


def check_tower(bench: Bench, precision: StagePrecision) -> CheckResult:
    """Compare image features in a precision with the CPU's in float32."""
    difference = _largest(bench.tower_features(precision), bench.features.flatten(0, 1))
    return _judge_difference(proof.tower_check(precision), "features", difference, TOWER_TOLERANCE[precision])


def check_rows(bench: Bench) -> CheckResult:
    """Compare the probabilities of every method with the CPU's, both in float32."""
    differences = {}
    for name in catalogue.BUILT_IN:
        differences[name] = _largest(bench.probabilities(bench.clip, name), bench.probabilities(bench.reference, name))
    worst = max(differences, key=lambda name: differences[name])
    text = f"probabilities of {len(differences)} methods on {SAMPLES} images, the worst of {worst}"
    return _judge_difference(proof.ROWS, text, differences[worst], PROBABILITY_TOLERANCE, differences)


def check_pretraining(bench: Bench) -> CheckResult:
    """Compare the context after some steps of pretraining with the CPU's."""
    difference = _largest(bench.context(bench.clip), bench.context(bench.reference))
    text = f"context after {PRETRAINING_STEPS} steps"
    return _judge_difference(proof.PRETRAINING, text, difference, CONTEXT_TOLERANCE)


def check_repeat(bench: Bench) -> CheckResult:
    """Compute the same twice: kernels that add in any order give other last bits."""
    works: dict[str, Callable[[], Tensor]] = {
        "image tower": lambda: bench.tower_features("float32"),
        "pretraining": lambda: bench.context(bench.clip),
    }
    for name in catalogue.BUILT_IN:
        works[name] = lambda name=name: bench.probabilities(bench.clip, name)  # type: ignore[misc]
    differences = {name: _largest(work(), work()) for name, work in works.items()}
    unequal = [name for name, difference in differences.items() if difference > 0]
    if not unequal:
        return CheckResult(name=proof.REPEAT, state="passed", text="the same bits twice", figures=differences)
    worst = max(unequal, key=lambda name: differences[name])
    text = f"other last bits the second time: {', '.join(unequal)}; at most {differences[worst]:.1e} ({worst})"
    return CheckResult(name=proof.REPEAT, state="noted", text=text, figures=differences)


def check_memory(bench: Bench) -> CheckResult:
    """Provoke a shortage of memory in the allocator; the tower has to go on with smaller batches."""
    shortages = 0

    def features_of(part: Tensor) -> Tensor:
        nonlocal shortages
        if len(part) > SAMPLES:
            shortages += 1
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device=bench.device)
        return bench.clip.image_features(part)

    try:
        with computing("float32", bench.device):
            survived = run_in_batches(features_of, bench.pixels, len(bench.pixels)).cpu()
    except RuntimeError as error:
        text = f"a shortage of memory was not survived: {str(error).partition(chr(10))[0]}"
        return CheckResult(name=proof.MEMORY, state="failed", text=text)
    difference = _largest(survived, bench.features.flatten(0, 1))
    text = f"features after {shortages} shortages of memory"
    return _judge_difference(proof.MEMORY, text, difference, TOWER_TOLERANCE["float32"])


def check_compiled_towers(bench: Bench) -> CheckResult:
    """Compare compiled towers with the CPU's eager ones: the image tower, and texts in an adaptation.

    On a GPU the text tower's kernels are CUDA graphs, which are replayed here as well.
    """
    try:
        compiled = bench.clip.compiled()
        with computing("float32", bench.device):
            run = compiled.image_run
            parts = [compiled.image_features(part, run=run).cpu() for part in bench.pixels.split(SAMPLE_VIEWS)]
        for _ in range(EAGER_CALLS + 2):
            probabilities = bench.probabilities(compiled, catalogue.DEFAULT)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return CheckResult(name=proof.COMPILED_TOWERS, state="failed", text=f"torch.compile failed: {reason}")
    of_features = _largest(torch.cat(parts), bench.features.flatten(0, 1))
    expected = bench.probabilities(bench.reference, catalogue.DEFAULT)
    of_probabilities = _largest(probabilities, expected)
    figures = {"features": of_features, "probabilities": of_probabilities}
    text = "features and probabilities"
    return _judge_difference(
        proof.COMPILED_TOWERS, text, max(of_features, of_probabilities), TOWER_TOLERANCE["float32"], figures
    )


def _largest(ours: Tensor, expected: Tensor) -> float:
    """Return the largest difference; infinite if a number is not finite."""
    difference = (ours.double() - expected.double()).abs().max().item()
    if not np.isfinite(difference):
        return float("inf")
    return float(difference)


def _judge_difference(
    name: str, text: str, difference: float, tolerance: float, figures: dict[str, float] | None = None
) -> CheckResult:
    judged = f"{text}: differs by at most {difference:.1e}, tolerance {tolerance:.0e}"
    is_close = difference <= tolerance
    return CheckResult(name=name, state=state_of(is_close), text=judged, figures=figures or {"largest": difference})


def state_of(is_well: bool) -> proof.CheckState:
    if is_well:
        return "passed"
    return "failed"
