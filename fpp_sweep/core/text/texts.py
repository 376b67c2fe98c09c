"""The texts of a dataset's classes, for any tower: SOS, a context, optional words, the name, a full stop and EOT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.text.padded import PaddedTexts, PaddedTower, RowTokenizer
from fpp_sweep.core.text.tower import Noise, Packing, TextTower, Tokenizer, unshared
from fpp_sweep.spec.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTexts:
    """K class texts around a context of n tokens, ready for the tower."""

    tower: TextTower
    sos: Tensor  # (W,)
    nodes: Tensor  # (N, W) embeddings of the tokens after the context, one for each node of `packing`
    is_name: Tensor  # (N,) bool: tokens of the name, not of words before it, the full stop or EOT
    packing: Packing

    @classmethod
    def of_names(cls, tower: TextTower, tokenizer: Tokenizer, names: Sequence[str], *, after: str = "") -> ClassTexts:
        """Build the texts '<context> name.'; underscores become spaces, and `after` are words before the name."""
        words = tokenizer.encode(after) if after else []
        suffixes: list[list[int]] = []  # token ids of each text after the context
        is_name: list[list[bool]] = []  # for each of them
        for name in names:
            ids = [*words, *tokenizer.encode(name.replace("_", " ") + "."), tokenizer.eot]
            if len(ids) + 1 > tower.positions:
                where = f"class name {name[:60]!r} is {len(ids)} tokens long"
                raise InputError(f"{where}; SOS and it do not fit the model's {tower.positions} tokens")
            name_tokens = len(ids) - len(words) - 2
            suffixes.append(ids)
            is_name.append([False] * len(words) + [True] * name_tokens + [False, False])  # the full stop and EOT
        packing = Packing.of(suffixes)
        return cls(
            tower=tower,
            sos=tower.token_embedding[tokenizer.sos],
            nodes=tower.token_embedding[packing.values_at_nodes(suffixes).to(tower.device)],
            is_name=packing.values_at_nodes(is_name).to(tower.device),
            packing=packing.to(tower.device),
        )

    @classmethod
    def of_gaussians(
        cls, tower: TextTower, tokenizer: Tokenizer, classes: int, generator: torch.Generator
    ) -> ClassTexts:
        """Build classes without names: two random tokens with the mean and spread of the whole token table, then EOT.

        As in the released code, the second random token stands where the full stop would.
        """
        table = tower.token_embedding
        standard_normal = torch.randn(classes, 2, tower.width, generator=generator).to(tower.device)
        draws = standard_normal * table.std() + table.mean()
        ends = table[tokenizer.eot].expand(classes, 1, -1)
        return cls(
            tower=tower,
            sos=table[tokenizer.sos],
            nodes=torch.cat([draws, ends], dim=1).flatten(0, 1),
            is_name=torch.tensor([True, True, False], device=tower.device).repeat(classes),
            packing=Packing.of_lengths([3] * classes).to(tower.device),
        )

    def __len__(self) -> int:
        """Return the number of classes K."""
        return len(self.packing.order)

    def require_room(self, context_tokens: int, names: Sequence[str]) -> None:
        """Raise InputError if a context leaves no room for the longest class name."""
        needed = 1 + context_tokens + self.packing.longest
        if needed > self.tower.positions:
            name = names[int(self.packing.order[-1])]
            raise InputError(
                f"class name {name[:60]!r} with a prompt of {context_tokens} tokens needs {needed} tokens, "
                f"but the model has {self.tower.positions}; use a shorter prompt or name"
            )

    def features(self, context: Tensor) -> Tensor:
        """Return unit text features (*B, K, D) of contexts (*B, n, W)."""
        flat = context.reshape(-1, *context.shape[-2:])
        prefix = torch.cat([self.sos.expand(len(flat), 1, -1), flat], dim=1)  # (B, 1 + n, W)
        features = self.tower.features(prefix, self.nodes[None], self.packing)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def suffix_positions(self, context_tokens: int) -> int:
        """Return the number of positions after a context that features depend on."""
        return self.packing.longest

    def positions(self, context_tokens: int) -> int:
        """Return the token positions that one context costs, which all classes share."""
        return 1 + context_tokens + len(self.packing)

    def whole_positions(self, context_tokens: int) -> int:
        """Return the token positions where each class has a context of its own."""
        return sum(self.packing.lengths) + len(self) * context_tokens

    def contexts_per_batch(self) -> int:
        """Return the number of contexts whose features to compute at a time."""
        return max(1, self.tower.positions_per_batch() // len(self.packing))

    def features_of_own(self, contexts: Tensor) -> Tensor:
        """Return unit text features (J, K, D) where each class has a context of its own, from contexts (J, K, n, W)."""
        sos = self.sos.expand(*contexts.shape[:2], 1, -1)
        return self._features_of_texts(torch.cat([sos, contexts], dim=2), self.packing.to_tokens(self.nodes[None]))

    def noisy_features(self, context: Tensor, noise: Noise) -> Tensor:
        """Return unit text features (J, K, D) of one context (n, W) under J perturbations of the input embeddings."""
        prefixes = torch.cat([self.sos + noise.sos, context + noise.context], dim=2)  # (J, C, 1 + n, W)
        if noise.sos.shape[1] == 1:  # shared by all classes, which therefore still share their beginnings
            shift = noise.suffix[:, 0, self.packing.positions]  # (J, N, W)
            if noise.without_ends:
                shift = shift * self.is_name[:, None]
            return self.tower.features(prefixes[:, 0], self.nodes + shift, self.packing)
        tokens_only = unshared(self.packing, 0)
        class_of_token = self.packing.order[tokens_only.text_of]  # (M,)
        shift = noise.suffix[:, class_of_token, tokens_only.positions]  # (J, M, W)
        if noise.without_ends:
            shift = shift * self.packing.to_tokens(self.is_name[None, :, None])
        return self._features_of_texts(prefixes, self.packing.to_tokens(self.nodes[None]) + shift)

    def _features_of_texts(self, prefixes: Tensor, tokens: Tensor) -> Tensor:
        """Return features (J, K, D) of texts that share nothing: prefixes (J, K, P, W), then tokens (J, M, W).

        The tower gets all texts in a row, in packed order: prefix of the first, its tokens, prefix of the second, ...
        """
        classes, length = prefixes.shape[1:3]
        tokens_only, packing = unshared(self.packing, 0), unshared(self.packing, length)
        first_token = tokens_only.ends.roll(1) + 1  # (K,) of each packed text: the one after the text before it ends
        first_token[0] = 0
        all_prefixes = prefixes[:, self.packing.order].flatten(1, 2)  # (J, K * P, W)
        ungrouped = torch.cat([all_prefixes, tokens.expand(len(prefixes), -1, -1)], dim=1)
        # the row of `ungrouped` for each row of the tower: in the prefixes, or in the tokens after all of them
        in_prefixes = packing.text_of * length + packing.positions
        in_tokens = classes * length + first_token[packing.text_of] + packing.positions - length
        source = torch.where(packing.positions < length, in_prefixes, in_tokens)
        no_shared_prefix = ungrouped[:, :0]
        return self.tower.features(no_shared_prefix, ungrouped.index_select(1, source), packing)

    @staticmethod
    def features_of_words(tower: TextTower, tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
        """Return the unit features (N, D) of whole texts."""
        token_ids = [[*tokenizer.encode(text), tokenizer.eot] for text in texts]
        packing = Packing.of(token_ids)
        nodes = tower.token_embedding[packing.values_at_nodes(token_ids).to(tower.device)]
        sos = tower.token_embedding[tokenizer.sos]
        return tower.features(sos[None, None], nodes[None], packing.to(tower.device))[0]

    def parts(self, size: int) -> Iterator[tuple[Tensor, ClassTexts]]:
        """Yield the classes in parts of similar length: at most `size` indices, and the texts of these classes."""
        tokens, is_name = self.packing.to_tokens(self.nodes[None])[0], self.packing.to_tokens(self.is_name[None])[0]
        first = 0
        for classes in self.packing.order.split(size):
            part = Packing.of_lengths(self.packing.lengths[first : first + len(classes)]).to(tokens.device)
            start = sum(self.packing.lengths[:first])
            rows = slice(start, start + len(part))
            yield classes, replace(self, nodes=tokens[rows], is_name=is_name[rows], packing=part)
            first += len(classes)


Texts = ClassTexts | PaddedTexts
Tower = TextTower | PaddedTower
AnyTokenizer = Tokenizer | RowTokenizer


def _kind_of(tower: Tower) -> Any:
    """Return the class of texts for a tower; the tokenizer of a model is the one that its tower's texts take."""
    return PaddedTexts if isinstance(tower, PaddedTower) else ClassTexts


