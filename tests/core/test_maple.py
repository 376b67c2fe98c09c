"""MaPLe checkpoints: their features against numbers of the official code (tests/golden), and refused files."""

import dataclasses
import pickle
from functools import cache

import pytest
import torch
from torch.nn import functional as F

from fpp_sweep.core.methods import build_method
from fpp_sweep.core.models.building import BpeTokenizer, make_clip
from fpp_sweep.core.models.clip import Preprocess
from fpp_sweep.core.models.maple import DeepPrompts, digest_with
from fpp_sweep.core.prompt import from_bytes, open_prompt, prompt_bytes, with_deep_prompts
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.spec.config import AdaptConfig
from fpp_sweep.spec.errors import InputError
from tests.golden import FOLDER, load
from tests.kit.models import random_clip, save_maple, small_clip, small_vit
from tests.kit.names import TPT
from tests.kit.texts import MAPLE, twins
from tests.reference import naive

GOLDEN = load("maple_small")
FILE = str(FOLDER / "maple_small.pth.tar")
FEATURES, LOGITS = 1e-4, 1e-3  # largest allowed differences from the measured numbers


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
    return make_clip(
        name="golden",
        model=model,
        vision=settings["vision_cfg"],
        tokenizer=BpeTokenizer(),
        preprocess=preprocess,
        embedding_scale=1.0,
        device="cpu",
    )


def features(model, prompt):
    """Return the text features and image features of the golden class names and images."""
    names = GOLDEN.settings["classnames"]
    texts = ClassTexts.of_names(model.text, model.tokenizer, names, after=prompt.after)
    return texts.features(prompt.context), model.image_features(GOLDEN["images"].float())


def largest_difference(actual, name):
    """Return the largest difference from the measured features, which are not of unit norm."""
    return (actual - F.normalize(GOLDEN[f"out/{name}"], dim=-1)).abs().max().item()


def assert_measured(actual, text, image, logits=None):
    """Compare text and image features, and their logits, with the golden numbers of these names."""
    text_features, image_features = actual
    assert largest_difference(text_features, f"{text}.text") < FEATURES
    assert largest_difference(image_features, f"{image}.image") < FEATURES
    actual_logits = clip().logit_scale * image_features @ text_features.T
    assert (actual_logits - GOLDEN[f"out/{logits or text}.logits"]).abs().max() < LOGITS


def test_text_and_image_prompts_give_the_measured_features():
    prompt = open_prompt(clip(), FILE)
    assert_measured(features(with_deep_prompts(clip(), prompt, "both"), prompt), "fp32", "fp32")


def test_text_prompts_alone_do_not_change_image_features():
    prompt = open_prompt(clip(), FILE)
    model = with_deep_prompts(clip(), prompt, "text")
    assert model.visual is clip().visual
    assert_measured(features(model, prompt), "fp32", "plain", "text_maple_image_plain")


def test_a_context_without_deep_prompts_is_followed_by_the_words_of_a():
    prompt = open_prompt(clip(), FILE)
    assert prompt.after == "of a"
    assert with_deep_prompts(clip(), prompt, "none") is clip()
    text, images = features(clip(), prompt)
    assert largest_difference(text, "shallow.text") < FEATURES
    assert largest_difference(images, "plain.image") < FEATURES


def test_a_checkpoint_of_depth_one_has_one_visual_prompt():
    prompt = open_prompt(clip(), FILE)
    shallow = dataclasses.replace(prompt, deep=DeepPrompts(text=(), visual=prompt.deep.visual[:1]))
    assert_measured(features(with_deep_prompts(clip(), shallow, "both"), shallow), "shallow", "shallow")


def test_a_prompt_of_words_gives_plain_features():
    text, _ = features(clip(), open_prompt(clip(), "a photo of a"))
    assert largest_difference(text, "plain.text") < FEATURES


def test_visual_prompts_are_projections_of_the_text_prompts():
    prompt = open_prompt(clip(), FILE)
    for index, visual in enumerate(prompt.deep.visual):
        torch.testing.assert_close(visual, GOLDEN[f"out/visual_ctx.{index}"], atol=1e-6, rtol=1e-6)


def test_deep_prompts_are_not_rounded_to_half_precision():
    """The released code rounds deep prompts; our logits differ from its logits by as much as that rounding explains."""
    prompt = open_prompt(clip(), FILE)
    text, image = features(with_deep_prompts(clip(), prompt, "both"), prompt)
    difference = (clip().logit_scale * image @ text.T - GOLDEN["out/half.logits"]).abs().max()
    assert LOGITS < difference < 5e-3


