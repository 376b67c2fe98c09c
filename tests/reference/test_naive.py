"""Tests that the naive reference fulfils identities of the protocol."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.reference import metrics
from tests.reference.naive import (
    NaiveText,
    Noise,
    adapt_one,
    context_or_name,
    fpp_losses,
    gaussian_classes,
    householder,
    marginal_entropy,
    most_confident,
    pretrain,
    prompt_features,
    random_views,
    random_weights,
    unit,
    with_context,
    zero_shot,
)

WIDTH, HEADS, CLASSES, CONTEXT = 32, 2, 5, 4
SOS, EOT, FULL_STOP = 58, 59, 5
SCALE = 100.0

TEXT = NaiveText(random_weights(width=WIDTH, layers=2, embed_dim=16, vocabulary=EOT + 1), HEADS, quick_gelu=True)


def class_texts() -> Tensor:
    """Return texts of four context tokens and names of one to three tokens, padded to 77."""
    token_ids = torch.zeros(CLASSES, 77, dtype=torch.long)
    for k in range(CLASSES):
        name = [10 + 3 * k + i for i in range(1 + k % 3)]
        ids = [SOS, 1, 2, 3, 1, *name, FULL_STOP, EOT]
        token_ids[k, : len(ids)] = torch.tensor(ids)
    return token_ids


TOKENS = class_texts()
CONTEXT0 = TEXT.embed(TOKENS)[0, 1:5].clone()
FEATURES0 = prompt_features(TEXT, TOKENS, CONTEXT0)
VIEWS = random_views(FEATURES0, samples=3, views=20)


def noise(steps: int, *, classes: tuple[int, ...] = (), seed: int = 0) -> list[Noise]:
    """Return the noise of some steps; `classes` is the axis of K, or empty for noise that classes share."""
    generator = torch.Generator().manual_seed(seed)

    def draw(positions: int) -> Tensor:
        return torch.randn(4, *classes, positions, WIDTH, generator=generator)

    return [Noise(draw(CONTEXT), draw(1), draw(77 - 1 - CONTEXT)) for _ in range(steps)]


def random_start(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.141421 * torch.randn(CONTEXT, WIDTH, generator=generator)


def adaptation_gradient(views: Tensor) -> Tensor:
    """Return the gradient of the adaptation loss of one sample at the initial context."""
    context = CONTEXT0.clone().requires_grad_()
    logits = SCALE * views @ prompt_features(TEXT, TOKENS, context).T
    loss = marginal_entropy(logits[most_confident(logits.detach(), 0.1)])
    return torch.autograd.grad(loss, context)[0]


# The text tower


def test_a_block_with_gelu_equals_torchs_own_transformer_layer() -> None:
    prefix = "transformer.resblocks.0"
    weights = random_weights(width=WIDTH, layers=1, embed_dim=16, vocabulary=EOT + 1)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    names = {
        "attn.in_proj_": "self_attn.in_proj_",
        "attn.out_proj": "self_attn.out_proj",
        "mlp.c_fc": "linear1",
        "mlp.c_proj": "linear2",
        "ln_1": "norm1",
        "ln_2": "norm2",
    }
    state = {}
    for openai_name, torch_name in names.items():
        for name, value in weights.items():
            if name.startswith(f"{prefix}.{openai_name}"):
                state[torch_name + name.removeprefix(f"{prefix}.{openai_name}")] = value
    layer.load_state_dict(state)

    embeddings = weights["token_embedding.weight"][TOKENS]
    mask = nn.Transformer.generate_square_subsequent_mask(77)
    hidden = layer(embeddings + weights["positional_embedding"], src_mask=mask)
    hidden = nn.functional.layer_norm(hidden, (WIDTH,), weights["ln_final.weight"], weights["ln_final.bias"])
    at_eot = torch.stack([row[ids.tolist().index(EOT)] for row, ids in zip(hidden, TOKENS, strict=True)])
    expected = nn.functional.normalize(at_eot @ weights["text_projection"], dim=-1)

    features = NaiveText(weights, HEADS, quick_gelu=False).features(embeddings, TOKENS)
    torch.testing.assert_close(features, expected, atol=2e-6, rtol=0)


def test_positions_after_the_last_eot_have_no_effect() -> None:
    longest = int(TOKENS.argmax(dim=-1).max()) + 1
    cut = prompt_features(TEXT, TOKENS[:, :longest], CONTEXT0)
    torch.testing.assert_close(cut, FEATURES0, atol=1e-6, rtol=0)
    shorter = TOKENS[:, : longest - 1]
    assert not torch.allclose(prompt_features(TEXT, shorter, CONTEXT0), FEATURES0, atol=1e-2)


@pytest.mark.parametrize(("width", "layers"), [(32, 2), (128, 3), (64, 12)])
def test_random_towers_give_gradients_above_adamws_epsilon(width: int, layers: int) -> None:
    weights = random_weights(width=width, layers=layers, embed_dim=16, vocabulary=EOT + 1)
    text = NaiveText(weights, width // 16, quick_gelu=True)
    tokens = TOKENS[:, :12]
    context = text.embed(tokens)[0, 1:5].clone().requires_grad_()
    features = prompt_features(text, tokens, context)
    views = random_views(features.detach(), samples=1, views=64)[0]
    logits = SCALE * views @ features.T
    loss = marginal_entropy(logits[most_confident(logits, 0.1)])
    (gradient,) = torch.autograd.grad(loss, context)
    assert 1.0 < float(logits.detach().std(dim=-1).mean()) < 4.0
    assert float((gradient.abs() > 1e-6).float().mean()) > 0.99


# Adaptation


def test_zero_steps_equal_zero_shot() -> None:
    adapted = adapt_one(TEXT, TOKENS, CONTEXT0, VIEWS[0], logit_scale=SCALE, steps=0)
    expected = torch.softmax(SCALE * VIEWS[0, :1] @ FEATURES0.T, dim=-1)[0]
    torch.testing.assert_close(adapted.probabilities, expected, atol=1e-5, rtol=0)
    plain = zero_shot(TEXT, TOKENS, CONTEXT0, VIEWS[0], logit_scale=SCALE)
    torch.testing.assert_close(adapted.probabilities, plain, atol=1e-5, rtol=0)
    assert torch.equal(adapted.context, CONTEXT0)
    assert adapted.losses == []


def test_the_first_adamw_step_is_a_sign_step() -> None:
    gradient = adaptation_gradient(VIEWS[0])
    clear = gradient.abs() > 1e-5
    adapted = adapt_one(TEXT, TOKENS, CONTEXT0, VIEWS[0], logit_scale=SCALE)
    expected = CONTEXT0 * (1 - 5e-3 * 0.01) - 5e-3 * gradient.sign()
    assert float(clear.float().mean()) > 0.95
    torch.testing.assert_close(adapted.context[clear], expected[clear], atol=1e-5, rtol=0)


def test_a_second_step_keeps_the_views_and_adams_state() -> None:
    views = VIEWS[0]
    selected = most_confident(SCALE * views @ FEATURES0.T, 0.1)
    first = adaptation_gradient(views)
    context = adapt_one(TEXT, TOKENS, CONTEXT0, views, logit_scale=SCALE).context.requires_grad_()
    loss = marginal_entropy(SCALE * views[selected] @ prompt_features(TEXT, TOKENS, context).T)
    (second,) = torch.autograd.grad(loss, context)
    mean = (0.09 * first + 0.1 * second) / 0.19
    square = (0.000999 * first**2 + 0.001 * second**2) / 0.001999
    expected = context.detach() * (1 - 5e-5) - 5e-3 * mean / (square.sqrt() + 1e-8)

    two = adapt_one(TEXT, TOKENS, CONTEXT0, views, logit_scale=SCALE, steps=2)
    clear = torch.minimum(first.abs(), second.abs()) > 1e-5
    torch.testing.assert_close(two.context[clear], expected[clear], atol=1e-5, rtol=0)
    assert len(two.losses) == 2


def test_the_gradients_of_all_samples_follow_from_one_jacobian() -> None:
    def features_of(context: Tensor) -> Tensor:
        return prompt_features(TEXT, TOKENS[:, :10], context)

    jacobian = torch.func.jacrev(features_of)(CONTEXT0)  # (K, D, n, W)
    for views in VIEWS:
        features = FEATURES0.clone().requires_grad_()
        logits = SCALE * views @ features.T
        loss = marginal_entropy(logits[most_confident(logits.detach(), 0.1)])
        (features_gradient,) = torch.autograd.grad(loss, features)
        gradient = torch.einsum("kd,kdnw->nw", features_gradient, jacobian)
        expected = adaptation_gradient(views)
        assert float((gradient - expected).norm() / expected.norm()) < 1e-4


def test_the_marginal_entropy_is_the_entropy_of_the_mean_softmax() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, -400.0]])
    mean = torch.softmax(logits, dim=-1).mean(dim=0)
    expected = -sum(float(p) * math.log(float(p)) for p in mean)
    assert float(marginal_entropy(logits)) == pytest.approx(expected, abs=1e-6)


def test_an_impossible_class_adds_no_entropy() -> None:
    logits = torch.tensor([[1.0, 1.0, -math.inf], [1.0, 1.0, -math.inf]])
    assert float(marginal_entropy(logits)) == pytest.approx(math.log(2), abs=1e-6)


def test_the_views_of_lowest_entropy_are_selected() -> None:
    logits_of_first_class = torch.tensor([1.0, 9.0, 3.0, 7.0, 5.0, 0.0, 2.0, 4.0, 6.0, 8.0])
    logits = torch.stack([logits_of_first_class, torch.zeros(10)], dim=-1)
    assert most_confident(logits, 0.3).tolist() == [1, 9, 3]
    assert len(most_confident(torch.zeros(64, 2), 0.1)) == 6


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 8), dimensions=st.integers(2, 16))
def test_o_tpts_householder_form_equals_the_mean_row_norm_minus_one(seed: int, classes: int, dimensions: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(classes, dimensions, generator=generator, dtype=torch.float64)
    long_input, short_input = raw.clone().requires_grad_(), raw.clone().requires_grad_()
    long_form = householder(unit(long_input))
    features = unit(short_input)
    short_form = ((features @ features.T).norm(dim=-1) - 1).mean()
    torch.testing.assert_close(long_form, short_form, atol=1e-7, rtol=0)
    long_gradient, short_gradient = torch.autograd.grad(long_form + short_form, [long_input, short_input])
    torch.testing.assert_close(long_gradient, short_gradient, atol=1e-6, rtol=1e-6)


# Pretraining


def test_the_released_loss_is_self_distillation() -> None:
    weight, context = 2.5, random_start().requires_grad_()
    offsets = noise(1)[0].scaled(0.0707105, 0.141421, 77)
    prompts = with_context(TEXT.embed(TOKENS), context)
    alignment, flatness = fpp_losses(TEXT, TOKENS, prompts, FEATURES0, offsets, weight=weight)
    released = alignment + flatness
    (gradient,) = torch.autograd.grad(released, context)

    with torch.no_grad():
        noisy = torch.stack([TEXT.features(prompts + offset, TOKENS) for offset in offsets])
    clean = prompt_features(TEXT, TOKENS, context)
    teacher = 2 * FEATURES0 + weight * noisy.mean(dim=0)
    distilled = 2 - (clean * teacher).sum(dim=-1).mean()
    torch.testing.assert_close(released, distilled, atol=1e-5, rtol=0)
    (expected,) = torch.autograd.grad(distilled, context)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)


def test_alignment_is_zero_at_the_anchor_prompt_and_grows_after_a_step() -> None:
    trained = pretrain(TEXT, TOKENS, CONTEXT0, CONTEXT0, noise(2), weight=1.0)
    assert float(trained.losses[0, 0]) == pytest.approx(0, abs=1e-10)
    assert float(trained.losses[1, 0]) > 1e-6


def test_zero_steps_return_the_start() -> None:
    trained = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), [], weight=1.0)
    assert torch.equal(trained.context, random_start())
    assert trained.losses.shape == (0, 2)


def test_pretraining_lowers_its_loss() -> None:
    trained = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), noise(20), weight=2.5)
    loss = trained.losses.sum(dim=-1)
    assert float(loss[-5:].mean()) < float(loss[:5].mean()) - 0.05


def test_the_gradients_with_one_detached_branch_add_up_to_the_gradient_without_detaching() -> None:
    offsets = noise(1)[0].scaled(0.0707105, 0.141421, 77)

    def gradient(detach: Literal["noisy", "clean", "none"]) -> Tensor:
        context = random_start().requires_grad_()
        prompts = with_context(TEXT.embed(TOKENS), context)
        loss = fpp_losses(TEXT, TOKENS, prompts, FEATURES0, offsets, weight=1.0, align=None, detach=detach)[1]
        return torch.autograd.grad(loss, context)[0]

    noisy, clean, none = gradient("noisy"), gradient("clean"), gradient("none")
    torch.testing.assert_close(noisy + clean, none, atol=1e-5, rtol=1e-3)
    assert float((noisy - clean).norm()) > 0.1 * float(noisy.norm())


def test_squared_l2_for_both_terms_takes_the_steps_of_cosine_for_both_terms() -> None:
    """Both squared losses are twice the cosine losses, and AdamW's steps do not depend on the scale of the loss."""
    draws = noise(3)
    l2 = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), draws, align="squared_l2", flat="squared_l2", weight=1.5)
    cosine = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), draws, align="cosine", flat="cosine", weight=1.5)
    assert float(((l2.context - cosine.context).abs() < 1e-5).float().mean()) > 0.98
    torch.testing.assert_close(l2.losses[:, 0], 2 * cosine.losses[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(l2.losses[:, 1], 2 * (1.5 + cosine.losses[:, 1]), atol=1e-4, rtol=0)


def test_the_l2_loss_is_the_mean_distance() -> None:
    offsets = torch.zeros(1, 1, 77, WIDTH)
    prompts = with_context(TEXT.embed(TOKENS), random_start())
    alignment, flatness = fpp_losses(TEXT, TOKENS, prompts, FEATURES0, offsets, weight=1.0, align="l2", flat="l2")
    clean = prompt_features(TEXT, TOKENS, random_start())
    distances = [math.dist(a, b) for a, b in zip(clean.tolist(), FEATURES0.tolist(), strict=True)]
    assert float(alignment) == pytest.approx(sum(distances) / CLASSES, abs=1e-5)
    assert float(flatness) == pytest.approx(0, abs=1e-5)


def test_a_term_that_is_off_has_no_effect() -> None:
    flat_only = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), noise(2), weight=1.0, align=None)
    other_target = pretrain(TEXT, TOKENS, random_start(7), random_start(), noise(2), weight=1.0, align=None)
    assert torch.equal(flat_only.context, other_target.context)
    align_only = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), noise(2), weight=1.0, flat=None)
    other_noise = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), noise(2, seed=9), weight=1.0, flat=None)
    assert torch.equal(align_only.context, other_noise.context)