def class_texts(tower: Tower, tokenizer: AnyTokenizer, names: Sequence[str], *, after: str = "") -> Texts:
    """Return the texts '<context> name.'; underscores become spaces, and `after` are words before the name."""
    texts: Texts = _kind_of(tower).of_names(tower, tokenizer, names, after=after)
    return texts


def gaussian_texts(tower: Tower, tokenizer: AnyTokenizer, classes: int, generator: torch.Generator) -> Texts:
    """Return texts without names: two random tokens with the mean and spread of the whole token table."""
    texts: Texts = _kind_of(tower).of_gaussians(tower, tokenizer, classes, generator)
    return texts


@torch.no_grad()
def ensemble_features(tower: Tower, tokenizer: AnyTokenizer, texts_by_class: Sequence[Sequence[str]]) -> Tensor:
    """Return the unit mean (K, D) of the unit features of each class's texts.

    The first texts of all classes go through the tower together, then the second ones, and so on: texts of one template
    share their beginnings.
    """
    sums = torch.zeros(len(texts_by_class), tower.feature_size, device=tower.device)
    for index in range(max(map(len, texts_by_class))):
        classes = [number for number, texts in enumerate(texts_by_class) if index < len(texts)]
        texts = [texts_by_class[number][index] for number in classes]
        sums[classes] += text_features(tower, tokenizer, texts)
    return F.normalize(sums, dim=-1)


def require_room(tower: Tower, token_ids: Sequence[int], text: str) -> None:
    """Raise InputError if a text does not fit between SOS and EOT."""
    needed = len(token_ids) + 2
    if needed > tower.positions:
        raise InputError(f"text {text[:60]!r} needs {needed} tokens, but the model has {tower.positions}; shorten it")


def text_features(tower: Tower, tokenizer: AnyTokenizer, texts: Sequence[str]) -> Tensor:
    """Return the unit features (N, D) of whole texts, between SOS and EOT."""
    for text in texts:
        require_room(tower, tokenizer.encode(text), text)
    features: Tensor = _kind_of(tower).features_of_words(tower, tokenizer, texts)
    return features