@pytest.mark.parametrize("steps", [1, 2])
def test_adaptation_with_deep_prompts_equals_the_naive_tower(steps):
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


def test_a_checkpoint_gives_context_words_and_frozen_prompts_in_single_precision(tmp_path):
    path = save_maple(tmp_path / "model.pth.tar-2")
    prompt = open_prompt(vit(), str(path))
    stored = torch.load(path, weights_only=True)["state_dict"]
    assert torch.equal(prompt.context, stored["prompt_learner.ctx"].float())
    assert (prompt.after, prompt.origin) == ("of a", {"maple": "model.pth.tar-2", "file": str(path)})
    for index, text in enumerate(prompt.deep.text):
        assert torch.equal(text, stored[f"prompt_learner.compound_prompts_text.{index}"])
    assert [tuple(tensor.shape) for tensor in prompt.deep.visual] == [(2, 64)] * 3
    assert all(tensor.dtype == torch.float32 for tensor in prompt.deep.tensors().values())


@pytest.mark.parametrize(("tokens", "after"), [(1, "photo of a"), (3, "a"), (4, ""), (6, "")])
def test_words_that_the_context_does_not_replace_stay_in_the_prompt(tmp_path, tokens, after):
    assert open_prompt(vit(), str(save_maple(tmp_path / "m.pth", tokens=tokens))).after == after


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"width": 32, "outside": 48}, r"its context has shape (2, 32), but model small-vit takes (tokens, 64)"),
        ({"ctx": torch.zeros(2)}, "prompt_learner.ctx has shape (2,), MaPLe's is (any, any)"),
        ({"ctx": torch.zeros(0, 64)}, "prompt_learner.ctx has shape (0, 64)"),
        ({"ctx": torch.full((2, 64), float("nan"))}, "not finite"),
        ({"ctx": None}, "not a whole MaPLe checkpoint, prompt_learner.ctx is missing"),
        ({"proj__bias": None}, "prompt_learner.proj.bias is missing"),
        ({"proj__weight": torch.zeros(64, 32)}, "prompt_learner.proj.weight has shape (64, 32), MaPLe's is (any, 64)"),
        ({"proj__bias": torch.zeros(3)}, "prompt_learner.proj.bias has shape (3,), MaPLe's is (64)"),
        ({"compound_prompts_text__0": None}, "prompt_learner.compound_prompts_text.0 is missing"),
        ({"compound_prompts_text__1": torch.zeros(3, 64)}, "has shape (3, 64), MaPLe's is (2, 64)"),
        ({"compound_prompts_text__1": torch.full((2, 64), float("inf"))}, "not finite"),
        ({"compound_prompt_projections__1__weight": None}, "compound_prompt_projections.1.weight is missing"),
        ({"compound_prompt_projections__0__bias": torch.zeros(9)}, "has shape (9,), MaPLe's is (64)"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_an_incomplete_checkpoint_or_one_of_another_shape_is_refused(tmp_path, changes, complaint):
    path = save_maple(tmp_path / "m.pth.tar-2", **changes)
    assert complaint in refusal(path)


def refusal(path, deep="none", model=None):
    """Return the message with which a file is refused, which is one line that names the file."""
    model = model or vit()
    with pytest.raises(InputError) as error:
        with_deep_prompts(model, open_prompt(model, str(path)), deep)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


class FileWriter:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_code_in_a_maple_checkpoint_is_refused_and_not_run(tmp_path):
    path = save_maple(tmp_path / "m.pth.tar-2")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "optimizer": FileWriter(tmp_path / "proof")}, path)
    assert "refused, reading it would run code" in refusal(path)
    assert not (tmp_path / "proof").exists()
    path.write_bytes(pickle.dumps({"state_dict": FileWriter(tmp_path / "proof")}))
    refusal(path)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("deep", ["text", "both"])
def test_a_prompt_without_deep_prompts_is_refused_where_the_setting_needs_them(tmp_path, deep):
    torch.save({"state_dict": {"ctx": torch.zeros(4, 64)}}, tmp_path / "model.pth.tar-50")
    assert f"has no prompts of deeper layers; deep_prompts={deep} needs a MaPLe" in refusal(
        tmp_path / "model.pth.tar-50", deep
    )
    with pytest.raises(InputError, match="prompt 'a photo of a' has no prompts of deeper layers"):
        with_deep_prompts(vit(), open_prompt(vit(), "a photo of a"), deep)


