"""How the tokens of many short texts lie side by side, without padding and without computing one twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

ONE_GROUP = 64  # rows that attend as one
GROUP = 32  # rows in a group otherwise, unless a text alone is longer: the fastest of 16 to 96 at 455 nodes on a CPU
WORTH_SHARING = 0.95  # gathering shared tokens costs about what a twentieth of them costs in the linear layers


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """K texts as one row of N nodes, and the same texts as M tokens in buckets of equal length.

    A node is a token together with everything before it in its text: under a causal mask, texts that begin alike have
    the same states there, so they share those nodes. What nodes see of each other is `sight`.
    """

    buckets: tuple[tuple[int, int], ...]  # (texts, tokens in each), M tokens in all
    order: Tensor  # (K,) the text at each packed place
    inverse: Tensor  # (K,) the packed place of each text
    texts: Tensor  # (N,) the packed place of a text that goes through each node
    positions: Tensor  # (N,) how far each node stands after the prefix
    ends: Tensor  # (K,) the node at which each packed text has its EOT
    spread: Tensor | None  # (M,) the node of each token; None where nodes are tokens
    pick: Tensor | None  # (N,) a token at each node

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Layout:
        """The layout of texts given by their token ids; beginnings are shared where that pays."""
        order = sorted(range(len(texts)), key=lambda text: len(texts[text]))
        nodes: dict[tuple[int, ...], int] = {}
        spread = [
            nodes.setdefault(tuple(texts[text][: place + 1]), len(nodes))
            for text in order
            for place in range(len(texts[text]))
        ]
        if len(nodes) > WORTH_SHARING * len(spread):
            return cls.of_lengths([len(text) for text in texts])
        apart = cls.of_lengths([len(text) for text in texts])
        first = {node: token for token, node in reversed(list(enumerate(spread)))}
        pick = torch.tensor([first[node] for node in range(len(nodes))])
        nodes_of = torch.tensor(spread)
        return cls(
            buckets=apart.buckets,
            order=apart.order,
            inverse=apart.inverse,
            texts=apart.texts[pick],
            positions=apart.positions[pick],
            ends=nodes_of[apart.ends],
            spread=nodes_of,
            pick=pick,
        )

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Layout:
        """The layout of texts of these lengths that share nothing."""
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        packed = [lengths[text] for text in order]
        row = torch.tensor(order)
        return cls(
            buckets=tuple((packed.count(length), length) for length in sorted(set(packed))),
            order=row,
            inverse=row.argsort(),
            texts=torch.arange(len(packed)).repeat_interleave(torch.tensor(packed)),
            positions=torch.cat([torch.arange(length) for length in packed]),
            ends=torch.tensor(packed).cumsum(0) - 1,
            spread=None,
            pick=None,
        )

    def __len__(self) -> int:
        """Nodes, which is what a forward pass costs."""
        return len(self.positions)

    @property
    def longest(self) -> int:
        return self.buckets[-1][1]

    @property
    def lengths(self) -> list[int]:
        """Of the packed texts."""
        return [length for texts, length in self.buckets for _ in range(texts)]

    def on(self, device: torch.device | str) -> Layout:
        values = [getattr(self, item.name) for item in fields(self)]
        moved: list[Any] = [value.to(device) if isinstance(value, Tensor) else value for value in values]
        return Layout(*moved)

    def paths(self) -> list[list[int]]:
        """The nodes of each packed text, from its first token to EOT."""
        spread = torch.arange(len(self)) if self.spread is None else self.spread.cpu()
        return [path.tolist() for path in spread.split(self.lengths)]

    def apart(self, prefix: int) -> Layout:
        """The same texts, packed alike, each with `prefix` tokens of its own in front, and nothing shared."""
        return _apart(self, prefix)

    def to_tokens(self, nodes: Tensor) -> Tensor:
        """(B, N, ...) -> (B, M, ...)."""
        return nodes if self.spread is None else nodes.index_select(1, self.spread)

    def to_nodes(self, tokens: Tensor) -> Tensor:
        """(B, M, ...) -> (B, N, ...)."""
        return tokens if self.pick is None else tokens.index_select(1, self.pick)

    def sight(self, prefix: int) -> Sight:
        """What the rows of a prefix and the nodes see of each other."""
        return _sight(self, prefix)


@lru_cache(maxsize=8)  # asked for at every step of a pretraining
def _apart(layout: Layout, prefix: int) -> Layout:
    lengths = torch.tensor(layout.lengths)[layout.inverse.cpu()] + prefix
    return Layout.of_lengths(lengths.tolist()).on(layout.order.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sight:
    """Which of R = P + N rows (a prefix, then nodes) see which: the mask of attention, cut into groups of S slots.

    A row sees itself and what stands before it in its text, so attention within a group of texts and their prefix is
    complete. Few rows are one group and need no moving. Of many, a group that holds all would compute mostly what the
    mask hides; small groups repeat the prefix, and every group is padded to the slots of the largest.
    """

    rows: Tensor | None  # (groups * S,) the row in each slot; None where slots are rows
    pick: Tensor | None  # (R,) a slot of each row
    hidden: Tensor  # (groups, 1, S, S) True: a slot (row) does not see that slot (column)
    ends: Tensor  # (K,) the row at which each packed text has its EOT
    end_texts: Tensor  # (groups * E,) the packed text whose EOT asks, in each of a group's E places
    end_pick: Tensor  # (K,) the place of each packed text
    end_hidden: Tensor  # (groups, 1, E, S)

    @property
    def groups(self) -> int:
        return len(self.hidden)

    def to_slots(self, rows: Tensor) -> Tensor:
        """(B, R, ...) -> (B, groups * S, ...)."""
        return rows if self.rows is None else rows.index_select(1, self.rows)

    def to_rows(self, slots: Tensor) -> Tensor:
        """(B, groups * S, ...) -> (B, R, ...)."""
        return slots if self.pick is None else slots.index_select(1, self.pick)

    def to_rows_back(self, rows: Tensor) -> Tensor:
        """The transpose of `to_rows`: slots that were not picked get nothing."""
        if self.pick is None or self.rows is None:
            return rows
        return rows.new_zeros(len(rows), len(self.rows), *rows.shape[2:]).index_copy_(1, self.pick, rows)

    def to_slots_back(self, slots: Tensor, rows: int) -> Tensor:
        """The transpose of `to_slots`: what slots say of their row adds up."""
        if self.rows is None:
            return slots
        return slots.new_zeros(len(slots), rows, *slots.shape[2:]).index_add_(1, self.rows, slots)

    def ends_back(self, ends: Tensor) -> Tensor:
        """(B, K, ...) -> (B, groups * E, ...): the places of the EOTs, nothing in the others."""
        return ends.new_zeros(len(ends), len(self.end_texts), *ends.shape[2:]).index_copy_(1, self.end_pick, ends)


@lru_cache(maxsize=8)  # asked for at every step of a pretraining
def _sight(layout: Layout, prefix: int) -> Sight:
    """Pack texts, those that begin alike side by side, into groups of at most so many rows."""
    paths = layout.paths()
    total = prefix + len(layout)
    limit = total if total <= ONE_GROUP else max(GROUP, prefix + layout.longest)
    groups: list[_Group] = []
    for text in sorted(range(len(paths)), key=paths.__getitem__):
        if not groups or not groups[-1].take(text, paths[text], limit):
            groups.append(_Group(prefix))
            groups[-1].take(text, paths[text], total)
    return _joined(groups, layout, prefix)


class _Group:
    """Some texts, and the slots of their nodes after those of the prefix."""

    def __init__(self, prefix: int) -> None:
        self.prefix = prefix
        self.slots: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return self.prefix + len(self.slots)

    def take(self, text: int, path: list[int], limit: int) -> bool:
        """Add a text, if that leaves no more slots than the limit."""
        if len(self) + sum(node not in self.slots for node in path) > limit:
            return False
        self.texts[text] = [self.slots.setdefault(node, len(self)) for node in path]
        return True

    def hidden(self, size: int) -> Tensor:
        """Padding sees itself: a softmax over nothing would be no number."""
        seen = torch.eye(size, dtype=torch.bool)
        for slots in self.texts.values():
            row = torch.tensor([*range(self.prefix), *slots])
            seen[row[:, None], row] |= torch.ones(len(row), len(row), dtype=torch.bool).tril()
        return ~seen


def _joined(groups: list[_Group], layout: Layout, prefix: int) -> Sight:
    total, device = prefix + len(layout), layout.positions.device
    size, most = max(map(len, groups)), max(len(group.texts) for group in groups)
    rows = torch.zeros(len(groups), size, dtype=torch.long)
    pick = torch.arange(total)
    hidden = torch.stack([group.hidden(size) for group in groups])
    end_texts = torch.zeros(len(groups), most, dtype=torch.long)
    end_slots = torch.zeros(len(groups), most, dtype=torch.long)
    end_pick = torch.zeros(len(layout.order), dtype=torch.long)
    for place, group in enumerate(groups):
        nodes, slots = torch.tensor(list(group.slots)), torch.tensor(list(group.slots.values()))
        rows[place, :prefix] = torch.arange(prefix)
        rows[place, slots] = prefix + nodes
        pick[prefix + nodes] = place * size + slots
        texts, count = torch.tensor(list(group.texts)), len(group.texts)
        end_texts[place, :count] = texts
        end_slots[place, :count] = torch.tensor([slots[-1] for slots in group.texts.values()])
        end_pick[texts] = place * most + torch.arange(count)
    end_hidden = hidden[torch.arange(len(groups))[:, None], end_slots]
    one = len(groups) == 1
    if one:  # slots in the order of rows
        hidden, end_hidden = hidden[:, pick[:, None], pick], end_hidden[..., pick]
    return Sight(
        rows=None if one else rows.flatten().to(device),
        pick=None if one else pick.to(device),
        hidden=hidden[:, None].to(device),
        ends=prefix + layout.ends,
        end_texts=end_texts.flatten().to(device),
        end_pick=end_pick.to(device),
        end_hidden=end_hidden[:, None].to(device),
    )
