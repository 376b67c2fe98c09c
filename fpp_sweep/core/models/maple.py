"""MaPLe's prompts of deeper layers, read from its checkpoint.

MaPLe (multi-modal prompt learning) learns a context of the text, text prompts that replace its states at the input of
blocks 1, 2, ..., and a linear layer for each of these that makes a visual prompt of it. All of them are frozen here: a
method learns the context alone. Visual prompts are those that the checkpoint's own context makes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.spec.errors import InputError

WORDS = ("a", "photo", "of", "a")  # MaPLe's texts begin with these; the context replaces the first n of them
LEARNER = "state_dict.prompt_learner."
# beginnings of names that CoOp's checkpoints do not have
MAPLE_PREFIXES = (f"{LEARNER}proj.", f"{LEARNER}compound_", "state_dict.image_encoder.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeepPrompts:
    """Frozen prompts beside a context of n tokens; W is the width of the text tower, V that of the image tower."""

    text: tuple[Tensor, ...]  # (n, W) each, replacing the context at the input of the text's blocks 1, 2, ...
    visual: tuple[Tensor, ...]  # (n, V) each: after an image's patches, then replaced at blocks 1, 2, ...

    def tensors(self) -> dict[str, Tensor]:
        """Return all prompts under their names in the file of a saved prompt."""
        named = {}
        for index, prompt in enumerate(self.text):
            named[f"deep.text.{index}"] = prompt
        for index, prompt in enumerate(self.visual):
            named[f"deep.visual.{index}"] = prompt
        return named

    def to(self, device: torch.device) -> DeepPrompts:
        """Return the same prompts in float32 on a device."""
        return DeepPrompts(
            text=tuple([prompt.float().to(device) for prompt in self.text]),
            visual=tuple([prompt.float().to(device) for prompt in self.visual]),
        )

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> DeepPrompts | None:
        """Return the prompts among a saved prompt's tensors; None if it has none."""
        text = _numbered(tensors, "deep.text", device)
        visual = _numbered(tensors, "deep.visual", device)
        if not text and not visual:
            return None
        return cls(text=text, visual=visual)


def _numbered(tensors: Mapping[str, Tensor], prefix: str, device: torch.device) -> tuple[Tensor, ...]:
    """Return the tensors `prefix.0`, `prefix.1`, ... up to the first number that is missing."""
    numbered = []
    for index in count():
        tensor = tensors.get(f"{prefix}.{index}")
        if tensor is None:
            break
        numbered.append(tensor.float().to(device))
    return tuple(numbered)


def is_maple(tensors: Mapping[str, Tensor]) -> bool:
    """Return True for a checkpoint of MaPLe, or of its family, and False for CoOp's."""
    return any(name.startswith(MAPLE_PREFIXES) for name in tensors)


def read_maple(tensors: Mapping[str, Tensor], path: Path) -> tuple[Tensor, str, DeepPrompts]:
    """Return the context, the words between it and a class name, and the deeper prompts of a checkpoint.

    Visual prompts are computed in double precision, so that their digest is the same on every machine.
    """
    parts = _LearnerParts(tensors, path)
    context = parts.get("ctx", None, None)
    width = context.shape[1]
    visual_width = len(parts.get("proj.weight", None, width))
    text = []  # the prompts of deeper layers
    layers = ["proj"]  # the linear layer that makes a visual prompt of the context, then of each deeper prompt
    for index in range(parts.compound_count()):
        text.append(parts.get(f"compound_prompts_text.{index}", *context.shape))
        layers.append(f"compound_prompt_projections.{index}")
    visual = []
    for layer, prompt in zip(layers, [context, *text], strict=True):
        weight = parts.get(f"{layer}.weight", visual_width, width)
        bias = parts.get(f"{layer}.bias", visual_width)
        visual.append(F.linear(prompt, weight, bias))
    deep = DeepPrompts(text=tuple(text), visual=tuple(visual)).to(context.device)
    words_after = " ".join(WORDS[len(context) :])
    return context.float(), words_after, deep


class _LearnerParts:
    """The tensors of a checkpoint's prompt learner, each checked when it is read."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name.startswith(LEARNER):
                self.tensors[name.removeprefix(LEARNER)] = tensor

    def compound_count(self) -> int:
        """Return the number of deeper layers, from the numbers in names such as `compound_prompts_text.1`."""
        numbers = set()
        for name in self.tensors:
            if name.startswith("compound_") and "." in name:
                numbers.add(name.split(".")[1])
        return len(numbers)

    def get(self, name: str, *shape: int | None) -> Tensor:
        """Return a part in double precision; raise InputError unless it has that shape, where None is any size."""
        if name not in self.tensors:
            raise InputError(f"{self.path}: not a whole MaPLe checkpoint, prompt_learner.{name} is missing")
        part = self.tensors[name]
        if not _fits(part, shape):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise InputError(f"{self.path}: prompt_learner.{name} has shape {tuple(part.shape)}, MaPLe's is ({sizes})")
        return part.double()


def _fits(tensor: Tensor, shape: Sequence[int | None]) -> bool:
    if tensor.ndim != len(shape) or 0 in tensor.shape:
        return False
    return all(expected in (None, size) for size, expected in zip(tensor.shape, shape, strict=True))


def digest_with(image_digest: str, prompts: Sequence[Tensor]) -> str:
    """Return the digest of an image tower with visual prompts."""
    digest = hashlib.sha256(image_digest.encode())
    for prompt in prompts:
        digest.update(f" {tuple(prompt.shape)} ".encode())
        digest.update(prompt.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
