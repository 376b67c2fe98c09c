"""Prompts: context embeddings from words, from a checkpoint of CoOp or MaPLe, or from a trial's prompt file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fpp_sweep.core.models.clip import Clip, read_tensors
from fpp_sweep.spec.config import is_file_name
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import safetensors_metadata, user_path
from fpp_sweep.spec.version import VERSION

FORMAT = "fpp_sweep.prompt/1"

COOP_PREFIXES = ("state_dict.", "", "state_dict.prompt_learner.")  # beginnings of names in CoOp's checkpoints
COOP_TENSORS = {"ctx", "token_prefix", "token_suffix"}  # the context, and embeddings of its training classes
MAPLE_LEARNER = "state_dict.prompt_learner."
# beginnings of names that CoOp's checkpoints do not have
MAPLE_PREFIXES = (f"{MAPLE_LEARNER}proj.", f"{MAPLE_LEARNER}compound_", "state_dict.image_encoder.")
MAPLE_WORDS = ("a", "photo", "of", "a")  # MaPLe's texts begin with these; the context replaces the first n of them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A context with its origin."""

    context: Tensor  # (n, W) float32
    origin: Mapping[str, str]
    after: str = ""  # words between the context and a class name, which are not learned

    @property
    def digest(self) -> str:
        """A hash of everything that results depend on."""
        digest = hashlib.sha256(self.context.cpu().numpy().tobytes())
        digest.update(self.after.encode())
        return digest.hexdigest()[:16]


def open_prompt(clip: Clip, prompt: str) -> Prompt:
    """Return a prompt from its words or its file."""
    if is_file_name(prompt):
        return from_file(clip, user_path(prompt))
    return from_words(clip, prompt)


def from_words(clip: Clip, words: str) -> Prompt:
    """Return the token embeddings of words; underscores are read as spaces."""
    if "{" in words or "}" in words:
        raise InputError(
            f"prompt {words[:60]!r} is a template; leave out the braces and what follows them, because a class name "
            "and a full stop follow every prompt, or use adapt.templates"
        )
    ids = clip.tokenizer.encode(words.replace("_", " "))
    if not ids:
        raise InputError(f"prompt {words!r} has no words; give some, such as 'a photo of a'")
    if len(ids) > clip.text.positions - 3:  # SOS, one token of a name, EOT
        raise InputError(f"prompt {words[:60]!r} is {len(ids)} tokens long; the model has {clip.text.positions}")
    context = clip.text.token_embedding[torch.tensor(ids, device=clip.device)]
    return Prompt(context=context.clone(), origin={"words": words})


def from_file(clip: Clip, path: Path) -> Prompt:
    """Return the prompt of a trial's prompt file (`prompt_bytes`), or of a checkpoint of CoOp or MaPLe."""
    if not path.is_file():
        raise InputError(f"prompt file {path} does not exist")
    if path.suffix == ".safetensors":
        prompt = _read_saved(clip, path)
    else:
        prompt = _read_checkpoint(path)
    _require_fit(clip, path, prompt)
    context = prompt.context.float().to(clip.device)
    return replace(prompt, context=context, origin={**prompt.origin, "file": str(path)})


def _require_fit(clip: Clip, path: Path, prompt: Prompt) -> None:
    """Raise InputError unless the context fits the model."""
    context = prompt.context
    if context.ndim != 2 or context.shape[1] != clip.text.width or not len(context):
        shape = tuple(context.shape)
        raise InputError(
            f"{path}: its context has shape {shape}, but model {clip.name} takes (tokens, {clip.text.width})"
        )
    if len(context) > clip.text.positions:
        raise InputError(
            f"{path}: its context has {len(context)} tokens; the model has {clip.text.positions} positions"
        )
    if not torch.isfinite(context).all():
        raise InputError(f"{path}: its context has entries that are not finite")


