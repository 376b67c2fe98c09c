"""How the tokens of many short texts lie side by side, without padding and without computing one twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

WORTH_SHARING = 0.95  # gathering shared tokens costs about what a twentieth of them costs in the linear layers


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """K texts as one row of N nodes, and the same texts as M tokens in buckets of equal length.

    A node is a token together with everything before it in its text: under a causal mask, texts that begin alike have
    the same states there, so they share those nodes. Linear layers see the nodes. Attention sees the tokens, texts of
    the same length side by side, so that each length is one call and nothing is padded.
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

    def apart(self, prefix: int) -> Layout:
        """The same texts, packed alike, each with `prefix` tokens of its own in front, and nothing shared."""
        return _apart(self, prefix)

    def to_tokens(self, nodes: Tensor) -> Tensor:
        """(B, N, ...) -> (B, M, ...)."""
        return nodes if self.spread is None else nodes.index_select(1, self.spread)

    def to_nodes(self, tokens: Tensor) -> Tensor:
        """(B, M, ...) -> (B, N, ...)."""
        return tokens if self.pick is None else tokens.index_select(1, self.pick)

    def to_tokens_back(self, nodes: Tensor) -> Tensor:
        """The transpose of `to_nodes`: tokens that were not picked get nothing."""
        if self.pick is None or self.spread is None:
            return nodes
        return nodes.new_zeros(len(nodes), len(self.spread), *nodes.shape[2:]).index_copy_(1, self.pick, nodes)

    def sum_to_nodes(self, tokens: Tensor) -> Tensor:
        """The transpose of `to_tokens`: what tokens say of their node adds up."""
        if self.spread is None:
            return tokens
        return tokens.new_zeros(len(tokens), len(self), *tokens.shape[2:]).index_add_(1, self.spread, tokens)

    def per_bucket(self, tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(texts, their part of a row (B, M, ...)), bucket by bucket."""
        sizes = [texts * length for texts, length in self.buckets]
        for (texts, _), part in zip(self.buckets, tokens.split(sizes, dim=1), strict=True):
            yield texts, part


@lru_cache(maxsize=8)  # asked for at every step of a pretraining
def _apart(layout: Layout, prefix: int) -> Layout:
    lengths = torch.tensor(layout.lengths)[layout.inverse.cpu()] + prefix
    return Layout.of_lengths(lengths.tolist()).on(layout.order.device)
