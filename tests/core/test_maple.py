"""A MaPLe checkpoint gives what the official code computes with it (tests/golden), in every form."""

import dataclasses
from functools import cache

import torch
from torch.nn import functional as F

from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.core.models.loading import BpeTokenizer, _make_clip
from fpp_sweep.core.models.maple import DeepPrompts
from fpp_sweep.core.prompt import deepened, open_prompt
from fpp_sweep.core.text.classes import ClassTexts
from tests.core.models.clip_files import small_clip
from tests.golden import FOLDER, load

GOLDEN = load("maple_small")
FILE = str(FOLDER / "maple_small.pth.tar")
FEATURES, LOGITS = 1e-4, 1e-3  # what the measurers allow


@cache
def clip():
    """The measured model; its image tower is open_clip's."""
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
    return _make_clip("golden", model, settings["vision_cfg"], BpeTokenizer(), preprocess, 1.0, "cpu")


def features(model, prompt):
    """Of the texts and the images."""
    names = GOLDEN.settings["classnames"]
    texts = ClassTexts.of_names(model.text, model.tokenizer, names, after=prompt.after)
    return texts.features(prompt.context), model.image_features(GOLDEN["images"].float())


def worst(found, name):
    """The largest difference from the measured features, which are not of unit norm."""
    return (found - F.normalize(GOLDEN[f"out/{name}"], dim=-1)).abs().max().item()


def assert_measured(found, text, image, logits=None):
    scale = clip().logit_scale
    assert worst(found[0], f"{text}.text") < FEATURES
    assert worst(found[1], f"{image}.image") < FEATURES
    difference = scale * found[1] @ found[0].T - GOLDEN[f"out/{logits or text}.logits"]
    assert difference.abs().max() < LOGITS


def test_text_and_image_prompts():
    prompt = open_prompt(clip(), FILE)
    assert_measured(features(deepened(clip(), prompt, "both"), prompt), "fp32", "fp32")


def test_text_prompts_alone_leave_images_as_they_are():
    prompt = open_prompt(clip(), FILE)
    model = deepened(clip(), prompt, "text")
    assert model.visual is clip().visual
    assert_measured(features(model, prompt), "fp32", "plain", "text_maple_image_plain")


def test_the_context_alone_is_followed_by_the_words_of_a():
    prompt = open_prompt(clip(), FILE)
    assert prompt.after == "of a"
    assert deepened(clip(), prompt, "none") is clip()
    found, images = features(clip(), prompt)
    assert worst(found, "shallow.text") < FEATURES
    assert worst(images, "plain.image") < FEATURES


def test_a_checkpoint_of_depth_one_has_one_visual_prompt():
    prompt = open_prompt(clip(), FILE)
    shallow = dataclasses.replace(prompt, deep=DeepPrompts(text=(), visual=prompt.deep.visual[:1]))
    assert_measured(features(deepened(clip(), shallow, "both"), shallow), "shallow", "shallow")


def test_words_are_as_without_a_checkpoint():
    found, _ = features(clip(), open_prompt(clip(), "a photo of a"))
    assert worst(found, "plain.text") < FEATURES


def test_visual_prompts_are_projections_of_the_texts():
    prompt = open_prompt(clip(), FILE)
    for index, found in enumerate(prompt.deep.visual):
        torch.testing.assert_close(found, GOLDEN[f"out/visual_ctx.{index}"], atol=1e-6, rtol=1e-6)


def test_half_precision_of_the_released_code_is_not_copied():
    """It rounds deeper prompts; ours are as the checkpoint has them, and within what that rounding moves."""
    prompt = open_prompt(clip(), FILE)
    text, image = features(deepened(clip(), prompt, "both"), prompt)
    difference = (clip().logit_scale * image @ text.T - GOLDEN["out/half.logits"]).abs().max()
    assert LOGITS < difference < 5e-3
