"""Prompts that are read from words, saved files and CoOp's checkpoints."""

import pickle
import re

import pytest
import torch

from fpp_sweep import __version__
from fpp_sweep.core.prompt import Prompt, from_file, from_words, open_prompt, prompt_bytes
from fpp_sweep.spec.config import is_file_name
from fpp_sweep.spec.errors import InputError
from tests.kit.models import random_clip

CLIP = random_clip()


def test_words_of_any_length_become_their_embeddings():
    for words in ("x", "a photo of a", "a_photo_of_a", "a blurry photo of the small"):
        prompt = from_words(CLIP, words)
        ids = CLIP.tokenizer.encode(words.replace("_", " "))
        assert torch.equal(prompt.context, CLIP.text.token_embedding[torch.tensor(ids)])
    assert torch.equal(from_words(CLIP, "a photo of a").context, from_words(CLIP, "a_photo_of_a").context)


@pytest.mark.parametrize(("words", "message"), [("", "has no words"), ("x " * 90, "90 tokens long")])
def test_no_words_and_too_many_words_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        from_words(CLIP, words)


@pytest.mark.parametrize("words", ["a photo of a {}.", "{}", "a photo of a {", "a }"])
def test_a_template_is_refused_as_words(words):
    with pytest.raises(InputError, match=rf"^prompt '{re.escape(words)}' is a template; .* use adapt\.templates$"):
        open_prompt(CLIP, words)


def test_a_prompt_must_leave_room_for_sos_one_token_of_a_name_and_eot():
    most = CLIP.text.positions - 3
    assert len(from_words(CLIP, "x " * most).context) == most
    with pytest.raises(InputError, match=f"{most + 1} tokens long"):
        from_words(CLIP, "x " * (most + 1))


@pytest.mark.parametrize("name", ["a/b", "p.safetensors", "model.pth.tar-50", "x.pth", "x.pt"])
def test_file_names_are_distinguished_from_words(name):
    assert is_file_name(name)
    assert not is_file_name("a photo of a")


def test_a_saved_prompt_is_read_with_its_metadata(tmp_path):
    prompt = Prompt(context=torch.randn(4, 32), origin={"words": "a photo of a"})
    path = tmp_path / "dtd.safetensors"
    path.write_bytes(prompt_bytes(prompt, CLIP, {"config": {"fpp.gamma2": 0.15}, "seed": 3, "dataset": "dtd"}))
    read = open_prompt(CLIP, str(path))
    assert torch.equal(read.context, prompt.context)
    assert read.origin["words"] == "a photo of a"
    assert read.origin["config"] == '{"fpp.gamma2": 0.15}'
    assert (read.origin["seed"], read.origin["dataset"], read.origin["version"]) == ("3", "dtd", __version__)
    assert read.origin["model"] == CLIP.name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 64}, r"shape \(2, 64\), but model random-0 takes \(tokens, 32\)"),
        ({"seed": 1}, "made for model random-1, whose weights are not those of random-0"),
    ],
    ids=["another shape", "another model of the same shape"],
)
def test_a_prompt_of_another_model_is_refused_with_the_reason(tmp_path, options, message):
    other = random_clip(**options)
    (tmp_path / "p.safetensors").write_bytes(prompt_bytes(from_words(other, "a photo"), other, {}))
    with pytest.raises(InputError, match=message):
        from_file(CLIP, tmp_path / "p.safetensors")


def coop(path, context, **others):
    """Write a checkpoint as CoOp's trainer does: with buffers beside the context, and with a scheduler object."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.002)
    successor = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    state = {"ctx": context, "token_prefix": torch.zeros(3, 1, 32), "token_suffix": torch.zeros(3, 72, 32)}
    content = {
        "state_dict": state,
        "epoch": 50,
        "optimizer": optimizer.state_dict(),
        "scheduler": {"successor": successor, "last_epoch": 49},
        "val_result": None,
        **others,
    }
    torch.save(content, path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_coop_checkpoint_gives_its_context(tmp_path, dtype):
    context = torch.randn(4, 32).to(dtype)
    coop(tmp_path / "model.pth.tar-50", context)
    prompt = open_prompt(CLIP, str(tmp_path / "model.pth.tar-50"))
    assert prompt.context.dtype == torch.float32
    assert torch.equal(prompt.context, context.float())


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (torch.zeros(4, 512), r"shape \(4, 512\), but model random-0 takes \(tokens, 32\)"),
        (torch.zeros(7, 4, 32), "one for each class"),
        (torch.full((4, 32), float("nan")), "not finite"),
        (torch.zeros(200, 32), "its context has 200 tokens; the model has"),
    ],
)
def test_a_coop_context_that_does_not_fit_is_refused(tmp_path, context, message):
    coop(tmp_path / "m.pth", context)
    with pytest.raises(InputError, match=message):
        from_file(CLIP, tmp_path / "m.pth")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("meta_net.linear1.weight", "holds 'meta_net.linear1.weight' beside ctx, as checkpoints of CoCoOp"),
        ("ctx_att1", "holds 'ctx_att1' beside ctx, as checkpoints of CoCoOp"),
    ],
)
def test_a_learner_of_more_than_a_context_is_refused(tmp_path, name, message):
    learner = {"ctx": torch.zeros(4, 32), "token_prefix": torch.zeros(3, 1, 32), name: torch.zeros(2, 32)}
    model = {f"prompt_learner.{part}": value for part, value in learner.items()}
    for content in (learner, {"state_dict": learner}, {"state_dict": model}):
        torch.save(content, tmp_path / "m.pth")
        with pytest.raises(InputError, match=message):
            from_file(CLIP, tmp_path / "m.pth")


class FileWriter:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    coop(tmp_path / "m.pth", torch.zeros(4, 32), extra=FileWriter(tmp_path / "proof"))
    with pytest.raises(InputError, match=r"m\.pth"):
        from_file(CLIP, tmp_path / "m.pth")
    assert not (tmp_path / "proof").exists()


def test_files_without_a_prompt_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        from_file(CLIP, tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(InputError, match="not a safetensors file"):
        from_file(CLIP, tmp_path / "text.safetensors")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match=r"plain\.pth"):
        from_file(CLIP, tmp_path / "plain.pth")
    torch.save({"state_dict": {"weight": torch.zeros(3)}}, tmp_path / "other.pth")
    with pytest.raises(InputError, match="no context of CoOp or MaPLe"):
        from_file(CLIP, tmp_path / "other.pth")
