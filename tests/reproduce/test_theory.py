"""The paper's theory: each identity, each rate, and what AdamW and the stop-gradient make of it."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fpp_sweep.core.fpp import Loss, _terms, draw_noise
from fpp_sweep.core.methods.gradients import ByJacobian
from fpp_sweep.core.methods.penalties import dispersion, orthogonality
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.reproduce.theory import expansion, flatness, identities, steps, theory
from fpp_sweep.reproduce.theory.setting import QUICK, Setting
from fpp_sweep.spec.config import FppConfig, preset
from tests.clips import random_clip
from tests.texts import CLASSES, twins

SCENES = ("beach", "forest", "mountain", "desert", "city", "ocean", "night sky", "sunset", "meadow", "snowfield")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tiny():
    clip = load("tiny", "cpu")
    return Setting.of(clip, SCENES, open_prompt(clip, "a photo of a").context, None, 0, QUICK)


# Theorem 1


def test_the_entropy_falls_with_the_spread_as_the_theorem_says():
    found = expansion.expand(expansion.families(10, generator()), (32, 128, 512, 2048), 4000, generator(1))
    for size, ratio in found.slope_ratio.items():
        assert ratio == pytest.approx(1, abs=1 / size)
        assert found.r_squared[size] > 0.9999


@pytest.mark.parametrize("classes", [3, 10, 30])
def test_the_rest_falls_faster_than_the_theorem_asks_and_is_the_fourth_cumulants(classes):
    sizes = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    found = expansion.expand(expansion.families(classes, generator(classes)), sizes, 4000, generator(1))
    assert found.exponent + 3 * found.exponent_error < -1.5
    assert found.exponent == pytest.approx(-2, abs=0.05 + 3 * found.exponent_error)
    assert found.coefficient_ratio == pytest.approx(1, abs=4 * found.coefficient_error + 0.01)


def test_the_controlled_mean_is_the_plain_one_on_whole_vectors():
    rows, size = expansion.families(6, generator())[:8], 32
    rest, error = expansion.rests(rows, size, 4000, generator(1))
    views = F.normalize(torch.randn(200_000, size, generator=generator(2), dtype=torch.float64), dim=-1)
    turned = F.pad(rows, (0, size - 6)) @ torch.linalg.qr(torch.randn(size, size, generator=generator(3)).double()).Q
    for shape, own, precision in zip(turned, rest, error, strict=True):
        plain = expansion.entropy(views @ shape.T)
        expected = math.log(6) - expansion.spread(shape) / (2 * 6 * size) + own
        assert abs(plain.mean() - expected) < 4 * (plain.std() / len(views) ** 0.5 + precision)


def test_the_spread_is_that_of_the_signed_overlaps():
    rows = expansion.families(7, generator())
    torch.testing.assert_close(expansion.spread(rows), 7 - 1 - 2 / 7 * expansion.signed_overlap(rows))


def test_the_least_signed_overlap_is_not_orthogonal_and_o_tpt_sees_no_signs():
    orthogonal = torch.eye(6, dtype=torch.float64)
    simplex = F.normalize(orthogonal - 1 / 6, dim=-1)
    assert expansion.signed_overlap(simplex) < expansion.signed_overlap(orthogonal)
    assert orthogonality(simplex) > orthogonality(orthogonal)
    rows = expansion.families(6, generator())[5]
    flipped = rows * torch.tensor([1.0, -1.0] * 3)[:, None]
    torch.testing.assert_close(orthogonality(flipped), orthogonality(rows))
    assert expansion.spread(flipped) > expansion.spread(rows) + 0.5


def test_the_stand_ins_explain_the_entropy_at_temperature_one_only():
    shapes = expansion.families(10, generator())
    rest, _ = expansion.rests(shapes, 512, 4000, generator(1))
    cold = expansion.explained(rest - expansion.spread(shapes) / (20 * 512), shapes)
    assert cold["L_disp: R2"] > 0.999
    assert cold["L_disp: R2"] == pytest.approx(cold["L_orth: R2"])
    assert cold["O-TPT as run: R2"] < 0.95
    hot = expansion.explained(expansion.sphere_entropy(shapes, 512, 4000, generator(1), 100.0), shapes)
    assert hot["L_disp: R2"] < 0.95


def test_rows_keep_their_products_in_the_space_that_they_span():
    features = F.normalize(torch.randn(3, 5, 40, generator=generator()), dim=-1)
    rows = expansion.in_own_space(features)
    torch.testing.assert_close(rows @ rows.mT, (features @ features.mT).double(), atol=1e-6, rtol=0)


# Two forms of one loss


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_o_tpts_line_is_the_householder_form(classes):
    gap = identities.householder_gap(classes, 32, 5, generator(classes))
    assert gap.value < 1e-12
    assert gap.gradient < 1e-9


@pytest.mark.parametrize("weight", [0.5, 2.5])
def test_fpps_released_loss_and_gradient_are_self_distillation(weight):
    pair = twins()
    config = FppConfig()
    context = pair.context + 0.1 * torch.randn(pair.context.shape, generator=generator())
    noise = next(draw_noise(pair.texts, 4, config, generator(1)))
    target = pair.texts.features(pair.context)
    mask = pair.texts.packing.attention_mask(5)
    terms, gradient = _terms(pair.texts, mask, context, target, noise, Loss.of(config, weight, context.device))
    value, expected = identities.with_gradient(identities.distillation(pair.texts, target, noise, weight), context)
    torch.testing.assert_close(terms.sum(), value)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_pretraining_is_self_distillation():
    pair = twins()
    gap = identities.distillation_gap(pair.texts, pair.context, FppConfig(steps=5), 1.5, generator())
    assert gap.loss < 1e-5
    assert gap.features < 1e-3
    undetached = FppConfig(steps=5, detach="none")
    assert identities.distillation_gap(pair.texts, pair.context, undetached, 1.5, generator()).features > 1e-2


# The first step


def test_the_first_step_moves_nearly_every_coordinate_by_lr(tiny):
    found = steps.first_step(tiny.model, tiny.context, tiny.views, tiny.config.adapt)
    assert found.full_moves > 0.9
    assert 0.5 < found.cosine < 0.9  # sqrt(2 / pi) = 0.8 were the gradient's entries normal


def test_the_step_is_the_sign_of_the_gradient_by_autograd(tiny):
    adapt = tiny.config.adapt
    step = steps.step_of(tiny.model, tiny.context, tiny.views, Tpt(adapt=adapt))
    gradients = steps.entropy_gradients(tiny.model, tiny.context, tiny.views, adapt.view_fraction).flatten(1)
    clear = gradients.abs() > 1e-4
    assert clear.float().mean() > 0.5
    assert torch.equal(step.sign()[clear], -gradients.sign()[clear])


@pytest.mark.parametrize(("penalty", "weight"), [(dispersion, 50.0), (orthogonality, 18.0)])
def test_a_penalty_decides_signs_and_does_not_add(tiny, penalty, weight):
    found = steps.penalty_step(tiny.model, tiny.context, tiny.views, tiny.config.adapt, penalty, weight)
    assert found.decided > 0.3
    assert found.of_penalty > 0.9
    assert found.gap > 0.5
    assert found.shared < 0.8
    faint = steps.penalty_step(tiny.model, tiny.context, tiny.views, tiny.config.adapt, penalty, 1e-6)
    assert faint.decided < 0.05


# From flatness to sharpness


def test_derivatives_are_those_of_autograd():
    pair = twins(width=8, heads=2, layers=1, embed_dim=4, classes=("forest", "ox"))
    texts, context = flatness.in_double(pair.texts), pair.context.double()
    found = flatness.derivatives(texts, context, 300, generator())
    with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        jacobian = torch.autograd.functional.jacobian

        def first(context):
            return jacobian(texts.features, context, create_graph=True)

        hessian = jacobian(first, context).reshape(8, context.numel(), context.numel())
        size = jacobian(texts.features, context).square().sum().item()
    traces = hessian.diagonal(dim1=1, dim2=2).sum(-1)
    assert found.jacobian_context == pytest.approx(size, rel=1e-6)
    assert found.hessian_context == pytest.approx(float(hessian.square().sum()), rel=0.1)
    assert found.trace_context == pytest.approx(float(traces.square().sum()), rel=0.2)


def test_the_jacobian_is_the_engines(tiny):
    found = flatness.derivatives(flatness.in_double(tiny.texts), tiny.context.double(), 1, generator())
    first = ByJacobian(tiny.texts, tiny.context)
    rows = first.backward(torch.eye(first.features.numel()).view(-1, *first.features.shape))
    assert found.jacobian_context == pytest.approx(float(rows.square().sum()), rel=1e-4)


def test_a_little_noise_is_worth_its_jacobian():
    pair = twins()
    texts, context = flatness.in_double(pair.texts), pair.context.double()
    found = flatness.derivatives(texts, context, 1, generator())
    noise = flatness.draw(texts, 4, 2000, 1e-4, 2e-4, generator())
    expected = (1e-8 * found.jacobian_context + 4e-8 * found.jacobian_rest) / (2 * len(texts))
    assert flatness.flatness(texts, context, noise) == pytest.approx(expected, rel=0.05)


def test_the_gradient_in_use_may_point_uphill(tiny):
    """Along a curve of features on the circle it is minus half the true one, for little noise: see docs/theory.md."""
    at, offsets = torch.tensor(0.4, dtype=torch.float64), 1e-3 * torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def curve(place):
        angle = place + place**2
        return torch.stack([angle.cos(), angle.sin()], dim=-1)

    clean, noisy = (at.clone().requires_grad_() for _ in range(2))
    loss = 1 - (curve(clean) * curve(noisy + offsets)).sum(-1).mean()
    released, other = torch.autograd.grad(loss, (clean, noisy))
    assert (released / (released + other)).item() == pytest.approx(-0.5, rel=1e-3)

    texts, learned = flatness.in_double(tiny.texts), tiny.pretrained(replace(tiny.config.fpp, steps=60), 0)
    fpp = tiny.config.fpp
    noise = flatness.draw(texts, 4, 32, fpp.context_var**0.5, fpp.class_var**0.5, generator())
    found = flatness.flat_gradients(texts, learned.double(), flatness.mirrored(noise))
    assert found.cosine < 0
    assert found.descends < 0


def test_sharpness_is_the_rise_uphill():
    pair = twins()
    views = pair.views(3, 16)
    found = flatness.sharpness(pair.model, pair.context, views, 0.25, [1e-3, 1e-2], 1)
    assert found.rise[0] == pytest.approx(1e-3 * found.gradient, rel=0.05)
    assert found.rise[1] > found.rise[0]


# The whole


def test_the_table_is_complete_and_finite():
    clip = random_clip(embed_dim=32)
    sizes = replace(QUICK, dimensions=(64, 256, 1024), draws=1000, contexts=6, samples=3, steps=3, flat_draws=4)
    context = open_prompt(clip, "a photo of a").context
    found = {finding.name: finding for finding in theory(clip, CLASSES, context, sizes=sizes)}
    assert len(found) == 17
    for finding in found.values():
        assert all(math.isfinite(number) for number in finding.measured.values()), finding
    assert found["Theorem 1"].verdict == "holds"
    assert found["O-TPT's Householder form"].verdict == "holds"
    assert found["FPP's released loss"].verdict == "holds"
    assert found["the first step"].verdict == "does not describe what runs"


def test_numbers_are_a_function_of_the_seed():
    pair, config = twins(), preset("tiny").adapt
    first, again = (steps.first_step(pair.model, pair.context, pair.views(2, 16), config) for _ in range(2))
    assert first == again
    shapes = expansion.families(4, generator())
    assert torch.equal(
        expansion.rests(shapes, 64, 100, generator())[0], expansion.rests(shapes, 64, 100, generator())[0]
    )
