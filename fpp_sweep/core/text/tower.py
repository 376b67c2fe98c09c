"""CLIP's text tower from the embeddings on, so that prompts can be learned.

Attention is causal and the feature is read at EOT. So positions after the longest text's EOT are never computed, and
common beginnings of texts are computed once: `Packing` is a prefix tree of many short texts, without padding.

Shapes in this package: B prompts, K classes (texts), W the width of the text tower, D the width of the features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.compute import MemoryBudget, upcast

SINGLE_GROUP_ROWS = 64  # up to this many rows, attention has a single group
GROUP_ROWS = 32  # rows of a group otherwise, unless a text is longer; the fastest of 16 to 96 at 455 nodes on a CPU
# Gathering shared tokens costs about as much as a twentieth of them costs in the linear layers.
MAX_NODE_FRACTION = 0.95  # nodes per token up to which sharing saves time


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """K texts, shortest first: M tokens in a row, and the N nodes of their prefix tree.

    A node is a token together with all tokens before it in its text. Under a causal mask the states of a token depend
    on nothing else, so texts with the same beginning share nodes. `attention_mask` says which nodes attend to which.

    >>> packing = Packing.of([[1, 2, 9], [1, 3, 9]])  # two texts of three tokens, of which they share the first
    >>> packing.paths()  # the nodes of each text
    [[0, 1, 2], [0, 3, 4]]
    >>> packing.node_of.tolist(), packing.token_of.tolist()  # M = 6 tokens, N = 5 nodes
    ([0, 1, 2, 0, 3, 4], [0, 1, 2, 4, 5])
    """

    lengths: tuple[int, ...]  # (K,) tokens of each packed text; their sum is M
    order: Tensor  # (K,) index of the text at each packed index
    inverse: Tensor  # (K,) packed index of each text
    text_of: Tensor  # (N,) packed index of a text that contains the node
    positions: Tensor  # (N,) position of the node in its text, the prefix not counted
    ends: Tensor  # (K,) node at which each packed text has its EOT
    node_of: Tensor | None = None  # (M,) node of each token; None if no texts share a node
    token_of: Tensor | None = None  # (N,) first token at each node; None if no texts share a node

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Packing:
        """Pack texts, given as token ids; share their beginnings if that saves time."""
        all_tokens = cls.of_lengths([len(text) for text in texts])
        node_of_beginning: dict[tuple[int, ...], int] = {}  # by the token ids up to the node
        node_of: list[int] = []
        token_of: list[int] = []
        for text in all_tokens.order.tolist():
            for end in range(1, len(texts[text]) + 1):
                beginning = tuple(texts[text][:end])
                node = node_of_beginning.setdefault(beginning, len(node_of_beginning))
                if node == len(token_of):  # a new node
                    token_of.append(len(node_of))
                node_of.append(node)
        if len(token_of) > MAX_NODE_FRACTION * len(node_of):
            return all_tokens
        nodes, tokens = torch.tensor(node_of), torch.tensor(token_of)
        return replace(
            all_tokens,
            text_of=all_tokens.text_of[tokens],
            positions=all_tokens.positions[tokens],
            ends=nodes[all_tokens.ends],
            node_of=nodes,
            token_of=tokens,
        )

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Packing:
        """Pack texts of these lengths that share nothing."""
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        packed_lengths = [lengths[text] for text in order]
        order_row = torch.tensor(order)
        return cls(
            lengths=tuple(packed_lengths),
            order=order_row,
            inverse=order_row.argsort(),
            text_of=torch.arange(len(packed_lengths)).repeat_interleave(torch.tensor(packed_lengths)),
            positions=torch.cat([torch.arange(length) for length in packed_lengths]),
            ends=torch.tensor(packed_lengths).cumsum(0) - 1,
        )

    def __len__(self) -> int:
        """Return the number of nodes N, which decides the cost of a forward pass."""
        return len(self.positions)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest text."""
        return self.lengths[-1]

    def to(self, device: torch.device | str) -> Packing:
        """Return the same packing with its tensors on a device."""
        packing: Packing = _to(self, device)
        return packing

    def paths(self) -> list[list[int]]:
        """Return the nodes of each packed text, from its first token to EOT."""
        node_of = torch.arange(len(self))
        if self.node_of is not None:
            node_of = self.node_of.cpu()
        return [path.tolist() for path in node_of.split(list(self.lengths))]

    def values_at_nodes(self, values_by_text: Sequence[Sequence[int]]) -> Tensor:
        """Return (N,) values of the nodes from the values of each text's tokens; the texts are in their own order."""
        values_of_tokens: list[int] = []
        for text in self.order.tolist():
            values_of_tokens += values_by_text[text]
        return self.to_nodes(torch.tensor([values_of_tokens]))[0]

    def to_tokens(self, nodes: Tensor) -> Tensor:
        """(B, N, ...) of nodes -> (B, M, ...) of tokens."""
        if self.node_of is None:
            return nodes
        return nodes.index_select(1, self.node_of)

    def to_nodes(self, tokens: Tensor) -> Tensor:
        """(B, M, ...) of tokens -> (B, N, ...) of nodes."""
        if self.token_of is None:
            return tokens
        return tokens.index_select(1, self.token_of)


