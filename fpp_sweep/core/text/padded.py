"""Text towers that are not CLIP's: open_clip's own modules, to which the embeddings of a context are given.

Attention may look both ways, so every text is padded as in training, and all its positions are computed. The features
are read wherever the model reads them: at the last position, at a class token or at the end of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fpp_sweep.core.compute import MemoryBudget, run_in_batches, upcast
from fpp_sweep.core.text.tower import BLOCK_BYTES, MAX_POSITIONS, SAVED_BYTES, Noise
from fpp_sweep.spec.errors import InputError

LONGEST_TEXT = 512  # tokens: a text is first read at this length, so that one that is too long is noticed


class RowTokenizer:
    """The tokens of texts from one of open_clip's tokenizers, which return padded rows."""

    def __init__(self, tokenize: Callable[..., Tensor]) -> None:
        """Find what every row begins with, and what follows a text, by comparing the rows of three texts."""
        self._tokenize = tokenize
        empty, first, second = self._row(""), self._row("a"), self._row("the")
        length = next(index for index in range(len(first)) if first[index] != second[index])
        self.begin = first[:length]
        self.end = empty[length:]  # the end of a text and padding

    def _row(self, text: str) -> list[int]:
        row: list[int] = self._tokenize([text], context_length=LONGEST_TEXT)[0].tolist()
        return row

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that begins a row, without what rows have in common."""
        row = self._row(text)[len(self.begin) :]
        return row[: next(index for index in range(len(row)) if row[index:] == self.end[: len(row) - index])]

    def encode_after(self, text: str) -> list[int]:
        """Return the tokens of a text that follows other words: some tokenizers mark the beginning of a word."""
        return self.encode(f"a {text}")[len(self.encode("a")) :]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedTower:
    """A frozen text tower of open_clip; W is the width, D the dimension that images and texts share."""

    module: nn.Module  # from rows of token ids (B, L) to features (B, D)
    embedding: nn.Module  # the table of token embeddings inside it
    positions: int  # L, tokens of a row
    feature_size: int  # D
    layers: int
    memory: MemoryBudget = field(default_factory=MemoryBudget)

    @property
    def token_embedding(self) -> Tensor:
        """The token embeddings (vocabulary, W)."""
        table: Any = self.embedding.weight
        return torch.as_tensor(table).detach()

    @property
    def width(self) -> int:
        return self.token_embedding.shape[1]

    @property
    def device(self) -> torch.device:
        return self.token_embedding.device

    @property
    def products_per_position(self) -> int:
        """Multiplications of a token position in the tower."""
        return sum(weight.numel() for weight in self.module.parameters()) - self.token_embedding.numel()

    def to(self, device: torch.device | str) -> PaddedTower:
        """Move the tower to another device."""
        self.module.to(device)
        return self

    def positions_per_batch(self) -> int:
        """Return the number of token positions to compute at a time."""
        largest = MAX_POSITIONS.get(self.device.type, MAX_POSITIONS["cpu"])
        return self.memory.batch_size(largest, BLOCK_BYTES * self.width)

    def saved_positions_per_batch(self) -> int:
        """Return the number of token positions at a time if each block saves what its backward pass needs."""
        bytes_per_position = (BLOCK_BYTES + SAVED_BYTES * self.layers) * self.width
        return self.memory.batch_size(self.positions_per_batch(), bytes_per_position)

    def features(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        """Return unit features (R, D) of rows of token ids (R, L) whose embeddings (R, L, W) are given."""

        def of_rows(rows: Tensor) -> Tensor:
            given = embeddings[rows]
            handle = self.embedding.register_forward_hook(lambda *_: given)
            try:
                return F.normalize(upcast(self.module(ids[rows])), dim=-1)
            finally:
                handle.remove()

        # torch's fused attention cannot take many gradients back together
        plain_attention = sdpa_kernel(SDPBackend.MATH) if torch.is_grad_enabled() else nullcontext()
        rows = torch.arange(len(ids), device=ids.device)
        with plain_attention:
            return run_in_batches(of_rows, rows, max(1, self.positions_per_batch() // self.positions))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedTexts:
    """K class texts around a context of n tokens, in the form of `ClassTexts`."""

    tower: PaddedTower
    sos: Tensor  # (s, W) embeddings of what every row begins with
    begin: Tensor  # (s,) its token ids
    placeholder: int  # a token id for the context, which is neither padding nor an end
    suffix_ids: Tensor  # (K, L) tokens after the context: the name, the end and padding
    suffix: Tensor  # (K, L, W) their embeddings
    is_name: Tensor  # (K, L) bool: tokens of the name
    longest: int  # tokens of the longest text after the context

    @classmethod
    def of_names(
        cls, tower: PaddedTower, tokenizer: RowTokenizer, names: Sequence[str], *, after: str = ""
    ) -> PaddedTexts:
        """Build the texts '<context> name.'; underscores become spaces, and `after` are words before the name."""
        words = len(tokenizer.encode_after(after)) if after else 0
        texts, name_tokens = [], []
        for name in names:
            spaced = name.replace("_", " ")
            texts.append(tokenizer.encode_after(f"{after} {spaced}.".lstrip()))
            name_tokens.append(len(tokenizer.encode_after(f"{after} {spaced}".lstrip())))
        longest = 1 + max(map(len, texts))
        if longest > tower.positions:
            name = max(zip(texts, names, strict=True), key=lambda pair: len(pair[0]))[1]
            raise InputError(f"class name {name[:60]!r} is {longest} tokens long; the model has {tower.positions}")
        is_name = torch.zeros(len(names), tower.positions, dtype=torch.bool)
        for row, end in zip(is_name, name_tokens, strict=True):
            row[words:end] = True
        ids = torch.tensor([[*text, *tokenizer.end][: tower.positions] for text in texts], device=tower.device)
        begin = torch.tensor(tokenizer.begin, dtype=torch.long, device=tower.device)
        return cls(
            tower=tower,
            sos=tower.token_embedding[begin],
            begin=begin,
            placeholder=tokenizer.encode("a")[0],
            suffix_ids=ids,
            suffix=tower.token_embedding[ids],
            is_name=is_name.to(tower.device),
            longest=longest,
        )

    @classmethod
    def of_gaussians(
        cls, tower: PaddedTower, tokenizer: RowTokenizer, classes: int, generator: torch.Generator
    ) -> PaddedTexts:
        """Build classes without names: two random tokens with the mean and spread of the whole token table."""
        texts = cls.of_names(tower, tokenizer, ["a a"])
        table, ids = tower.token_embedding, [texts.placeholder] * 2 + tokenizer.end[: tower.positions - 2]
        suffix_ids = torch.tensor(ids, device=tower.device).expand(classes, -1)
        draws = torch.randn(classes, 2, tower.width, generator=generator).to(tower.device)
        suffix = torch.cat([draws * table.std() + table.mean(), table[suffix_ids[:, 2:]]], dim=1)
        is_name = (torch.arange(tower.positions, device=tower.device) < 2).expand(classes, -1)
        return replace(texts, suffix_ids=suffix_ids, suffix=suffix, is_name=is_name, longest=3)

    def __len__(self) -> int:
        """Return the number of classes K."""
        return len(self.suffix)

    def require_room(self, context_tokens: int, names: Sequence[str]) -> None:
        """Raise InputError if a context leaves no room for the longest class name."""
        needed = len(self.begin) + context_tokens + self.longest
        if needed > self.tower.positions:
            raise InputError(
                f"the longest class name with a prompt of {context_tokens} tokens needs {needed} tokens, "
                f"but the model has {self.tower.positions}; use a shorter prompt or name"
            )

    def suffix_positions(self, context_tokens: int) -> int:
        """Return the number of positions after a context: all of them, since attention may look both ways."""
        return self.tower.positions - len(self.begin) - context_tokens

    def positions(self, context_tokens: int) -> int:
        """Return the token positions that one context costs."""
        return len(self) * self.tower.positions

    whole_positions = positions  # where each class has a context of its own

    def contexts_per_batch(self) -> int:
        """Return the number of contexts whose features to compute at a time."""
        return max(1, self.tower.positions_per_batch() // self.positions(0))

    def features(self, context: Tensor) -> Tensor:
        """Return unit text features (*B, K, D) of contexts (*B, n, W)."""
        flat = context.reshape(-1, 1, *context.shape[-2:])
        features = self._encode(self.sos, flat.expand(-1, len(self), -1, -1), self.suffix)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def features_of_own(self, contexts: Tensor) -> Tensor:
        """Return unit text features (J, K, D) where each class has a context of its own, from contexts (J, K, n, W)."""
        return self._encode(self.sos, contexts, self.suffix)

    def noisy_features(self, context: Tensor, noise: Noise) -> Tensor:
        """Return unit text features (J, K, D) of one context (n, W) under J perturbations of the input embeddings."""
        shift = noise.suffix
        if noise.without_ends:
            shift = shift * self.is_name[:, : shift.shape[2], None]
        contexts = (context + noise.context).expand(-1, len(self), -1, -1)
        sos = self.sos + noise.sos[:, :, : len(self.begin)]
        return self._encode(sos, contexts, self.suffix[:, : shift.shape[2]] + shift)

    def _encode(self, sos: Tensor, contexts: Tensor, suffix: Tensor) -> Tensor:
        """Return features (J, K, D) of contexts (J, K, n, W) between embeddings that broadcast to these shapes."""
        tokens, room = contexts.shape[2], self.suffix_positions(contexts.shape[2])
        batch = contexts.shape[:2]
        parts = [sos.expand(*batch, -1, -1), contexts, suffix[..., :room, :].expand(*batch, -1, -1)]
        middle = self.begin.new_full((tokens,), self.placeholder)
        beginnings = torch.cat([self.begin, middle]).expand(len(self), -1)
        ids = torch.cat([beginnings, self.suffix_ids[:, :room]], dim=1).repeat(len(contexts), 1)
        features = self.tower.features(ids, torch.cat(parts, dim=2).flatten(0, 1))
        return features.view(*batch, -1)

    @staticmethod
    def features_of_words(tower: PaddedTower, tokenizer: RowTokenizer, texts: Sequence[str]) -> Tensor:
        """Return the unit features (N, D) of whole texts."""
        rows = []
        for text in texts:
            rows.append([*tokenizer.begin, *tokenizer.encode(text), *tokenizer.end][: tower.positions])
        ids = torch.tensor(rows, device=tower.device)
        return tower.features(ids, tower.token_embedding[ids])

    def parts(self, size: int) -> Iterator[tuple[Tensor, PaddedTexts]]:
        """Yield the classes in parts: at most `size` indices, and the texts of these classes."""
        for rows in torch.arange(len(self), device=self.tower.device).split(size):
            ids, suffix, is_name = self.suffix_ids[rows], self.suffix[rows], self.is_name[rows]
            yield rows, replace(self, suffix_ids=ids, suffix=suffix, is_name=is_name)
