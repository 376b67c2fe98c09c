"""DynaPrompt (Xiao et al., 2025): a buffer of prompts that evolves along the stream.

A slot of the buffer is an offset from the initial prompt. A slot is fresh until it is selected: its offset is zero.
For each sample:

1. If no slot is fresh, the slot that was selected longest ago is reset to a fresh one.
2. The sample selects slots, by comparing their entropy and difference with those of the fresh slot.
3. The selected slots take a step, and their mean logits predict the sample.

The released code selects slots in another way than its authors describe. `adapt.slot_rule` chooses one: `released`,
`described`, or `corrected`, which is the released code without its mistakes (docs/methods.md).

Shapes: B slots, n context tokens, W width of the text tower, K classes, D feature dimension, V views of a sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.core.compute import run_in_batches, without_autocast
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import gradient_of, gradients_at
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.methods.tpt import marginal_entropy, number_selected, view_entropies
from fpp_sweep.core.optim import adamw
from fpp_sweep.spec.config import AdaptConfig

# Slots whose offsets differ by no more than this are one prompt, so that rounding does not decide between them.
SAME_OFFSET = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffer:
    """B slots, the computed features of their prompts, and how often and when each was selected."""

    context: Tensor  # (n, W) of the initial prompt
    initial_features: Tensor  # (K, D) text features of the initial prompt; a fresh slot has the same
    offsets: Tensor  # (B, n, W) from the initial prompt, zero in a fresh slot
    order: tuple[int, ...]  # all slots, the one that was selected longest ago first
    use: tuple[int, ...]  # number of times that each slot was selected since it was fresh
    features: Tensor  # (B, K, D) text features; valid where `computed`
    computed: Tensor  # (B,) bool

    @classmethod
    def empty(cls, context: Tensor, initial_features: Tensor, slots: int) -> Buffer:
        """Build a buffer of fresh slots."""
        offsets = context.new_zeros(slots, *context.shape)
        return cls.of(context, initial_features, offsets, range(slots), [0] * slots)

    @classmethod
    def of(
        cls, context: Tensor, initial_features: Tensor, offsets: Tensor, order: Sequence[int], use: Sequence[int]
    ) -> Buffer:
        """Build a buffer in which only slots without an offset have features: those of the initial prompt."""
        return cls(
            context=context,
            initial_features=initial_features,
            offsets=offsets,
            order=tuple(order),
            use=tuple(use),
            features=initial_features.repeat(len(offsets), 1, 1),
            computed=(offsets == 0).flatten(1).all(1),
        )

    def with_fresh_slot(self) -> Buffer:
        """Return the buffer with a fresh slot: if there is none, the first slot in order is reset.

        The first slot in order is fresh then: a slot that was never selected comes before all that were.
        """
        if 0 in self.use:
            return self
        slot = self.order[0]
        offsets, features, computed = self.offsets.clone(), self.features.clone(), self.computed.clone()
        offsets[slot] = 0
        features[slot] = self.initial_features
        computed[slot] = True
        use = list(self.use)
        use[slot] = 0
        return replace(self, offsets=offsets, features=features, computed=computed, use=tuple(use))

    def representatives(self) -> Tensor:
        """Return for each slot the first slot with the same offset (B,), which represents it.

        Slots with one representative are the same prompt, so their features, entropy and gradient are computed once.
        """
        flat = self.offsets.flatten(1)
        return (torch.cdist(flat, flat, p=torch.inf) <= SAME_OFFSET).int().argmax(1)

    def after_selecting(self, slots: Sequence[int]) -> Buffer:
        """Return the buffer after these slots were selected, one after another: only `order` and `use` change."""
        order, use = list(self.order), list(self.use)
        for slot in slots:
            order.remove(slot)
            order.append(slot)
            use[slot] += 1
        return replace(self, order=tuple(order), use=tuple(use))


class Selection(NamedTuple):
    """The slots and views that a sample selects before its step."""

    entropy: Tensor  # (B,) mean over the views
    difference: Tensor  # (B,) by how much a slot is more certain of view 0 than of the other views
    slots: list[int]  # in the order in which they are used; a slot may occur twice
    representatives: list[int]  # (B,) see Buffer.representatives
    confident: Tensor  # (S, D) the views of lowest entropy under the selected slots


@dataclass(frozen=True, slots=True, kw_only=True)
class DynaPrompt:
    """DynaPrompt; `weight` times the mean of `penalty` over the selected prompts is added to the loss."""

    adapt: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Buffer:
        return Buffer.empty(context, model.features(context), self.adapt.slots)

    @torch.no_grad()
    def predict(self, model: TextModel, state: Buffer, views: Tensor) -> tuple[Tensor, Buffer]:
        # Computed features are not stored between two shards, so drop them here, too: results stay identical
        # wherever the stream is cut.
        buffer = Buffer.of(state.context, state.initial_features, state.offsets, state.order, state.use)
        logits = []
        for sample in views:
            buffer = with_all_features(model, buffer.with_fresh_slot())
            selection = self.select(model, buffer, sample)
            gradients = self.gradients(model, buffer, selection)
            buffer = self.step(model, buffer, gradients, selection.slots)
            by_slot = model.logits(sample[:1], buffer.features[selection.slots])  # (selected slots, 1, K)
            logits.append(by_slot.mean(0)[0])
        return torch.stack(logits), buffer

    def pack(self, state: Buffer) -> Mapping[str, Tensor]:
        return {"offsets": state.offsets, "order": torch.tensor(state.order), "use": torch.tensor(state.use)}

    def unpack(self, state: Buffer, tensors: Mapping[str, Tensor]) -> Buffer:
        order, use = tensors["order"].tolist(), tensors["use"].tolist()
        return Buffer.of(state.context, state.initial_features, tensors["offsets"], order, use)

    def select(self, model: TextModel, buffer: Buffer, views: Tensor) -> Selection:
        """Return the slots and views that a sample with views (V, D) selects."""
        logits = model.logits(views[None], buffer.features)  # (B, V, K)
        entropies = view_entropies(logits)  # (B, V)
        representatives = buffer.representatives()
        entropy = entropies.mean(1)[representatives]
        difference = self._difference(logits)[representatives]
        fresh = buffer.order[0]
        slots = select_slots(self.adapt.slot_rule, entropy.tolist(), difference.tolist(), fresh)
        count = number_selected(len(views), self.adapt.view_fraction)
        confident = entropies[slots].mean(0).argsort(stable=True)[:count]
        return Selection(entropy, difference, slots, representatives.tolist(), views[confident])

    def _difference(self, logits: Tensor) -> Tensor:
        """Return how much each slot's certainty of view 0 exceeds its mean certainty of the other views.

        Logits (B, V, K) -> (B,). The certainty of a view is the probability of view 0's predicted class by the rule
        `described`, and the view's largest logit by the other rules.
        """
        if self.adapt.slot_rule == "described":
            probabilities = logits.softmax(-1)
            predicted = probabilities[:, :1].argmax(-1, keepdim=True)
            certainty = probabilities.take_along_dim(predicted, dim=-1)[..., 0]  # (B, V)
        else:
            certainty = logits.amax(-1)
        return (certainty[:, :1] - certainty[:, 1:]).sum(1) / max(1, logits.shape[1] - 1)

    def gradients(self, model: TextModel, buffer: Buffer, selection: Selection) -> Tensor:
        """Return the gradients of the loss with respect to all offsets (B, n, W); zero for slots not selected.

        The loss is the mean over the selected slots. A slot that was selected twice counts twice.
        """
        counts = Counter(selection.slots)
        computed_slots = sorted({selection.representatives[slot] for slot in counts})

        def loss(features: Tensor) -> Tensor:
            return self.losses(model, features, selection.confident) / len(selection.slots)

        contexts = buffer.context + buffer.offsets[computed_slots]
        computed, _ = gradients_at(model, contexts, lambda features, rows: gradient_of(loss, features))
        gradients = torch.zeros_like(buffer.offsets)
        for slot, count in counts.items():
            row = computed_slots.index(selection.representatives[slot])
            gradients[slot] = count * computed[row]
        return gradients

    def losses(self, model: TextModel, features: Tensor, confident: Tensor) -> Tensor:
        """Return the loss of each prompt (B,), from its features (B, K, D) and the confident views (S, D)."""
        losses = marginal_entropy(model.logits(confident[None], features))
        if self.penalty is None:
            return losses
        with without_autocast(features):
            return losses + self.weight * self.penalty(features)

    def step(self, model: TextModel, buffer: Buffer, gradients: Tensor, slots: Sequence[int]) -> Buffer:
        """Return the buffer after a step of the selected slots; by weight decay, all other offsets shrink, too."""
        stepped, _ = adamw(buffer.offsets, gradients, None, lr=self.adapt.lr, weight_decay=self.adapt.weight_decay)
        selected = sorted(set(slots))
        features = buffer.features.clone()
        features[selected] = features_of(model, buffer.context + stepped[selected])
        computed = buffer.computed & (stepped == buffer.offsets).flatten(1).all(1)  # fresh slots stay as they are
        computed[selected] = True
        return replace(buffer.after_selecting(slots), offsets=stepped, features=features, computed=computed)


def select_slots(rule: str, entropy: Sequence[float], difference: Sequence[float], fresh: int) -> list[int]:
    """Return the selected slots by a rule, from the entropy and the difference of each slot.

    `corrected` selects the fresh slot, and the slots that are no worse by both numbers: their entropy is no higher,
    their difference no smaller. `described` selects the fresh slot only if there is no such slot. `released` does as
    the released code, which has mistakes.

    >>> entropy, difference = [3.0, 1.0, 2.0], [0.5, 0.9, 0.7]
    >>> select_slots("described", entropy, difference, fresh=2)
    [1]
    >>> select_slots("corrected", entropy, difference, fresh=2)
    [1, 2]
    >>> select_slots("released", entropy, difference, fresh=2)
    [2, 2]
    """
    by_entropy = rank_descending(entropy)
    if rule == "released":
        # The released code has two mistakes. It cuts both rankings at the rank that the fresh slot has by entropy. And
        # it uses the numbers of the slots that pass both cuts as positions in the ranking by entropy.
        by_difference = rank_descending(difference)
        fresh_rank = by_entropy.index(fresh)
        low_entropy = by_entropy[min(fresh_rank + 1, len(by_entropy) - 1) :]
        large_difference = by_difference[:fresh_rank]
        passing = sorted(set(low_entropy) & set(large_difference))
        return [*[by_entropy[slot] for slot in passing], fresh]
    no_worse = []  # slots that are no worse than the fresh one
    for slot in by_entropy:
        if slot != fresh and entropy[slot] <= entropy[fresh] and difference[slot] >= difference[fresh]:
            no_worse.append(slot)
    if rule == "corrected":
        return [*sorted(no_worse), fresh]
    return no_worse or [fresh]


def rank_descending(values: Sequence[float]) -> list[int]:
    """Return the slots by value, the largest first; of equal values, the lower slot first."""
    return sorted(range(len(values)), key=lambda slot: -values[slot])


def with_all_features(model: TextModel, buffer: Buffer) -> Buffer:
    """Return the buffer with the features of all slots computed; equal slots have the same features."""
    representatives = buffer.representatives()
    features, computed = buffer.features, buffer.computed[representatives]
    if not computed.all():
        missing = representatives[~computed].unique()
        features = features.clone()
        features[missing] = features_of(model, buffer.context + buffer.offsets[missing])
    return replace(buffer, features=features[representatives], computed=torch.ones_like(computed))


def features_of(model: TextModel, contexts: Tensor) -> Tensor:
    """Contexts (B, n, W) -> text features (B, K, D)."""
    return run_in_batches(model.features, contexts, model.texts.contexts_per_batch())
