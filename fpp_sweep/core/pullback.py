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

from fpp_sweep.core.layout import Layout
from fpp_sweep.core.text import Affine, Block, TextTower, causal, merge_heads, with_prefix

NORM_EPSILON = 1e-5  # torch's LayerNorm


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A LayerNorm at a point: its output and the factor it divides by."""

    out: Tensor
    factor: Tensor

    @classmethod
    def at(cls, states: Tensor) -> Norm:
        out, _, factor = torch.native_layer_norm(states, states.shape[-1:], None, None, NORM_EPSILON)
        return cls(out, factor)

    def back(self, gradient: Tensor) -> Tensor:
        """(B, ..., W) gradients of the output -> of the input."""
        along = (gradient * self.out).mean(-1, keepdim=True)
        return torch.addcmul(gradient - gradient.mean(-1, keepdim=True), self.out, along, value=-1) * self.factor


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention call at a point: texts of one length, (texts, heads, L, d) each, P prefix positions in the keys."""

    query: Tensor
    key: Tensor  # (texts, heads, P + L, d)
    value: Tensor
    weights: Tensor  # (texts, heads, L, P + L)

    @classmethod
    def at(cls, query: Tensor, key: Tensor, value: Tensor) -> Attention:
        scores = query @ key.transpose(-1, -2)
        hidden = ~causal(scores.shape[-2], scores.shape[-1], scores.device)
        return cls(query, key, value, scores.masked_fill(hidden, -torch.inf).softmax(-1))

    @property
    def out(self) -> Tensor:
        return self.weights @ self.value

    def back(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, texts, heads, L, d) gradients of the output -> of queries, keys and values."""
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
class Rest:
    """What follows the attention in a block, at a point."""

    block: Block
    norm: Norm
    slope: Tensor  # of the activation

    def back(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """(B, ..., W) gradients of the block's output -> of its residual stream and of the attention's output."""
        hidden = (gradient @ self.block.proj[0]) * self.slope
        stream = gradient + self.norm.back(hidden @ self.block.fc[0])
        return stream, stream @ self.block.out[0]


@dataclass(frozen=True, slots=True, eq=False)
class BlockAt:
    """A whole block at a point; `prefix` is None in the last, whose prefix output nobody reads."""

    after_norm: Norm
    before_norm: Norm
    texts: list[Attention]
    after: Rest
    prefix: Attention | None
    before: Rest | None


class Pullback:
    """d features / d (prefix, nodes) at one point, transposed and applied to gradients."""

    def __init__(self, tower: TextTower, prefix: Tensor, nodes: Tensor, layout: Layout) -> None:
        """Run the tower on a `prefix` (P, W) and `nodes` (N, W), keeping what the way back needs."""
        self.tower, self.layout, self.length = tower, layout, len(prefix)
        before, after = tower.embed(prefix[None], nodes[None], layout)
        self._blocks: list[BlockAt] = []
        for block in tower.blocks[:-1]:
            before, after = self._forward(block, before, after)
        pooled = self._last(tower.blocks[-1], before, after)
        self._norm = Norm.at(pooled)
        raw = torch.nn.functional.linear(self._norm.out, *tower.projection)
        self._size = raw.norm(dim=-1, keepdim=True)
        self._packed = raw / self._size
        self.features = self._packed[0, layout.inverse]

    def _forward(self, block: Block, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        before_norm, after_norm = Norm.at(before), Norm.at(after)
        texts, prefix = self._texts(block, before_norm, after_norm)
        attended = torch.cat([merge_heads(call.out[None]) for call in texts], dim=1)
        after, after_rest = self._rest(block, after, self.layout.to_nodes(attended))
        looks = Attention.at(*(part[0] for part in prefix))
        before, before_rest = self._rest(block, before, merge_heads(looks.out[None]))
        self._blocks.append(BlockAt(after_norm, before_norm, texts, after_rest, looks, before_rest))
        return before, after

    def _last(self, block: Block, before: Tensor, after: Tensor) -> Tensor:
        """The block's output at EOT, which alone is read."""
        before_norm, after_norm = Norm.at(before), Norm.at(after)
        texts, _ = self._texts(block, before_norm, after_norm, ends_only=True)
        attended = torch.cat([merge_heads(call.out[None]) for call in texts], dim=1)
        pooled, rest = self._rest(block, after[:, self.layout.ends], attended)
        self._blocks.append(BlockAt(after_norm, before_norm, texts, rest, None, None))
        return pooled

    def _texts(
        self, block: Block, before: Norm, after: Norm, *, ends_only: bool = False
    ) -> tuple[list[Attention], tuple[Tensor, ...]]:
        """The attention of the texts, bucket by bucket, and the prefix's queries, keys and values."""
        prefix = self.tower.split_heads(_linear(before.out, block.qkv), 1)
        texts = []
        for count, part in self.layout.per_bucket(self.layout.to_tokens(_linear(after.out, block.qkv))):
            query, key, value = self.tower.split_heads(part, count)
            query = query[..., -1:, :] if ends_only else query
            texts.append(Attention.at(query[0], with_prefix(prefix[1], key)[0], with_prefix(prefix[2], value)[0]))
        return texts, prefix

    def _rest(self, block: Block, states: Tensor, attended: Tensor) -> tuple[Tensor, Rest]:
        states = states + _linear(attended, block.out)
        normed = Norm.at(states)
        hidden = _linear(normed.out, block.fc)
        slope = _slope(hidden, quick=self.tower.activation == "quick_gelu")
        return states + _linear(self.tower.activate(hidden), block.proj), Rest(block, normed, slope)

    def __call__(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients (B, K, D) of the features -> of the prefix (B, P, W) and of the nodes (B, N, W)."""
        packed = gradients[:, self.layout.order]
        across = packed - self._packed * (packed * self._packed).sum(-1, keepdim=True)
        pooled = self._norm.back((across / self._size) @ self.tower.projection[0])
        before, after = self._last_back(self.tower.blocks[-1], self._blocks[-1], pooled)
        for block, at in zip(self.tower.blocks[-2::-1], self._blocks[-2::-1], strict=True):
            before, after = self._back(block, at, before, after)
        return before, after

    def _back(self, block: Block, at: BlockAt, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        stream, attended = at.after.back(after)
        queries, own, shared = self._texts_back(at.texts, self.layout.to_tokens_back(attended))
        own = self.layout.sum_to_nodes(torch.cat([queries, own], dim=-1))
        after = stream + at.after_norm.back(own @ block.qkv[0])
        if at.prefix is None or at.before is None or not self.length:
            return before, after
        stream, attended = at.before.back(before)
        query, key, value = (merge_heads(part) for part in at.prefix.back(self._heads(attended, 1)))
        of_prefix = torch.cat([query, shared + torch.cat([key, value], dim=-1)], dim=-1)
        return stream + at.before_norm.back(of_prefix @ block.qkv[0]), after

    def _last_back(self, block: Block, at: BlockAt, pooled: Tensor) -> tuple[Tensor, Tensor]:
        weight, width, ends = block.qkv[0], self.tower.width, self.layout.ends
        stream, attended = at.after.back(pooled)
        queries, own, shared = self._texts_back(at.texts, attended)
        of_norm = self.layout.sum_to_nodes(own) @ weight[width:]
        of_norm.index_add_(1, ends, queries @ weight[:width])
        after = at.after_norm.back(of_norm).index_add_(1, ends, stream)
        return at.before_norm.back(shared @ weight[width:]), after

    def _texts_back(self, calls: list[Attention], attended: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of what texts attended to -> of their queries, of their own keys and values, of the prefix's."""
        queries, own = [], []
        shared = attended.new_zeros(len(attended), self.length, 2 * self.tower.width)
        sizes = [call.query.shape[0] * call.query.shape[2] for call in calls]
        for call, part in zip(calls, attended.split(sizes, dim=1), strict=True):
            query, *pair = call.back(self._heads(part, call.query.shape[0]))
            queries.append(merge_heads(query))
            own.append(torch.cat([merge_heads(each[..., self.length :, :]) for each in pair], dim=-1))
            heads = [each[..., : self.length, :].sum(1, keepdim=True) for each in pair]
            shared += torch.cat([merge_heads(each) for each in heads], dim=-1)
        return torch.cat(queries, dim=1), torch.cat(own, dim=1), shared

    def _heads(self, rows: Tensor, texts: int) -> Tensor:
        return self.tower.split_heads(rows, texts)[0]


def _linear(states: Tensor, affine: Affine) -> Tensor:
    return torch.nn.functional.linear(states, *affine)


def _slope(hidden: Tensor, *, quick: bool) -> Tensor:
    """The derivative of SiLU or GELU."""
    if quick:
        gate = hidden.sigmoid()
        return gate * (1 + hidden * (1 - gate))
    density = (-hidden.square() / 2).exp() / math.sqrt(2 * math.pi)
    share: Tensor = torch.special.ndtr(hidden)
    return share + hidden * density
