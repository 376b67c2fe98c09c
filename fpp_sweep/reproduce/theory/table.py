"""Every statement of the paper's theory, what was measured, and the word for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from fpp_sweep.core.models.clip import Clip
from fpp_sweep.reproduce.theory import expansion, identities, steps
from fpp_sweep.reproduce.theory.finding import Finding, Verdict, judge
from fpp_sweep.reproduce.theory.landscape import landscape
from fpp_sweep.reproduce.theory.setting import Setting, Sizes
from fpp_sweep.spec import catalogue

THROUGH_S = "C-TPT and O-TPT lower or raise the mean entropy through S alone"
TOLD = 0.95  # a measure whose R2 is above this says what the entropy does


def theory(
    clip: Clip,
    classes: Sequence[str],
    context: Tensor,
    seed: int = 0,
    *,
    views: Tensor | None = None,
    sizes: Sizes | None = None,
) -> list[Finding]:
    """All findings, for these classes and the `context` (n, W) of the predefined prompt.

    `views` (samples, V, D) are unit image features; without them, those of pictures of the embedded set `scenes`.
    """
    return findings_of(Setting.of(clip, classes, context, views, seed, sizes or Sizes()))


def findings_of(setting: Setting) -> list[Finding]:
    return [
        *_theorem(setting),
        *_penalties(setting),
        *_real_penalties(setting),
        _householder(setting),
        _distillation(setting),
        _sign_step(setting),
        *_penalty_steps(setting),
        *landscape(setting),
    ]


def _theorem(setting: Setting) -> list[Finding]:
    sizes, shapes = setting.sizes, _shapes(setting)
    found = expansion.expand(shapes, sizes.dimensions, sizes.draws, setting.generator("sphere"))
    low, high = sizes.dimensions[0], sizes.dimensions[-1]
    right_slope = all(abs(ratio - 1) < 2 / size for size, ratio in found.slope_ratio.items())
    fast = found.exponent - 2 * found.exponent_error <= -1.5
    classes = shapes.shape[-2]
    by_overlap = classes - 1 - 2 / classes * expansion.signed_overlap(shapes)
    gap = float((expansion.spread(shapes) - by_overlap).abs().max())
    return [
        Finding(
            name="Theorem 1",
            says="at temperature 1 and for uniform views the mean entropy is log K - S/(2KD) + O(D^-3/2)",
            measured={
                f"slope over -1/(2KD), D {low}": found.slope_ratio[low],
                f"slope over -1/(2KD), D {high}": found.slope_ratio[high],
                f"R2, D {low}": found.r_squared[low],
                "exponent of the rest": found.exponent,
                "its standard error": found.exponent_error,
                "rest over the fourth cumulant's term": found.coefficient_ratio,
                "error of that": found.coefficient_error,
            },
            verdict=judge(whole=right_slope and fast, part=right_slope or fast),
        ),
        Finding(
            name="S from L_orth",
            says="S = K - 1 - (2/K) L_orth",
            measured={"largest difference": gap},
            verdict=judge(whole=gap < 1e-10, part=False),
        ),
    ]


def _shapes(setting: Setting) -> Tensor:
    return expansion.families(setting.sizes.classes, setting.generator("shapes"))


def _penalties(setting: Setting) -> list[Finding]:
    """Made-up T in D = 512, uniform views."""
    shapes, size, findings = _shapes(setting), 512, []
    spreads = expansion.spread(shapes)
    for scale in (1.0, 100.0):
        generator = setting.generator("sphere", "penalties")
        if scale == 1:  # the differences between T's are of order 1/D: take out the noise
            rest, _ = expansion.rests(shapes, size, setting.sizes.draws, generator)
            entropies = -spreads / (2 * shapes.shape[-1] * size) + rest + math.log(shapes.shape[-1])
        else:
            entropies = expansion.sphere_entropy(shapes, size, setting.sizes.draws, generator, scale)
        told = expansion.explained(entropies, shapes)
        predicted = math.log(shapes.shape[-1]) - scale**2 * spreads / (2 * shapes.shape[-1] * size)
        findings.append(
            Finding(
                name=f"penalties on made-up T, uniform views, logits x {scale:g}",
                says=THROUGH_S,
                measured={"mean entropy": float(entropies.mean()), "the theorem's": float(predicted.mean()), **told},
                verdict=_told(told),
            )
        )
    return findings


def _told(told: dict[str, float]) -> Verdict:
    return judge(
        whole=all(told[f"{name}: R2"] > TOLD for name in expansion.MEASURES),
        part=told["L_disp: R2"] > TOLD or told["C-TPT as run: R2"] > TOLD,
    )


def nearby_features(setting: Setting) -> Tensor:
    """Text features (B, K, D) of contexts around the predefined prompt."""
    with torch.no_grad():
        return setting.model.features(setting.nearby()).double()


def uniform_entropy(setting: Setting, features: Tensor, scale: float) -> Tensor:
    """The mean entropy (B,) for uniform views; at temperature 1 the theorem's terms, and the rest that is drawn."""
    classes, size = features.shape[-2:]
    rows, generator = expansion.in_own_space(features), setting.generator("sphere", "real")
    if scale != 1:
        return expansion.sphere_entropy(rows, size, setting.sizes.draws, generator, scale)
    rest, _ = expansion.rests(rows, size, setting.sizes.draws, generator)
    return math.log(classes) - expansion.spread(features) / (2 * classes * size) + rest


