"""Class vectors of template ensembles against open_clip's classifier and a naive form."""

import pytest
import torch

from fpp_sweep.core.datasets.catalogue import templates
from fpp_sweep.core.models.clip import BpeTokenizer
from fpp_sweep.core.text.texts import ensemble_features
from fpp_sweep.core.text.tower import TextTower
from fpp_sweep.spec.errors import InputError
from tests.kit.models import WordTokenizer, small_clip
from tests.kit.texts import CLASSES, padded_ids
from tests.reference.family import ensemble
from tests.reference.naive import NaiveText, random_weights


@pytest.mark.parametrize("name", ["simple", "openai"])
def test_class_vectors_equal_the_classifier_that_open_clip_builds(name):
    from open_clip import tokenize
    from open_clip.zero_shot_classifier import build_zero_shot_classifier

    model = small_clip(quick_gelu=True)
    expected = build_zero_shot_classifier(model, tokenize, CLASSES, templates(name)).T
    heads = model.transformer.resblocks[0].attn.num_heads
    tower = TextTower.from_state(model.state_dict(), heads=heads, activation="quick_gelu")
    texts = []
    for class_name in CLASSES:
        texts.append([template.format(class_name) for template in templates(name)])
    actual = ensemble_features(tower, BpeTokenizer(), texts)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


TEXTS = [  # classes with different numbers of texts, which have different lengths
    ["a photo of a forest.", "forest seen from above", "many trees"],
    ["sea or lake"],
    ["a photo of a dog.", "a dog, which is an animal with four legs and a tail, that barks"],
]


def test_class_vectors_equal_the_naive_form_for_any_number_of_texts():
    tokenizer = WordTokenizer()
    weights = random_weights(width=32, layers=2, embed_dim=16, vocabulary=tokenizer.vocabulary, seed=0)
    tower = TextTower.from_state(weights, heads=2, activation="quick_gelu")
    naive = NaiveText(weights, 2, quick_gelu=True)
    expected = ensemble(naive, [padded_ids(tokenizer, texts) for texts in TEXTS])
    torch.testing.assert_close(ensemble_features(tower, tokenizer, TEXTS), expected, atol=2e-6, rtol=0)


def test_a_text_that_does_not_fit_the_model_is_refused():
    tokenizer = WordTokenizer()
    weights = random_weights(width=32, layers=1, embed_dim=16, vocabulary=tokenizer.vocabulary, seed=0)
    tower = TextTower.from_state(weights, heads=2, activation="quick_gelu")
    text = " ".join(["dog"] * 76)
    with pytest.raises(InputError, match=r"text 'dog dog.*' needs 154 tokens, but the model has 77; shorten it"):
        ensemble_features(tower, tokenizer, [[text]])
