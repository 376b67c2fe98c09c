"""The embedded model: its file, its vocabulary, and its training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fpp_sweep.tiny import model as tiny_model
from fpp_sweep.tiny.pictures import Description
from fpp_sweep.tiny.rendering import generator
from fpp_sweep.tiny.world import TINY_DATASETS
from tools.train_tiny import losses, scoring, training, weights
from tools.train_tiny.__main__ import main
from tools.train_tiny.recipe import Recipe

COMMON_PROMPTS = (
    "a photo of a", "a good photo of the", "a picture of a", "an image of a", "a drawing of a",
    "a sketch of a", "this is a", "a bad photo of a", "a close-up photo of a", "the", "art of the",
    "a blurry photo of a", "a painting of a", "itap of a", "a origami", "in a video game",
)  # fmt: skip
needs_shipped = pytest.mark.skipif(not tiny_model.SHIPPED.exists(), reason="tiny.safetensors has not been trained yet")


@pytest.fixture(scope="module")
def tokenizer():
    from open_clip import SimpleTokenizer

    return SimpleTokenizer()


@pytest.fixture(scope="module")
def untrained():
    torch.manual_seed(0)
    return tiny_model.build().eval()


@pytest.fixture
def tiny_recipe():
    return Recipe(steps=6, threads=1, pool=96, batch=32, pairs=8, captions=8, warmup=2)


def class_names() -> list[str]:
    """Return the class names of all embedded datasets."""
    names: list[str] = []
    for dataset in TINY_DATASETS.values():
        names += dataset.classes
    return names


def train(recipe: Recipe, folder: Path, resume: bool = False) -> dict[str, torch.Tensor]:
    """Train a model with a checkpoint after every step; return its weights."""
    checkpoint = folder / "checkpoint"
    return training.train(recipe, checkpoint, resume, workers=0, every=1).state_dict()


def assert_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


# The vocabulary.


def test_the_vocabulary_has_every_word_of_classes_and_common_prompts(tokenizer):
    vocabulary = set(weights.vocabulary_ids())
    characters = [*"abcdefghijklmnopqrstuvwxyz", *"0123456789", "."]
    for text in (*class_names(), *COMMON_PROMPTS, *characters):
        assert set(tokenizer.encode(text)) <= vocabulary, text
    assert all(len(tokenizer.encode(character)) == 1 for character in characters)
    assert {tokenizer.sot_token_id, tokenizer.eot_token_id} <= vocabulary
    assert not set(tokenizer.encode("aardvark")) <= vocabulary


def test_class_tokens_start_right_after_the_four_context_tokens(tokenizer):
    for dataset in TINY_DATASETS.values():
        for name in dataset.classes:
            tokens = tokenizer([f"a photo of a {name}."])[0].tolist()
            words = tokenizer.encode(name)
            assert tokens[5 : 5 + len(words)] == words
            assert tokens[5 + len(words)] == tokenizer.encode(".")[0]


def test_the_lexicon_encodes_texts_to_the_tokens_of_clips_tokenizer(tokenizer):
    lexicon, ids = losses.Lexicon(), weights.vocabulary_ids()
    texts = ["a close-up photo of a zigzagged texture.", "letter q.", "number 3 on a gray background."]
    for text, row in zip(texts, lexicon.encode(texts, 28), strict=True):
        expected = tokenizer([text])[0].tolist()
        count = expected.index(tokenizer.eot_token_id) + 1
        assert [ids[token] for token in row[:count].tolist()] == expected[:count]
    with pytest.raises(ValueError, match=r"at most 4: 'a photo of a red star\.'"):
        lexicon.encode(["a photo of a red star."], 4)


# The file.


@pytest.fixture(scope="module")
def saved(untrained, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    weights.save(untrained, path, {"seed": "7"})
    return path


def test_saving_and_loading_only_rounds_to_half_precision(untrained, saved):
    loaded, metadata = tiny_model.load(saved)
    assert metadata == {"seed": "7", "format_version": tiny_model.FORMAT_VERSION}
    expected = {}
    for name, value in untrained.state_dict().items():
        expected[name] = value.half().float() if value.is_floating_point() else value
    actual, ids = loaded.state_dict(), list(weights.vocabulary_ids())
    rows, expected_rows = actual.pop(tiny_model.EMBEDDING), expected.pop(tiny_model.EMBEDDING)
    assert torch.equal(rows[ids], expected_rows[ids])
    assert_same_bits(actual, expected)
    assert any("running_mean" in name for name in actual)


def test_loading_is_repeatable_and_does_not_change_the_global_random_stream(saved):
    torch.manual_seed(3)
    first, _ = tiny_model.load(saved)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after)
    second, _ = tiny_model.load(saved)
    assert_same_bits(first.state_dict(), second.state_dict())
    assert not first.training
    assert not any(parameter.requires_grad for parameter in first.parameters())


def test_saving_writes_one_file_and_does_not_change_the_model(untrained, tmp_path):
    before = untrained.token_embedding.weight.clone()
    weights.save(untrained, tmp_path / "model.safetensors", {})
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert torch.equal(untrained.token_embedding.weight, before)


def test_a_file_lists_its_trained_tokens(saved, tokenizer):
    assert tiny_model.trained_ids(saved) == frozenset(weights.vocabulary_ids())
    assert set(tokenizer.encode("umbrella")) <= tiny_model.trained_ids(saved)
    assert not set(tokenizer.encode("aardvark")) <= tiny_model.trained_ids(saved)


def test_a_file_of_another_format_is_refused(untrained, tmp_path):
    path = tmp_path / "old.safetensors"
    weights.save(untrained, path, {"format_version": "0"})
    with pytest.raises(ValueError, match=r"old.safetensors: format_version must be '1', got '0'"):
        tiny_model.load(path)


def test_the_embedding_scale_counts_trained_rows_only(untrained):
    ids = list(weights.vocabulary_ids())
    expected = untrained.token_embedding.weight[ids].std().item() / 0.0125
    assert weights.embedding_scale(untrained) == pytest.approx(expected, rel=1e-3)


# The parts of training.


def test_features_of_shortened_texts_equal_open_clips(untrained, tokenizer):
    tokens = tokenizer(["a photo of a red star.", "letter q."])
    expected = F.normalize(untrained.encode_text(tokens), dim=-1)
    for length in (9, 16, 77):
        features = losses.text_features(untrained, tokens[:, :length])
        assert torch.allclose(features, expected, atol=1e-6)


def test_the_learning_rate_warms_up_and_ends_at_zero():
    recipe = Recipe(steps=1000)
    rates = [recipe.rate_at(step) for step in range(1000)]
    assert rates[0] < recipe.rate / 30
    assert max(rates) == pytest.approx(recipe.rate, rel=0.01)
    assert rates[-1] < recipe.rate * 1e-4
    assert rates[60:] == sorted(rates[60:], reverse=True)


def test_a_shortened_run_follows_the_cosine_and_then_decays_linearly():
    whole, cut = Recipe(steps=1000), Recipe(steps=1000, cool_at=400, cool_steps=100)
    assert cut.total_steps == 500
    assert [cut.rate_at(step) for step in range(401)] == [whole.rate_at(step) for step in range(401)]
    assert cut.rate_at(450) == pytest.approx(whole.rate_at(400) / 2)
    assert cut.rate_at(500) == 0


def test_a_run_can_be_shortened_at_a_later_step_only():
    whole, cut = Recipe(steps=1000), Recipe(steps=1000, cool_at=400)
    assert cut.is_like(whole, 400)
    assert not cut.is_like(whole, 401)
    assert not Recipe(seed=1, steps=1000, cool_at=400).is_like(whole, 400)


def test_every_epoch_shows_every_picture_at_most_once():
    recipe = Recipe(pool=100, batch=30)
    epoch = np.concatenate([training.batch_indices(recipe, step) for step in range(3)])
    assert len(set(epoch.tolist())) == 90
    assert not np.array_equal(training.batch_indices(recipe, 3), epoch[:30])


def test_glyphs_and_left_or_right_positions_are_not_mirrored():
    assert not losses.may_flip(Description(kind="glyph", name="letter a"))
    assert not losses.may_flip(Description(kind="object", name="star", position="left"))
    assert losses.may_flip(Description(kind="object", name="star", position="top"))


def test_a_crop_shows_its_own_picture():
    picture = np.zeros((2, 64, 64, 3), np.uint8)
    picture[:, :, 32:] = 255  # the left half is dark, the right half is bright
    flippable = np.array([False, False])
    views = losses.crops(losses.to_unit(picture), flippable, generator(0))
    assert views.shape == (2, 3, 48, 48)
    assert (views[..., 0] < 0.1).all()
    assert (views[..., -1] > 0.9).all()


def test_pairs_of_a_batch_come_first_and_are_never_held_out():
    shown = [Description(kind="object", name=s, colour=c) for c, s in losses.PAIRS[:5]]
    pairs = losses.choose_pairs(shown, 8, generator(0))
    assert set(pairs[:5]) == set(losses.PAIRS[:5])
    assert len(set(pairs)) == 8
    assert set(pairs) <= set(losses.PAIRS)


def test_matching_loss_is_lowest_for_matching_captions():
    fits = torch.eye(4)
    good = losses.matching_loss(10 * fits, fits)
    assert good < 0.01 < losses.matching_loss(10 * fits.roll(1, 0), fits)
    assert losses.matching_loss(0 * fits, fits).item() == pytest.approx(2 * math.log(4))


def test_a_batch_without_targets_has_zero_loss():
    loss = losses.cross_entropy(torch.randn(3, 5), torch.full((3,), -1))
    assert loss.item() == 0


def test_the_calibration_error_equals_a_naive_loop():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(500), rng.random(500) < 0.6
    confidence[:2] = 1.0, 0.05  # both are the upper edge of a bin
    expected = 0.0
    for k in range(20):
        inside = (confidence > k / 20) & (confidence <= (k + 1) / 20)
        if inside.any():
            gap = abs(correct[inside].mean() - confidence[inside].mean())
            expected += gap * inside.mean()
    actual = scoring.expected_calibration_error(confidence, correct)
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize("field", ["steps", "cool_steps", "threads", "batch", "pool"])
def test_a_recipe_with_a_zero_count_is_refused(field):
    with pytest.raises(ValueError, match=f"{field} must be >= 1, got 0"):
        Recipe(**{field: 0})


def test_a_batch_larger_than_the_pool_is_refused():
    with pytest.raises(ValueError, match=r"batch must be <= pool \(10\), got 256"):
        Recipe(pool=10)


# Whole trainings.


@pytest.mark.nightly
@pytest.mark.slow
def test_a_repeated_training_and_an_interrupted_one_that_is_resumed_give_the_same_bits(
    tiny_recipe, tmp_path, monkeypatch
):
    for name in ("first", "second", "interrupted"):
        (tmp_path / name).mkdir()
    first = train(tiny_recipe, tmp_path / "first")
    assert_same_bits(first, train(tiny_recipe, tmp_path / "second"))

    steps_left = iter(range(5))
    step_loss = training.step_loss

    def interrupt_in_the_sixth_step(*arguments):
        if next(steps_left, None) is None:
            raise KeyboardInterrupt
        return step_loss(*arguments)

    monkeypatch.setattr(training, "step_loss", interrupt_in_the_sixth_step)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, tmp_path / "interrupted")
    monkeypatch.undo()
    assert_same_bits(first, train(tiny_recipe, tmp_path / "interrupted", resume=True))


def test_a_checkpoint_of_another_recipe_is_refused(tiny_recipe, tmp_path):
    train(tiny_recipe, tmp_path)
    another = Recipe(steps=7, threads=1, pool=96, batch=32, pairs=8, captions=8, warmup=2)
    with pytest.raises(ValueError, match="made by another recipe"):
        train(another, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "0"], "steps must be >= 1, got 0"),
        (["--threads", "-1"], "threads must be >= 1, got -1"),
        (["--workers", "-1"], "workers must be >= 0, got -1"),
        (["--out", "nowhere/at/all.safetensors"], "nowhere/at/all.safetensors: the folder does not exist"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--out", str(tmp_path / "out.safetensors"), *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err.strip().endswith(complaint)
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
@pytest.mark.slow
def test_the_training_command_writes_weights_with_metadata_of_their_origin(tmp_path, capsys):
    threads = torch.get_num_threads()
    out = tmp_path / "quick.safetensors"
    try:
        main(["--out", str(out), "--quick", "--threads", "1", "--workers", "0"])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "6/6" in printed
    assert all(name in printed for name in TINY_DATASETS)
    _, metadata = tiny_model.load(out)
    assert "--quick" in metadata["command"]
    assert metadata["steps"] == "6"
    assert set(json.loads(metadata["zero_shot"])) == set(TINY_DATASETS)


# The shipped weights.


@needs_shipped
def test_the_shipped_file_is_small_and_has_complete_metadata():
    assert tiny_model.SHIPPED.stat().st_size < 16e6
    model, metadata = tiny_model.load()
    assert "--quick" not in metadata["command"]
    assert Recipe(**json.loads(metadata["recipe"])).total_steps == int(metadata["steps"])
    assert {"python", "torch", "open_clip_torch", "numpy", "pillow"} <= set(json.loads(metadata["versions"]))
    measured = weights.embedding_scale(model)
    assert float(metadata["embedding_scale"]) == pytest.approx(measured, abs=1e-5)
    assert tiny_model.trained_ids() == frozenset(weights.vocabulary_ids())


@needs_shipped
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_DATASETS)
def test_the_shipped_models_accuracy_is_between_40_and_90_per_cent(name):
    model, metadata = tiny_model.load()
    score = scoring.zero_shot(model, TINY_DATASETS[name], count=300)
    assert 40 <= score.accuracy <= 90
    claimed = json.loads(metadata["zero_shot"])[name]["accuracy"]
    assert score.accuracy == pytest.approx(claimed, abs=9)  # three standard errors of 300 images
