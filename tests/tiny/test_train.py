"""The embedded model: its file, its vocabulary, and its training."""

from __future__ import annotations

import json

import pytest
import torch

from fpp_sweep.tiny import model as tiny_model
from fpp_sweep.tiny.world import TINY_DATASETS
from tools.train_tiny import scoring, training, weights
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


# Whole trainings.


@pytest.mark.nightly
@pytest.mark.slow
def test_a_repeated_training_gives_the_same_bits(tiny_recipe):
    first, second = (training.train(tiny_recipe, workers=0).state_dict() for _ in range(2))
    assert_same_bits(first, second)


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