def real_entropy(setting: Setting, features: Tensor, scale: float) -> Tensor:
    """The mean entropy (B,) for views of pictures."""
    flat = setting.views.flatten(0, 1).double()
    return torch.stack([expansion.entropy(scale * flat @ text.T).mean() for text in features])


def _real_penalties(setting: Setting) -> list[Finding]:
    features = nearby_features(setting)
    classes, size = features.shape[-2:]
    findings = []
    for scale in (1.0, setting.model.logit_scale):
        for kind, mean_entropy in (("uniform", uniform_entropy), ("real", real_entropy)):
            entropies = mean_entropy(setting, features, scale)
            slope, _ = expansion.line(expansion.spread(features), entropies)
            told = expansion.explained(entropies, features)
            findings.append(
                Finding(
                    name=f"penalties on the model's T, {kind} views, logits x {scale:.4g}",
                    says=THROUGH_S,
                    measured={"slope over the theorem's": slope * -2 * classes * size / scale**2, **told},
                    verdict=_told(told),
                )
            )
    return findings


def _householder(setting: Setting) -> Finding:
    gap = identities.householder_gap(setting.sizes.classes, 64, 20, setting.generator("householder"))
    return Finding(
        name="O-TPT's Householder form",
        says="each class's row is reflected onto its axis (released code); the same as the mean row norm less 1",
        measured=asdict(gap),
        verdict=judge(whole=gap.value < 1e-12 and gap.gradient < 1e-9, part=gap.value < 1e-12),
    )


def _distillation(setting: Setting) -> Finding:
    few = replace(setting.config.fpp, steps=10)  # on longer runs the last bits of the sign steps grow
    gap = identities.distillation_gap(
        setting.texts, setting.context, few, setting.weight, setting.generator("distillation")
    )
    return Finding(
        name="FPP's released loss",
        says="alignment plus flatness; as released it is self-distillation, 2 - mean <f, 2 f0 + lambda mean noisy f>",
        measured=asdict(gap),
        verdict=judge(whole=gap.loss < 1e-5 and gap.features < 1e-3, part=gap.loss < 1e-5),
    )


def _sign_step(setting: Setting) -> Finding:
    found = steps.first_step(setting.model, setting.context, setting.views, setting.config.adapt)
    plain = found.cosine > 0.99
    return Finding(
        name="the first step",
        says="one plain gradient step",
        measured={
            "coordinates that move by lr": found.full_moves,
            "cosine with the gradient step": found.cosine,
            "angle in degrees": math.degrees(math.acos(found.cosine)),
        },
        verdict=judge(whole=plain, part=plain),
    )


def _penalty_steps(setting: Setting) -> list[Finding]:
    findings = []
    for name in ("ctpt", "otpt"):
        row = catalogue.method(name)
        assert row.penalty
        found = steps.penalty_step(
            setting.model,
            setting.context,
            setting.views,
            setting.config.adapt,
            catalogue.code_of(row.penalty),
            row.weight,
        )
        findings.append(
            Finding(
                name=f"{name}'s penalty in the first step",
                says="it adds an offset, the same for every sample, to the entropy's step",
                measured={
                    "signs that it turns": found.decided,
                    "signs that are its own": found.of_penalty,
                    "signs that twice its weight turns": found.doubled,
                    "step less sum of steps, relative": found.gap,
                    "its change shared by all samples": found.shared,
                },
                verdict=judge(whole=found.gap < 0.01, part=found.shared > 0.95),
            )
        )
    return findings