def test_per_class_noise_with_equal_draws_equals_shared_noise() -> None:
    def repeat(part: Tensor) -> Tensor:
        return part[:, None].expand(-1, CLASSES, -1, -1)

    shared = noise(2)
    repeated = [Noise(repeat(step.context), repeat(step.sos), repeat(step.suffix)) for step in shared]
    with_shared = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), shared, weight=2.0)
    with_repeated = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), repeated, weight=2.0)
    torch.testing.assert_close(with_shared.context, with_repeated.context, atol=1e-6, rtol=0)
    per_class = pretrain(TEXT, TOKENS, CONTEXT0, random_start(), noise(2, classes=(CLASSES,)), weight=2.0)
    assert not torch.allclose(with_shared.context, per_class.context, atol=1e-4)


def test_name_only_noise_does_not_perturb_sos_full_stop_and_eot() -> None:
    positions = [row.nonzero()[:, 0].tolist() for row in context_or_name(TOKENS, CONTEXT)[..., 0]]
    assert positions[0] == [1, 2, 3, 4, 5]
    assert positions[2] == [1, 2, 3, 4, 5, 6, 7]


def test_noise_is_scaled_by_position() -> None:
    ones = Noise(torch.ones(2, 4, 3), torch.ones(2, 1, 3), torch.ones(2, 5, 3))
    scaled = ones.scaled(0.5, 0.25, positions=12)
    assert scaled.shape == (2, 1, 12, 3)
    assert scaled[0, 0, :, 0].tolist() == [0.25, *[0.5] * 4, *[0.25] * 5, 0.0, 0.0]


