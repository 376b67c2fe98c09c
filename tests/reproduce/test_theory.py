"""The paper's theory: its identities, its rates, and the effects of AdamW and of the stop-gradient."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fpp_sweep.core.datasets import open_dataset
from fpp_sweep.core.fpp import LossSettings, _terms_and_gradient, draw_noise
from fpp_sweep.core.methods.gradients import ByJacobian
from fpp_sweep.core.methods.penalties import dispersion, orthogonality
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.models.loading import load
from fpp_sweep.reproduce.experiment_files import find
from fpp_sweep.reproduce.theory import entropy, findings_of, first_step, flatness, identities, pretraining
from fpp_sweep.reproduce.theory.setting import QUICK, Setting
from fpp_sweep.spec.config import FppConfig, preset
from tests.kit.models import random_clip
from tests.kit.texts import twins

RELEASED_NOISE = {"fpp.context_var": "x1", "fpp.class_var": "x1"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def scenes():
    return open_dataset("scenes", "test", None)


@pytest.fixture(scope="module")
def tiny(scenes):
    return Setting.of(load("tiny", "cpu"), scenes, preset("tiny"), 0, QUICK)


# The settings


def test_the_table_uses_released_noise_and_the_users_other_settings():
    experiment = find("theory")
    config = experiment.space(overrides=["preset=tiny"], checkpoints={}).start()
    assert config == preset("tiny").replace(RELEASED_NOISE)
    assert (config.fpp.context_var, config.fpp.class_var) == (FppConfig().context_var, FppConfig().class_var)
    overrides = ["preset=paper", "base.fpp.class_var=x0.01", "work.model=tiny", "work.seeds=[3]"]
    space = experiment.space(overrides=overrides, checkpoints={})
    assert space.start() == preset("paper").replace({"fpp.class_var": "x0.01"})
    assert (space.work.model, space.work.seeds, space.work.datasets) == ("tiny", (3,), ("dtd",))


def test_settings_are_scaled_to_the_models_units(tiny, scenes):
    config = preset("tiny")
    assert tiny.config.fpp == config.fpp.scaled(tiny.unit)
    assert tiny.config.adapt == config.adapt.scaled(tiny.unit)
    assert tiny.unit == pytest.approx(5, abs=0.5)
    assert len(tiny.texts) == len(scenes.classes)
    assert tiny.views.shape[:2] == (QUICK.samples, config.views.count)


def test_the_setting_uses_the_configs_steps_and_views(scenes):
    clip = random_clip(embed_dim=32)
    config = preset("tiny").replace({"fpp.steps": 2, "views.count": 4, "anchor_prompt": "a drawing"})
    setting = Setting.of(clip, scenes, config, 0, replace(QUICK, samples=2))
    assert setting.views.shape == (2, 4, 32)
    assert len(setting.context) == 2
    longer = replace(setting, config=config.replace({"fpp.steps": 3}))
    after_two_steps = setting.pretrained(setting.config.fpp, 0)
    after_three_steps = longer.pretrained(longer.config.fpp, 0)
    assert not torch.equal(after_two_steps, after_three_steps)


# Theorem 1


def test_the_entropy_falls_with_the_spread_as_theorem_1_states():
    shapes = entropy.made_up_classifiers(10, generator())
    expansion = entropy.expand(shapes, (32, 128, 512, 2048), 4000, generator(1))
    for size, ratio in expansion.slope_ratio.items():
        assert ratio == pytest.approx(1, abs=1 / size)
        assert expansion.r_squared[size] > 0.9999


@pytest.mark.parametrize("classes", [3, 10, 30])
def test_the_remainder_equals_the_fourth_cumulants_term_and_falls_faster_than_stated(classes):
    sizes = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    shapes = entropy.made_up_classifiers(classes, generator(classes))
    expansion = entropy.expand(shapes, sizes, 4000, generator(1))
    assert expansion.exponent + 3 * expansion.exponent_error < -1.5
    assert expansion.exponent == pytest.approx(-2, abs=0.05 + 3 * expansion.exponent_error)
    assert expansion.coefficient_ratio == pytest.approx(1, abs=4 * expansion.coefficient_error + 0.01)


def test_the_noise_reduced_mean_equals_the_plain_mean_over_whole_vectors():
    rows, size = entropy.made_up_classifiers(6, generator())[:8], 32
    remainders, errors = entropy.remainders(rows, size, 4000, generator(1))
    _, errors_of_more_draws = entropy.remainders(rows, size, 64_000, generator(1))
    torch.testing.assert_close(errors_of_more_draws, errors / 4, rtol=0.2, atol=0)  # 16 times the draws
    views = F.normalize(torch.randn(200_000, size, generator=generator(2), dtype=torch.float64), dim=-1)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator(3)).double()).Q
    rotated = F.pad(rows, (0, size - 6)) @ rotation
    for shape, remainder, error in zip(rotated, remainders, errors, strict=True):
        plain = entropy.entropy(views @ shape.T)
        expected = math.log(6) - entropy.spread(shape) / (2 * 6 * size) + remainder
        assert abs(plain.mean() - expected) < 4 * (plain.std() / len(views) ** 0.5 + error)


def test_the_spread_follows_from_the_signed_overlap():
    rows = entropy.made_up_classifiers(7, generator())
    torch.testing.assert_close(entropy.spread(rows), 7 - 1 - 2 / 7 * entropy.signed_overlap(rows))


def test_the_least_signed_overlap_is_not_orthogonal_and_o_tpt_ignores_signs():
    orthogonal = torch.eye(6, dtype=torch.float64)
    simplex = F.normalize(orthogonal - 1 / 6, dim=-1)
    assert entropy.signed_overlap(simplex) < entropy.signed_overlap(orthogonal)
    assert orthogonality(simplex) > orthogonality(orthogonal)
    rows = entropy.made_up_classifiers(6, generator())[5]
    flipped = rows * torch.tensor([1.0, -1.0] * 3)[:, None]
    torch.testing.assert_close(orthogonality(flipped), orthogonality(rows))
    assert entropy.spread(flipped) > entropy.spread(rows) + 0.5


def test_the_stand_ins_explain_the_entropy_at_temperature_one_only():
    shapes = entropy.made_up_classifiers(10, generator())
    remainders, _ = entropy.remainders(shapes, 512, 4000, generator(1))
    unscaled = entropy.explained(remainders - entropy.spread(shapes) / (20 * 512), shapes)
    assert unscaled["L_disp: R2"] > 0.999
    assert unscaled["L_disp: R2"] == pytest.approx(unscaled["L_orth: R2"])
    assert unscaled["O-TPT as run: R2"] < 0.95
    scaled = entropy.explained(entropy.sphere_entropy(shapes, 512, 4000, generator(1), 100.0), shapes)
    assert scaled["L_disp: R2"] < 0.95


def test_rows_keep_their_inner_products_in_the_space_that_they_span():
    features = F.normalize(torch.randn(3, 5, 40, generator=generator()), dim=-1)
    rows = entropy.in_own_space(features)
    torch.testing.assert_close(rows @ rows.mT, (features @ features.mT).double(), atol=1e-6, rtol=0)


# Two forms of one loss


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_one_line_form_of_o_tpt_equals_the_householder_form(classes):
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
    settings = LossSettings.of(config, weight, context.device)
    terms, gradient = _terms_and_gradient(pair.texts, mask, context, target, noise, settings)
    value, expected = identities.with_gradient(identities.distillation(pair.texts, target, noise, weight), context)
    torch.testing.assert_close(terms.sum(), value)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_pretraining_is_self_distillation_only_with_the_stop_gradient():
    pair = twins()
    gap = identities.distillation_gap(pair.texts, pair.context, FppConfig(steps=5), 1.5, generator())
    assert gap.loss < 1e-5
    assert gap.features < 1e-3
    without = FppConfig(steps=5, detach="none")
    assert identities.distillation_gap(pair.texts, pair.context, without, 1.5, generator()).features > 1e-2


def test_the_entropy_of_made_up_classifiers_is_the_theorems_at_temperature_1_only(tiny):
    """The theorem's deficit to log K grows with the square of the logits; the entropy's own cannot exceed log K."""
    own, hundredfold = (finding.measured for finding in entropy.made_up_penalty_findings(tiny))
    log_classes = math.log(QUICK.classes)
    deficit = log_classes - own["the theorem's"]
    assert deficit == pytest.approx(log_classes - own["mean entropy"], rel=0.02)
    assert log_classes - hundredfold["the theorem's"] == pytest.approx(1e4 * deficit, rel=1e-6)
    assert 0 < hundredfold["mean entropy"] < log_classes


# The first step


def test_the_first_step_moves_nearly_every_coordinate_by_lr(tiny):
    step = first_step.first_step(tiny.model, tiny.context, tiny.views, tiny.config.adapt)
    assert step.full_moves > 0.9
    assert 0.5 < step.cosine < 0.9  # sqrt(2 / pi) = 0.8 if the gradient's entries were normal


def test_the_first_step_has_the_sign_of_autograds_gradient(tiny):
    adapt = tiny.config.adapt
    step = first_step.step_of(tiny.model, tiny.context, tiny.views, Tpt(adapt=adapt))
    gradients = first_step.entropy_gradients(tiny.model, tiny.context, tiny.views, adapt.view_fraction).flatten(1)
    clear = gradients.abs() > 1e-4
    assert clear.float().mean() > 0.5
    assert torch.equal(step.sign()[clear], -gradients.sign()[clear])


@pytest.mark.parametrize(("penalty", "weight"), [(dispersion, 50.0), (orthogonality, 18.0)])
def test_a_penalty_flips_signs_of_the_step_instead_of_adding_an_offset(tiny, penalty, weight):
    step = first_step.penalty_step(tiny.model, tiny.context, tiny.views, tiny.config.adapt, penalty, weight)
    assert step.turned > 0.3
    assert step.of_penalty > 0.9
    assert step.gap > 0.5
    assert step.shared < 0.8
    faint = first_step.penalty_step(tiny.model, tiny.context, tiny.views, tiny.config.adapt, penalty, 1e-6)
    assert faint.turned < 0.05


# From flatness to sharpness


def features_of_inputs(inputs):
    """Return the function from separate inputs (1, M, W) to features, computed by the forward pass alone."""
    tower = inputs.texts.tower

    def features(values):
        return tower.features(values[:, :0], values, inputs.packing)[0]

    return features


def test_each_block_of_the_hessian_has_the_right_name():
    """The blocks differ in size by a factor of five, so a few probes distinguish them."""
    pair = twins(width=8, heads=2, layers=1, embed_dim=4, prompt="a photo", classes=("elm", "ox"))
    texts, context = flatness.in_double(pair.texts), pair.context.double()
    inputs = flatness.SeparateInputs.at(texts, context)
    units = torch.eye(8, dtype=torch.float64).view(8, 2, 4)  # one unit vector for each feature of each class
    columns = []
    for unit in torch.eye(inputs.values.numel(), dtype=torch.float64):
        step = 1e-4 * unit.view_as(inputs.values)
        above = inputs.pull_back(inputs.values + step, units)
        below = inputs.pull_back(inputs.values - step, units)
        columns.append(((above - below) / 2e-4).flatten(1))
    squares = torch.stack(columns, dim=2).square().sum(0)
    is_context = inputs.is_context.repeat_interleave(inputs.values.shape[-1])
    measured = flatness.derivatives(texts, context, 20, generator())
    assert measured.hessian_context == pytest.approx(squares[is_context][:, is_context].sum().item(), rel=0.3)
    assert measured.hessian_rest == pytest.approx(squares[~is_context][:, ~is_context].sum().item(), rel=0.3)
    assert measured.hessian_cross == pytest.approx(squares[is_context][:, ~is_context].sum().item(), rel=0.3)


@pytest.mark.nightly
@pytest.mark.slow  # computes a Hessian by autograd
def test_all_blocks_of_jacobian_and_hessian_and_the_trace_equal_autograd():
    pair = twins(width=8, heads=2, layers=1, embed_dim=4, prompt="a photo", classes=("elm", "ox"))
    texts, context = flatness.in_double(pair.texts), pair.context.double()
    measured = flatness.derivatives(texts, context, 300, generator())
    inputs = flatness.SeparateInputs.at(texts, context)
    features = features_of_inputs(inputs)
    size = inputs.values.numel()
    with sdpa_kernel(SDPBackend.MATH):  # other implementations of attention have no second derivative
        jacobian = torch.autograd.functional.jacobian

        def first(values):
            return jacobian(features, values, create_graph=True)

        by_input = jacobian(features, inputs.values).reshape(-1, size)
        hessians = jacobian(first, inputs.values).reshape(-1, size, size)
    is_context = inputs.is_context.repeat_interleave(inputs.values.shape[-1])
    rest = ~is_context
    assert measured.jacobian_context == pytest.approx(by_input[:, is_context].square().sum().item(), rel=1e-6)
    assert measured.jacobian_rest == pytest.approx(by_input[:, rest].square().sum().item(), rel=1e-6)

    def block(rows, columns):
        return hessians[:, rows][:, :, columns].square().sum().item()

    expected = {
        "hessian_context": block(is_context, is_context),
        "hessian_rest": block(rest, rest),
        "hessian_cross": block(is_context, rest),
    }
    sizes = sorted(expected.values())
    assert sizes[1] > 1.5 * sizes[0], "two blocks of one size: a wrong block would go unnoticed"
    assert sizes[2] > 1.5 * sizes[1], "two blocks of one size: a wrong block would go unnoticed"
    for name, value in expected.items():
        assert getattr(measured, name) == pytest.approx(value, rel=0.1), name
    traces = hessians.diagonal(dim1=1, dim2=2)[:, is_context].sum(-1)
    assert measured.trace_context == pytest.approx(traces.square().sum().item(), rel=0.2)


def test_the_context_of_separate_inputs_is_the_context_of_every_class(tiny):
    inputs = flatness.SeparateInputs.at(flatness.in_double(tiny.texts), tiny.context.double())
    rows = inputs.values[0, inputs.is_context].view(len(tiny.texts), *tiny.context.shape)
    assert torch.equal(rows, tiny.context.double().expand_as(rows))
    expected = tiny.texts.features(tiny.context).double()
    torch.testing.assert_close(features_of_inputs(inputs)(inputs.values), expected, atol=1e-5, rtol=0)


def test_the_jacobian_equals_that_of_adaptation(tiny):
    values = flatness.derivatives(flatness.in_double(tiny.texts), tiny.context.double(), 1, generator())
    first = ByJacobian(tiny.texts, tiny.context)
    rows = first.backward(torch.eye(first.features.numel()).view(-1, *first.features.shape))
    assert values.jacobian_context == pytest.approx(float(rows.square().sum()), rel=1e-4)


def test_l_flat_with_little_noise_equals_the_jacobians_term():
    pair = twins()
    texts, context = flatness.in_double(pair.texts), pair.context.double()
    values = flatness.derivatives(texts, context, 1, generator())
    noise = flatness.draw_double_noise(texts, 4, 2000, 1e-4, 2e-4, generator())
    expected = (1e-8 * values.jacobian_context + 4e-8 * values.jacobian_rest) / (2 * len(texts))
    assert flatness.flatness(texts, context, noise) == pytest.approx(expected, rel=0.05)


def test_with_little_noise_the_released_gradient_is_minus_half_the_true_one_on_a_curve():
    """The features lie on a circle and depend on one coordinate; docs/theory.md derives the factor."""
    at, offsets = torch.tensor(0.4, dtype=torch.float64), 1e-3 * torch.tensor([-1.0, 1.0], dtype=torch.float64)

    def curve(coordinate):
        angle = coordinate + coordinate**2
        return torch.stack([angle.cos(), angle.sin()], dim=-1)

    clean, noisy = (at.clone().requires_grad_() for _ in range(2))
    loss = 1 - (curve(clean) * curve(noisy + offsets)).sum(-1).mean()
    released, through_noisy = torch.autograd.grad(loss, (clean, noisy))
    assert (released / (released + through_noisy)).item() == pytest.approx(-0.5, rel=1e-3)


@pytest.mark.parametrize(("noise", "descends"), [("x1", True), ("x0.01", False)])
def test_the_released_gradient_descends_at_the_released_noise_and_ascends_at_a_tenth_of_it(scenes, noise, descends):
    config = preset("tiny").replace({"fpp.context_var": noise, "fpp.class_var": noise})
    setting = Setting.of(load("tiny", "cpu"), scenes, config, 0, QUICK)
    fpp, texts = setting.config.fpp, flatness.in_double(setting.texts)
    learned = setting.pretrained(fpp, 0).double()
    draws = flatness.draw_double_noise(texts, 4, 32, fpp.context_var**0.5, fpp.class_var**0.5, generator())
    gradients = flatness.flat_gradients(texts, learned, flatness.mirrored(draws))
    assert (gradients.cosine > 0.9) if descends else (gradients.cosine < -0.3)
    assert (gradients.descent > 0.8) if descends else (gradients.descent < 0)


def test_at_the_released_noise_fpp_is_flatter_than_alignment_alone_and_sharper(scenes):
    config = preset("tiny").replace(RELEASED_NOISE)
    setting = Setting.of(load("tiny", "cpu"), scenes, config, 0, QUICK)
    fpp, texts = setting.config.fpp, flatness.in_double(setting.texts)
    draws = flatness.draw_double_noise(texts, 4, 32, fpp.context_var**0.5, fpp.class_var**0.5, generator())
    l_flat, rise = {}, {}
    for kind in (pretraining.RELEASED, pretraining.ALIGNMENT):
        context = setting.pretrained(replace(fpp, **pretraining.VARIANTS[kind]), 0)
        l_flat[kind] = flatness.flatness(texts, context.double(), draws)
        values = flatness.sharpness(setting.model, context, setting.views, 0.1, [0.05 * setting.unit], 1)
        rise[kind] = values.rise[0]
    assert l_flat[pretraining.RELEASED] < 0.9 * l_flat[pretraining.ALIGNMENT]
    assert rise[pretraining.RELEASED] > 2 * rise[pretraining.ALIGNMENT]


@pytest.mark.parametrize(
    ("released", "alignment", "verdict"),
    [
        ((1.0, 1.0), (2.0, 2.0), "holds"),
        ((2.0, 2.0), (1.0, 1.0), "holds in part"),  # the same order, but FPP's prompts are sharper
        ((2.0, 1.0), (1.0, 2.0), "holds in part"),  # FPP's prompts are less sharp, but in the opposite order
        ((1.0, 2.0), (2.0, 1.0), "does not describe what runs"),
    ],
)
def test_the_way_from_flatness_to_sharpness_holds_only_with_both_parts(released, alignment, verdict):
    prompts = []
    for kind, (l_flat, sharpness) in ((pretraining.RELEASED, released), (pretraining.ALIGNMENT, alignment)):
        measured = SimpleNamespace(rise=(sharpness, sharpness), top_eigenvalue=sharpness)
        prompts.append(SimpleNamespace(kind=kind, sharpness=measured, at_full_noise=SimpleNamespace(l_flat=l_flat)))
    assert pretraining._sharpness_finding(prompts).verdict == verdict


def test_sharpness_is_the_rise_along_the_gradient():
    pair = twins()
    views = pair.views(3, 16)
    values = flatness.sharpness(pair.model, pair.context, views, 0.25, [1e-3, 1e-2], 1)
    assert values.rise[0] == pytest.approx(1e-3 * values.gradient, rel=0.05)
    assert values.rise[1] > values.rise[0]


# The whole


def test_the_table_has_all_findings_with_finite_numbers(scenes):
    sizes = replace(QUICK, dimensions=(64, 256, 1024), draws=1000, contexts=6, samples=3, noise_draws=4)
    config = preset("tiny").replace({"fpp.steps": 3, **RELEASED_NOISE})
    setting = Setting.of(random_clip(embed_dim=32), scenes, config, 0, sizes)
    findings = {finding.name: finding for finding in findings_of(setting)}
    assert len(findings) == 17
    for finding in findings.values():
        assert all(math.isfinite(number) for number in finding.measured.values()), finding
    assert findings["Theorem 1"].verdict == "holds"
    assert findings["O-TPT's Householder form"].verdict == "holds"
    assert findings["FPP's released loss"].verdict == "holds"
    assert findings["the first step"].verdict == "does not describe what runs"


def test_equal_seeds_give_equal_numbers():
    pair, config = twins(), preset("tiny").adapt
    first, again = (first_step.first_step(pair.model, pair.context, pair.views(2, 16), config) for _ in range(2))
    assert first == again
    shapes = entropy.made_up_classifiers(4, generator())
    first, again = (entropy.remainders(shapes, 64, 100, generator())[0] for _ in range(2))
    assert torch.equal(first, again)
