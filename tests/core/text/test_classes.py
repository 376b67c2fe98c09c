"""Class texts: their tokens and features, and noise on their embeddings."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.core.text.tower import Noise
from fpp_sweep.spec.errors import InputError
from tests.kit.models import WordTokenizer, random_clip
from tests.kit.texts import CLASSES, MAPLE, twins
from tests.reference import naive


@pytest.mark.parametrize("sizes", [{}, MAPLE], ids=str)
def test_features_of_any_context_equal_the_naive_reference(sizes):
    pair = twins(**sizes)
    contexts = torch.randn(3, *pair.context.shape, generator=torch.Generator().manual_seed(0)) * 0.3
    actual = pair.texts.features(contexts)
    expected = [naive.prompt_features(pair.naive, pair.token_ids, context) for context in contexts]
    torch.testing.assert_close(actual, torch.stack(expected), atol=2e-6, rtol=0)


@settings(max_examples=10, deadline=None)
@given(st.permutations(CLASSES))
def test_features_come_in_the_order_of_the_class_names(names):
    pair, shuffled = twins(), twins(classes=names)
    expected = pair.texts.features(pair.context)[[CLASSES.index(name) for name in names]]
    torch.testing.assert_close(shuffled.texts.features(shuffled.context), expected, atol=1e-6, rtol=0)


def test_leading_batch_dimensions_are_kept():
    pair = twins()
    contexts = pair.context.expand(2, 3, -1, -1)
    assert pair.texts.features(contexts).shape == (2, 3, len(CLASSES), 16)
    assert pair.texts.features(pair.context).shape == (len(CLASSES), 16)


def test_underscores_become_spaces_and_the_full_stop_follows_the_name():
    tower, tokenizer = random_clip().text, WordTokenizer()
    first = ClassTexts.of_names(tower, tokenizer, ["sea_or_lake"])
    second = ClassTexts.of_names(tower, tokenizer, ["sea or lake"])
    assert torch.equal(first.nodes, second.nodes)
    assert torch.equal(first.nodes[-2], tower.token_embedding[tokenizer.encode(".")[0]])
    assert torch.equal(first.nodes[-1], tower.token_embedding[tokenizer.eot])
    assert first.is_name.tolist() == [True] * (len(first.nodes) - 2) + [False, False]


def test_words_after_the_context_do_not_count_as_the_name():
    tower, tokenizer = random_clip().text, WordTokenizer()
    plain = ClassTexts.of_names(tower, tokenizer, ["sea_or_lake"])
    texts = ClassTexts.of_names(tower, tokenizer, ["sea_or_lake"], after="of a")
    assert torch.equal(texts.nodes[:2], tower.token_embedding[tokenizer.encode("of a")])
    assert torch.equal(texts.nodes[2:], plain.nodes)
    assert texts.is_name.tolist() == [False, False, *plain.is_name.tolist()]


@pytest.mark.parametrize("sizes", [{}, MAPLE], ids=str)
def test_shared_noise_equals_per_class_noise_with_equal_draws(sizes):
    pair = twins(**sizes)
    generator = torch.Generator().manual_seed(0)
    sizes = {"sos": 1, "context": len(pair.context), "suffix": pair.texts.packing.longest}
    shared = {name: 0.2 * torch.randn(3, 1, size, 32, generator=generator) for name, size in sizes.items()}
    per_class = {name: draw.expand(-1, len(CLASSES), -1, -1) for name, draw in shared.items()}
    first = pair.texts.noisy_features(pair.context, Noise(**shared))
    second = pair.texts.noisy_features(pair.context, Noise(**per_class))
    torch.testing.assert_close(first, second, atol=2e-6, rtol=0)
    assert (first[0] - pair.texts.features(pair.context)).abs().max() > 0.01


def test_gaussian_classes_have_two_random_tokens_and_eot():
    clip = random_clip()
    texts = ClassTexts.of_gaussians(clip.text, clip.tokenizer, 2000, torch.Generator().manual_seed(0))
    assert texts.packing.lengths == (3,) * 2000
    rows = texts.nodes.view(2000, 3, -1)
    assert torch.equal(rows[7, 2], clip.text.token_embedding[clip.tokenizer.eot])
    assert rows[:, :2].std().item() == pytest.approx(clip.text.token_embedding.std().item(), rel=0.02)
    assert rows[:, :2].mean().item() == pytest.approx(clip.text.token_embedding.mean().item(), abs=0.005)


def test_a_class_name_that_is_too_long_is_refused_with_its_length():
    clip = random_clip()
    long_name = "ab" * 77
    with pytest.raises(InputError, match=r"class name 'ab.*is 79 tokens long.*77 tokens"):
        ClassTexts.of_names(clip.text, clip.tokenizer, ["ok", long_name])
    texts = ClassTexts.of_names(clip.text, clip.tokenizer, ["ok", "ab" * 70])
    with pytest.raises(InputError, match=r"with a prompt of 8 tokens needs 81 tokens"):
        texts.require_room(8, ["ok", "ab" * 70])
    texts.require_room(4, ["ok", "ab" * 70])
