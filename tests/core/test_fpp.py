"""Pretraining against the naive reference with the same noise, for every setting."""

import itertools

import pytest
import torch

from fpp_sweep.core.fpp import distance, draw_noise, draw_start, pretrain
from fpp_sweep.core.text.tower import Noise
from fpp_sweep.spec.config import FppConfig
from tests.kit.texts import CLASSES, MAPLE, twins
from tests.reference import naive

STEPS = 8
DRAWS = 3
SETTINGS = [
    {},
    {"detach": "none"},
    {"detach": "clean"},
    {"align_distance": "l2"},
    {"align_distance": "cosine"},
    {"flat_distance": "l2"},
    {"flat_distance": "squared_l2"},
    {"align_distance": "none"},
    {"flat_distance": "none"},
    {"noise_shared": False},
    {"noise_positions": "name"},
    {"noise_positions": "name", "noise_shared": False, "detach": "none"},
    {"lr": 0.03, "final_lr": 0.0, "weight_decay": 0.3},
]
MAPLE_SETTINGS = [{}, {"noise_positions": "name", "noise_shared": False, "detach": "none"}]


def first_draws(noise, steps):
    return list(itertools.islice(noise, steps))


def as_naive(noise, config):
    """Return the same noise as standard-normal draws in the form of the reference."""

    def unscaled(part, variance):
        part = part / variance**0.5
        return part[:, 0] if part.shape[1] == 1 else part

    return naive.Noise(
        context=unscaled(noise.context, config.context_var),
        sos=unscaled(noise.sos, config.class_var),
        suffix=unscaled(noise.suffix, config.class_var),
    )


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [*((settings, {}) for settings in SETTINGS), *((settings, MAPLE) for settings in MAPLE_SETTINGS)],
    ids=str,
)
def test_pretraining_equals_the_naive_reference_for_every_setting(settings, sizes):
    pair = twins(**sizes)
    config = FppConfig(steps=STEPS, draws=DRAWS, **settings)
    generator = torch.Generator().manual_seed(0)
    start = draw_start(pair.context, config, generator)
    noise = first_draws(draw_noise(pair.texts, len(pair.context), config, generator), STEPS)
    actual = pretrain(pair.texts, pair.context, config, flatness_weight=1.7, start=start, noise=iter(noise))
    expected = naive.pretrain(
        pair.naive,
        pair.token_ids,
        pair.context,
        start,
        [as_naive(draw, config) for draw in noise],
        weight=1.7,
        context_std=config.context_var**0.5,
        class_std=config.class_var**0.5,
        lr=config.lr,
        final_lr=config.final_lr,
        weight_decay=config.weight_decay,
        align=None if config.align_distance == "none" else config.align_distance,
        flat=None if config.flat_distance == "none" else config.flat_distance,
        detach=config.detach,
        name_only=config.noise_positions == "name",
        words_after=2 if sizes else 0,
    )
    torch.testing.assert_close(actual.losses, expected.losses, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(pair.texts.features(actual.context), expected.features, atol=1e-4, rtol=0)


@pytest.mark.nightly
@pytest.mark.slow
def test_fifty_steps_of_pretraining_of_a_wide_tower_equal_the_naive_reference():
    pair = twins(width=256, heads=4, layers=4, embed_dim=64, seed=3)
    config = FppConfig(steps=50, draws=2)
    generator = torch.Generator().manual_seed(0)
    start = draw_start(pair.context, config, generator)
    noise = first_draws(draw_noise(pair.texts, 4, config, generator), 50)
    actual = pretrain(pair.texts, pair.context, config, flatness_weight=2.5, start=start, noise=iter(noise))
    naive_noise = [as_naive(draw, config) for draw in noise]
    stds = {"context_std": config.context_var**0.5, "class_std": config.class_var**0.5}
    expected = naive.pretrain(pair.naive, pair.token_ids, pair.context, start, naive_noise, weight=2.5, **stds)
    torch.testing.assert_close(pair.texts.features(actual.context), expected.features, atol=1e-4, rtol=0)


def test_noise_has_the_configured_variances_and_positions():
    pair = twins()
    config = FppConfig(draws=500, context_var=0.04, class_var=0.25)
    noise = next(draw_noise(pair.texts, 4, config, torch.Generator().manual_seed(0)))
    assert noise.context.var().item() == pytest.approx(0.04, rel=0.02)
    assert noise.sos.var().item() == pytest.approx(0.25, rel=0.03)
    assert noise.suffix.var().item() == pytest.approx(0.25, rel=0.02)
    assert noise.suffix.shape == (500, 1, pair.texts.packing.longest, 32)
    names = FppConfig(draws=2, noise_positions="name", noise_shared=False)
    noise = next(draw_noise(pair.texts, 4, names, torch.Generator().manual_seed(0)))
    assert noise.without_ends
    assert not noise.sos.any()
    assert noise.context.shape == (2, len(CLASSES), 4, 32)


def test_the_start_is_random_or_the_anchor_prompt():
    anchor = torch.zeros(4, 5000)
    random = draw_start(anchor, FppConfig(start_std=0.3), torch.Generator().manual_seed(0))
    assert random.std().item() == pytest.approx(0.3, rel=0.02)
    assert draw_start(anchor, FppConfig(start="predefined"), torch.Generator()) is anchor


def test_a_loss_that_is_not_finite_raises_with_step_and_values():
    pair = twins()
    config = FppConfig(steps=5)
    good = next(draw_noise(pair.texts, 4, config, torch.Generator().manual_seed(0)))
    bad = Noise(sos=good.sos, context=good.context * float("inf"), suffix=good.suffix)
    with pytest.raises(FloatingPointError, match=r"step 2: loss is not finite \(alignment 0\.\d+, flatness nan\)"):
        pretrain(
            pair.texts, pair.context, config, flatness_weight=1.0, start=pair.context, noise=iter([good, good, bad])
        )


@pytest.mark.parametrize("kind", ["squared_l2", "l2", "cosine"])
def test_distances_have_finite_gradients_where_both_vectors_are_equal(kind):
    vectors = torch.eye(2).requires_grad_()
    distance(vectors, torch.eye(2), kind).backward()
    assert vectors.grad.isfinite().all()


def test_without_a_gpu_captured_steps_are_eager_ones_and_a_warning_says_so(caplog):
    pair, config = twins(), FppConfig(steps=3, draws=DRAWS)
    start = draw_start(pair.context, config, torch.Generator().manual_seed(0))
    contexts = []
    for cuda_graphs in (False, True):
        noise = draw_noise(pair.texts, 4, config, torch.Generator().manual_seed(1))
        more = {"start": start, "noise": noise, "cuda_graphs": cuda_graphs}
        contexts.append(pretrain(pair.texts, pair.context, config, flatness_weight=1.0, **more).context)
    assert torch.equal(*contexts)
    (record,) = caplog.records
    assert record.getMessage().startswith("work.cuda_graphs: needs a GPU (cpu)")
