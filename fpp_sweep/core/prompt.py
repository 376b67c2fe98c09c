"""Prompts: context embeddings from words, from a CoOp checkpoint, or from a file that we saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from fpp_sweep.core.models.checkpoints import read_tensors
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.errors import InputError
from fpp_sweep.files import written_whole
from fpp_sweep.version import VERSION

FORMAT = "fpp_sweep.prompt/1"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A context, and where it came from."""

    context: Tensor  # (n, W) float32
    origin: Mapping[str, str]


def is_file_name(prompt: str) -> bool:
    """Whether a prompt given as text names a file rather than being the words themselves.

    >>> is_file_name("a photo of a"), is_file_name("a black/white photo of a"), is_file_name("coop/model.pth.tar-50")
    (False, False, True)
    """
    return ("/" in prompt and " " not in prompt) or ".pth.tar" in prompt or prompt.endswith(SUFFIXES)


def open_prompt(clip: Clip, prompt: str) -> Prompt:
    """A prompt from its words or its file."""
    return from_file(clip, Path(prompt)) if is_file_name(prompt) else from_words(clip, prompt)


def from_words(clip: Clip, words: str) -> Prompt:
    """Token embeddings of the words; underscores are read as spaces."""
    ids = clip.tokenizer.encode(words.replace("_", " "))
    if not ids:
        raise InputError(f"prompt {words!r} has no words; give some, such as 'a photo of a'")
    if len(ids) > clip.text.positions - 3:  # SOS, one token of a name, EOT
        raise InputError(f"prompt {words[:60]!r} is {len(ids)} tokens long; the model has {clip.text.positions}")
    context = clip.text.token_embedding[torch.tensor(ids, device=clip.device)]
    return Prompt(context=context.clone(), origin={"words": words})


def from_file(clip: Clip, path: Path) -> Prompt:
    """A prompt that `save_prompt` wrote, or the context of a CoOp checkpoint."""
    if not path.is_file():
        raise InputError(f"prompt file {path} does not exist")
    saved = path.suffix == ".safetensors"
    context, origin = _read_saved(clip, path) if saved else _read_coop(path)
    width = clip.text.width
    if context.ndim != 2 or context.shape[1] != width or not len(context):
        raise InputError(
            f"{path}: its context has shape {tuple(context.shape)}, but model {clip.name} takes (tokens, {width})"
        )
    if not torch.isfinite(context).all():
        raise InputError(f"{path}: its context has entries that are not finite")
    return Prompt(context=context.float().to(clip.device), origin={**origin, "file": str(path)})


def _read_saved(clip: Clip, path: Path) -> tuple[Tensor, dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            origin = dict(file.metadata() or {})
            context = file.get_tensor("context") if "context" in file.keys() else None  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error
    if origin.get("format") != FORMAT or context is None:
        raise InputError(f"{path}: not a prompt saved by fpp_sweep (format {origin.get('format')!r})")
    if context.ndim == 2 and context.shape[1] == clip.text.width and origin.get("model_digest") != clip.digest:
        raise InputError(f"{path}: made for model {origin.get('model')}, whose weights are not those of {clip.name}")
    return context, origin


def _read_coop(path: Path) -> tuple[Tensor, dict[str, str]]:
    tensors = read_tensors(path)
    names = [name for name in ("state_dict.ctx", "ctx", "state_dict.prompt_learner.ctx") if name in tensors]
    if not names:
        raise InputError(f"{path}: no CoOp context in it (looked for state_dict/ctx)")
    context = tensors[names[0]]
    if context.ndim == 3:
        where = f"{path}: its context has shape {tuple(context.shape)}, one for each class"
        raise InputError(f"{where}; a shared one (tokens, width) is needed")
    return context, {"coop": path.name}


def save_prompt(prompt: Prompt, clip: Clip, path: Path, details: Mapping[str, object]) -> None:
    """Write a prompt's file; `details`, such as config and seed, become part of its metadata."""
    with written_whole(path) as partial:
        partial.write_bytes(prompt_bytes(prompt, clip, details))


def prompt_bytes(prompt: Prompt, clip: Clip, details: Mapping[str, object]) -> bytes:
    """The contents of a prompt's file."""
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "model": clip.name,
        "model_digest": clip.digest,
        **prompt.origin,
        **{
            key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for key, value in details.items()
        },
    }
    data: bytes = save({"context": prompt.context.detach().cpu().contiguous()}, metadata=metadata)
    return data


def origin_of(data: bytes) -> dict[str, str]:
    """The metadata in the contents of a prompt's file."""
    size = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + size])["__metadata__"])


def from_bytes(clip: Clip, data: bytes) -> Prompt:
    """The prompt in the contents of a file that a worker of this run made."""
    return Prompt(context=load(data)["context"].float().to(clip.device), origin={})
