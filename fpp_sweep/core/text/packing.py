"""The token ids of many short texts as one prefix tree: no padding, and what texts begin with is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

ONE_GROUP = 64  # up to so many rows attend as a single group
GROUP = 32  # rows in a group otherwise, unless one text is longer; the fastest of 16 to 96 at 455 nodes on a CPU
WORTH_SHARING = 0.95  # gathering shared tokens costs about what a twentieth of them costs in the linear layers


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """K texts, sorted by length, as M tokens in a row and as the N nodes of their prefix tree.

    A node is a token together with all tokens before it in its text. Under a causal mask the states of a token depend
    on nothing else, so texts that begin alike share nodes. Which nodes attend to which says `attention_mask`.
    """

    lengths: tuple[int, ...]  # of the packed texts; M tokens in all
    order: Tensor  # (K,) the texts, shortest first: the packed order
    inverse: Tensor  # (K,) the packed index of each text
    texts: Tensor  # (N,) the packed index of a text that contains each node
    positions: Tensor  # (N,) of each node in its text, the prefix not counted
    ends: Tensor  # (K,) the node at which each packed text has its EOT
    node_of: Tensor | None = None  # (M,) the node of each token; None where no text shares any
    token_of: Tensor | None = None  # (N,) one of the tokens at each node

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Packing:
        """The packing of texts given by their token ids; beginnings are shared where that saves time."""
        order = sorted(range(len(texts)), key=lambda text: len(texts[text]))
        numbers: dict[tuple[int, ...], int] = {}
        node_of = [
            numbers.setdefault(tuple(texts[text][: position + 1]), len(numbers))
            for text in order
            for position in range(len(texts[text]))
        ]
        unshared = cls.of_lengths([len(text) for text in texts])
        if len(numbers) > WORTH_SHARING * len(node_of):
            return unshared
        first = {node: token for token, node in reversed(list(enumerate(node_of)))}
        token_of = torch.tensor([first[node] for node in range(len(first))])
        nodes = torch.tensor(node_of)
        return replace(
            unshared,
            texts=unshared.texts[token_of],
            positions=unshared.positions[token_of],
            ends=nodes[unshared.ends],
            node_of=nodes,
            token_of=token_of,
        )

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Packing:
        """The packing of texts of these lengths that share nothing."""
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        packed = [lengths[text] for text in order]
        row = torch.tensor(order)
        return cls(
            lengths=tuple(packed),
            order=row,
            inverse=row.argsort(),
            texts=torch.arange(len(packed)).repeat_interleave(torch.tensor(packed)),
            positions=torch.cat([torch.arange(length) for length in packed]),
            ends=torch.tensor(packed).cumsum(0) - 1,
        )

    def __len__(self) -> int:
        """Nodes, which is what a forward pass costs."""
        return len(self.positions)

    @property
    def longest(self) -> int:
        """Tokens in the longest text."""
        return self.lengths[-1]

    def on(self, device: torch.device | str) -> Packing:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def paths(self) -> list[list[int]]:
        """The nodes of each packed text, from its first token to EOT."""
        nodes = torch.arange(len(self)) if self.node_of is None else self.node_of.cpu()
        return [path.tolist() for path in nodes.split(list(self.lengths))]

    def unshared(self, prefix: int) -> Packing:
        """The same texts in the same order, each with `prefix` tokens of its own before it, and no node shared."""
        return _unshared(self, prefix)

    def to_tokens(self, nodes: Tensor) -> Tensor:
        """(B, N, ...) -> (B, M, ...)."""
        return nodes if self.node_of is None else nodes.index_select(1, self.node_of)

    def to_nodes(self, tokens: Tensor) -> Tensor:
        """(B, M, ...) -> (B, N, ...)."""
        return tokens if self.token_of is None else tokens.index_select(1, self.token_of)

    def attention_mask(self, prefix: int) -> AttentionMask:
        """Which rows, of a prefix that all texts share and of the nodes, attend to which."""
        return _attention_mask(self, prefix)


@lru_cache(maxsize=8)  # called at every step of a pretraining
def _unshared(packing: Packing, prefix: int) -> Packing:
    lengths = torch.tensor(packing.lengths)[packing.inverse.cpu()] + prefix
    return Packing.of_lengths(lengths.tolist()).on(packing.order.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMask:
    """Which of R = P + N rows (a shared prefix, then the nodes) attend to which, by groups of S slots.

    A row attends to itself and to all that precedes it in its text. A group holds whole texts and a copy of the prefix,
    padded to the slots of the largest group, so no attention crosses groups. Few rows are a single group, in which
    slots are rows. For many rows, a single group would mostly compute attention weights that are masked.
    """

    row_of: Tensor | None  # (groups * S,) the row in each slot; None where slots are rows
    slot_of: Tensor | None  # (R,) one of the slots of each row
    masked: Tensor  # (groups, 1, S, S) True where a slot (row) does not attend to a slot (column)
    ends: Tensor  # (K,) the row of each packed text's EOT
    end_texts: Tensor  # (groups * E,) the packed text of each EOT query; groups are padded to E queries
    end_query_of: Tensor  # (K,) the EOT query of each packed text
    end_masked: Tensor  # (groups, 1, E, S) `masked` for EOT queries

    @property
    def groups(self) -> int:
        return len(self.masked)

    def to_slots(self, rows: Tensor) -> Tensor:
        """(B, R, ...) -> (B, groups * S, ...)."""
        return rows if self.row_of is None else rows.index_select(1, self.row_of)

    def to_rows(self, slots: Tensor) -> Tensor:
        """(B, groups * S, ...) -> (B, R, ...)."""
        return slots if self.slot_of is None else slots.index_select(1, self.slot_of)

    def to_rows_backward(self, rows: Tensor) -> Tensor:
        """The transpose of `to_rows`: zero in slots that it does not read."""
        if self.slot_of is None or self.row_of is None:
            return rows
        return rows.new_zeros(len(rows), len(self.row_of), *rows.shape[2:]).index_copy_(1, self.slot_of, rows)

    def to_slots_backward(self, slots: Tensor, rows: int) -> Tensor:
        """The transpose of `to_slots`: a row's gradient is the sum of those of its slots."""
        if self.row_of is None:
            return slots
        return slots.new_zeros(len(slots), rows, *slots.shape[2:]).index_add_(1, self.row_of, slots)

    def ends_backward(self, ends: Tensor) -> Tensor:
        """(B, K, ...) of texts -> (B, groups * E, ...) of EOT queries, zero for padding."""
        return ends.new_zeros(len(ends), len(self.end_texts), *ends.shape[2:]).index_copy_(1, self.end_query_of, ends)


