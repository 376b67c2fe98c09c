"""The texts of a dataset's classes: SOS, a context, optional words, the class name, a full stop and EOT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fpp_sweep.core.text.packing import AttentionMask, Packing
from fpp_sweep.core.text.tower import TextTower, Tokenizer
from fpp_sweep.spec.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """J perturbations of the input embeddings, each shared by all classes (C = 1) or drawn per class (C = K)."""

    sos: Tensor  # (J, C, 1, W)
    context: Tensor  # (J, C, n, W)
    suffix: Tensor  # (J, C, S, W), by position after the context
    without_ends: bool = False  # SOS, full stop and EOT are not perturbed


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
        suffixes = []
        for name in names:
            ids = [*words, *tokenizer.encode(name.replace("_", " ") + "."), tokenizer.eot]
            if len(ids) + 1 > tower.positions:
                where = f"class name {name[:60]!r} is {len(ids)} tokens long"
                raise InputError(f"{where}; SOS and it do not fit the model's {tower.positions} tokens")
            suffixes.append(ids)
        packing = Packing.of(suffixes)
        token_ids: list[int] = []  # in packed order
        is_name: list[bool] = []
        for text in packing.order.tolist():
            ids = suffixes[text]
            token_ids += ids
            name_tokens = len(ids) - len(words) - 2
            is_name += [False] * len(words) + [True] * name_tokens + [False, False]  # the full stop and EOT
        at_nodes = packing.to_nodes(torch.tensor([token_ids, is_name]))
        return cls(
            tower=tower,
            sos=tower.token_embedding[tokenizer.sos],
            nodes=tower.token_embedding[at_nodes[0].to(tower.device)],
            is_name=at_nodes[1].bool().to(tower.device),
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
        draws = torch.randn(classes, 2, tower.width, generator=generator).to(tower.device) * table.std() + table.mean()
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

    def features(self, context: Tensor, mask: AttentionMask | None = None) -> Tensor:
        """Return unit text features (*B, K, D) of contexts (*B, n, W)."""
        flat = context.reshape(-1, *context.shape[-2:])
        features = self.tower.features(self.prefix(flat), self.nodes[None], self.packing, mask)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def contexts_per_batch(self) -> int:
        """Return the number of contexts whose features to compute at a time."""
        return max(1, self.tower.positions_per_batch() // len(self.packing))

    def prefix(self, context: Tensor) -> Tensor:
        """Put SOS in front of contexts: (B, n, W) -> (B, 1 + n, W)."""
        return torch.cat([self.sos.expand(len(context), 1, -1), context], dim=1)

    def noisy_features(self, context: Tensor, noise: Noise, mask: AttentionMask | None = None) -> Tensor:
        """Return unit text features (J, K, D) of one context (n, W) under J perturbations of the input embeddings."""
        if noise.sos.shape[1] == 1:
            return self.tower.features(*self.perturb(context, noise), self.packing, mask)
        prefixes = torch.cat([self.sos + noise.sos, context + noise.context], dim=2)  # (J, K, 1 + n, W)
        tokens = self.packing.to_tokens(self.nodes[None])  # (1, M, W)
        unshared = self.packing.unshared(0)
        shift = noise.suffix[:, self.packing.order[unshared.text_of], unshared.positions]  # (J, M, W)
        if noise.without_ends:
            shift = shift * self.packing.to_tokens(self.is_name[None, :, None])
        rows, packing = self.join_prefixes(prefixes, tokens + shift)
        return self.tower.features(rows[:, :0], rows, packing)

    def perturb(self, context: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Return prefixes (J, 1 + n, W) and nodes (J, N, W) under noise that all classes share."""
        prefix = torch.cat([self.sos + noise.sos, context + noise.context], dim=2)
        shift = noise.suffix[:, 0, self.packing.positions]  # (J, N, W)
        if noise.without_ends:
            shift = shift * self.is_name[:, None]
        return prefix[:, 0], self.nodes + shift

    def join_prefixes(self, prefixes: Tensor, tokens: Tensor) -> tuple[Tensor, Packing]:
        """Join prefixes (J, K, P, W), one for each class, with the tokens (J, M, W) after them.

        Return all texts in a row (J, K * P + M, W), and its packing, in which no text shares a node.
        """
        classes, length = prefixes.shape[1:3]
        tokens_only, packing = self.packing.unshared(0), self.packing.unshared(length)
        first_token = tokens_only.ends.roll(1) + 1  # (K,) of each packed text
        first_token[0] = 0
        in_prefix = packing.text_of * length + packing.positions
        in_tokens = classes * length + first_token[packing.text_of] + packing.positions - length
        source = torch.where(packing.positions < length, in_prefix, in_tokens)
        rows = torch.cat([prefixes[:, self.packing.order].flatten(1, 2), tokens], dim=1)
        return rows[:, source], packing
