"""A vision transformer's last block, of which the class token's output alone is used, and so alone computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class ClassTokenBlock(nn.Module):
    """open_clip's block: keys and values of all tokens (N, T, W), everything else of the first alone (N, 1, W)."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, states: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        block, normed = self.block, self.block.ln_1(states)
        attended, _ = block.attn(normed[:, :1], normed, normed, need_weights=False, attn_mask=attn_mask)
        states = states[:, :1] + block.ls_1(attended)
        found: Tensor = states + block.ls_2(block.mlp(block.ln_2(states)))
        return found


def class_token_alone(visual: nn.Module) -> nn.Module:
    """An image tower without what it computes for nothing: itself, shortened where it pools at the class token."""
    from open_clip.transformer import ResidualAttentionBlock, VisionTransformer

    if isinstance(visual, VisionTransformer) and visual.pool_type == "tok" and visual.attn_pool is None:
        blocks: Any = visual.transformer.resblocks
        if type(blocks[-1]) is ResidualAttentionBlock and visual.transformer.batch_first:
            blocks[-1] = ClassTokenBlock(blocks[-1]).eval()
    return visual