@lru_cache(maxsize=8)  # called at every step of a pretraining
def _attention_mask(packing: Packing, prefix: int) -> AttentionMask:
    """Fill one group of texts after the other; sorted by path, texts that begin alike come together."""
    paths = packing.paths()
    total = prefix + len(packing)
    limit = total if total <= ONE_GROUP else max(GROUP, prefix + packing.longest)
    groups: list[_Group] = []
    for text in sorted(range(len(paths)), key=paths.__getitem__):
        if not groups or not groups[-1].add(text, paths[text], limit):
            groups.append(_Group(prefix))
            groups[-1].add(text, paths[text], total)
    return _mask_of_groups(groups, packing, prefix)


class _Group:
    """Some texts, and the slots of their nodes after those of the prefix."""

    def __init__(self, prefix: int) -> None:
        self.prefix = prefix
        self.slots: dict[int, int] = {}  # by node
        self.texts: dict[int, list[int]] = {}  # slots by packed text

    def __len__(self) -> int:
        return self.prefix + len(self.slots)

    def add(self, text: int, path: list[int], limit: int) -> bool:
        """Add a text, unless the group would have more slots than the limit; whether it was added."""
        if len(self) + sum(node not in self.slots for node in path) > limit:
            return False
        self.texts[text] = [self.slots.setdefault(node, len(self)) for node in path]
        return True

    def masked(self, size: int) -> Tensor:
        """Padding attends to itself: the softmax of a row that is masked throughout would be NaN."""
        attends = torch.eye(size, dtype=torch.bool)
        for slots in self.texts.values():
            row = torch.tensor([*range(self.prefix), *slots])
            attends[row[:, None], row] |= torch.ones(len(row), len(row), dtype=torch.bool).tril()
        return ~attends


def _mask_of_groups(groups: list[_Group], packing: Packing, prefix: int) -> AttentionMask:
    total, device = prefix + len(packing), packing.positions.device
    size, queries = max(map(len, groups)), max(len(group.texts) for group in groups)
    row_of = torch.zeros(len(groups), size, dtype=torch.long)
    slot_of = torch.arange(total)
    masked = torch.stack([group.masked(size) for group in groups])
    end_texts = torch.zeros(len(groups), queries, dtype=torch.long)
    end_slots = torch.zeros(len(groups), queries, dtype=torch.long)
    end_query_of = torch.zeros(len(packing.order), dtype=torch.long)
    for index, group in enumerate(groups):
        nodes, slots = torch.tensor(list(group.slots)), torch.tensor(list(group.slots.values()))
        row_of[index, :prefix] = torch.arange(prefix)
        row_of[index, slots] = prefix + nodes
        slot_of[prefix + nodes] = index * size + slots
        texts, count = torch.tensor(list(group.texts)), len(group.texts)
        end_texts[index, :count] = texts
        end_slots[index, :count] = torch.tensor([slots[-1] for slots in group.texts.values()])
        end_query_of[texts] = index * queries + torch.arange(count)
    end_masked = masked[torch.arange(len(groups))[:, None], end_slots]
    single = len(groups) == 1
    if single:  # slots in the order of rows
        masked, end_masked = masked[:, slot_of[:, None], slot_of], end_masked[..., slot_of]
    return AttentionMask(
        row_of=None if single else row_of.flatten().to(device),
        slot_of=None if single else slot_of.to(device),
        masked=masked[:, None].to(device),
        ends=prefix + packing.ends,
        end_texts=end_texts.flatten().to(device),
        end_query_of=end_query_of.to(device),
        end_masked=end_masked[:, None].to(device),
    )
