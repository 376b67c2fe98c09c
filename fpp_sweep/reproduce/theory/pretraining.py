"""From flatness to sharpness: L_flat, derivatives and sharpness of prompts before and after pretraining.

Prompts are compared at the noise of the trial's settings, which for `reproduce --table theory` is the released noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel
from fpp_sweep.reproduce.theory.entropy import share_of_equal_order
from fpp_sweep.reproduce.theory.finding import Finding, judge
from fpp_sweep.reproduce.theory.flatness import (
    Derivatives,
    FlatGradients,
    Sharpness,
    derivatives,
    draw_double_noise,
    flat_gradients,
    flatness,
    in_double,
    mirrored,
    sharpness,
)
from fpp_sweep.reproduce.theory.setting import Setting

NOISE_FACTORS = (0.01, 0.1, 1.0)  # times the standard deviations of the settings
RHO = (0.05, 0.5)  # length of the step up the gradient, in units of ViT-B/16's embeddings
POWER_ITERATIONS = 6
ALIGNMENT = "alignment only"
RELEASED = "FPP as released"
# kinds of pretraining: changes of the trial's settings
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    ALIGNMENT: {"flat_distance": "none"},
    RELEASED: {"detach": "noisy"},
    "FPP without stop-gradient": {"detach": "none"},
    "flatness only": {"align_distance": "none", "detach": "noisy"},
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AtNoise:
    """L_flat at one size of the noise, its predictions, and its gradients."""

    l_flat: float
    first_order: float  # prediction from the Jacobian
    second_order: float  # prediction from Jacobian and Hessians, in the paper's combination
    gradients: FlatGradients


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredPrompt:
    """Everything that is measured at a context."""

    kind: str
    derivatives: Derivatives
    at_noise: Sequence[AtNoise]  # for each of NOISE_FACTORS
    sharpness: Sharpness

    @property
    def at_full_noise(self) -> AtNoise:
        return self.at_noise[-1]


def pretraining_findings(setting: Setting) -> list[Finding]:
    """Return the findings of the appendix, from the expansion of L_flat to its gradient."""
    model = TextModel(texts=in_double(setting.texts), logit_scale=setting.model.logit_scale)
    prompts = []
    for kind, context in _contexts(setting):
        prompts.append(_measure(setting, model, kind, context.double()))
    return [
        _expansion_finding(prompts),
        _derivatives_finding(prompts),
        _sharpness_finding(prompts),
        _gradient_finding(prompts),
    ]


def _contexts(setting: Setting) -> Iterator[tuple[str, Tensor]]:
    """Yield the kind and context (n, W) of each prompt."""
    yield "anchor prompt", setting.context
    for number in range(setting.sizes.seeds):
        yield "random start", setting.random_start(number)
        for kind, changes in VARIANTS.items():
            yield kind, setting.pretrained(replace(setting.config.fpp, **changes), number)


def _measure(setting: Setting, model: TextModel, kind: str, context: Tensor) -> MeasuredPrompt:
    norms = derivatives(model.texts, context, setting.sizes.probes, setting.generator("probes"))
    return MeasuredPrompt(
        kind=kind,
        derivatives=norms,
        at_noise=[_at_noise(setting, model, context, norms, factor) for factor in NOISE_FACTORS],
        sharpness=sharpness(
            model,
            context,
            setting.views.double(),
            fraction=setting.config.adapt.view_fraction,
            lengths=[rho * setting.unit for rho in RHO],
            iterations=POWER_ITERATIONS,
        ),
    )


def _at_noise(setting: Setting, model: TextModel, context: Tensor, norms: Derivatives, factor: float) -> AtNoise:
    texts, fpp = model.texts, setting.config.fpp
    context_std, class_std = factor * math.sqrt(fpp.context_var), factor * math.sqrt(fpp.class_var)
    generator = setting.generator("flat noise")
    noise = draw_double_noise(
        texts,
        len(context),
        setting.sizes.noise_draws,
        context_std=context_std,
        class_std=class_std,
        generator=generator,
    )
    by_jacobian = context_std**2 * norms.jacobian_context + class_std**2 * norms.jacobian_rest
    by_hessians = (
        context_std**4 * norms.hessian_context
        + class_std**4 * norms.hessian_rest
        + 2 * context_std**2 * class_std**2 * norms.hessian_cross
    )
    first_order = by_jacobian / 2 / len(texts)
    return AtNoise(
        l_flat=flatness(texts, context, noise),
        first_order=first_order,
        second_order=first_order + by_hessians / 4 / len(texts),
        gradients=flat_gradients(texts, context, mirrored(noise)),
    )


def _means_by_kind(prompts: Sequence[MeasuredPrompt], name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean of a number over the prompts of each kind, by `name, kind`."""
    by_kind: dict[str, list[float]] = {}
    for prompt, value in zip(prompts, values, strict=True):
        by_kind.setdefault(f"{name}, {prompt.kind}", []).append(value)
    return {key: mean(numbers) for key, numbers in by_kind.items()}


