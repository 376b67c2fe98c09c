"""The hand-written backward pass and the Jacobian against autograd through the naive tower."""

from dataclasses import replace

import pytest
import torch

from fpp_sweep.core.compute.memory import MemoryBudget
from fpp_sweep.core.compute.precision import computing
from fpp_sweep.core.methods.gradients import (
    FORWARD_BACKWARD_RATIO,
    ByJacobian,
    ByPullback,
    first_gradient,
    gradients_at,
    jacobian_bytes,
    jacobian_cost,
    pullback_cost,
)
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.core.text.pullback import Pullback
from tests.clips import WordTokenizer
from tests.reference import naive
from tests.texts import CLASSES, MAPLE, twins

SHARED = ("red car", "red cat", "red carpet", "blue car", "blue car", "dog", "red")
SIZES = [
    {},
    {"width": 48, "heads": 4, "layers": 3, "embed_dim": 24},
    {"layers": 1},
    {"prompt": "x"},
    {"classes": SHARED},
    {"classes": ("ox",)},
    {"prompt": "a photo", "after": "of a"},
    MAPLE,
    {**MAPLE, "layers": 3, "classes": SHARED},  # the last block has a prompt of its own
    {**MAPLE, "width": 48, "heads": 4, "embed_dim": 24},
]


def expected_gradients(pair, gradients):
    """Autograd, one sample at a time, through all 77 positions."""
    found = []
    for gradient in gradients:
        context = pair.context.clone().requires_grad_()
        features = naive.prompt_features(pair.naive, pair.token_ids, context)
        found.append(torch.autograd.grad((features * gradient).sum(), context)[0])
    return torch.stack(found)


@pytest.mark.parametrize("form", [ByPullback, ByJacobian])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_equal_autograd_through_the_naive_tower(form, sizes):
    pair = twins(**sizes)
    first = form(pair.texts, pair.context)
    expected = naive.prompt_features(pair.naive, pair.token_ids, pair.context)
    torch.testing.assert_close(first.features, expected, atol=2e-6, rtol=0)
    gradients = torch.randn(3, *expected.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(first.backward(gradients), expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("form", [ByPullback, ByJacobian])
def test_gelu_towers_too(form):
    pair = twins(activation="gelu")
    gradients = torch.randn(2, len(CLASSES), 16, generator=torch.Generator().manual_seed(0))
    found = form(pair.texts, pair.context).backward(gradients)
    torch.testing.assert_close(found, expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{}, MAPLE], ids=str)
@pytest.mark.parametrize("form", [ByPullback, ByJacobian])
def test_texts_in_groups_too(form, sizes, monkeypatch):
    monkeypatch.setattr("fpp_sweep.core.text.packing.SINGLE_GROUP_ROWS", 0)
    monkeypatch.setattr("fpp_sweep.core.text.packing.GROUP_ROWS", 12)
    pair = twins(**sizes, classes=SHARED)
    assert pair.texts.packing.attention_mask(5).groups > 1
    gradients = torch.randn(2, len(SHARED), 16, generator=torch.Generator().manual_seed(0))
    found = form(pair.texts, pair.context).backward(gradients)
    torch.testing.assert_close(found, expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{"layers": 3}, MAPLE], ids=str)
def test_the_way_back_is_the_first_prompts_whatever_shares_its_forward_pass(sizes):
    pair = twins(**sizes)
    texts, generator = pair.texts, torch.Generator().manual_seed(0)
    others = torch.randn(3, *pair.context.shape, generator=generator)
    nodes = torch.cat([texts.nodes[None], torch.randn(3, *texts.nodes.shape, generator=generator)])
    prefix = texts.prefix(torch.cat([pair.context[None], others]))
    gradients = torch.randn(1, len(CLASSES), 16, generator=generator)
    with torch.no_grad():
        together = Pullback(texts.tower, prefix, nodes, texts.packing)
        expected = texts.tower.features(prefix, nodes, texts.packing)
    torch.testing.assert_close(together.features, expected, atol=1e-6, rtol=0)
    found = together(gradients, torch.arange(1, 1 + len(pair.context)))
    torch.testing.assert_close(found, expected_gradients(pair, gradients), atol=2e-5, rtol=1e-4)


def test_few_samples_go_through_the_tower_and_many_share_a_jacobian():
    pair = twins(width=64, layers=3, embed_dim=32)
    assert isinstance(first_gradient(pair.texts, pair.context, 1), ByPullback)
    assert isinstance(first_gradient(pair.texts, pair.context, 100_000), ByJacobian)


def in_room(texts, **room):
    return replace(texts, tower=replace(texts.tower, memory=MemoryBudget(**room)))