@lru_cache(maxsize=8)  # called at every step of pretraining
def unshared(packing: Packing, prefix: int) -> Packing:
    """Return the same texts in the same order, each with its own prefix of that length, without shared nodes."""
    lengths = torch.tensor(packing.lengths)[packing.inverse.cpu()] + prefix
    return Packing.of_lengths(lengths.tolist()).to(packing.order.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMask:
    """The rows that attend to each other: R = P + N rows (a shared prefix, then the nodes) in groups of S slots.

    A row attends to itself and to all rows that precede it in its text. A group holds whole texts and a copy of the
    prefix, padded to the slots of the largest group, so no attention crosses groups. Few rows form a single group, in
    which slots are rows. For many rows, a single group would mostly compute attention weights that are masked.
    """

    row_of: Tensor | None  # (groups * S,) row in each slot; None if slots are rows
    slot_of: Tensor | None  # (R,) one of the slots of each row; None if slots are rows
    masked: Tensor  # (groups, 1, S, S) True where a slot (row of the matrix) does not attend to a slot (column)
    ends: Tensor  # (K,) row of each packed text's EOT
    end_texts: Tensor  # (groups * E,) packed text of each EOT query; groups are padded to E queries
    end_query_of: Tensor  # (K,) EOT query of each packed text
    end_masked: Tensor  # (groups, 1, E, S) `masked` for the EOT queries

    @property
    def groups(self) -> int:
        return len(self.masked)

    def to_slots(self, rows: Tensor) -> Tensor:
        """(B, R, ...) of rows -> (B, groups * S, ...) of slots."""
        if self.row_of is None:
            return rows
        return rows.index_select(1, self.row_of)

    def to_rows(self, slots: Tensor) -> Tensor:
        """(B, groups * S, ...) of slots -> (B, R, ...) of rows."""
        if self.slot_of is None:
            return slots
        return slots.index_select(1, self.slot_of)


@lru_cache(maxsize=8)  # called at every step of pretraining
def attention_mask(packing: Packing, prefix: int) -> AttentionMask:
    """Return which rows attend to which, of a prefix that all texts share and of the nodes after it."""
    paths = packing.paths()
    groups = _groups_of(packing, paths, prefix)
    size = max([len(rows) for rows, _ in groups])  # S
    queries = max([len(texts) for _, texts in groups])  # E
    row_of = torch.zeros(len(groups), size, dtype=torch.long)
    slot_of = torch.arange(prefix + len(packing))
    # each slot attends to itself, padding too, because the softmax of a row that is masked throughout would be NaN
    attends = torch.eye(size, dtype=torch.bool).repeat(len(groups), 1, 1)  # (groups, S, S)
    end_rows = prefix + packing.ends.cpu()
    end_texts = torch.zeros(len(groups), queries, dtype=torch.long)
    end_slots = torch.zeros(len(groups), queries, dtype=torch.long)
    end_query_of = torch.zeros(len(packing.order), dtype=torch.long)
    for index, (rows, texts) in enumerate(groups):
        row_of[index, : len(rows)] = rows
        slot_of[rows[prefix:]] = index * size + torch.arange(prefix, len(rows))
        for text in texts.tolist():
            of_nodes = slot_of[prefix + torch.tensor(paths[text])] - index * size
            slots = torch.cat([torch.arange(prefix), of_nodes])  # the slots of a text, in order
            attends[index, slots[:, None], slots] |= torch.ones(len(slots), len(slots), dtype=torch.bool).tril()
        end_texts[index, : len(texts)] = texts
        end_slots[index, : len(texts)] = slot_of[end_rows[texts]] - index * size
        end_query_of[texts] = index * queries + torch.arange(len(texts))
    masked = ~attends
    end_masked = masked[torch.arange(len(groups))[:, None], end_slots]  # the rows of the EOTs' slots
    device = packing.positions.device
    is_gathered = len(groups) > 1  # the slots of a single group are the rows
    return AttentionMask(
        row_of=row_of.flatten().to(device) if is_gathered else None,
        slot_of=slot_of.to(device) if is_gathered else None,
        masked=masked[:, None].to(device),
        ends=prefix + packing.ends,
        end_texts=end_texts.flatten().to(device),
        end_query_of=end_query_of.to(device),
        end_masked=end_masked[:, None].to(device),
    )


def _groups_of(packing: Packing, paths: list[list[int]], prefix: int) -> list[tuple[Tensor, Tensor]]:
    """Return rows and packed texts of each group; texts are in the order of their paths: equal beginnings together."""
    order = sorted(range(len(paths)), key=paths.__getitem__)
    if prefix + len(packing) <= SINGLE_GROUP_ROWS:
        return [(torch.arange(prefix + len(packing)), torch.tensor(order))]
    limit = max(GROUP_ROWS, prefix + packing.longest)
    groups: list[tuple[dict[int, None], list[int]]] = []  # nodes, each once and in order, and texts
    for text in order:
        path = dict.fromkeys(paths[text])
        if not groups or prefix + len(groups[-1][0] | path) > limit:
            groups.append(({}, []))
        nodes, texts = groups[-1]
        nodes.update(path)
        texts.append(text)
    return [
        (torch.tensor([*range(prefix), *[prefix + node for node in nodes]]), torch.tensor(texts))
        for nodes, texts in groups
    ]


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
        mask = attention_mask(packing, prefix.shape[1])
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
    """Move the tensors of a tower, a block, a packing or a tuple."""
    if isinstance(value, Tensor):
        return value.to(target)
    if isinstance(value, tuple):
        return tuple([_to(item, target) for item in value])
    if isinstance(value, TextTower | Block | Packing):
        moved = {item.name: _to(getattr(value, item.name), target) for item in fields(value)}
        return replace(value, **moved)
    return value