def test_gaussian_classes_replace_the_name_and_the_full_stop_only() -> None:
    token_ids = torch.zeros(3, 77, dtype=torch.long)
    token_ids[:, :8] = torch.tensor([SOS, 1, 2, 3, 1, 9, FULL_STOP, EOT])
    table = TEXT.weights["token_embedding.weight"]
    embeddings = gaussian_classes(TEXT, token_ids, torch.ones(3, 2, WIDTH))
    assert torch.allclose(embeddings[:, 5:7], (table.mean() + table.std()).expand(3, 2, WIDTH))
    rest = [position for position in range(77) if position not in (5, 6)]
    assert torch.equal(embeddings[:, rest], TEXT.embed(token_ids)[:, rest])


# Metrics, compared with numbers that were computed by hand

PROBABILITIES = np.array([[0.92, 0.08, 0.0], [0.10, 0.62, 0.28], [0.30, 0.64, 0.06], [0.0, 0.0, 1.0]], dtype=np.float64)
LABELS = np.array([0, 1, 0, 2])  # the third prediction is wrong


def test_accuracy_counts_hits() -> None:
    assert metrics.accuracy(PROBABILITIES, LABELS) == 75


def test_ece_is_the_weighted_mean_and_mce_the_maximum_of_the_bins_gaps() -> None:
    # gaps: 0.08 in (0.9, 0.95]; |0.5 - 0.63| in (0.6, 0.65], which has two samples; 0 in (0.95, 1]
    assert metrics.ece(PROBABILITIES, LABELS) == pytest.approx(100 * (0.08 + 2 * 0.13) / 4)
    assert metrics.mce(PROBABILITIES, LABELS) == pytest.approx(13)


