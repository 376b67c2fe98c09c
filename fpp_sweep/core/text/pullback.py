"""The text tower's backward pass at one context, for many gradients at once.

Test-time adaptation starts every sample from the same context: activations, attention weights and slopes are the same
for all of them, and are computed once. What differs is the gradient that comes in from the sample's loss, and it passes
through matrices only. Autograd would repeat the forward pass, or its records, for every sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.text.layout import Layout, Sight
from fpp_sweep.core.text.tower import Block, TextTower, add_linear, norm

NORM_EPSILON = 1e-5  # torch's LayerNorm
ALL = slice(None)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A LayerNorm at a point: its output and the factor it divides by."""

    out: Tensor
    factor: Tensor

    @classmethod
    def at(cls, states: Tensor) -> Norm:
        out, _, factor = torch.native_layer_norm(states, states.shape[-1:], None, None, NORM_EPSILON)
        return cls(out, factor)

    def first(self) -> Norm:
        """That of the first of some prompts, without holding on to the others."""
        return self if len(self.out) == 1 else Norm(self.out[:1].clone(), self.factor[:1].clone())

    def back(self, gradient: Tensor, rows: Tensor | slice = ALL) -> Tensor:
        """(B, ..., W) gradients of the output, or of some of its rows -> of the input."""
        out, factor = self.out[:, rows], self.factor[:, rows]
        along = (gradient * out).mean(-1, keepdim=True)
        return torch.addcmul(gradient - gradient.mean(-1, keepdim=True), out, along, value=-1).mul_(factor)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """An attention call at a point: (groups, heads, slots, d) queries, keys and values."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor  # (groups, heads, slots that ask, slots)

    @classmethod
    def at(cls, heads: tuple[Tensor, ...], hidden: Tensor) -> Attention:
        query, key, value = heads
        scores = query @ key.transpose(-1, -2)
        return cls(query, key, value, scores.masked_fill_(hidden, -torch.inf).softmax(-1))

    @property
    def out(self) -> Tensor:
        return self.weights @ self.value

    def back(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, groups, heads, slots, d) gradients of the output -> of queries, keys and values."""
        batch, length = len(gradient), gradient.shape[-2]
        # samples beside rows, so that the constant factor is one matrix and not one copy for each sample
        rows = gradient.permute(1, 2, 0, 3, 4).flatten(2, 3)
        of_weights = (rows @ self.value.transpose(-1, -2)).unflatten(2, (batch, length))
        weights = self.weights[:, :, None]
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        of_query = (of_scores.flatten(2, 3) @ self.key).unflatten(2, (batch, length))
        turned = of_scores.transpose(-1, -2).flatten(2, 3)
        of_key = (turned @ self.query).unflatten(2, (batch, -1))
        columns = gradient.permute(1, 2, 3, 0, 4).flatten(3, 4)
        of_value = (self.weights.transpose(-1, -2) @ columns).unflatten(3, (batch, -1)).transpose(2, 3)
        query, key, value = (part.permute(2, 0, 1, 3, 4) for part in (of_query, of_key, of_value))
        return query, key, value


@dataclass(frozen=True, slots=True, eq=False)
class BlockAt:
    """A block at a point."""

    block: Block
    before_attention: Norm
    attention: Attention
    before_mlp: Norm
    slope: Tensor  # of the activation

    def rest_back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """(B, ..., W) gradients of the block's output -> of its residual stream and of the attention's output."""
        hidden = (gradient @ self.block.proj[0]).mul_(self.slope)
        stream = gradient + self.before_mlp.back(hidden @ self.block.fc[0])
        return stream, stream @ self.block.out[0]