@pytest.mark.parametrize(
    ("changes", "deep", "complaint"),
    [
        ({"outside": 48}, "both", "has visual prompts of width 48, but the image tower of small-vit has width 64"),
        ({"depth": 4}, "text", "has prompts for blocks 1 to 3, but the text tower's last block is 2"),
    ],
)
def test_deep_prompts_of_another_shape_are_refused_only_where_they_are_needed(tmp_path, changes, deep, complaint):
    path = save_maple(tmp_path / "m.pth.tar-2", **changes)
    assert with_deep_prompts(vit(), open_prompt(vit(), str(path)), "none") is vit()
    assert complaint in refusal(path, deep)


def test_other_image_towers_accept_text_prompts_only(tmp_path):
    model = random_clip(layers=3)
    path = save_maple(tmp_path / "m.pth.tar-2", width=32)
    assert len(with_deep_prompts(model, open_prompt(model, str(path)), "text").text.deep) == 2
    complaint = "the image tower of random-0 is not CLIP's ViT, which deep_prompts=both needs; set deep_prompts=text"
    assert complaint in refusal(path, "both", model)


# --- digests and saved prompts


def test_visual_prompts_are_part_of_the_image_towers_digest(tmp_path):
    digests = {vit().image_digest}
    for seed in (0, 1):
        prompt = open_prompt(vit(), str(save_maple(tmp_path / f"{seed}.pth", seed=seed)))
        assert with_deep_prompts(vit(), prompt, "text").image_digest == vit().image_digest
        digests.add(with_deep_prompts(vit(), prompt, "both").image_digest)
    assert len(digests) == 3
    assert with_deep_prompts(vit(), prompt, "both").image_digest in digests


def test_the_digest_tells_one_long_visual_prompt_from_two_short_ones_with_the_same_numbers():
    numbers = torch.arange(24.0).reshape(4, 6)
    assert digest_with("tower", [numbers]) != digest_with("tower", [numbers[:2], numbers[2:]])


def test_a_prompts_digest_depends_on_every_part_of_its_file_that_is_used(tmp_path):
    first = open_prompt(vit(), str(save_maple(tmp_path / "m.pth")))
    text, visual = first.deep.text, first.deep.visual
    others = [
        dataclasses.replace(first, context=first.context + 1),
        dataclasses.replace(first, after="of the"),
        dataclasses.replace(first, deep=dataclasses.replace(first.deep, text=(text[0], text[1] + 1))),
        dataclasses.replace(first, deep=dataclasses.replace(first.deep, visual=(visual[0] + 1, *visual[1:]))),
        dataclasses.replace(first, deep=dataclasses.replace(first.deep, visual=visual[:2])),
        dataclasses.replace(first, deep=None),
    ]
    assert len({prompt.digest for prompt in (first, *others)}) == 1 + len(others)
    weights = {name: torch.zeros(64, 64) for name in ("proj__weight", "compound_prompt_projections__1__weight")}
    edited = [save_maple(tmp_path / f"{name}.pth", **{name: value}) for name, value in weights.items()]
    assert len({first.digest, *(open_prompt(vit(), str(path)).digest for path in edited)}) == 3


def test_a_saved_prompt_keeps_its_words_deep_prompts_and_deep_prompts_setting(tmp_path):
    prompt = open_prompt(vit(), str(save_maple(tmp_path / "m.pth")))
    prompt = dataclasses.replace(prompt, origin={"deep_prompts": "text"})
    data = prompt_bytes(prompt, vit(), {})
    (tmp_path / "mine.safetensors").write_bytes(data)
    from_memory = from_bytes(vit(), data)
    for saved in (open_prompt(vit(), str(tmp_path / "mine.safetensors")), from_memory):
        assert saved.after == "of a"
        assert saved.digest == prompt.digest
        assert with_deep_prompts(vit(), saved, "text").text.deep == saved.deep.text
        with pytest.raises(InputError, match="was learned with deep_prompts=text, not none; set deep_prompts=text"):
            with_deep_prompts(vit(), saved, "none")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_prompts_of_a_checkpoint_of_real_size_are_read(tmp_path):
    types = {"float16": torch.float16, "float32": torch.float32}
    listed = GOLDEN.settings["official_vit_b16_1000_classes_state_dict"]
    state = {name: torch.zeros(shape, dtype=types[dtype]) for name, (shape, dtype) in listed.items()}
    state["prompt_learner.ctx"] += 0.5
    torch.save({"state_dict": state, "epoch": 2}, tmp_path / "model.pth.tar-2")
    prompt = open_prompt(random_clip(width=512, heads=8, layers=3), str(tmp_path / "model.pth.tar-2"))
    assert len(listed) == 312
    assert prompt.context.shape == (2, 512)
    assert [tuple(tensor.shape) for tensor in prompt.deep.text] == [(2, 512)] * 2
    assert [tuple(tensor.shape) for tensor in prompt.deep.visual] == [(2, 768)] * 3
