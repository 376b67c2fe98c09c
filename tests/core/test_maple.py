"""MaPLe checkpoints: features of their context against numbers of the official code (tests/golden); refused files."""

from functools import cache

import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.methods import build_method
from fpp_sweep.core.models.clip import BpeTokenizer, Preprocess, make_clip
from fpp_sweep.core.prompt import from_bytes, open_prompt, prompt_bytes
from fpp_sweep.core.text.texts import ClassTexts
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError
from tests.golden import FOLDER, load
from tests.kit.models import save_maple, small_clip, small_vit
from tests.kit.names import TPT
from tests.kit.texts import MAPLE, twins
from tests.reference import naive

GOLDEN = load("maple_small")
FILE = str(FOLDER / "maple_small.pth.tar")
FEATURES = 1e-4  # largest allowed difference from the measured numbers


@cache
def clip():
    """Return the model of the golden file; its image tower is open_clip's."""
    text, vision = (GOLDEN.settings[name] for name in ("text", "vision"))
    settings = {
        "embed_dim": GOLDEN.settings["embed_dim"],
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": vision["resolution"],
            "patch_size": vision["patch"],
            "layers": vision["layers"],
            "width": vision["width"],
            "head_width": vision["width"] // vision["heads"],
        },
        "text_cfg": {"context_length": 77, "vocab_size": 49408, **text},
    }
    model = small_clip(**settings)
    model.load_state_dict(GOLDEN.weights)
    preprocess = Preprocess(size=vision["resolution"])
    return make_clip(name="golden", model=model, settings=settings, tokenizer=BpeTokenizer(), preprocess=preprocess)


def features(model, prompt):
    """Return the text features and image features of the golden class names and images."""
    names = GOLDEN.settings["classnames"]
    texts = ClassTexts.of_names(model.text, model.tokenizer, names, after=prompt.after)
    return texts.features(prompt.context), model.image_features(GOLDEN["images"].float())


def largest_difference(actual, name):
    """Return the largest difference from the measured features, which are not of unit norm."""
    return (actual - F.normalize(GOLDEN[f"out/{name}"], dim=-1)).abs().max().item()


def test_a_checkpoints_context_is_followed_by_the_words_of_a():
    prompt = open_prompt(clip(), FILE)
    assert prompt.after == "of a"
    text, images = features(clip(), prompt)
    assert largest_difference(text, "shallow.text") < FEATURES
    assert largest_difference(images, "plain.image") < FEATURES


def test_a_prompt_of_words_gives_plain_features():
    text, _ = features(clip(), open_prompt(clip(), "a photo of a"))
    assert largest_difference(text, "plain.text") < FEATURES


@pytest.mark.parametrize("steps", [1, 2])
def test_adaptation_of_a_context_with_words_after_it_equals_the_naive_tower(steps):
    pair = twins(**MAPLE)
    views = pair.views(3, 8)
    method = build_method(TPT, AdaptConfig(steps=steps, view_fraction=0.5), "fine_grained")
    logits, _ = method.predict(pair.model, method.start(pair.model, pair.context, len(views)), views)
    expected = [
        naive.adapt_one(
            pair.naive, pair.token_ids, pair.context, tensor, logit_scale=pair.logit_scale, steps=steps, selection=0.5
        ).probabilities
        for tensor in views
    ]
    torch.testing.assert_close(logits.softmax(-1), torch.stack(expected), atol=1e-4, rtol=0)


# --- reading checkpoints


@cache
def vit():
    return small_vit()


def test_a_checkpoint_gives_its_context_in_single_precision_and_words(tmp_path):
    path = save_maple(tmp_path / "model.pth.tar-2")
    prompt = open_prompt(vit(), str(path))
    stored = torch.load(path, weights_only=True)["state_dict"]
    assert torch.equal(prompt.context, stored["prompt_learner.ctx"].float())
    assert (prompt.after, prompt.origin) == ("of a", {"maple": "model.pth.tar-2", "file": str(path)})
    assert prompt.context.dtype == torch.float32


@pytest.mark.parametrize(("tokens", "after"), [(1, "photo of a"), (3, "a"), (4, ""), (6, "")])
def test_words_that_the_context_does_not_replace_stay_in_the_prompt(tmp_path, tokens, after):
    assert open_prompt(vit(), str(save_maple(tmp_path / "m.pth", tokens=tokens))).after == after


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"width": 32, "outside": 48}, r"its context has shape (2, 32), but model small-vit takes (tokens, 64)"),
        ({"ctx": torch.zeros(2)}, "prompt_learner.ctx has shape (2,), MaPLe's is (tokens, width)"),
        ({"ctx": torch.zeros(0, 64)}, "its context has shape (0, 64)"),
        ({"ctx": torch.full((2, 64), float("nan"))}, "not finite"),
        ({"ctx": None}, "not a whole MaPLe checkpoint, prompt_learner.ctx is missing"),
        ({"proj__weight": None}, "prompt_learner.proj.weight is missing"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_an_incomplete_checkpoint_or_one_of_another_shape_is_refused(tmp_path, changes, complaint):
    path = save_maple(tmp_path / "m.pth.tar-2", **changes)
    assert complaint in refusal(path)


def refusal(path):
    """Return the message with which a file is refused, which is one line that names the file."""
    with pytest.raises(InputError) as error:
        open_prompt(vit(), str(path))
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# --- saved prompts


def test_a_saved_prompt_keeps_its_context_and_words(tmp_path):
    prompt = open_prompt(vit(), str(save_maple(tmp_path / "m.pth")))
    data = prompt_bytes(prompt, vit(), {})
    (tmp_path / "mine.safetensors").write_bytes(data)
    from_memory = from_bytes(vit(), data)
    for saved in (open_prompt(vit(), str(tmp_path / "mine.safetensors")), from_memory):
        assert saved.after == "of a"
        assert saved.digest == prompt.digest
