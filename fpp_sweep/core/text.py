"""CLIP's text tower from embeddings on, so that prompts can be learned.

The causal mask lets a position see only what stands before it, and the feature is read at EOT: everything after the
longest EOT can be cut without changing a result, and what many texts begin with is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.layout import Layout

Activation = Literal["quick_gelu", "gelu"]
QUICK = 1.702  # QuickGELU is x * sigmoid(1.702 x)

Affine = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)


class Tokenizer(Protocol):
    """Text to token ids, without SOS, EOT or padding."""

    sos: int
    eot: int

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A residual attention block as four matrices.

    Constants are folded into them once: each LayerNorm's scale and shift into the matrix that follows it, attention's
    1 / sqrt(d) into the queries, and QuickGELU's 1.702 into the two sides of SiLU.
    """

    qkv: Affine
    out: Affine
    fc: Affine
    proj: Affine

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], prefix: str, heads: int, activation: Activation) -> Block:
        def pair(name: str) -> Affine:
            return state[f"{prefix}.{name}.weight"].double(), state[f"{prefix}.{name}.bias"].double()

        in_proj = state[f"{prefix}.attn.in_proj_weight"].double(), state[f"{prefix}.attn.in_proj_bias"].double()
        qkv, bias = _after_norm(pair("ln_1"), in_proj)
        width = qkv.shape[1]
        scale = torch.ones(3 * width, dtype=qkv.dtype)
        scale[:width] = (width // heads) ** -0.5
        quick = QUICK if activation == "quick_gelu" else 1.0
        fc, fc_bias = _after_norm(pair("ln_2"), pair("mlp.c_fc"))
        proj, proj_bias = pair("mlp.c_proj")
        return cls(
            qkv=_single(qkv * scale[:, None], bias * scale),
            out=_single(*pair("attn.out_proj")),
            fc=_single(fc * quick, fc_bias * quick),
            proj=_single(proj / quick, proj_bias),
        )


def _after_norm(norm: Affine, linear: Affine) -> Affine:
    """One matrix for a LayerNorm's scale and shift and the linear layer after it."""
    (scale, shift), (weight, bias) = norm, linear
    return weight * scale, bias + weight @ shift


def _single(weight: Tensor, bias: Tensor) -> Affine:
    return weight.float().contiguous(), bias.float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTower:
    """Frozen weights; W the width, D the shared dimension."""

    token_embedding: Tensor  # (vocabulary, W)
    positional_embedding: Tensor  # (positions, W)
    blocks: tuple[Block, ...]
    projection: Affine  # (D, W), with the last LayerNorm's scale and shift in it
    heads: int
    activation: Activation

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, heads: int, activation: Activation) -> TextTower:
        """Read a state dict in OpenAI's naming; computes in float32."""
        blocks = "transformer.resblocks."
        layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith(blocks))
        last_norm = state["ln_final.weight"].double(), state["ln_final.bias"].double()
        projection = state["text_projection"].double().T
        return cls(
            token_embedding=state["token_embedding.weight"].detach().float(),
            positional_embedding=state["positional_embedding"].detach().float(),
            blocks=tuple(Block.from_state(state, f"{blocks}{layer}", heads, activation) for layer in range(layers)),
            projection=_single(*_after_norm(last_norm, (projection, projection.new_zeros(len(projection))))),
            heads=heads,
            activation=activation,
        )

    @property
    def width(self) -> int:
        return self.positional_embedding.shape[1]

    @property
    def positions(self) -> int:
        return self.positional_embedding.shape[0]

    @property
    def device(self) -> torch.device:
        return self.positional_embedding.device

    def rows_at_once(self) -> int:
        """How many token positions to compute at a time: enough to fill the device, few enough for its caches."""
        return 65536 if self.device.type == "cuda" else 2048

    def on(self, device: torch.device | str) -> TextTower:
        """The same tower on another device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device)
            return tuple(map(moved, value)) if isinstance(value, tuple) else value

        blocks = tuple(Block(*(moved(getattr(block, item.name)) for item in fields(Block))) for block in self.blocks)
        values = {item.name: moved(getattr(self, item.name)) for item in fields(self) if item.name != "blocks"}
        return TextTower(blocks=blocks, **values)

    def features(self, prefix: Tensor, nodes: Tensor, layout: Layout) -> Tensor:
        """Unit features (B, K, D) of K texts that all begin with the same prefix.

        `prefix` (B, P, W) holds the embeddings that the K texts share (SOS and context), one row for each of B prompts;
        `nodes` (B or 1, N, W) holds what follows it, as `layout` says. Keys and values of the prefix are computed once
        for all K texts; the last block computes EOT's output only.
        """
        before, after = self.embed(prefix, nodes, layout)
        for block in self.blocks[:-1]:
            own, shared = self.qkv(block, after), self.qkv(block, before)
            after = self._rest(block, after, self._attend(own, shared, layout))
            before = self._rest(block, before, self._attend_to_itself(shared))
        pooled = self._last_block(self.blocks[-1], before, after, layout)
        return F.normalize(F.linear(norm(pooled), *self.projection), dim=-1)[:, layout.inverse]

    def embed(self, prefix: Tensor, nodes: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Prefix and nodes with their positions added."""
        length = prefix.shape[1]
        after = nodes + self.positional_embedding[length + layout.positions]
        return prefix + self.positional_embedding[:length], after.expand(len(prefix), -1, -1)

    def qkv(self, block: Block, states: Tensor) -> Tensor:
        return F.linear(norm(states), *block.qkv)

    def split_heads(self, qkv: Tensor, texts: int) -> tuple[Tensor, ...]:
        """(B, texts * L, c * W) -> c times (B, texts, heads, L, W / heads)."""
        batch, total, columns = qkv.shape
        shape = batch, texts, total // texts, columns // self.width, self.heads, self.width // self.heads
        return qkv.view(shape).permute(3, 0, 1, 4, 2, 5).unbind()

    def _attend(self, own: Tensor, shared: Tensor, layout: Layout) -> Tensor:
        """The nodes look at the prefix and, causally, at their own texts."""
        prefix = self.split_heads(shared, 1)
        found = []
        for texts, part in layout.per_bucket(layout.to_tokens(own)):
            query, key, value = self.split_heads(part, texts)
            found.append(_look(query, with_prefix(prefix[1], key), with_prefix(prefix[2], value)))
        return layout.to_nodes(torch.cat(found, dim=1))

    def _attend_to_itself(self, shared: Tensor) -> Tensor:
        return _look(*self.split_heads(shared, 1))

    def _last_block(self, block: Block, before: Tensor, after: Tensor, layout: Layout) -> Tensor:
        """The block's output at EOT, the only position that anything reads from here on."""
        weight, bias = block.qkv
        width = self.width
        normed = norm(after)
        own = F.linear(normed, weight[width:], bias[width:])
        shared = self.split_heads(F.linear(norm(before), weight[width:], bias[width:]), 1)
        queries = F.linear(normed[:, layout.ends], weight[:width], bias[:width])
        found = []
        start = 0
        for texts, part in layout.per_bucket(layout.to_tokens(own)):
            (query,) = self.split_heads(queries[:, start : start + texts], texts)
            key, value = self.split_heads(part, texts)
            found.append(_look(query, with_prefix(shared[0], key), with_prefix(shared[1], value)))
            start += texts
        return self._rest(block, after[:, layout.ends], torch.cat(found, dim=1))

    def _rest(self, block: Block, states: Tensor, attended: Tensor) -> Tensor:
        """Everything of a block after its attention."""
        states = states + F.linear(attended, *block.out)
        return states + F.linear(self.activate(F.linear(norm(states), *block.fc)), *block.proj)

    def activate(self, hidden: Tensor) -> Tensor:
        return F.silu(hidden) if self.activation == "quick_gelu" else F.gelu(hidden)


def norm(states: Tensor) -> Tensor:
    return F.layer_norm(states, states.shape[-1:])


def with_prefix(shared: Tensor, own: Tensor) -> Tensor:
    """Keys or values of the one prefix (B, 1, heads, P, d) in front of those of every text."""
    return torch.cat([shared.expand(-1, own.shape[1], -1, -1, -1), own], dim=-2)


def causal(rows: int, columns: int, device: torch.device) -> Tensor:
    """What the last `rows` of `columns` positions may see."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).tril(columns - rows)


def _look(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, texts, heads, L, d) queries, scaled already -> (B, texts * L, W)."""
    mask = None if query.shape[-2] == 1 else causal(query.shape[-2], key.shape[-2], query.device)
    return merge_heads(F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0))


def merge_heads(heads: Tensor) -> Tensor:
    """(B, texts, heads, L, d) -> (B, texts * L, W)."""
    batch, texts, count, length, width = heads.shape
    return heads.transpose(2, 3).reshape(batch, texts * length, count * width)
