"""The text tower's backward pass, by hand: many gradients at one context, or one gradient at each of many.

Test-time adaptation starts every sample from the same context, so the activations, attention weights and slopes that a
backward pass needs are the same for all samples and are saved once. Only the incoming gradient differs. Autograd would
repeat the forward pass, or copy what it saved, for every sample. Later steps go back through contexts that differ from
sample to sample: the same code, with what each sample needs saved for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute.precision import full, gradient_scale
from fpp_sweep.core.text.packing import AttentionMask, Packing
from fpp_sweep.core.text.tower import Block, TextTower, add_linear, norm

NORM_EPSILON = 1e-5  # torch's LayerNorm
ALL = slice(None)


@dataclass(frozen=True, slots=True, eq=False)
class SavedNorm:
    """A LayerNorm's output and the reciprocal of the standard deviation it divides by."""

    out: Tensor
    factor: Tensor

    @classmethod
    def at(cls, states: Tensor) -> SavedNorm:
        out, _, factor = torch.native_layer_norm(states, states.shape[-1:], None, None, NORM_EPSILON)
        return cls(out, factor)

    def first(self, count: int) -> SavedNorm:
        """For the first prompts only, as a copy, so that memory of the others can be freed."""
        return self if len(self.out) == count else SavedNorm(self.out[:count].clone(), self.factor[:count].clone())

    def backward(self, gradient: Tensor, rows: Tensor | slice = ALL) -> Tensor:
        """(B, ..., W) gradients with respect to the output, or to some of its rows -> with respect to the input."""
        out, factor, gradient = self.out[:, rows], self.factor[:, rows], full(gradient)
        along = (gradient * out).mean(-1, keepdim=True)
        return torch.addcmul(gradient - gradient.mean(-1, keepdim=True), out, along, value=-1).mul_(factor)


