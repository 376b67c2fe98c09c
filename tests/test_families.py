"""One architecture of each family of open_clip, with random weights from a file, through `evaluate`."""

import json
import logging

import pytest
import torch
from PIL import Image

from fpp_sweep import evaluate

FAMILIES = (
    "RN50",
    "ViT-B-32",
    "convnext_base",
    "EVA02-B-16",
    "ViTamin-S",
    "MobileCLIP-S1",
    "MobileCLIP2-S0",
    "PE-Core-T-16-384",
)
# by architecture: the special tokens of its tokenizer, and what it puts around a text
TOKENIZERS = {
    "ViT-B-16-SigLIP": ({"pad_token": "</s>", "eos_token": "</s>"}, "$A </s>"),
    "ViT-B-16-SigLIP2": ({"pad_token": "<pad>", "eos_token": "</s>"}, "$A </s>"),
    "ViT-L-14-CLIPA": ({"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>"}, "<s> $A </s>"),
}
RUN = ["--method", "zero_shot", "tpt", "ctpt", "--prompt", "fpp"]
SMALL = ["--set", "views.count=4", "--set", "fpp.steps=2", "--set", "work.loaders=0"]
CLASSES = ("red square", "green field")


def check_evaluates(name, tmp_path):
    """Run three methods with random weights, and check that each has predicted both images."""
    import open_clip

    logging.disable(logging.CRITICAL)  # open_clip warns of random weights
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.create_model(name, pretrained_text=False)
    logging.disable(logging.NOTSET)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    del model
    for class_name, colour in zip(CLASSES, ("red", "green"), strict=True):
        (tmp_path / "images" / class_name).mkdir(parents=True)
        Image.new("RGB", (60, 48), colour).save(tmp_path / "images" / class_name / "0.png")
    model_flag = ["--model", f"{name}:{tmp_path / 'weights.pt'}"]
    evaluate.main([*model_flag, "--datasets", f"mine={tmp_path / 'images'}", *RUN, *SMALL, "--out", str(tmp_path)])
    (results,) = tmp_path.glob("*/results.json")
    trials = json.loads(results.read_text())["trials"]
    assert [trial["images"] for trial in trials] == [2, 2, 2]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_evaluated(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path / "cache"))
    check_evaluates(name, tmp_path)


def save_tokenizer(folder, special, template):
    """Save a tokenizer of single characters in Hugging Face's form."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = ["<pad>", "</s>", "<s>", "<unk>", *map(chr, range(33, 127))]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    around = [(token, ids[token]) for token in ("<s>", "</s>")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=around)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **special)
    fast.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_family_with_a_tokenizer_of_hugging_face_is_evaluated(name, tmp_path, monkeypatch):
    """The tokenizer is one of this test, with the same special tokens: the published one would be downloaded."""
    import open_clip
    from open_clip import factory

    monkeypatch.setenv("FPP_SWEEP_CACHE", str(tmp_path / "cache"))
    save_tokenizer(tmp_path / "tokenizer", *TOKENIZERS[name])
    settings = open_clip.get_model_config(name)
    settings["text_cfg"]["hf_tokenizer_name"] = str(tmp_path / "tokenizer")
    monkeypatch.setitem(factory._MODEL_CONFIGS, "local", settings)
    check_evaluates("local", tmp_path)
