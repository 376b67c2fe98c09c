"""CLIP's text tower from embeddings on, so that prompts can be learned.

The causal mask lets a position see only what stands before it, and the feature is read at EOT: everything after the
longest EOT can be cut without changing a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Literal["quick_gelu", "gelu"]


class Tokenizer(Protocol):
    """Text to token ids, without SOS, EOT or padding."""

    sos: int
    eot: int

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How K token sequences of different lengths lie in one row of M tokens without padding: texts of the same length
    side by side, so that each length is one attention call and the linear layers see all tokens at once."""

    buckets: tuple[tuple[int, int], ...]  # (texts, tokens in each)
    order: Tensor  # (K,) the text at each packed place
    inverse: Tensor  # (K,) the packed place of each text
    texts: Tensor  # (M,) the packed text that each token belongs to
    positions: Tensor  # (M,) how far each token stands after the prefix
    ends: Tensor  # (K,) where in the row each packed text has its EOT

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Layout:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        packed = [lengths[text] for text in order]
        buckets = tuple((packed.count(length), length) for length in sorted(set(packed)))
        row = torch.tensor(order)
        return cls(
            buckets=buckets,
            order=row,
            inverse=row.argsort(),
            texts=torch.arange(len(packed)).repeat_interleave(torch.tensor(packed)),
            positions=torch.cat([torch.arange(length) for length in packed]),
            ends=torch.tensor(packed).cumsum(0) - 1,
        )

    def on(self, device: torch.device | str) -> Layout:
        tensors = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "buckets"}
        return Layout(buckets=self.buckets, **{name: value.to(device) for name, value in tensors.items()})

    def longer_by(self, length: int) -> Layout:
        """The layout of the same texts with `length` tokens more in front of each."""
        lengths = (self.ends.diff(prepend=self.ends.new_tensor([-1])) + length)[self.inverse]
        return Layout.of(lengths.tolist()).on(self.ends.device)

    def per_bucket(self, *rows: Tensor) -> Iterator[tuple[Any, ...]]:
        """(texts, the bucket's part of each row of tokens), bucket by bucket."""
        start = 0
        for texts, length in self.buckets:
            stop = start + texts * length
            yield (texts, *(row[:, start:stop] for row in rows))
            start = stop


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The weights of one residual attention block, under OpenAI's names."""

    ln_1: tuple[Tensor, Tensor]
    in_proj: tuple[Tensor, Tensor]
    out_proj: tuple[Tensor, Tensor]
    ln_2: tuple[Tensor, Tensor]
    c_fc: tuple[Tensor, Tensor]
    c_proj: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTower:
    """Frozen weights; W the width, D the shared dimension."""

    token_embedding: Tensor  # (vocabulary, W)
    positional_embedding: Tensor  # (positions, W)
    blocks: tuple[Block, ...]
    ln_final: tuple[Tensor, Tensor]
    projection: Tensor  # (W, D)
    heads: int
    activation: Activation

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, heads: int, activation: Activation) -> TextTower:
        """Read a state dict in OpenAI's naming; computes in float32."""
        state = {name: value.detach().float() for name, value in state.items() if not name.startswith("visual.")}

        def pair(name: str) -> tuple[Tensor, Tensor]:
            return state[f"{name}.weight"], state[f"{name}.bias"]

        layers = 1 + max(int(name.split(".")[2]) for name in state if name.startswith("transformer.resblocks."))
        blocks = []
        for prefix in (f"transformer.resblocks.{layer}" for layer in range(layers)):
            in_proj = state[f"{prefix}.attn.in_proj_weight"], state[f"{prefix}.attn.in_proj_bias"]
            blocks.append(
                Block(
                    ln_1=pair(f"{prefix}.ln_1"),
                    in_proj=in_proj,
                    out_proj=pair(f"{prefix}.attn.out_proj"),
                    ln_2=pair(f"{prefix}.ln_2"),
                    c_fc=pair(f"{prefix}.mlp.c_fc"),
                    c_proj=pair(f"{prefix}.mlp.c_proj"),
                )
            )
        return cls(
            token_embedding=state["token_embedding.weight"],
            positional_embedding=state["positional_embedding"],
            blocks=tuple(blocks),
            ln_final=pair("ln_final"),
            projection=state["text_projection"],
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

    def on(self, device: torch.device | str) -> TextTower:
        """The same tower on another device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device)
            return tuple(map(moved, value)) if isinstance(value, tuple) else value

        blocks = tuple(Block(*(moved(getattr(block, item.name)) for item in fields(Block))) for block in self.blocks)
        values = {item.name: moved(getattr(self, item.name)) for item in fields(self) if item.name != "blocks"}
        return TextTower(blocks=blocks, **values)

    def features(self, prefix: Tensor, tokens: Tensor, layout: Layout) -> Tensor:
        """Unit features (B, K, D) of K texts that all begin with the same prefix.

        `prefix` (B, P, W) holds the embeddings that the K texts share (SOS and context), one row for each of B prompts;
        `tokens` (B or 1, M, W) holds what follows it, packed as `layout` says. Keys and values of the prefix are
        computed once for all K texts; the last block computes EOT's output only.
        """
        length = prefix.shape[1]
        before = prefix + self.positional_embedding[:length]
        after = tokens + self.positional_embedding[length + layout.positions]
        after = after.expand(len(prefix), -1, -1)
        for block in self.blocks[:-1]:
            before, after = self._block(block, before, after, layout)
        pooled = self._last_block(self.blocks[-1], before, after, layout)
        pooled = F.layer_norm(pooled, pooled.shape[-1:], *self.ln_final)
        return F.normalize(pooled @ self.projection, dim=-1)[:, layout.inverse]

    def _heads(self, states: Tensor, texts: int) -> Tensor:
        """(B, texts * L, W) -> (B, texts, heads, L, W / heads)."""
        batch, total, width = states.shape
        return states.view(batch, texts, total // texts, self.heads, width // self.heads).transpose(2, 3)

    def _block(self, block: Block, before: Tensor, after: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        shared = _attention_input(block, before).chunk(3, dim=-1)
        own = _attention_input(block, after).chunk(3, dim=-1)
        attended = [
            self._attend(query, shared, (key, value), texts) for texts, query, key, value in layout.per_bucket(*own)
        ]
        query, key, value = (self._heads(part, 1) for part in shared)
        prefix = _merge(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return self._rest(block, before, prefix), self._rest(block, after, torch.cat(attended, dim=1))

    def _last_block(self, block: Block, before: Tensor, after: Tensor, layout: Layout) -> Tensor:
        """The block's output at EOT, the only position that anything reads from here on."""
        width = after.shape[-1]
        weight, bias = block.in_proj
        shared = F.linear(_norm(block.ln_1, before), weight[width:], bias[width:]).chunk(2, dim=-1)
        normed = _norm(block.ln_1, after)
        own = F.linear(normed, weight[width:], bias[width:]).chunk(2, dim=-1)
        queries = F.linear(normed[:, layout.ends], weight[:width], bias[:width])
        attended = []
        for (texts, key, value), query in zip(
            layout.per_bucket(*own), queries.split([texts for texts, _ in layout.buckets], dim=1), strict=True
        ):
            attended.append(self._attend(query, (None, *shared), (key, value), texts))
        return self._rest(block, after[:, layout.ends], torch.cat(attended, dim=1))

    def _attend(self, query: Tensor, shared: Sequence[Tensor | None], own: tuple[Tensor, Tensor], texts: int) -> Tensor:
        """The texts of one bucket look at the prefix and, causally, at their own tokens."""
        query = self._heads(query, texts)
        keys, values = (
            torch.cat([self._heads(common, 1).expand(-1, texts, -1, -1, -1), self._heads(part, texts)], dim=-2)
            for common, part in zip(shared[1:], own, strict=True)
            if common is not None
        )
        rows, columns = query.shape[-2], keys.shape[-2]
        mask = query.new_ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        return _merge(F.scaled_dot_product_attention(query, keys, values, attn_mask=mask))

    def _rest(self, block: Block, states: Tensor, attended: Tensor) -> Tensor:
        """Everything of a block after its attention."""
        states = states + F.linear(attended, *block.out_proj)
        hidden = F.linear(_norm(block.ln_2, states), *block.c_fc)
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.activation == "quick_gelu" else F.gelu(hidden)
        return states + F.linear(hidden, *block.c_proj)


def _norm(affine: tuple[Tensor, Tensor], states: Tensor) -> Tensor:
    return F.layer_norm(states, states.shape[-1:], *affine)


def _attention_input(block: Block, states: Tensor) -> Tensor:
    return F.linear(_norm(block.ln_1, states), *block.in_proj)


def _merge(heads: Tensor) -> Tensor:
    """(B, texts, heads, L, W / heads) -> (B, texts * L, W)."""
    batch, texts, count, length, width = heads.shape
    return heads.transpose(2, 3).reshape(batch, texts * length, count * width)
