"""The texts of a dataset's classes around a context: SOS before it; other words, name, full stop and EOT after it."""

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
    names_only: bool = False  # full stop and EOT are not perturbed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTexts:
    """K class texts around a context, ready for the tower."""

    tower: TextTower
    sos: Tensor  # (W,)
    nodes: Tensor  # (N, W) embeddings of the tokens after the context, one for each node of `packing`
    is_name: Tensor  # (N,) bool: name tokens, not words before the name, the full stop or EOT
    packing: Packing

    @classmethod
    def of_names(cls, tower: TextTower, tokenizer: Tokenizer, names: Sequence[str], *, after: str = "") -> ClassTexts:
        """The texts '<context> name.' with underscores read as spaces; `after` are words before the name."""
        words = tokenizer.encode(after) if after else []
        suffixes = []
        for name in names:
            ids = [*words, *tokenizer.encode(name.replace("_", " ") + "."), tokenizer.eot]
            if len(ids) + 1 > tower.positions:
                where = f"class name {name[:60]!r} is {len(ids)} tokens long"
                raise InputError(f"{where}; SOS and it do not fit the model's {tower.positions} tokens")
            suffixes.append(ids)
        packing = Packing.of(suffixes)
        packed = [token for text in packing.order.tolist() for token in suffixes[text]]
        is_name = [len(words) <= position < length - 2 for length in packing.lengths for position in range(length)]
        at_nodes = packing.to_nodes(torch.tensor([packed, is_name]))
        return cls(
            tower=tower,
            sos=tower.token_embedding[tokenizer.sos],
            nodes=tower.token_embedding[at_nodes[0].to(tower.device)],
            is_name=at_nodes[1].bool().to(tower.device),
            packing=packing.on(tower.device),
        )

    @classmethod
    def of_gaussians(
        cls, tower: TextTower, tokenizer: Tokenizer, classes: int, generator: torch.Generator
    ) -> ClassTexts:
        """Classes without names: two random tokens with the mean and spread of the whole token table, then EOT.

        As released, the second random token stands where the full stop would.
        """
        table = tower.token_embedding
        draws = torch.randn(classes, 2, tower.width, generator=generator).to(tower.device) * table.std() + table.mean()
        ends = table[tokenizer.eot].expand(classes, 1, -1)
        return cls(
            tower=tower,
            sos=table[tokenizer.sos],
            nodes=torch.cat([draws, ends], dim=1).flatten(0, 1),
            is_name=torch.tensor([True, True, False], device=tower.device).repeat(classes),
            packing=Packing.of_lengths([3] * classes).on(tower.device),
        )

    def __len__(self) -> int:
        return len(self.packing.order)

    def require_room(self, context_tokens: int, names: Sequence[str]) -> None:
        """Refuse a context that leaves no room for the longest class name."""
        needed = 1 + context_tokens + self.packing.longest
        if needed > self.tower.positions:
            name = names[int(self.packing.order[-1])]
            raise InputError(
                f"class name {name[:60]!r} with a prompt of {context_tokens} tokens needs {needed} tokens, "
                f"but the model has {self.tower.positions}; use a shorter prompt or name"
            )

    def features(self, context: Tensor, mask: AttentionMask | None = None) -> Tensor:
        """Unit text features (*B, K, D) of contexts (*B, n, W)."""
        flat = context.reshape(-1, *context.shape[-2:])
        features = self.tower.features(self.prefix(flat), self.nodes[None], self.packing, mask)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def rows_at_once(self) -> int:
        """How many contexts to compute features of at a time."""
        return max(1, self.tower.rows_at_once() // len(self.packing))

    def prefix(self, context: Tensor) -> Tensor:
        """SOS in front of contexts (B, n, W)."""
        return torch.cat([self.sos.expand(len(context), 1, -1), context], dim=1)

    def noisy_features(self, context: Tensor, noise: Noise, mask: AttentionMask | None = None) -> Tensor:
        """Unit text features (J, K, D) of one context (n, W) under J perturbations of the input embeddings."""
        if noise.sos.shape[1] == 1:
            return self.tower.features(*self.perturbed(context, noise), self.packing, mask)
        perturbed = torch.cat([self.sos + noise.sos, context + noise.context], dim=2)  # (J, K, 1 + n, W)
        tokens = self.packing.to_tokens(self.nodes[None])
        bare = self.packing.unshared(0)
        shift = noise.suffix[:, self.packing.order[bare.texts], bare.positions]
        if noise.names_only:
            shift = shift * self.packing.to_tokens(self.is_name[None, :, None])
        rows, whole = self.whole(perturbed, tokens + shift)
        return self.tower.features(rows[:, :0], rows, whole)

    def perturbed(self, context: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Prefixes (J, 1 + n, W) and nodes (J, N, W) under noise that is the same for all classes."""
        prefix = torch.cat([self.sos + noise.sos, context + noise.context], dim=2)
        shift = noise.suffix[:, 0, self.packing.positions]
        return prefix[:, 0], self.nodes + (shift * self.is_name[:, None] if noise.names_only else shift)

    def whole(self, prefix: Tensor, tokens: Tensor) -> tuple[Tensor, Packing]:
        """Texts whose prefixes (J, K, P, W) differ, before tokens (J, M, W): all in a row, and its packing."""
        classes, length = prefix.shape[1:3]
        bare, whole = self.packing.unshared(0), self.packing.unshared(length)
        first = bare.ends.roll(1) + 1
        first[0] = 0
        in_tokens = classes * length + first[whole.texts] + whole.positions - length
        index = torch.where(whole.positions < length, whole.texts * length + whole.positions, in_tokens)
        rows = torch.cat([prefix[:, self.packing.order].flatten(1, 2), tokens], dim=1)
        return rows[:, index], whole
