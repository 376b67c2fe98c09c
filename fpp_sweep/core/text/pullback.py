"""The text tower's backward pass, written by hand: many gradients at one context, or one gradient at each of many.

Test-time adaptation starts every sample from the same context. So the activations, attention weights and slopes that
a backward pass needs are the same for all samples and are saved once; only the incoming gradient differs. Autograd
would repeat the forward pass, or copy what it saved, for every sample. Later steps go back through contexts that
differ from sample to sample: the same code then saves these tensors for each sample.

Shapes: J prompts go forward together, of which some are kept for the way back; B gradients go back, B / J for each kept
prompt; d is the width of an attention head, and groups and slots are those of `AttentionMask`. `packing` explains the
other letters. In the last block, only the rows at the EOTs are computed after the attention, since the features depend
on no other row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute.precision import gradient_scale, upcast
from fpp_sweep.core.text.packing import AttentionMask, Packing
from fpp_sweep.core.text.tower import Block, TextTower, add_linear, norm

NORM_EPSILON = 1e-5  # torch's LayerNorm


@dataclass(frozen=True, slots=True, eq=False)
class SavedNorm:
    """A LayerNorm's output and the factor by which it scales each row."""

    out: Tensor
    factor: Tensor  # reciprocal of the row's standard deviation

    @classmethod
    def at(cls, states: Tensor) -> SavedNorm:
        out, _, factor = torch.native_layer_norm(states, states.shape[-1:], None, None, NORM_EPSILON)
        return cls(out, factor)

    def first(self, count: int) -> SavedNorm:
        """Return the part of the first prompts, as a copy, so that the memory of the rest can be freed."""
        if len(self.out) == count:
            return self
        return SavedNorm(self.out[:count].clone(), self.factor[:count].clone())

    def backward(self, gradient: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return gradients (B, ..., W) of the input from those of the output, of all rows or of some.

        gradient of the input = factor * (gradient - mean(gradient) - out * mean(gradient * out))
        """
        out, factor = _select(self.out, rows), _select(self.factor, rows)
        gradient = upcast(gradient)
        centred = gradient - gradient.mean(-1, keepdim=True)
        along_out = (gradient * out).mean(-1, keepdim=True)
        return torch.addcmul(centred, out, along_out, value=-1).mul_(factor)


@dataclass(frozen=True, slots=True, eq=False)
class SavedAttention:
    """Queries, keys and values (J, groups, heads, slots, d) of an attention call on J prompts, and its weights."""

    query: Tensor
    key: Tensor
    value: Tensor
    weights: Tensor  # (J, groups, heads, queries, slots)

    @classmethod
    def at(cls, heads: tuple[Tensor, ...], masked: Tensor) -> SavedAttention:
        query, key, value = heads
        scores = upcast(query @ key.transpose(-1, -2))
        return cls(query, key, value, scores.masked_fill_(masked, -torch.inf).softmax(-1))

    @property
    def out(self) -> Tensor:
        """Output of the attention (J * groups, heads, slots, d)."""
        return (self.weights @ self.value).flatten(0, 1)

    def backward(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients of queries, keys and values from those of the output (B, groups, heads, queries, d).

        With A the weights and dO the gradient of the output, for one sample and head:

            dA = dO V'    dS = A * (dA - sum(dA * A))    dQ = dS K    dK = dS' Q    dV = A' dO

        A, Q, K and V belong to a prompt, and dO to one of its n = B / J samples. To multiply with one matrix, and not
        with a copy of it for each sample, a prompt's samples are put into the rows of a matrix, or into its columns.
        """
        samples = len(gradient) // len(self.query)  # n
        queries = gradient.shape[-2]
        by_prompt = gradient.unflatten(0, (-1, samples))  # (J, n, groups, heads, queries, d)

        rows = by_prompt.permute(0, 2, 3, 1, 4, 5).flatten(3, 4)  # (J, groups, heads, n * queries, d)
        weights_gradient = (rows @ self.value.transpose(-1, -2)).unflatten(3, (samples, queries))
        weights = self.weights[:, :, :, None]  # (J, groups, heads, 1, queries, slots)
        mean_gradient = (weights_gradient * weights).sum(-1, keepdim=True)
        scores_gradient = weights * (weights_gradient - mean_gradient)  # (J, groups, heads, n, queries, slots)
        query_gradient = (scores_gradient.flatten(3, 4) @ self.key).unflatten(3, (samples, queries))
        transposed = scores_gradient.transpose(-1, -2).flatten(3, 4)  # (J, groups, heads, n * slots, queries)
        key_gradient = (transposed @ self.query).unflatten(3, (samples, -1))

        columns = by_prompt.permute(0, 2, 3, 4, 1, 5).flatten(4, 5)  # (J, groups, heads, queries, n * d)
        value_columns = self.weights.transpose(-1, -2) @ columns  # (J, groups, heads, slots, n * d)
        value_gradient = value_columns.unflatten(4, (samples, -1)).transpose(3, 4)
        return _samples_first(query_gradient), _samples_first(key_gradient), _samples_first(value_gradient)


def _samples_first(gradient: Tensor) -> Tensor:
    """Return a gradient (J, groups, heads, n, rows, d) as (B, groups, heads, rows, d), where B is J * n."""
    return gradient.permute(0, 3, 1, 2, 4, 5).flatten(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class SavedBlock:
    """The tensors of a block's forward pass that its backward pass needs."""

    block: Block
    before_attention: SavedNorm
    attention: SavedAttention
    before_mlp: SavedNorm
    slope: Tensor  # slope of the activation

    def backward_to_attention(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients of the residual stream and of the attention's output from those of the block's output.

        The residual stream is meant after the attention's output was added to it.
        """
        hidden_gradient = (gradient @ self.block.proj[0]).mul_(self.slope)
        stream_gradient = gradient + self.before_mlp.backward(hidden_gradient @ self.block.fc[0])
        return stream_gradient, stream_gradient @ self.block.out[0]


class Pullback:
    """Vector-Jacobian product of the text features with respect to the rows of the input.

    Of J prompts that go forward together, the first `keep` can go back: many vectors for one prompt, or one vector for
    each of several prompts.
    """

    def __init__(
        self,
        tower: TextTower,
        prefix: Tensor,
        nodes: Tensor,
        packing: Packing,
        mask: AttentionMask | None = None,
        keep: int = 1,
    ) -> None:
        """Run the tower on prefixes (J, P, W) and nodes (J or 1, N, W); save the tensors of the first `keep` prompts.

        All prompts go through the same matrix products, because one prompt is too small to use the device well.
        """
        self.tower = tower
        self.packing = packing
        if mask is None:
            mask = packing.attention_mask(prefix.shape[1])
        self.mask = mask
        self._keep = keep
        self._blocks: list[SavedBlock] = []
        states = tower.embed(prefix, nodes, packing)  # (J, P + N, W)
        self._row_count = states.shape[1]
        for block in tower.blocks[:-1]:
            states = self._forward(block, states)
        pooled = self._last_forward(tower.blocks[-1], states)  # (J, K, W)
        self._norm = SavedNorm.at(pooled[:keep])
        raw = upcast(F.linear(norm(pooled), *tower.projection))  # (J, K, D)
        lengths = raw.norm(dim=-1, keepdim=True)
        packed_features = raw / lengths  # (J, K, D) in packed order
        self._lengths = lengths[:keep]
        self._packed_features = packed_features[:keep]
        self.features = packed_features[:, packing.inverse]  # (J, K, D)

    def _forward(self, block: Block, states: Tensor) -> Tensor:
        normed = SavedNorm.at(states)
        slots = self.mask.to_slots(F.linear(normed.out, *block.qkv))
        heads = self.tower.split_heads(slots, self.mask)
        attention, attended = self._attend(heads, self.mask.masked, len(states))
        states = add_linear(states, self.mask.to_rows(attended), block.out)
        return self._finish_block(block, states, normed, attention)

    def _last_forward(self, block: Block, states: Tensor) -> Tensor:
        """Return the last block's output at the EOTs."""
        mask = self.mask
        normed = SavedNorm.at(states)
        heads = self.tower.last_qkv(block, normed.out, mask)
        attention, attended = self._attend(heads, mask.end_masked, len(states))
        states = add_linear(states[:, mask.ends], attended[:, mask.end_query_of], block.out)
        return self._finish_block(block, states, normed, attention)

    def _attend(self, heads: tuple[Tensor, ...], masked: Tensor, prompts: int) -> tuple[SavedAttention, Tensor]:
        """Return the attention of the kept prompts, and the output of attention for all prompts.

        `heads` are queries, keys and values (J * groups, heads, slots, d). Only the kept prompts need attention that
        saves its weights; the others use torch's fused attention.
        """
        count = self._keep * self.mask.groups  # rows of the kept prompts
        kept = [part[:count].contiguous().unflatten(0, (self._keep, self.mask.groups)) for part in heads]
        attention = SavedAttention.at(tuple(kept), masked)
        attended = attention.out
        if prompts > self._keep:
            others = [part[count:] for part in heads]
            attended = torch.cat([attended, self.tower.attend(tuple(others), masked)])
        return attention, self.tower.merge_heads(attended, prompts)

    def _finish_block(
        self, block: Block, states: Tensor, before_attention: SavedNorm, attention: SavedAttention
    ) -> Tensor:
        """Return the states after the block's MLP; save the block."""
        normed = SavedNorm.at(states)
        hidden = F.linear(normed.out, *block.fc)
        slope = _slope(upcast(hidden[: self._keep]), quick=self.tower.activation == "quick_gelu")
        saved = SavedBlock(
            block=block,
            before_attention=before_attention.first(self._keep),
            attention=attention,
            before_mlp=normed.first(self._keep),
            slope=slope,
        )
        self._blocks.append(saved)
        return add_linear(states, self.tower.activate(hidden), block.proj)

    def __call__(self, gradients: Tensor, rows: Tensor) -> Tensor:
        """Return gradients (B, rows, W) of some rows of the prefix and the nodes from those of the features (B, K, D).

        B is any number if one prompt was kept, else the number of prompts that were kept.
        """
        scale = gradient_scale(gradients)
        packed = scale * gradients[:, self.packing.order]  # (B, K, D) in packed order
        # a feature has length 1, so that only the part of its gradient across the feature goes back
        along = (packed * self._packed_features).sum(-1, keepdim=True)
        across = packed - self._packed_features * along
        gradient = self._norm.backward((across / self._lengths) @ self.tower.projection[0])  # (B, K, W)
        *earlier_blocks, last = self._blocks
        if not earlier_blocks:
            return self._last_backward(last, gradient, rows) / scale
        gradient = self._last_backward(last, gradient)  # (B, P + N, W)
        for saved in reversed(earlier_blocks[1:]):
            gradient = self._backward(saved, gradient)
        # only the requested rows of the first block's input are needed
        return self._backward(earlier_blocks[0], gradient, rows) / scale

    def _backward(self, saved: SavedBlock, gradient: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return gradients of a block's input from those of its output, of all rows or of some."""
        stream, attended = saved.backward_to_attention(gradient)
        heads = saved.attention.backward(self._split_heads(self.mask.to_rows_backward(attended)))
        qkv_slots = torch.cat([self._merge_heads(head) for head in heads], dim=-1)
        qkv = self.mask.to_slots_backward(qkv_slots, self._row_count)
        qkv_gradient = _select(qkv, rows) @ saved.block.qkv[0]
        return _select(stream, rows) + saved.before_attention.backward(qkv_gradient, rows)

    def _last_backward(self, saved: SavedBlock, gradient: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return gradients of the last block's input from those of its output at the EOTs, of all rows or of some."""
        mask = self.mask
        weight, width = saved.block.qkv[0], self.tower.width
        query_weight, key_value_weight = weight[:width], weight[width:]
        stream, attended = saved.backward_to_attention(gradient)  # (B, K, W) each: rows at the EOTs
        query, key, value = saved.attention.backward(self._split_heads(mask.ends_backward(attended)))
        # keys and values are of all rows, queries and the residual stream of the EOTs alone
        key_value_slots = torch.cat([self._merge_heads(key), self._merge_heads(value)], dim=-1)
        normed = mask.to_slots_backward(key_value_slots, self._row_count) @ key_value_weight  # (B, P + N, W)
        end_queries = self._merge_heads(query)[:, mask.end_query_of]
        normed.index_add_(1, mask.ends, end_queries @ query_weight)
        states = saved.before_attention.backward(normed)
        return _select(states.index_add_(1, mask.ends, stream), rows)

    def _split_heads(self, slots: Tensor) -> Tensor:
        """Return slots (B, groups * S, W) as heads (B, groups, heads, S, d)."""
        heads: Tensor = self.tower.split_heads(slots, self.mask)[0]
        return heads.view(len(slots), self.mask.groups, *heads.shape[1:])

    def _merge_heads(self, heads: Tensor) -> Tensor:
        return self.tower.merge_heads(heads.flatten(0, 1), len(heads))


def _select(states: Tensor, rows: Tensor | None) -> Tensor:
    """Return some rows of states (B, rows, ...), or all of them."""
    if rows is None:
        return states
    return states[:, rows]


def _slope(hidden: Tensor, *, quick: bool) -> Tensor:
    """Return the derivative of SiLU or GELU."""
    if quick:
        gate = hidden.sigmoid()
        return gate * (1 + hidden * (1 - gate))
    density = (-hidden.square() / 2).exp() / math.sqrt(2 * math.pi)
    cumulative: Tensor = torch.special.ndtr(hidden)
    return cumulative + hidden * density
