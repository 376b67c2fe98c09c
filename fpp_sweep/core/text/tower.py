"""CLIP's text tower from embeddings on, so that prompts can be learned.

Attention is causal and the feature is read at EOT: positions after the longest text's EOT are never computed, and what
many texts begin with is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute.compiling import Compiler, Runner, eagerly
from fpp_sweep.core.compute.memory import Room
from fpp_sweep.core.compute.precision import full
from fpp_sweep.core.text.packing import AttentionMask, Packing
from fpp_sweep.spec.errors import InputError

Activation = Literal["quick_gelu", "gelu"]
PASSING, KEPT_ROW = 64, 40  # bytes of a position, by width: within a block, and what each keeps for the way back
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
    deep: tuple[Tensor, ...] = ()  # (n, W) each: frozen, in place of the n context tokens from blocks 1, 2, ... on
    room: Room = field(default_factory=Room)  # of the process, for all that is computed
    run: Runner = eagerly  # for functions that are called many times

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
        """How many token positions to compute at a time: enough to fill the device, few for its caches and memory."""
        return self.room.batch(65536 if self.device.type == "cuda" else 2048, PASSING * self.width)

    def kept_at_once(self) -> int:
        """The same of positions that are to be sent back, for which each block keeps what that takes."""
        return self.room.batch(self.rows_at_once(), (PASSING + KEPT_ROW * len(self.blocks)) * self.width)

    def on(self, place: torch.device | str | torch.dtype) -> TextTower:
        """The same tower on another device, or in another type."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(place)
            if isinstance(value, TextTower | Block):
                return replace(value, **{item.name: moved(getattr(value, item.name)) for item in fields(value)})
            return tuple(map(moved, value)) if isinstance(value, tuple) else value

        tower: TextTower = moved(self)
        return tower

    def compiled(self) -> TextTower:
        """The same tower with a `run` that compiles; InputError where torch cannot."""
        return replace(self, run=Compiler(self.device, _tensors(self), constant_types=(TextTower, Block)))

    def with_deep(self, prompts: tuple[Tensor, ...]) -> TextTower:
        """The same tower with prompts of its own at the input of blocks 1, 2, ... in place of the context."""
        if len(prompts) >= len(self.blocks):
            last = len(self.blocks) - 1
            raise InputError(f"has prompts for blocks 1 to {len(prompts)}, but the text tower's last block is {last}")
        return replace(self, deep=prompts)

    def own_prompt(self, block: int, prefix: int, packing: Packing) -> tuple[Tensor, Tensor] | None:
        """Which rows (R, 1) of a block's input its own prompt replaces, and by what (R, W); None: it has none."""
        if not 0 < block <= len(self.deep):
            return None
        prompt, first = self.deep[block - 1], torch.arange(prefix, device=self.device)
        token = torch.cat([first, prefix + packing.positions]) - 1  # SOS stands before the context
        inside = (token >= 0) & (token < len(prompt))
        return inside[:, None], prompt[token.clamp(0, len(prompt) - 1)]

    def features(self, prefix: Tensor, nodes: Tensor, packing: Packing, mask: AttentionMask | None = None) -> Tensor:
        """Unit features (B, K, D) of K texts that all begin with the same prefix.

        `prefix` (B, P, W) holds the embeddings that the K texts share (SOS and context), one row for each of B prompts;
        `nodes` (B or 1, N, W) holds the embeddings of the nodes of `packing`, which follow it. The prefix is computed
        once for all K texts; the last block computes EOT's output only.
        """
        mask = mask or packing.attention_mask(prefix.shape[1])
        states = self.embed(prefix, nodes, packing)
        for index, block in enumerate(self.blocks[:-1]):
            slots = mask.to_slots(F.linear(norm(states), *block.qkv))
            attended = self.attend(self.split_heads(slots, mask), mask.masked)
            states = self._rest(block, states, mask.to_rows(self.merge_heads(attended, len(states))))
            if own := self.own_prompt(index + 1, prefix.shape[1], packing):
                states = torch.where(*own, states)
        attended = self.attend(self.last_qkv(self.blocks[-1], norm(states), mask), mask.end_masked)
        attended = self.merge_heads(attended, len(states))[:, mask.end_query_of]
        pooled = self._rest(self.blocks[-1], states[:, mask.ends], attended)
        return F.normalize(full(F.linear(norm(pooled), *self.projection)), dim=-1)[:, packing.inverse]

    def embed(self, prefix: Tensor, nodes: Tensor, packing: Packing) -> Tensor:
        """Prefix and nodes as one row (B, P + N, W), with their positions added."""
        length = prefix.shape[1]
        rows = torch.cat([prefix, nodes.expand(len(prefix), -1, -1)], dim=1)
        rows[:, :length] += self.positional_embedding[:length]
        rows[:, length:] += self.positional_embedding[length + packing.positions]
        return rows

    def split_heads(self, slots: Tensor, mask: AttentionMask) -> tuple[Tensor, ...]:
        """(B, groups * S, c * W) -> c times (B * groups, heads, S, W / heads)."""
        columns = slots.shape[-1]
        shape = len(slots) * mask.groups, -1, columns // self.width, self.heads, self.width // self.heads
        return slots.view(shape).permute(2, 0, 3, 1, 4).unbind()

    def merge_heads(self, heads: Tensor, batch: int) -> Tensor:
        """(B * groups, heads, S, d) -> (B, groups * S, W)."""
        return heads.transpose(1, 2).reshape(batch, -1, self.width)

    def last_qkv(self, block: Block, normed: Tensor, mask: AttentionMask) -> tuple[Tensor, ...]:
        """The queries of the EOTs, and keys and values of all slots."""
        (weight, bias), width = block.qkv, self.width
        pairs = self.split_heads(mask.to_slots(F.linear(normed, weight[width:], bias[width:])), mask)
        ends = F.linear(normed[:, mask.ends], weight[:width], bias[:width])
        return *self.split_heads(ends[:, mask.end_texts], mask), *pairs

    def attend(self, heads: tuple[Tensor, ...], masked: Tensor) -> Tensor:
        """Attention of queries, scaled already, to keys and values under a mask of (groups, 1, S, S)."""
        query, key, value = heads
        allowed = ~masked.repeat(len(query) // len(masked), 1, 1, 1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=1.0)

    def _rest(self, block: Block, states: Tensor, attended: Tensor) -> Tensor:
        """Everything of a block after its attention; overwrites `states` where autograd does not need them."""
        states = add_linear(states, attended, block.out)
        return add_linear(states, self.activate(F.linear(norm(states), *block.fc)), block.proj)

    def activate(self, hidden: Tensor) -> Tensor:
        """Overwrites `hidden` where autograd does not need it."""
        if self.activation == "gelu":
            return F.gelu(hidden)
        return F.silu(hidden, inplace=not torch.is_grad_enabled())


def add_linear(states: Tensor, rows: Tensor, affine: Affine) -> Tensor:
    """`states` plus a linear layer of `rows`: in place, within the matrix product, where autograd is off."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled(states.device.type):
        return states + F.linear(rows, *affine)
    weight, bias = affine
    states.flatten(0, 1).addmm_(rows.flatten(0, 1), weight.t()).add_(bias)
    return states


def norm(states: Tensor) -> Tensor:
    return F.layer_norm(states, states.shape[-1:])


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a tower."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, TextTower | Block):
        yield from _tensors(tuple(getattr(value, item.name) for item in fields(value)))
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)
