"""A frozen CLIP: an image tower, a text tower that takes embeddings, tokenizer and preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fpp_sweep.core.compute import upcast
from fpp_sweep.core.models.names import import_open_clip
from fpp_sweep.core.text.padded import PaddedTower, RowTokenizer
from fpp_sweep.core.text.tower import TextTower, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """The steps from an image to the image tower's input: resize to a square, then normalise."""

    size: int  # pixels of a side
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: Literal["shortest", "squash"] = "shortest"  # the shorter side, then a crop; or both sides


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """A CLIP on one device, frozen and in evaluation mode."""

    name: str  # as passed to --model
    visual: nn.Module
    text: TextTower | PaddedTower
    tokenizer: Tokenizer | RowTokenizer
    logit_scale: float
    preprocess: Preprocess
    embedding_scale: float  # the scale of its token embeddings relative to those of OpenAI's ViT-B/16
    image_digest: str  # digest of the image tower's weights and preprocessing; in the keys of features
    digest: str  # digest of all weights
    trained_tokens: frozenset[int] | None = None  # None: all tokens

    @property
    def device(self) -> torch.device:
        return self.text.device

    @property
    def arithmetic_suffix(self) -> str:
        """The suffix in keys for an image tower whose last bits differ from open_clip's."""
        if any(isinstance(module, ClassTokenBlock) for module in self.visual.modules()):
            return ", class token alone"
        return ""

    def has_untrained_words(self, text: str) -> bool:
        """Return True if the text has words that the model was never trained on."""
        if self.trained_tokens is None:
            return False
        tokens = self.tokenizer.encode(text.replace("_", " "))
        return not self.trained_tokens.issuperset(tokens)

    @torch.no_grad()
    def image_features(self, pixels: Tensor) -> Tensor:
        """Return (N, D) unit features in float32 of (N, 3, size, size) normalised pixels."""
        pixels = pixels.to(self.device, non_blocking=True)
        if self.device.type == "cuda":
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        return F.normalize(upcast(self.visual(pixels)), dim=-1)


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
    """Replace the last block of open_clip's vision transformer if it pools at the class token."""
    parts = import_open_clip().transformer
    if isinstance(visual, parts.VisionTransformer) and visual.pool_type == "tok" and visual.attn_pool is None:
        transformer: Any = visual.transformer
        if type(transformer.resblocks[-1]) is parts.ResidualAttentionBlock and transformer.batch_first:
            transformer.resblocks[-1] = ClassTokenBlock(transformer.resblocks[-1]).eval()
    return visual
