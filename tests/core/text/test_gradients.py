"""Gradients by the Jacobian and by backward passes against autograd through the naive tower."""

from dataclasses import replace

import pytest
import torch

from fpp_sweep.core.compute import MemoryBudget, computing
from fpp_sweep.core.methods.gradients import (
    FORWARD_BACKWARD_RATIO,
    ByBackward,
    ByJacobian,
    first_gradient,
    gradients_at,
    jacobian_bytes,
)
from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.core.text.tower import attention_mask
from tests.kit.models import WordTokenizer
from tests.kit.texts import CLASSES, MAPLE, twins
from tests.reference import naive

SHARED = ("red car", "red cat", "red carpet", "blue car", "blue car", "dog", "red")
SHARED_NAMES = {"classes": SHARED}
SIZES = [
    {},
    {"width": 48, "heads": 4, "layers": 3, "embed_dim": 24},
    {"layers": 1},
    {"prompt": "x"},
    SHARED_NAMES,
    {"classes": ("ox",)},
    MAPLE,
    {**MAPLE, "classes": SHARED},
    {**MAPLE, "width": 48, "heads": 4, "embed_dim": 24},
]


def expected_gradients(pair, gradients):
    """Return the gradients that autograd computes through all 77 positions, one sample at a time."""
    actual = []
    for gradient in gradients:
        context = pair.context.clone().requires_grad_()
        features = naive.prompt_features(pair.naive, pair.token_ids, context)
        actual.append(torch.autograd.grad((features * gradient).sum(), context)[0])
    return torch.stack(actual)


@pytest.mark.parametrize("form", [ByBackward, ByJacobian])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_equal_autograd_through_the_naive_tower(form, sizes):
    pair = twins(**sizes)
    first = form(pair.texts, pair.context)
    expected = naive.prompt_features(pair.naive, pair.token_ids, pair.context)
    torch.testing.assert_close(first.features, expected, atol=2e-6, rtol=0)
    gradients = torch.randn(3, *expected.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(first.backward(gradients), expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("form", [ByBackward, ByJacobian])
def test_gradients_of_gelu_towers_equal_autograd(form):
    pair = twins(activation="gelu")
    gradients = torch.randn(2, len(CLASSES), 16, generator=torch.Generator().manual_seed(0))
    actual = form(pair.texts, pair.context).backward(gradients)
    torch.testing.assert_close(actual, expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{}, MAPLE], ids=str)
@pytest.mark.parametrize("form", [ByBackward, ByJacobian])
def test_gradients_of_texts_in_groups_equal_autograd(form, sizes, monkeypatch):
    monkeypatch.setattr("fpp_sweep.core.text.tower.SINGLE_GROUP_ROWS", 0)
    monkeypatch.setattr("fpp_sweep.core.text.tower.GROUP_ROWS", 12)
    pair = twins(**sizes, classes=SHARED)
    assert attention_mask(pair.texts.packing, 5).groups > 1
    gradients = torch.randn(2, len(SHARED), 16, generator=torch.Generator().manual_seed(0))
    actual = form(pair.texts, pair.context).backward(gradients)
    torch.testing.assert_close(actual, expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


def test_few_samples_use_the_backward_pass_and_many_use_the_jacobian():
    pair = twins(width=64, layers=3, embed_dim=32)
    assert isinstance(first_gradient(pair.texts, pair.context, 1), ByBackward)
    assert isinstance(first_gradient(pair.texts, pair.context, 100_000), ByJacobian)


def with_memory(texts, size, share=None):
    return replace(texts, tower=replace(texts.tower, memory=MemoryBudget(device=size, share=share)))


def test_the_memory_of_a_worker_decides_if_the_jacobian_is_built():
    """On a CPU what is free at the moment does not: all workers compute equal bits."""
    pair = twins()
    size = jacobian_bytes(pair.texts, pair.context)

    def is_built(*memory):
        return isinstance(first_gradient(with_memory(pair.texts, *memory), pair.context, 100_000), ByJacobian)

    assert is_built(4 * size)
    assert not is_built(4 * size - 1)
    assert is_built(size, 4 * size)
    with computing("fp16", torch.device("cpu")):
        assert is_built(2 * size)


@pytest.mark.parametrize("sizes", [SHARED_NAMES, MAPLE], ids=str)
@pytest.mark.parametrize("memory", [1, 40_000])
def test_a_jacobian_that_little_memory_builds_in_parts_gives_the_same_gradients(sizes, memory):
    """Only the last bits differ, because batches of positions have other sizes."""
    pair = twins(**sizes)
    with torch.no_grad():
        expected = ByJacobian(pair.texts, pair.context)
        actual = ByJacobian(with_memory(pair.texts, memory), pair.context)
        gradients = torch.randn(5, len(pair.texts), pair.texts.tower.feature_size)
        torch.testing.assert_close(actual.features, expected.features, atol=1e-6, rtol=0)
        torch.testing.assert_close(actual.backward(gradients), expected.backward(gradients), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("precision", "largest"), [("float32", 1e-4), ("fp16", 2e-2)])
def test_every_form_gives_the_same_gradients_on_every_device(device, precision, largest):
    pair = twins()
    tower, context = pair.texts.tower.to(device), pair.context.to(device)
    texts = ClassTexts.of_names(tower, WordTokenizer(), CLASSES)
    gradients = torch.randn(5, len(texts), len(tower.projection[0]), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = ByBackward(pair.texts, pair.context).backward(gradients)
        with computing(precision, torch.device(device)):
            forms = ByBackward(texts, context), ByJacobian(texts, context)
            for form in forms:
                actual = form.backward(gradients.to(device))
                assert (actual.device.type, actual.dtype) == (device, torch.float32)
                assert (actual.cpu() - expected).norm() < largest * expected.norm()


@pytest.mark.parametrize("sizes", [*SIZES, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize(("grouped", "batch_size"), [(False, 2), (True, 1), (True, 5)])
def test_gradients_at_different_contexts_equal_autograd(sizes, grouped, batch_size, monkeypatch):
    if grouped:
        monkeypatch.setattr("fpp_sweep.core.text.tower.SINGLE_GROUP_ROWS", 0)
        monkeypatch.setattr("fpp_sweep.core.text.tower.GROUP_ROWS", 12)
    monkeypatch.setattr(ClassTexts, "contexts_per_batch", lambda texts: FORWARD_BACKWARD_RATIO * batch_size)
    pair, generator = twins(**sizes), torch.Generator().manual_seed(0)
    contexts = pair.context + 0.1 * torch.randn(5, *pair.context.shape, generator=generator)
    vectors = torch.randn(5, len(pair.texts), len(pair.texts.tower.projection[0]), generator=generator)
    computed_rows, batch_sizes = [], []

    def feature_gradient(features, rows):
        computed_rows.extend(rows.tolist())
        batch_sizes.append(len(rows))
        assert features.shape == vectors[rows].shape
        return vectors[rows]

    actual, features = gradients_at(pair.model, contexts, feature_gradient)
    assert computed_rows == list(range(5))
    assert max(batch_sizes) == batch_size
    for context, vector, gradient, feature in zip(contexts, vectors, actual, features, strict=True):
        pair_at_context = replace(pair, context=context)
        expected = naive.prompt_features(pair.naive, pair.token_ids, context)
        torch.testing.assert_close(feature, expected, atol=2e-6, rtol=0)
        expected_gradient = expected_gradients(pair_at_context, vector[None])[0]
        torch.testing.assert_close(gradient, expected_gradient, atol=2e-5, rtol=1e-4)
