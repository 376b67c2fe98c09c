"""MaPLe's prompts of deeper layers: read from its checkpoint, and given to an image tower.

MaPLe (multi-modal prompt learning) learns a context of the text, text prompts that replace its states at the input of
blocks 1, 2, ..., and a linear layer for each of these that makes a visual prompt of it. All of them are frozen here:
what a method learns is the context alone. Visual prompts are those that the checkpoint's own context makes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fpp_sweep.spec.errors import InputError

WORDS = ("a", "photo", "of", "a")  # MaPLe's texts begin with these; the context stands in the place of the first n
LEARNER = "state_dict.prompt_learner."
PARTS = (f"{LEARNER}proj.", f"{LEARNER}compound_", "state_dict.image_encoder.")  # what CoOp's checkpoints do not have


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeepPrompts:
    """Frozen prompts beside a context of n tokens; W is the width of the text tower, V that of the image tower."""

    text: tuple[Tensor, ...]  # (n, W) each, in place of the context at the input of the text's blocks 1, 2, ...
    visual: tuple[Tensor, ...]  # (n, V) each: after an image's patches, then in its place at blocks 1, 2, ...

    def tensors(self) -> dict[str, Tensor]:
        """By the names that a saved prompt's file has for them."""
        named = {"text": self.text, "visual": self.visual}
        return {f"deep.{side}.{index}": value for side in named for index, value in enumerate(named[side])}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> DeepPrompts | None:
        """The prompts among a saved prompt's tensors; None where it has none."""

        def side(name: str) -> tuple[Tensor, ...]:
            names = takewhile(tensors.__contains__, (f"deep.{name}.{index}" for index in count()))
            return tuple(tensors[key].float().to(device) for key in names)

        found = cls(text=side("text"), visual=side("visual"))
        return found if found.tensors() else None


def is_maple(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint is MaPLe's (or of its family, and then incomplete) rather than CoOp's."""
    return any(name.startswith(PARTS) for name in tensors)


def read_maple(tensors: Mapping[str, Tensor], path: Path) -> tuple[Tensor, str, DeepPrompts]:
    """The context, the words between it and a class name, and the deeper prompts; the rest is the model's weights.

    Visual prompts are computed in double precision, so that their digest is the same on every machine.
    """
    learner = {name.removeprefix(LEARNER): value for name, value in tensors.items() if name.startswith(LEARNER)}
    compound = {name.split(".")[1] for name in learner if name.startswith("compound_") and "." in name}

    def part(name: str, *shape: int | None) -> Tensor:
        if name not in learner:
            raise InputError(f"{path}: not a whole MaPLe checkpoint, prompt_learner.{name} is missing")
        found = tuple(learner[name].shape)
        fits = len(found) == len(shape) and all(map(_fits, found, shape))
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise InputError(f"{path}: prompt_learner.{name} has shape {found}, MaPLe's is ({wanted})")
        return learner[name].double()

    context = part("ctx", None, None)
    width = context.shape[1]
    outside = len(part("proj.weight", None, width))
    text = [part(f"compound_prompts_text.{index}", *context.shape) for index in range(len(compound))]
    layers = ["proj", *(f"compound_prompt_projections.{index}" for index in range(len(compound)))]
    visual = [
        F.linear(prompt, part(f"{layer}.weight", outside, width), part(f"{layer}.bias", outside))
        for prompt, layer in zip([context, *text], layers, strict=True)
    ]
    deep = DeepPrompts(text=tuple(map(Tensor.float, text)), visual=tuple(map(Tensor.float, visual)))
    return context.float(), " ".join(WORDS[len(context) :]), deep


def _fits(size: int, wanted: int | None) -> bool:
    return size > 0 and wanted in (None, size)


class PromptedVisual(nn.Module):
    """open_clip's vision transformer with prompts: one after the patches, others in its place at blocks 1, 2, ..."""

    def __init__(self, visual: Any, prompts: Sequence[Tensor]) -> None:
        super().__init__()
        self.visual = visual
        self.count = len(prompts)
        self.tokens = len(prompts[0])
        # LayerNorm treats tokens one by one, so the first prompt can be normalised apart from the image
        for index, prompt in enumerate([visual.ln_pre(prompts[0]), *prompts[1:]]):
            self.register_buffer(f"prompt{index}", prompt)

    def forward(self, pixels: Tensor) -> Tensor:
        visual = self.visual
        states = self._with_prompt(visual._embeds(pixels), 0)
        for index, block in enumerate(visual.transformer.resblocks):
            if 0 < index < self.count:
                states = self._with_prompt(states[:, : -self.tokens], index)
            states = block(states)
        pooled, _ = visual._pool(states)
        features: Tensor = pooled @ visual.proj
        return features

    def _with_prompt(self, states: Tensor, index: int) -> Tensor:
        prompt: Tensor = getattr(self, f"prompt{index}")
        return torch.cat([states, prompt.to(states.dtype).expand(len(states), -1, -1)], dim=1)


def prompted(visual: nn.Module, prompts: Sequence[Tensor], model: str) -> PromptedVisual:
    """An image tower with visual prompts; InputError where it takes none, or none of that width or number."""
    from open_clip.transformer import VisionTransformer

    tower: Any = visual
    if not isinstance(visual, VisionTransformer) or tower.pool_type != "tok" or tower.attn_pool is not None:
        raise InputError(
            f"the image tower of {model} is not CLIP's ViT, which deep_prompts=both needs; set deep_prompts=text"
        )
    given, width = prompts[0].shape[1], len(tower.class_embedding)
    if given != width:
        raise InputError(f"has visual prompts of width {given}, but the image tower of {model} has width {width}")
    layers = len(tower.transformer.resblocks)
    if len(prompts) > layers:
        raise InputError(f"has visual prompts for {len(prompts)} layers, but the image tower of {model} has {layers}")
    return PromptedVisual(visual, prompts).eval().requires_grad_(False)


def digest_with(image_digest: str, prompts: Sequence[Tensor]) -> str:
    """An image tower's digest with visual prompts."""
    hashed = hashlib.sha256(image_digest.encode())
    for prompt in prompts:
        hashed.update(f" {tuple(prompt.shape)} ".encode())
        hashed.update(prompt.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()