def test_a_jacobian_lies_where_there_is_memory_and_is_not_built_where_there_is_none():
    pair = twins()
    size = jacobian_bytes(pair.texts, pair.context)

    def form(**room):
        found = first_gradient(in_room(pair.texts, **room), pair.context, 100_000)
        return found._block if isinstance(found, ByJacobian) else None

    assert form(device=2 * size) == len(pair.texts)
    assert form(device=2 * size - 1, host=2 * size) == 3  # classes at a time, of 7: a quarter of what there is
    assert form(device=1, host=2 * size) == 1
    assert form(device=2 * size - 1, host=2 * size - 1) is None
    with computing("fp16", torch.device("cpu")):
        assert form(device=size) == len(pair.texts)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("room", [1, 40_000])
def test_a_jacobian_that_comes_by_blocks_gives_the_same_gradients(sizes, room):
    """The same J to the last bit but for how many positions go back at once; the sum over blocks moves last bits."""
    pair = twins(**sizes)
    texts = in_room(pair.texts, device=room, host=1e12)
    with torch.no_grad():
        whole, streamed = ByJacobian(pair.texts, pair.context), ByJacobian(texts, pair.context, on_host=True)
        assert streamed._block < len(pair.texts) or len(pair.texts) == 1 or room > 1
        gradients = torch.randn(5, len(texts), len(texts.tower.projection[0]))
        torch.testing.assert_close(streamed.features, whole.features, atol=1e-6, rtol=0)
        torch.testing.assert_close(streamed._jacobian, whole._jacobian, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(streamed.backward(gradients), whole.backward(gradients), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-4), ("fp16", 2e-2)])
def test_every_form_gives_the_same_gradients_on_every_device(place, precision, most):
    pair = twins()
    tower, context = pair.texts.tower.to(place), pair.context.to(place)
    texts = ClassTexts.of_names(tower, WordTokenizer(), CLASSES)
    gradients = torch.randn(5, len(texts), len(tower.projection[0]), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = ByPullback(pair.texts, pair.context).backward(gradients)
        with computing(precision, torch.device(place)):
            forms = ByPullback(texts, context), ByJacobian(texts, context)
            streamed = ByJacobian(in_room(texts, device=40_000, host=1e12), context, on_host=True)
            for form in (*forms, streamed):
                found = form.backward(gradients.to(place))
                assert (found.device.type, found.dtype) == (place, torch.float32)
                assert (found.cpu() - expected).norm() < most * expected.norm()
    assert streamed._jacobian.device.type == "cpu"
    assert streamed._block < len(texts)


def test_what_goes_through_the_tower_at_once_is_what_fits():
    tower = twins().texts.tower
    assert (tower.positions_per_batch(), tower.saved_positions_per_batch()) == (2048, 2048)
    found = [replace(tower, memory=MemoryBudget(device=room)) for room in (1e9, 16e6, 4e6, 0)]
    assert [each.positions_per_batch() for each in found] == [2048, 1024, 256, 1]
    assert [each.saved_positions_per_batch() for each in found] == [2048, 512, 128, 1]


def test_the_costs_break_even_where_they_say():
    pair = twins(width=64, layers=3, embed_dim=32)
    jacobian, pullback = jacobian_cost(pair.texts, 4), pullback_cost(pair.texts, 4)
    even = jacobian.fixed / (pullback.per_sample - jacobian.per_sample)
    assert jacobian.total(round(even * 2)) < pullback.total(round(even * 2))
    assert jacobian.total(round(even / 2)) > pullback.total(round(even / 2))


@pytest.mark.parametrize("sizes", [*SIZES, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_gradients_at_contexts_that_differ_equal_autograd_through_the_naive_tower(sizes, grouped, at_once, monkeypatch):
    if grouped:
        monkeypatch.setattr("fpp_sweep.core.text.packing.SINGLE_GROUP_ROWS", 0)
        monkeypatch.setattr("fpp_sweep.core.text.packing.GROUP_ROWS", 12)
    monkeypatch.setattr(ClassTexts, "contexts_per_batch", lambda texts: FORWARD_BACKWARD_RATIO * at_once)
    pair, generator = twins(**sizes), torch.Generator().manual_seed(0)
    contexts = pair.context + 0.1 * torch.randn(5, *pair.context.shape, generator=generator)
    vectors = torch.randn(5, len(pair.texts), len(pair.texts.tower.projection[0]), generator=generator)
    parts = []

    def of_features(features, rows):
        parts.append(rows.tolist())
        assert features.shape == vectors[rows].shape
        return vectors[rows]

    found, features = gradients_at(pair.model, contexts, of_features)
    assert [row for part in parts for row in part] == list(range(5))
    assert max(map(len, parts)) == at_once
    for context, vector, gradient, feature in zip(contexts, vectors, found, features, strict=True):
        same = replace(pair, context=context)
        expected = naive.prompt_features(pair.naive, pair.token_ids, context)
        torch.testing.assert_close(feature, expected, atol=2e-6, rtol=0)
        torch.testing.assert_close(gradient, expected_gradients(same, vector[None])[0], atol=2e-5, rtol=1e-4)
