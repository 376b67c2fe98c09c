"""Forms of open_clip's vision transformer: without unused work in the last block, and with MaPLe's visual prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fpp_sweep.spec.errors import InputError


class ClassTokenBlock(nn.Module):
    """A last block for towers that use the class token's output alone.

    Keys and values are computed for all tokens (N, T, W), everything else for the first token (N, 1, W).
    """

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, states: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        block = self.block
        normed = block.ln_1(states)
        attended, _ = block.attn(normed[:, :1], normed, normed, need_weights=False, attn_mask=attn_mask)
        states = states[:, :1] + block.ls_1(attended)
        output: Tensor = states + block.ls_2(block.mlp(block.ln_2(states)))
        return output


def shorten_last_block(visual: nn.Module) -> nn.Module:
    """Replace the last block of a tower that pools at the class token; leave other towers as they are."""
    if _pools_at_class_token(visual):
        transformer: Any = visual.transformer
        is_plain = type(transformer.resblocks[-1]) is _open_clip_transformer().ResidualAttentionBlock
        if is_plain and transformer.batch_first:
            transformer.resblocks[-1] = ClassTokenBlock(transformer.resblocks[-1]).eval()
    return visual


def has_short_last_block(visual: nn.Module) -> bool:
    """Return True if the last block of a tower computes the class token alone."""
    return any(isinstance(module, ClassTokenBlock) for module in visual.modules())


def _pools_at_class_token(visual: nn.Module) -> bool:
    """Return True for CLIP's vision transformer."""
    is_transformer = isinstance(visual, _open_clip_transformer().VisionTransformer)
    return is_transformer and visual.pool_type == "tok" and visual.attn_pool is None


def _open_clip_transformer() -> Any:
    from open_clip import transformer  # start-up time: open_clip takes ten seconds

    return transformer


class PromptedVisual(nn.Module):
    """A vision transformer with prompts: one after the patches, replaced by others at blocks 1, 2, ..."""

    def __init__(self, visual: Any, prompts: Sequence[Tensor]) -> None:
        super().__init__()
        self.visual = visual
        self.count = len(prompts)
        self.tokens = len(prompts[0])
        # LayerNorm treats tokens one by one, so the first prompt can be normalised apart from the image
        self.register_buffer("prompt0", visual.ln_pre(prompts[0]))
        for index in range(1, self.count):
            self.register_buffer(f"prompt{index}", prompts[index])

    def forward(self, pixels: Tensor) -> Tensor:
        visual = self.visual
        states = self._append_prompt(visual._embeds(pixels), 0)
        for index, block in enumerate(visual.transformer.resblocks):
            if 0 < index < self.count:
                states = self._append_prompt(states[:, : -self.tokens], index)
            states = block(states)
        pooled, _ = visual._pool(states)
        features: Tensor = pooled @ visual.proj
        return features

    def _append_prompt(self, states: Tensor, index: int) -> Tensor:
        prompt: Tensor = getattr(self, f"prompt{index}")
        return torch.cat([states, prompt.to(states.dtype).expand(len(states), -1, -1)], dim=1)


def with_visual_prompts(visual: nn.Module, prompts: Sequence[Tensor], model: str) -> PromptedVisual:
    """Return a tower with visual prompts; raise InputError if it takes none, or not of that width or number."""
    if not _pools_at_class_token(visual):
        raise InputError(
            f"the image tower of {model} is not CLIP's ViT, which deep_prompts=both needs; set deep_prompts=text"
        )
    tower: Any = visual
    prompt_width, width = prompts[0].shape[1], len(tower.class_embedding)
    if prompt_width != width:
        raise InputError(
            f"has visual prompts of width {prompt_width}, but the image tower of {model} has width {width}"
        )
    layers = len(tower.transformer.resblocks)
    if len(prompts) > layers:
        raise InputError(f"has visual prompts for {len(prompts)} layers, but the image tower of {model} has {layers}")
    return PromptedVisual(visual, prompts).eval().requires_grad_(False)