@dataclass(frozen=True, slots=True, eq=False)
class SavedAttention:
    """(J, groups, heads, slots, d) queries, keys and values of an attention call on J prompts, and its weights."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor  # (J, groups, heads, query slots, slots)

    @classmethod
    def at(cls, heads: tuple[Tensor, ...], masked: Tensor) -> SavedAttention:
        query, key, value = heads
        scores = full(query @ key.transpose(-1, -2))
        return cls(query, key, value, scores.masked_fill_(masked, -torch.inf).softmax(-1))

    @property
    def out(self) -> Tensor:
        """(J * groups, heads, slots, d)."""
        return (self.weights @ self.value).flatten(0, 1)

    def backward(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """(B, groups, heads, slots, d) gradients with respect to the output -> to queries, keys and values.

        Each of the J prompts has B / J of them.
        """
        each, length = len(gradient) // len(self.query), gradient.shape[-2]
        by_prompt = gradient.unflatten(0, (-1, each))
        # a prompt's samples become rows, so that the constant factor is one matrix and not a copy for each sample
        rows = by_prompt.permute(0, 2, 3, 1, 4, 5).flatten(3, 4)
        of_weights = (rows @ self.value.transpose(-1, -2)).unflatten(3, (each, length))
        weights = self.weights[:, :, :, None]
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        of_query = (of_scores.flatten(3, 4) @ self.key).unflatten(3, (each, length))
        turned = of_scores.transpose(-1, -2).flatten(3, 4)
        of_key = (turned @ self.query).unflatten(3, (each, -1))
        columns = by_prompt.permute(0, 2, 3, 4, 1, 5).flatten(4, 5)
        of_value = (self.weights.transpose(-1, -2) @ columns).unflatten(4, (each, -1)).transpose(3, 4)
        return tuple(part.permute(0, 3, 1, 2, 4, 5).flatten(0, 1) for part in (of_query, of_key, of_value))


@dataclass(frozen=True, slots=True, eq=False)
class SavedBlock:
    """What a block's backward pass needs of its forward pass."""

    block: Block
    before_attention: SavedNorm
    attention: SavedAttention
    before_mlp: SavedNorm
    slope: Tensor  # of the activation
    cut: Tensor | None  # (R, 1) the rows of its output that the next block replaces by a prompt of its own

    def rest_backward(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """(B, ..., W) gradients of the block's output -> of its residual stream and of its attention's output."""
        if self.cut is not None:
            gradient = gradient.masked_fill(self.cut, 0)
        hidden = (gradient @ self.block.proj[0]).mul_(self.slope)
        stream = gradient + self.before_mlp.backward(hidden @ self.block.fc[0])
        return stream, stream @ self.block.out[0]


class Pullback:
    """The vector-Jacobian product of the text features at the first of J prompts, for many vectors at once; or at the
    first several, for one vector each."""

    def __init__(
        self,
        tower: TextTower,
        prefix: Tensor,
        nodes: Tensor,
        packing: Packing,
        mask: AttentionMask | None = None,
        keep: int = 1,
    ) -> None:
        """Run the tower on prefixes (J, P, W) and nodes (J or 1, N, W), saving what the first `keep` need to go back.

        All prompts go through the same matrix products, because one alone is too small to use the device well.
        """
        self.tower, self.packing, self.mask = tower, packing, mask or packing.attention_mask(prefix.shape[1])
        self._keep = keep
        self._blocks: list[SavedBlock] = []
        self._prefix = prefix.shape[1]
        states = tower.embed(prefix, nodes, packing)
        self._rows = states.shape[1]
        for block in tower.blocks[:-1]:
            states = self._forward(block, states)
        pooled = self._last(tower.blocks[-1], states)
        self._norm = SavedNorm.at(pooled[:keep])
        raw = full(F.linear(norm(pooled), *tower.projection))
        size = raw.norm(dim=-1, keepdim=True)
        packed = raw / size
        self._size, self._packed = size[:keep], packed[:keep]
        self.features = packed[:, packing.inverse]  # (J, K, D)

    def _forward(self, block: Block, states: Tensor) -> Tensor:
        normed = SavedNorm.at(states)
        slots = self.mask.to_slots(F.linear(normed.out, *block.qkv))
        heads = self.tower.split_heads(slots, self.mask)
        attention, attended = self._attend(heads, self.mask.masked, len(states))
        states = add_linear(states, self.mask.to_rows(attended), block.out)
        return self._mlp(block, states, normed, attention)

    def _last(self, block: Block, states: Tensor) -> Tensor:
        """The block's output at EOT."""
        normed, mask = SavedNorm.at(states), self.mask
        attention, attended = self._attend(self.tower.last_qkv(block, normed.out, mask), mask.end_masked, len(states))
        states = add_linear(states[:, mask.ends], attended[:, mask.end_query_of], block.out)
        return self._mlp(block, states, normed, attention)

    def _attend(self, heads: tuple[Tensor, ...], masked: Tensor, prompts: int) -> tuple[SavedAttention, Tensor]:
        """The first prompts' attention, saved, and the output of attention for all prompts."""
        kept = self._keep * self.mask.groups
        saved = tuple(part[:kept].contiguous().unflatten(0, (self._keep, self.mask.groups)) for part in heads)
        attention = SavedAttention.at(saved, masked)
        attended = attention.out
        if prompts > self._keep:
            attended = torch.cat([attended, self.tower.attend(tuple(part[kept:] for part in heads), masked)])
        return attention, self.tower.merge_heads(attended, prompts)

    def _mlp(self, block: Block, states: Tensor, before_attention: SavedNorm, attention: SavedAttention) -> Tensor:
        normed = SavedNorm.at(states)
        hidden = F.linear(normed.out, *block.fc)
        slope = _slope(full(hidden[: self._keep]), quick=self.tower.activation == "quick_gelu")
        own = self.tower.own_prompt(len(self._blocks) + 1, self._prefix, self.packing)  # the next block's
        kept = before_attention.first(self._keep), attention, normed.first(self._keep)
        self._blocks.append(SavedBlock(block, *kept, slope, own[0] if own else None))
        states = add_linear(states, self.tower.activate(hidden), block.proj)
        return torch.where(*own, states) if own else states

    def __call__(self, gradients: Tensor, rows: Tensor) -> Tensor:
        """Gradients (B, K, D) of the features -> (B, rows, W) of some rows of the prefix and the nodes after it.

        Any number B of them where one prompt was kept, else one for each that was.
        """
        scale = gradient_scale(gradients)
        packed = scale * gradients[:, self.packing.order]
        across = packed - self._packed * (packed * self._packed).sum(-1, keepdim=True)
        pooled = self._norm.backward((across / self._size) @ self.tower.projection[0])
        *middle, last = self._blocks
        states = self._last_backward(last, pooled, ALL if middle else rows)
        for saved in reversed(middle):
            states = self._backward(saved, states, rows if saved is middle[0] else ALL)
        return states / scale

    def _backward(self, saved: SavedBlock, states: Tensor, wanted: Tensor | slice) -> Tensor:
        stream, attended = saved.rest_backward(states)
        parts = saved.attention.backward(self._split_heads(self.mask.to_rows_backward(attended)))
        qkv = self.mask.to_slots_backward(torch.cat([self._merge_heads(part) for part in parts], dim=-1), self._rows)
        return stream[:, wanted] + saved.before_attention.backward(qkv[:, wanted] @ saved.block.qkv[0], wanted)

    def _last_backward(self, saved: SavedBlock, pooled: Tensor, wanted: Tensor | slice) -> Tensor:
        weight, width, mask = saved.block.qkv[0], self.tower.width, self.mask
        stream, attended = saved.rest_backward(pooled)
        query, key, value = saved.attention.backward(self._split_heads(mask.ends_backward(attended)))
        pairs = mask.to_slots_backward(torch.cat([self._merge_heads(part) for part in (key, value)], -1), self._rows)
        normed = pairs @ weight[width:]
        normed.index_add_(1, mask.ends, self._merge_heads(query)[:, mask.end_query_of] @ weight[:width])
        return saved.before_attention.backward(normed).index_add_(1, mask.ends, stream)[:, wanted]

    def _split_heads(self, slots: Tensor) -> Tensor:
        """(B, groups * S, W) -> (B, groups, heads, S, d)."""
        heads: Tensor = self.tower.split_heads(slots, self.mask)[0]
        return heads.view(len(slots), self.mask.groups, *heads.shape[1:])

    def _merge_heads(self, heads: Tensor) -> Tensor:
        return self.tower.merge_heads(heads.flatten(0, 1), len(heads))


def _slope(hidden: Tensor, *, quick: bool) -> Tensor:
    """The derivative of SiLU or GELU."""
    if quick:
        gate = hidden.sigmoid()
        return gate * (1 + hidden * (1 - gate))
    density = (-hidden.square() / 2).exp() / math.sqrt(2 * math.pi)
    cumulative: Tensor = torch.special.ndtr(hidden)
    return cumulative + hidden * density