class Pullback:
    """d features / d embeddings at the first of some prompts, transposed and applied to gradients."""

    def __init__(
        self, tower: TextTower, prefix: Tensor, nodes: Tensor, layout: Layout, sight: Sight | None = None
    ) -> None:
        """Run the tower on prefixes (J, P, W) and nodes (J or 1, N, W), keeping what the way back to the first needs.

        The others share the forward pass's matrix products, which small prompts alone do not fill.
        """
        self.tower, self.layout, self.sight = tower, layout, sight or layout.sight(prefix.shape[1])
        self._blocks: list[BlockAt] = []
        states = tower.embed(prefix, nodes, layout)
        self._rows = states.shape[1]
        for block in tower.blocks[:-1]:
            states = self._forward(block, states)
        pooled = self._last(tower.blocks[-1], states)
        self._norm = Norm.at(pooled[:1])
        raw = F.linear(norm(pooled), *tower.projection)
        size = raw.norm(dim=-1, keepdim=True)
        packed = raw / size
        self._size, self._packed = size[:1], packed[:1]
        self.features = packed[:, layout.inverse]  # (J, K, D)

    def _forward(self, block: Block, states: Tensor) -> Tensor:
        normed = Norm.at(states)
        slots = self.sight.to_slots(F.linear(normed.out, *block.qkv))
        heads = self.tower.heads_of(slots, self.sight)
        attention, looks = self._look(heads, self.sight.hidden, len(states))
        states = add_linear(states, self.sight.to_rows(looks), block.out)
        return self._mlp(block, states, normed, attention)

    def _last(self, block: Block, states: Tensor) -> Tensor:
        """The block's output at EOT, which alone is read."""
        normed, sight = Norm.at(states), self.sight
        attention, looks = self._look(self.tower.last_qkv(block, normed.out, sight), sight.end_hidden, len(states))
        states = add_linear(states[:, sight.ends], looks[:, sight.end_pick], block.out)
        return self._mlp(block, states, normed, attention)

    def _look(self, heads: tuple[Tensor, ...], hidden: Tensor, prompts: int) -> tuple[Attention, Tensor]:
        """The first prompt's attention, recorded, and the attention's output for all."""
        groups = self.sight.groups
        attention = Attention.at(tuple(each[:groups].contiguous() for each in heads), hidden)
        looks = attention.out
        if prompts > 1:
            looks = torch.cat([looks, self.tower.look(tuple(each[groups:] for each in heads), hidden)])
        return attention, self.tower.merge(looks, prompts)

    def _mlp(self, block: Block, states: Tensor, before_attention: Norm, attention: Attention) -> Tensor:
        normed = Norm.at(states)
        hidden = F.linear(normed.out, *block.fc)
        slope = _slope(hidden[:1], quick=self.tower.activation == "quick_gelu")
        self._blocks.append(BlockAt(block, before_attention.first(), attention, normed.first(), slope))
        return add_linear(states, self.tower.activate(hidden), block.proj)

    def __call__(self, gradients: Tensor, rows: Tensor) -> Tensor:
        """Gradients (B, K, D) of the features -> (B, rows, W) of some rows' embeddings, the prefix before the nodes."""
        packed = gradients[:, self.layout.order]
        across = packed - self._packed * (packed * self._packed).sum(-1, keepdim=True)
        pooled = self._norm.back((across / self._size) @ self.tower.projection[0])
        *middle, last = self._blocks
        states = self._last_back(last, pooled, ALL if middle else rows)
        for at in reversed(middle):
            states = self._back(at, states, rows if at is middle[0] else ALL)
        return states

    def _back(self, at: BlockAt, states: Tensor, wanted: Tensor | slice) -> Tensor:
        stream, attended = at.rest_back(states)
        parts = at.attention.back(self._heads(self.sight.to_rows_back(attended)))
        qkv = self.sight.to_slots_back(torch.cat([self._merge(part) for part in parts], dim=-1), self._rows)
        return stream[:, wanted] + at.before_attention.back(qkv[:, wanted] @ at.block.qkv[0], wanted)

    def _last_back(self, at: BlockAt, pooled: Tensor, wanted: Tensor | slice) -> Tensor:
        weight, width, sight = at.block.qkv[0], self.tower.width, self.sight
        stream, attended = at.rest_back(pooled)
        query, key, value = at.attention.back(self._heads(sight.ends_back(attended)))
        pairs = sight.to_slots_back(torch.cat([self._merge(key), self._merge(value)], dim=-1), self._rows)
        normed = pairs @ weight[width:]
        normed.index_add_(1, sight.ends, self._merge(query)[:, sight.end_pick] @ weight[:width])
        return at.before_attention.back(normed).index_add_(1, sight.ends, stream)[:, wanted]

    def _heads(self, slots: Tensor) -> Tensor:
        """(B, groups * S, W) -> (B, groups, heads, S, d)."""
        heads: Tensor = self.tower.heads_of(slots, self.sight)[0]
        return heads.view(len(slots), self.sight.groups, *heads.shape[1:])

    def _merge(self, heads: Tensor) -> Tensor:
        return self.tower.merge(heads.flatten(0, 1), len(heads))


def _slope(hidden: Tensor, *, quick: bool) -> Tensor:
    """The derivative of SiLU or GELU."""
    if quick:
        gate = hidden.sigmoid()
        return gate * (1 + hidden * (1 - gate))
    density = (-hidden.square() / 2).exp() / math.sqrt(2 * math.pi)
    share: Tensor = torch.special.ndtr(hidden)
    return share + hidden * density
