"""The tower with a shared prefix and packed suffixes against the naive one over all positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.core.text import Layout, TextTower
from tests.reference.naive import NaiveText, random_weights

WIDTHS = [(32, 2, 2, 16), (48, 4, 3, 24), (64, 1, 1, 64)]
VOCABULARY = 50
EOT = VOCABULARY - 1


def towers(width, heads, layers, embed_dim, *, activation="quick_gelu", seed=0):
    weights = random_weights(width=width, layers=layers, embed_dim=embed_dim, vocabulary=VOCABULARY, seed=seed)
    fast = TextTower.from_state(weights, heads=heads, activation=activation)
    return fast, NaiveText(weights, heads, activation == "quick_gelu")


def random_texts(lengths, prefix, generator):
    """(K, 77) padded ids of texts that share `prefix` tokens and go on for their own lengths, EOT the last."""
    ids = torch.zeros(len(lengths), 77, dtype=torch.long)
    ids[:, :prefix] = torch.randint(1, EOT, (prefix,), generator=generator)
    for row, length in zip(ids, lengths, strict=True):
        row[prefix : prefix + length - 1] = torch.randint(1, EOT, (length - 1,), generator=generator)
        row[prefix + length - 1] = EOT
    return ids


def packed(ids, lengths, prefix, tower, layout):
    rows = [ids[text, prefix : prefix + lengths[text]] for text in layout.order.tolist()]
    return tower.token_embedding[torch.cat(rows)]


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("sizes", WIDTHS)
def test_features_equal_the_naive_tower(sizes, activation):
    fast, naive = towers(*sizes, activation=activation)
    lengths = [3, 6, 3, 2, 9, 6, 4]
    ids = random_texts(lengths, 5, torch.Generator().manual_seed(1))
    layout = Layout.of(lengths)
    found = fast.features(fast.token_embedding[ids[:1, :5]], packed(ids, lengths, 5, fast, layout)[None], layout)
    torch.testing.assert_close(found[0], naive.features(naive.embed(ids), ids), atol=2e-6, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(0, 8), st.integers(0, 1000))
def test_any_lengths_in_any_order_with_any_prefix(lengths, prefix, seed):
    fast, naive = towers(32, 2, 2, 16)
    ids = random_texts(lengths, prefix, torch.Generator().manual_seed(seed))
    layout = Layout.of(lengths)
    shared = fast.token_embedding[ids[:1, :prefix]]
    found = fast.features(shared, packed(ids, lengths, prefix, fast, layout)[None], layout)
    torch.testing.assert_close(found[0], naive.features(naive.embed(ids), ids), atol=2e-6, rtol=0)


def test_a_batch_of_prefixes_is_a_row_of_single_ones():
    fast, _ = towers(32, 2, 2, 16)
    lengths = [2, 5, 3]
    layout = Layout.of(lengths)
    tokens = torch.randn(1, sum(lengths), 32)
    prefixes = torch.randn(4, 5, 32)
    together = fast.features(prefixes, tokens, layout)
    apart = torch.cat([fast.features(prefix[None], tokens, layout) for prefix in prefixes])
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=0)


def test_gradients_reach_prefix_and_tokens_as_in_the_naive_tower():
    fast, naive = towers(32, 2, 2, 16)
    lengths = [3, 5]
    ids = random_texts(lengths, 5, torch.Generator().manual_seed(2))
    layout = Layout.of(lengths)
    weights = torch.randn(2, 16)
    prefix = fast.token_embedding[ids[:1, :5]].clone().requires_grad_()
    found = fast.features(prefix, packed(ids, lengths, 5, fast, layout)[None], layout)[0]
    (fast_gradient,) = torch.autograd.grad((weights * found).sum(), prefix)
    whole = naive.embed(ids).clone().requires_grad_()
    (naive_gradient,) = torch.autograd.grad((weights * naive.features(whole, ids)).sum(), whole)
    torch.testing.assert_close(fast_gradient[0], naive_gradient[:, :5].sum(0), atol=1e-5, rtol=1e-4)


def test_a_layout_can_be_made_longer_in_front():
    layout = Layout.of([3, 1, 2, 1]).longer_by(4)
    again = Layout.of([7, 5, 6, 5])
    assert layout.buckets == again.buckets
    for name in ("order", "inverse", "texts", "positions", "ends"):
        assert torch.equal(getattr(layout, name), getattr(again, name)), name
