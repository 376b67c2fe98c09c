"""CLIP's text tower from the embeddings on, so that prompts can be learned.

Attention is causal and the feature is read at EOT. So positions after the longest text's EOT are never computed, and
common beginnings of texts are computed once. Shapes are explained in `packing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute import MemoryBudget, upcast
from fpp_sweep.core.text.packing import AttentionMask, Packing

Activation = Literal["quick_gelu", "gelu"]
QUICK = 1.702  # QuickGELU is x * sigmoid(1.702 x)
# bytes per token position and unit of width
BLOCK_BYTES = 64  # within one block
SAVED_BYTES = 40  # saved by each block for the backward pass
MAX_POSITIONS = {"cuda": 65536, "cpu": 2048}  # in a batch: enough to fill the device, few enough for its caches

Affine = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)


class Tokenizer(Protocol):
    """Text to token ids, without SOS, EOT or padding."""

    sos: int
    eot: int

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """J perturbations of the input embeddings, each shared by all classes (C = 1) or drawn per class (C = K)."""

    sos: Tensor  # (J, C, 1, W)
    context: Tensor  # (J, C, n, W)
    suffix: Tensor  # (J, C, S, W), by position after the context
    without_ends: bool = False  # SOS, full stop and EOT are not perturbed


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
        """Read the block whose weights' names begin with `prefix`; fold constants in float64."""

        def affine(name: str) -> Affine:
            return state[f"{prefix}.{name}.weight"].double(), state[f"{prefix}.{name}.bias"].double()

        in_proj = state[f"{prefix}.attn.in_proj_weight"].double(), state[f"{prefix}.attn.in_proj_bias"].double()
        qkv, qkv_bias = _fold_norm(affine("ln_1"), in_proj)
        width = qkv.shape[1]
        scale = torch.ones(3 * width, dtype=qkv.dtype)
        scale[:width] = (width // heads) ** -0.5
        quick = 1.0
        if activation == "quick_gelu":
            quick = QUICK
        fc, fc_bias = _fold_norm(affine("ln_2"), affine("mlp.c_fc"))
        proj, proj_bias = affine("mlp.c_proj")
        return cls(
            qkv=_single(qkv * scale[:, None], qkv_bias * scale),
            out=_single(*affine("attn.out_proj")),
            fc=_single(fc * quick, fc_bias * quick),
            proj=_single(proj / quick, proj_bias),
        )


def _fold_norm(norm: Affine, linear: Affine) -> Affine:
    """Return one affine map for a LayerNorm's scale and shift and the linear layer after it."""
    (scale, shift), (weight, bias) = norm, linear
    return weight * scale, bias + weight @ shift


def _single(weight: Tensor, bias: Tensor) -> Affine:
    return weight.float().contiguous(), bias.float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTower:
    """Frozen weights; W is the width, D the dimension that images and texts share."""

    token_embedding: Tensor  # (vocabulary, W)
    positional_embedding: Tensor  # (positions, W)
    blocks: tuple[Block, ...]
    projection: Affine  # (D, W), with the last LayerNorm's scale and shift in it
    heads: int
    activation: Activation
    memory: MemoryBudget = field(default_factory=MemoryBudget)  # memory of the process for everything that it computes

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], *, heads: int, activation: Activation) -> TextTower:
        """Read a state dict in OpenAI's naming; the tower computes in float32."""
        blocks = "transformer.resblocks."
        layers = 1 + max([int(name.split(".")[2]) for name in state if name.startswith(blocks)])
        last_norm = state["ln_final.weight"].double(), state["ln_final.bias"].double()
        projection = state["text_projection"].double().T
        return cls(
            token_embedding=state["token_embedding.weight"].detach().float(),
            positional_embedding=state["positional_embedding"].detach().float(),
            blocks=tuple([Block.from_state(state, f"{blocks}{layer}", heads, activation) for layer in range(layers)]),
            projection=_single(*_fold_norm(last_norm, (projection, projection.new_zeros(len(projection))))),
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
    def feature_size(self) -> int:
        """D, the dimension that images and texts share."""
        return self.projection[0].shape[0]

    @property
    def device(self) -> torch.device:
        return self.positional_embedding.device

    @property
    def products_per_position(self) -> int:
        """Multiplications of a token position in the tower."""
        matrices = [matrix for block in self.blocks for matrix, _ in (block.qkv, block.out, block.fc, block.proj)]
        return sum(matrix.numel() for matrix in matrices)

    def positions_per_batch(self) -> int:
        """Return the number of token positions to compute at a time."""
        largest = MAX_POSITIONS.get(self.device.type, MAX_POSITIONS["cpu"])
        return self.memory.batch_size(largest, BLOCK_BYTES * self.width)

    def saved_positions_per_batch(self) -> int:
        """Return the number of token positions at a time if each block saves what its backward pass needs."""
        bytes_per_position = (BLOCK_BYTES + SAVED_BYTES * len(self.blocks)) * self.width
        return self.memory.batch_size(self.positions_per_batch(), bytes_per_position)

    def to(self, target: torch.device | str | torch.dtype) -> TextTower:
        """Return the same tower on another device, or in another type."""
        tower: TextTower = _to(self, target)
        return tower

    def features(self, prefix: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
        """Return unit features (B, K, D) of K texts that all begin with the same prefix; autograd can differentiate it.

        `prefix` (B, P, W) holds the embeddings that the K texts share (SOS and context), one row for each of B prompts.
        `nodes` (B or 1, N, W) holds the embeddings of the nodes of `packing`, which follow the prefix. The prefix is
        computed once for all K texts, and the last block computes the output at EOT only.
        """
        mask = packing.attention_mask(prefix.shape[1])
        states = self._embed(prefix, nodes, packing)  # (B, P + N, W)
        for block in self.blocks[:-1]:
            slots = mask.to_slots(F.linear(norm(states), *block.qkv))
            attended = self._attend(self._split_heads(slots, mask), mask.masked, len(states))
            states = self._after_attention(block, states, mask.to_rows(attended))
        last = self.blocks[-1]
        attended = self._attend(self._last_qkv(last, norm(states), mask), mask.end_masked, len(states))
        at_ends = attended.index_select(1, mask.end_query_of)  # (B, K, W)
        pooled = self._after_attention(last, states.index_select(1, mask.ends), at_ends)
        features = F.normalize(upcast(F.linear(norm(pooled), *self.projection)), dim=-1)  # (B, K, D) in packed order
        return features.index_select(1, packing.inverse)

    def _embed(self, prefix: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
        """Return prefix and nodes as rows (B, P + N, W), with the positional embeddings added."""
        length = prefix.shape[1]
        first, later = self.positional_embedding[:length], self.positional_embedding[length + packing.positions]
        return torch.cat([prefix + first, (nodes + later).expand(len(prefix), -1, -1)], dim=1)

    def _split_heads(self, slots: Tensor, mask: AttentionMask) -> tuple[Tensor, ...]:
        """(B, groups * S, c * W) -> c tensors (B, groups, heads, S, W / heads)."""
        parts = slots.shape[-1] // self.width  # c
        shape = len(slots), mask.groups, -1, parts, self.heads, self.width // self.heads
        return slots.view(shape).permute(3, 0, 1, 4, 2, 5).unbind()

    def _last_qkv(self, block: Block, normed: Tensor, mask: AttentionMask) -> tuple[Tensor, ...]:
        """Return the queries of the EOTs, and the keys and values of all slots."""
        weight, bias = block.qkv
        width = self.width
        keys_values = F.linear(normed, weight[width:], bias[width:])  # (B, R, 2 W)
        queries = F.linear(normed.index_select(1, mask.ends), weight[:width], bias[:width])  # (B, K, W)
        key, value = self._split_heads(mask.to_slots(keys_values), mask)
        (query,) = self._split_heads(queries.index_select(1, mask.end_texts), mask)
        return query, key, value

    def _attend(self, heads: tuple[Tensor, ...], masked: Tensor, batch: int) -> Tensor:
        """Return the attention (B, groups * S, W) of queries, which are scaled already, under a mask."""
        query, key, value = heads
        if torch.is_grad_enabled():  # torch's fused attention cannot take many gradients back together
            scores = upcast(query @ key.transpose(-1, -2))
            attended = scores.masked_fill(masked, -torch.inf).softmax(-1) @ value
        else:
            flat_query, flat_key, flat_value = [part.flatten(0, 1) for part in heads]
            allowed = ~masked.repeat(batch, 1, 1, 1)
            attended = F.scaled_dot_product_attention(flat_query, flat_key, flat_value, attn_mask=allowed, scale=1.0)
            attended = attended.view(query.shape)
        return attended.transpose(2, 3).reshape(batch, -1, self.width)

    def _after_attention(self, block: Block, states: Tensor, attended: Tensor) -> Tensor:
        """Apply the rest of a block; overwrites `states` where autograd does not need them."""
        states = _add_linear(states, attended, block.out)
        return _add_linear(states, self._activate(F.linear(norm(states), *block.fc)), block.proj)

    def _activate(self, hidden: Tensor) -> Tensor:
        """Apply the activation; overwrites `hidden` where autograd does not need it."""
        if self.activation == "gelu":
            return F.gelu(hidden)
        return F.silu(hidden, inplace=not torch.is_grad_enabled())


def _add_linear(states: Tensor, rows: Tensor, affine: Affine) -> Tensor:
    """Add a linear layer of `rows` to `states`: inside the matrix product, without a copy, where autograd is off."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled(states.device.type):
        return states + F.linear(rows, *affine)
    weight, bias = affine
    states.flatten(0, 1).addmm_(rows.flatten(0, 1), weight.t()).add_(bias)
    return states


def norm(states: Tensor) -> Tensor:
    """Apply a LayerNorm without scale and shift, which are folded into the next matrix."""
    return F.layer_norm(states, states.shape[-1:])


def _to(value: Any, target: torch.device | str | torch.dtype) -> Any:
    """Move the tensors of a tower, a block or a tuple."""
    if isinstance(value, Tensor):
        return value.to(target)
    if isinstance(value, tuple):
        return tuple([_to(item, target) for item in value])
    if isinstance(value, TextTower | Block):
        moved = {item.name: _to(getattr(value, item.name), target) for item in fields(value)}
        return replace(value, **moved)
    return value
