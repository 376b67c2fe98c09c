"""The tower with a shared prefix and packed suffixes against the naive tower over all positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.core.text.tower import Packing, TextTower, attention_mask
from tests.reference.naive import NaiveText, random_weights

WIDTHS = [(32, 2, 2, 16), (48, 4, 3, 24), (64, 1, 1, 64)]
VOCABULARY = 50
EOT = VOCABULARY - 1


def towers(width, heads, layers, embed_dim, *, activation="quick_gelu", seed=0):
    weights = random_weights(width=width, layers=layers, embed_dim=embed_dim, vocabulary=VOCABULARY, seed=seed)
    fast = TextTower.from_state(weights, heads=heads, activation=activation)
    return fast, NaiveText(weights, heads, activation == "quick_gelu")


def random_texts(lengths, prefix, generator):
    """Return padded ids (K, 77) of texts: `prefix` tokens that all share, then `lengths[k]` tokens, the last is EOT."""
    ids = torch.zeros(len(lengths), 77, dtype=torch.long)
    ids[:, :prefix] = torch.randint(1, EOT, (prefix,), generator=generator)
    for row, length in zip(ids, lengths, strict=True):
        row[prefix : prefix + length - 1] = torch.randint(1, EOT, (length - 1,), generator=generator)
        row[prefix + length - 1] = EOT
    return ids


def padded_ids(texts, prefix):
    """Return padded ids (K, 77) of texts that share a prefix; both are lists of token ids."""
    ids = torch.zeros(len(texts), 77, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        tokens = [*prefix, *text]
        row[: len(tokens)] = torch.tensor(tokens)
    return ids


def node_embeddings(texts, tower, packing):
    """Return the embeddings of the packing's nodes; texts with equal beginnings share nodes."""
    packed_ids = []
    for text in packing.order.tolist():
        packed_ids += texts[text]
    return tower.token_embedding[packing.to_nodes(torch.tensor([packed_ids]))]


def packed(ids, lengths, prefix, tower, packing):
    """Return the embeddings of the tokens after the prefix, text by text in the order of the packing."""
    rows = [ids[text, prefix : prefix + lengths[text]] for text in packing.order.tolist()]
    return tower.token_embedding[torch.cat(rows)]


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("sizes", WIDTHS)
def test_features_equal_the_naive_tower(sizes, activation):
    fast, naive = towers(*sizes, activation=activation)
    lengths = [3, 6, 3, 2, 9, 6, 4]
    ids = random_texts(lengths, 5, torch.Generator().manual_seed(1))
    packing = Packing.of_lengths(lengths)
    actual = fast.features(fast.token_embedding[ids[:1, :5]], packed(ids, lengths, 5, fast, packing)[None], packing)
    torch.testing.assert_close(actual[0], naive.features(naive.embed(ids), ids), atol=2e-6, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(0, 8), st.integers(0, 1000))
def test_features_equal_the_naive_tower_for_any_lengths_order_and_prefix(lengths, prefix, seed):
    fast, naive = towers(32, 2, 2, 16)
    ids = random_texts(lengths, prefix, torch.Generator().manual_seed(seed))
    packing = Packing.of_lengths(lengths)
    shared = fast.token_embedding[ids[:1, :prefix]]
    actual = fast.features(shared, packed(ids, lengths, prefix, fast, packing)[None], packing)
    torch.testing.assert_close(actual[0], naive.features(naive.embed(ids), ids), atol=2e-6, rtol=0)


def test_a_batch_of_prefixes_equals_single_prefixes():
    fast, _ = towers(32, 2, 2, 16)
    lengths = [2, 5, 3]
    packing = Packing.of_lengths(lengths)
    tokens = torch.randn(1, sum(lengths), 32)
    prefixes = torch.randn(4, 5, 32)
    together = fast.features(prefixes, tokens, packing)
    apart = torch.cat([fast.features(prefix[None], tokens, packing) for prefix in prefixes])
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=0)


def test_gradients_reach_prefix_and_tokens_as_in_the_naive_tower():
    fast, naive = towers(32, 2, 2, 16)
    lengths = [3, 5]
    ids = random_texts(lengths, 5, torch.Generator().manual_seed(2))
    packing = Packing.of_lengths(lengths)
    weights = torch.randn(2, 16)
    prefix = fast.token_embedding[ids[:1, :5]].clone().requires_grad_()
    actual = fast.features(prefix, packed(ids, lengths, 5, fast, packing)[None], packing)[0]
    (fast_gradient,) = torch.autograd.grad((weights * actual).sum(), prefix)
    whole = naive.embed(ids).clone().requires_grad_()
    (naive_gradient,) = torch.autograd.grad((weights * naive.features(whole, ids)).sum(), whole)
    torch.testing.assert_close(fast_gradient[0], naive_gradient[:, :5].sum(0), atol=1e-5, rtol=1e-4)


def test_texts_with_equal_beginnings_share_nodes_and_keep_their_features():
    fast, naive = towers(32, 2, 2, 16)
    generator = torch.Generator().manual_seed(3)
    starts = torch.randint(1, EOT, (2, 4), generator=generator).tolist()
    texts = [[*starts[text % 2][: 1 + text % 5], *([7] * (text % 3)), 5, EOT] for text in range(12)]
    packing = Packing.of(texts)
    assert packing.node_of is not None
    assert len(packing) < sum(map(len, texts))
    ids = padded_ids(texts, prefix=[1, 2, 3])
    actual = fast.features(fast.token_embedding[ids[:1, :3]], node_embeddings(texts, fast, packing), packing)
    torch.testing.assert_close(actual[0], naive.features(naive.embed(ids), ids), atol=2e-6, rtol=0)


def test_many_texts_attend_in_groups_and_keep_their_features(monkeypatch):
    monkeypatch.setattr("fpp_sweep.core.text.tower.SINGLE_GROUP_ROWS", 0)
    monkeypatch.setattr("fpp_sweep.core.text.tower.GROUP_ROWS", 12)
    fast, naive = towers(32, 2, 2, 16)
    texts = [[1 + text % 3, *([7] * (text % 4)), text, EOT] for text in range(3, 20)]
    packing = Packing.of(texts)
    mask = attention_mask(packing, 3)
    assert packing.node_of is not None
    assert mask.groups > 3
    assert len(mask.row_of) > len(packing) + 3 * mask.groups, "no group repeats a beginning or is padded"
    ids = padded_ids(texts, prefix=[1, 2, 3])
    prefixes = fast.token_embedding[ids[:1, :3]].expand(2, -1, -1)
    actual = fast.features(prefixes, node_embeddings(texts, fast, packing), packing)
    torch.testing.assert_close(actual[1], naive.features(naive.embed(ids), ids), atol=2e-6, rtol=0)