def _expansion_finding(prompts: Sequence[MeasuredPrompt]) -> Finding:
    """Compare L_flat with its predictions: the smallest and largest ratio over all prompts; 1 where they are right."""
    measured: dict[str, float] = {}
    right = []
    for index, factor in enumerate(NOISE_FACTORS):
        points = [prompt.at_noise[index] for prompt in prompts]
        by_jacobian = [point.l_flat / point.first_order for point in points]
        by_both = [point.l_flat / point.second_order for point in points]
        for name, ratios in (("J's", by_jacobian), ("J's and H's", by_both)):
            measured[f"over {name} term, noise x {factor:g}, least"] = min(ratios)
            measured[f"over {name} term, noise x {factor:g}, most"] = max(ratios)
        right.append(min(by_both) > 0.8 and max(by_both) < 1.25)
    return Finding(
        name="L_flat's expansion",
        says="the flatness term is a positive combination of the squared norms of J and H",
        measured=measured,
        verdict=judge(whole=all(right), part=any(right)),
    )


def _derivatives_finding(prompts: Sequence[MeasuredPrompt]) -> Finding:
    measured: dict[str, float] = {}
    lower = []
    for name in ("jacobian_context", "jacobian_rest", "hessian_context", "hessian_rest", "hessian_cross"):
        means = _means_by_kind(prompts, name, [getattr(prompt.derivatives, name) for prompt in prompts])
        measured |= means
        lower.append(means[f"{name}, {RELEASED}"] < means[f"{name}, {ALIGNMENT}"])
    # the published combination leaves the traces out
    traces = [prompt.derivatives.trace_context for prompt in prompts]
    measured |= _means_by_kind(prompts, "trace of hessian_context", traces)
    return Finding(
        name="derivatives of the features",
        says="minimising L_flat lowers the squared norms of J and H",
        measured=measured,
        verdict=judge(whole=all(lower), part=any(lower)),
    )


def _sharpness_finding(prompts: Sequence[MeasuredPrompt]) -> Finding:
    near, far = (f"h at rho {rho:g}" for rho in RHO)
    sharpness_values: dict[str, list[float]] = {near: [], far: [], "top eigenvalue": []}
    l_flat = []
    for prompt in prompts:
        sharpness_values[near].append(prompt.sharpness.rise[0])
        sharpness_values[far].append(prompt.sharpness.rise[1])
        sharpness_values["top eigenvalue"].append(prompt.sharpness.top_eigenvalue)
        l_flat.append(prompt.at_full_noise.l_flat)
    measured = _means_by_kind(prompts, "L_flat", l_flat)
    orders: dict[str, float] = {}
    for name, values in sharpness_values.items():
        measured |= _means_by_kind(prompts, name, values)
        order = share_of_equal_order(torch.tensor(l_flat), torch.tensor(values))
        orders[f"same order as L_flat, {name}"] = order
    measured |= orders
    less_sharp = measured[f"{near}, {RELEASED}"] < measured[f"{near}, {ALIGNMENT}"]
    ordered = min(orders.values()) > 0.9
    return Finding(
        name="from flatness to sharpness",
        says="a small L_flat gives a smooth loss, so that FPP's prompts are less sharp",
        measured=measured,
        verdict=judge(whole=ordered and less_sharp, part=ordered or less_sharp),
    )


def _gradient_finding(prompts: Sequence[MeasuredPrompt]) -> Finding:
    descents = [prompt.at_full_noise.gradients.descent for prompt in prompts]
    measured: dict[str, float] = {}
    for index, factor in enumerate(NOISE_FACTORS):
        at_factor = [prompt.at_noise[index].gradients.cosine for prompt in prompts]
        measured |= _means_by_kind(prompts, f"cosine, noise x {factor:g}", at_factor)
    at_full_noise = [prompt.at_full_noise.gradients.cosine for prompt in prompts]
    smallest = min(_means_by_kind(prompts, "cosine", at_full_noise).values())
    measured |= _means_by_kind(prompts, "descent of a sign step", descents)
    return Finding(
        name="the gradient of L_flat that is used",
        says="L_flat is minimised (as released, no gradient flows through the noisy features)",
        measured=measured,
        verdict=judge(whole=smallest > 0.9, part=smallest > 0),
    )
