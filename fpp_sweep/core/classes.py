"""The texts of a dataset's classes without the context: SOS before it; name, full stop and EOT after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fpp_sweep.core.text import Layout, TextTower, Tokenizer
from fpp_sweep.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Perturbations of input embeddings, J draws; one for all classes (C = 1) or one for each (C = K)."""

    sos: Tensor  # (J, C, 1, W)
    context: Tensor  # (J, C, n, W)
    suffix: Tensor  # (J, C, S, W): by position after the context
    names_only: bool = False  # full stop and EOT stay as they are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTexts:
    """K class texts around a context, ready for the tower."""

    tower: TextTower
    sos: Tensor  # (W,)
    tokens: Tensor  # (M, W) embeddings after the context, packed
    is_name: Tensor  # (M,) bool: name tokens, not the full stop or EOT
    layout: Layout

    @classmethod
    def of_names(cls, tower: TextTower, tokenizer: Tokenizer, names: Sequence[str]) -> ClassTexts:
        """The texts '<context> name.' with underscores read as spaces."""
        suffixes = []
        for name in names:
            ids = [*tokenizer.encode(name.replace("_", " ") + "."), tokenizer.eot]
            if len(ids) + 1 > tower.positions:
                where = f"class name {name[:60]!r} is {len(ids)} tokens long"
                raise InputError(f"{where}; SOS and it do not fit the model's {tower.positions} tokens")
            suffixes.append(torch.tensor(ids, device=tower.device))
        embeddings = [tower.token_embedding[ids] for ids in suffixes]
        return cls._pack(tower, tokenizer, embeddings, after_name=2)

    @classmethod
    def of_gaussians(
        cls, tower: TextTower, tokenizer: Tokenizer, classes: int, generator: torch.Generator
    ) -> ClassTexts:
        """Classes without names: two random tokens with the mean and spread of the whole token table, then EOT.

        As released, the second random token stands where the full stop would.
        """
        table = tower.token_embedding
        end = table[tokenizer.eot][None]
        draws = torch.randn(classes, 2, tower.width, generator=generator).to(tower.device) * table.std() + table.mean()
        return cls._pack(tower, tokenizer, [torch.cat([draw, end]) for draw in draws], after_name=1)

    @classmethod
    def _pack(
        cls, tower: TextTower, tokenizer: Tokenizer, suffixes: Sequence[Tensor], *, after_name: int
    ) -> ClassTexts:
        lengths = [len(suffix) for suffix in suffixes]
        layout = Layout.of(lengths).on(tower.device)
        order = layout.order.tolist()
        is_name = [torch.arange(lengths[text]) < lengths[text] - after_name for text in order]
        return cls(
            tower=tower,
            sos=tower.token_embedding[tokenizer.sos],
            tokens=torch.cat([suffixes[text] for text in order]),
            is_name=torch.cat(is_name).to(tower.device),
            layout=layout,
        )

    def __len__(self) -> int:
        return len(self.layout.order)

    @property
    def longest(self) -> int:
        """Tokens after the context in the longest text."""
        return self.layout.buckets[-1][1]

    def require_room(self, context_tokens: int, names: Sequence[str]) -> None:
        """Refuse a context that leaves no room for the longest class name."""
        needed = 1 + context_tokens + self.longest
        if needed > self.tower.positions:
            name = names[int(self.layout.order[-1])]
            raise InputError(
                f"class name {name[:60]!r} with a prompt of {context_tokens} tokens needs {needed} tokens, "
                f"but the model has {self.tower.positions}; use a shorter prompt or name"
            )

    def features(self, context: Tensor) -> Tensor:
        """Unit text features (*B, K, D) of contexts (*B, n, W)."""
        flat = context.reshape(-1, *context.shape[-2:])
        sos = self.sos.expand(len(flat), 1, -1)
        features = self.tower.features(torch.cat([sos, flat], dim=1), self.tokens[None], self.layout)
        return features.view(*context.shape[:-2], *features.shape[1:])

    def noisy_features(self, context: Tensor, noise: Noise) -> Tensor:
        """Unit text features (J, K, D) of one context (n, W) under J perturbations of the input embeddings."""
        sos = self.sos[None] + noise.sos
        perturbed = torch.cat([sos, context + noise.context], dim=2)  # (J, C, 1 + n, W)
        shift = self._by_token(noise.suffix)
        tokens = self.tokens + (shift * self.is_name[:, None] if noise.names_only else shift)
        if perturbed.shape[1] == 1:
            return self.tower.features(perturbed[:, 0], tokens, self.layout)
        return self._features_apart(perturbed, tokens)

    def _by_token(self, suffix: Tensor) -> Tensor:
        """Noise by class and position (J, C, S, W) -> by packed token (J, M, W)."""
        if suffix.shape[1] == 1:
            return suffix[:, 0, self.layout.positions]
        return suffix[:, self.layout.order[self.layout.texts], self.layout.positions]

    def _features_apart(self, prefix: Tensor, tokens: Tensor) -> Tensor:
        """Features when every class has a prefix of its own (J, K, P, W): whole texts, nothing shared."""
        classes, length = prefix.shape[1:3]
        whole = self.layout.longer_by(length)
        rows = torch.cat([prefix[:, self.layout.order].flatten(1, 2), tokens], dim=1)
        first_token = self.layout.ends.roll(1) + 1
        first_token[0] = 0
        after = classes * length + first_token[whole.texts] + whole.positions - length
        place = torch.where(whole.positions < length, whole.texts * length + whole.positions, after)
        return self.tower.features(prefix[:, 0, :0], rows[:, place], whole)