def _read_saved(clip: Clip, path: Path) -> Prompt:
    """Return the prompt of a trial's prompt file; raise InputError if it was made for another model."""
    try:
        data = path.read_bytes()
        tensors, origin = load(data), safetensors_metadata(data)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; let this user read it") from error
    except SafetensorError as error:
        raise InputError(f"{path}: truncated, damaged, or not a safetensors file") from error
    context = tensors.get("context")
    if origin.get("format") != FORMAT or context is None:
        raise InputError(f"{path}: not a prompt saved by fpp_sweep (format {origin.get('format')!r})")
    fits = context.ndim == 2 and context.shape[1] == clip.text.width  # else the shape is what is wrong
    if fits and origin.get("model_digest") != clip.digest:
        raise InputError(f"{path}: made for model {origin.get('model')}, whose weights are not those of {clip.name}")
    return _from_tensors(tensors, origin, context.device)


def _read_checkpoint(path: Path) -> Prompt:
    """Return the prompt of a checkpoint of MaPLe, or the context that a checkpoint of CoOp has for all classes."""
    tensors = read_tensors(path)
    if any(name.startswith(MAPLE_PREFIXES) for name in tensors):
        return _maple_prompt(tensors, path)
    context = _coop_context(tensors, path)
    if context.ndim == 3:
        where = f"{path}: its context has shape {tuple(context.shape)}, one for each class"
        raise InputError(f"{where}; a shared one (tokens, width) is needed")
    return Prompt(context=context, origin={"coop": path.name})


def _maple_prompt(tensors: Mapping[str, Tensor], path: Path) -> Prompt:
    """Return the context of a checkpoint of MaPLe; its prompts of deeper layers and of the image tower are not read."""
    for part in ("ctx", "proj.weight"):  # PromptSRC's checkpoints have no proj
        if f"{MAPLE_LEARNER}{part}" not in tensors:
            raise InputError(f"{path}: not a whole MaPLe checkpoint, prompt_learner.{part} is missing")
    context = tensors[f"{MAPLE_LEARNER}ctx"]
    if context.ndim != 2:
        shape = tuple(context.shape)
        raise InputError(f"{path}: prompt_learner.ctx has shape {shape}, MaPLe's is (tokens, width)")
    return Prompt(context=context, origin={"maple": path.name}, after=" ".join(MAPLE_WORDS[len(context) :]))


def _coop_context(tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """Return the context; raise InputError for a learner of more, such as CoCoOp's: the rest would be left out."""
    for prefix in COOP_PREFIXES:
        if f"{prefix}ctx" in tensors:
            others = {name.removeprefix(prefix) for name in tensors if name.startswith(prefix)} - COOP_TENSORS
            if others:
                problem = f"holds {min(others)!r} beside ctx, as checkpoints of CoCoOp do, which are not supported"
                raise InputError(f"{path}: {problem}; give one of CoOp or MaPLe, or save ctx alone")
            return tensors[f"{prefix}ctx"]
    raise InputError(f"{path}: no context of CoOp or MaPLe in it (looked for state_dict/ctx)")


def prompt_bytes(prompt: Prompt, clip: Clip, details: Mapping[str, object]) -> bytes:
    """Return the contents of a prompt's file; `details`, such as config and seed, become part of its metadata."""
    metadata = {"format": FORMAT, "version": VERSION, "model": clip.name, "model_digest": clip.digest, **prompt.origin}
    if prompt.after:
        metadata["after"] = prompt.after
    for key, value in details.items():
        metadata[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    data: bytes = save({"context": prompt.context.detach().cpu().contiguous()}, metadata=metadata)
    return data


def from_bytes(clip: Clip, data: bytes) -> Prompt:
    """Return the prompt in the contents of a file that a worker of this run wrote."""
    return _from_tensors(load(data), safetensors_metadata(data), clip.device)


def _from_tensors(tensors: Mapping[str, Tensor], origin: Mapping[str, str], device: torch.device) -> Prompt:
    return Prompt(context=tensors["context"].float().to(device), origin=origin, after=origin.get("after", ""))
