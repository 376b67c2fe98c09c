"""A form of open_clip's vision transformer without unused work in the last block."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


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
