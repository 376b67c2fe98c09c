"""Flatness, the derivatives of the features and sharpness, before and after each kind of pretraining."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.methods import TextModel
from fpp_sweep.reproduce.theory.expansion import same_order
from fpp_sweep.reproduce.theory.finding import Finding, judge
from fpp_sweep.reproduce.theory.flatness import (
    Derivatives,
    FlatGradients,
    Sharpness,
    derivatives,
    draw,
    flat_gradients,
    flatness,
    in_double,
    mirrored,
    sharpness,
)
from fpp_sweep.reproduce.theory.setting import Setting

NOISE = (0.01, 0.1, 1.0)  # times the standard deviations of pretraining
RHO = (0.05, 0.5)  # in units of ViT-B/16's embeddings
ROUNDS = 6  # of power iteration
HOW: Mapping[str, Mapping[str, Any]] = {  # kinds of pretraining: what differs from the released form
    "alignment only": {"flat_distance": "none"},
    "FPP as released": {},
    "FPP without stop-gradient": {"detach": "none"},
    "flatness only": {"align_distance": "none"},
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """What was measured at a context; lists go with NOISE."""

    kind: str
    derivatives: Derivatives
    flat: Sequence[float]  # L_flat
    first_order: Sequence[float]  # what J predicts for it
    second_order: Sequence[float]  # what J and the Hessians do, as the paper adds them
    gradients: FlatGradients  # with the noise of pretraining
    near: FlatGradients  # with a hundredth of it
    sharpness: Sharpness


def landscape(setting: Setting) -> list[Finding]:
    """The appendix, from the expansion of L_flat to the gradient that is to lower it."""
    double = in_double(setting.texts)
    places = [
        _measure(setting, TextModel(texts=double, logit_scale=setting.model.logit_scale), *at)
        for at in _contexts(setting)
    ]
    return [_expansion(places), _derivatives(places), _sharpness(places), _gradients(places)]


def _contexts(setting: Setting) -> Iterator[tuple[str, Tensor]]:
    yield "predefined", setting.context
    for number in range(setting.sizes.seeds):
        yield "random start", setting.start(number)
        for kind, knobs in HOW.items():
            yield kind, setting.pretrained(replace(setting.config.fpp, **knobs), number)


def _measure(setting: Setting, model: TextModel, kind: str, context: Tensor) -> Place:
    texts, context, fpp = model.texts, context.double(), setting.config.fpp
    found = derivatives(texts, context, setting.sizes.probes, setting.generator("probes"))
    std = math.sqrt(fpp.context_var), math.sqrt(fpp.class_var)
    flat, gradients, first, second = [], {}, [], []
    for factor in NOISE:
        of_context, of_rest = (factor * each for each in std)
        generator = setting.generator("flat noise")
        noise = draw(texts, len(context), setting.sizes.flat_draws, of_context, of_rest, generator)
        flat.append(flatness(texts, context, noise))
        if factor in (NOISE[0], NOISE[-1]):
            gradients[factor] = flat_gradients(texts, context, mirrored(noise))
        by_jacobian = of_context**2 * found.jacobian_context + of_rest**2 * found.jacobian_rest
        by_hessians = (
            of_context**4 * found.hessian_context
            + of_rest**4 * found.hessian_rest
            + 2 * of_context**2 * of_rest**2 * found.hessian_cross
        )
        first.append(by_jacobian / 2 / len(texts))
        second.append(first[-1] + by_hessians / 4 / len(texts))
    lengths = [rho * setting.scale for rho in RHO]
    return Place(
        kind=kind,
        derivatives=found,
        flat=flat,
        first_order=first,
        second_order=second,
        gradients=gradients[NOISE[-1]],
        near=gradients[NOISE[0]],
        sharpness=sharpness(
            model, context, setting.views.double(), setting.config.adapt.view_fraction, lengths, ROUNDS
        ),
    )


def _by_kind(places: Sequence[Place], name: str, measure: Callable[[Place], float]) -> dict[str, float]:
    """A mean for each kind."""
    kinds = dict.fromkeys(place.kind for place in places)
    return {f"{name}, {kind}": mean(measure(place) for place in places if place.kind == kind) for kind in kinds}


def _expansion(places: Sequence[Place]) -> Finding:
    """L_flat over its prediction, smallest and largest over all places; 1 where the expansion is right."""
    measured, right = {}, []
    for index, factor in enumerate(NOISE):
        for name, predicted in (("J's", "first_order"), ("J's and H's", "second_order")):
            ratios = [place.flat[index] / getattr(place, predicted)[index] for place in places]
            measured[f"over {name} term, noise x {factor:g}, least"] = min(ratios)
            measured[f"over {name} term, noise x {factor:g}, most"] = max(ratios)
        right.append(min(ratios) > 0.8 and max(ratios) < 1.25)
    return Finding(
        name="L_flat's expansion",
        says="the flatness term is a positive combination of the squared norms of J and H",
        measured=measured,
        verdict=judge(whole=all(right), part=any(right)),
    )


def _derivatives(places: Sequence[Place]) -> Finding:
    measured: dict[str, float] = {}
    lower = []
    for name in ("jacobian_context", "jacobian_rest", "hessian_context", "hessian_rest", "hessian_cross"):
        found = _by_kind(places, name, attrgetter(f"derivatives.{name}"))
        measured |= found
        lower.append(found[f"{name}, FPP as released"] < found[f"{name}, alignment only"])
    # the published combination leaves it out
    measured |= _by_kind(places, "trace of hessian_context", attrgetter("derivatives.trace_context"))
    return Finding(
        name="derivatives of the features",
        says="minimising L_flat lowers the squared norms of J and H",
        measured=measured,
        verdict=judge(whole=all(lower), part=any(lower)),
    )


def _sharpness(places: Sequence[Place]) -> Finding:
    measures: dict[str, Callable[[Place], float]] = {
        "L_flat": lambda place: place.flat[-1],
        f"h at rho {RHO[0]:g}": lambda place: place.sharpness.rise[0],
        f"h at rho {RHO[1]:g}": lambda place: place.sharpness.rise[1],
        "top eigenvalue": lambda place: place.sharpness.top,
    }
    measured: dict[str, float] = {}
    for name, measure in measures.items():
        measured |= _by_kind(places, name, measure)
    flat, *sharp = (torch.tensor([measure(place) for place in places]) for measure in measures.values())
    orders = [same_order(flat, each) for each in sharp]
    measured |= {f"same order as L_flat, {name}": order for name, order in zip([*measures][1:], orders, strict=True)}
    near = [*measures][1]
    lower = measured[f"{near}, FPP as released"] < measured[f"{near}, alignment only"]
    ordered = min(orders) > 0.9
    return Finding(
        name="from flatness to sharpness",
        says="a small L_flat gives a smooth loss, so that FPP's prompts are less sharp",
        measured=measured,
        verdict=judge(whole=ordered and lower, part=ordered or lower),
    )


def _gradients(places: Sequence[Place]) -> Finding:
    cosines = _by_kind(places, "cosine", attrgetter("gradients.cosine"))
    return Finding(
        name="the gradient of L_flat that is used",
        says="L_flat is minimised (as released, no gradient flows through the noisy features)",
        measured={
            **cosines,
            **_by_kind(places, f"cosine, noise x {NOISE[0]:g}", attrgetter("near.cosine")),
            **_by_kind(places, "descent of a sign step", attrgetter("gradients.descends")),
        },
        verdict=judge(whole=min(cosines.values()) > 0.9, part=min(cosines.values()) > 0),
    )