def test_a_bin_includes_its_upper_edge_and_no_bin_includes_a_confidence_of_zero() -> None:
    at_edge = np.array([[0.5, 0.25], [0.52, 0.25]])  # one sample in (0.45, 0.5], one in (0.5, 0.55]
    assert metrics.ece(at_edge, np.array([0, 1])) == pytest.approx(100 * (0.5 + 0.52) / 2)
    zeros = np.zeros((2, 2))
    assert metrics.ece(zeros, np.array([0, 1])) == 0


def test_sce_counts_every_nonzero_probability_of_every_sample() -> None:
    first = 0.08 + 0.10 + 0.70  # class 0: gaps of 0.92 (a hit), 0.10 (no hit) and 0.30 (a hit)
    second = 0.08 + 2 * 0.13  # class 1: the gap of 0.08 (no hit); 0.62 (a hit) and 0.64 (no hit) share a bin
    third = 0.28 + 0.06  # class 2: gaps of 0.28 and 0.06 (no hits); the gap of 1.0 (a hit) is zero
    expected = 100 * (first + second + third) / (4 * 3)
    assert metrics.sce(PROBABILITIES, LABELS) == pytest.approx(expected)


def test_aece_bins_lie_between_quantiles() -> None:
    # edges: 0.62, 0.64, 0.92 and 1; the first bin includes both its edges
    assert metrics.aece(PROBABILITIES, LABELS) == pytest.approx(100 * (2 * 0.13 + 0.08 + 0) / 4)
    equal_confidences = np.array([[0.9, 0.1], [0.9, 0.1]])  # one edge, and so no bin
    assert metrics.aece(equal_confidences, np.array([1, 1])) == 0


def test_nll_calibration_is_the_divergence_of_accuracy_and_mean_confidence_in_each_bin() -> None:
    # 0.62 and 0.64 in one bin, of which one is right; 0.92 and 1 in bins of their own, both right
    expected = (np.log(0.5 / 0.63) + np.log(0.5 / 0.37) + np.log(1 / 0.92)) / 4
    assert metrics.nll_calibration(PROBABILITIES, LABELS) == pytest.approx(expected)


def test_aurc_is_the_mean_risk_over_coverage() -> None:
    # predictions in the order of confidence: right, right, wrong (0.64), right
    expected = (0 + 0 + 1 / 3 + 1 / 4) / 4
    assert metrics.aurc(PROBABILITIES, LABELS) == pytest.approx(expected)
    equal_confidences = np.array([[0.9, 0.1]] * 3)
    assert metrics.aurc(equal_confidences, np.array([0, 1, 1])) == pytest.approx(2 / 3)
