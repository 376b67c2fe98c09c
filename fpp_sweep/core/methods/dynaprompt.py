"""DynaPrompt: a buffer of prompts that evolves along the stream.

A slot of the buffer is an offset from the initial prompt. Each sample selects some slots, takes a step on their
offsets, and is predicted by them. Where no slot is fresh, the one that was selected longest ago is emptied first.

The released code does not select as its authors describe; `adapt.slot_rule` says which is followed (docs/methods.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.core.compute.memory import halving
from fpp_sweep.core.compute.precision import exactly
from fpp_sweep.core.methods.base import TextModel
from fpp_sweep.core.methods.gradients import gradient_of, gradients_at
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.methods.tpt import averaged_entropy
from fpp_sweep.core.optim import adamw
from fpp_sweep.spec.config import AdaptConfig

CLOSE = 1e-5  # slots whose offsets differ by no more are one prompt: rounding shall not decide between them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffer:
    """B slots, what is known of their prompts, and how they have been used."""

    context: Tensor  # (n, W) of the initial prompt
    plain: Tensor  # (K, D), its text features, which are those of a fresh slot
    offsets: Tensor  # (B, n, W) from the initial prompt, zero in a fresh slot
    order: tuple[int, ...]  # all slots, the one that was selected longest ago first
    use: tuple[int, ...]  # how often each was selected since it was fresh
    features: Tensor  # (B, K, D) of the slots whose features are known
    known: Tensor  # (B,) bool

    @classmethod
    def empty(cls, context: Tensor, plain: Tensor, slots: int) -> Buffer:
        offsets = context.new_zeros(slots, *context.shape)
        return cls.of(context, plain, offsets, range(slots), [0] * slots)

    @classmethod
    def of(cls, context: Tensor, plain: Tensor, offsets: Tensor, order: Sequence[int], use: Sequence[int]) -> Buffer:
        """With the features known that are so without any work."""
        return cls(
            context=context,
            plain=plain,
            offsets=offsets,
            order=tuple(order),
            use=tuple(use),
            features=plain.repeat(len(offsets), 1, 1),
            known=(offsets == 0).flatten(1).all(1),
        )

    def with_fresh(self) -> Buffer:
        """The same if a slot is fresh; else the first in order is emptied."""
        if 0 in self.use:
            return self
        slot = self.order[0]
        offsets, features, known = self.offsets.clone(), self.features.clone(), self.known.clone()
        offsets[slot], features[slot], known[slot] = 0, self.plain, True
        use = tuple(0 if other == slot else count for other, count in enumerate(self.use))
        return replace(self, offsets=offsets, features=features, known=known, use=use)

    def leaders(self) -> Tensor:
        """(B,) of each slot, the first one with the same offset."""
        flat = self.offsets.flatten(1)
        return (torch.cdist(flat, flat, p=torch.inf) <= CLOSE).int().argmax(1)

    def selecting(self, slots: Sequence[int]) -> Buffer:
        """With these slots counted as used, one after the other."""
        order, use = list(self.order), list(self.use)
        for slot in slots:
            order.remove(slot)
            order.append(slot)
            use[slot] += 1
        return replace(self, order=tuple(order), use=tuple(use))


class Selection(NamedTuple):
    """What a sample makes of a buffer before its step."""

    entropy: Tensor  # (B,) mean over the views
    difference: Tensor  # (B,) by how much a slot is surer of view 0 than of the other views, in the units of the rule
    slots: list[int]  # in the order in which they are used; a slot may be there twice
    leaders: list[int]  # of all slots
    kept: Tensor  # (S, D) the views of lowest entropy under the selected slots


@dataclass(frozen=True, slots=True, kw_only=True)
class DynaPrompt:
    """`weight` times the mean of `penalty` over the selected prompts is added to the loss."""

    adapt: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Buffer:
        return Buffer.empty(context, model.features(context), self.adapt.slots)

    @torch.no_grad()
    def predict(self, model: TextModel, state: Buffer, views: Tensor) -> tuple[Tensor, Buffer]:
        # what is known is not stored between two shards of a stream: to go on without it here, too, gives the same bits
        buffer = Buffer.of(state.context, state.plain, state.offsets, state.order, state.use)
        rows = []
        for sample in views:
            buffer = known(model, buffer.with_fresh())
            selection = self.select(model, buffer, sample)
            buffer = self.step(model, buffer, self.gradients(model, buffer, selection), selection.slots)
            rows.append(model.logits(sample[:1], buffer.features[selection.slots]).mean(0)[0])
        return torch.stack(rows), buffer

    def pack(self, state: Buffer) -> Mapping[str, Tensor]:
        return {"offsets": state.offsets, "order": torch.tensor(state.order), "use": torch.tensor(state.use)}

    def unpack(self, state: Buffer, tensors: Mapping[str, Tensor]) -> Buffer:
        order, use = tensors["order"].tolist(), tensors["use"].tolist()
        return Buffer.of(state.context, state.plain, tensors["offsets"], order, use)

    def select(self, model: TextModel, buffer: Buffer, views: Tensor) -> Selection:
        """The slots and views that a sample (V, D) selects."""
        logits = model.logits(views[None], buffer.features)  # (B, V, K)
        entropies = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
        leaders = buffer.leaders()
        entropy, difference = entropies.mean(1)[leaders], self._difference(logits)[leaders]
        slots = choose(self.adapt.slot_rule, entropy.tolist(), difference.tolist(), buffer.order[0])
        count = max(1, int(self.adapt.view_fraction * len(views)))
        kept = entropies[slots].mean(0).argsort(stable=True)[:count]
        return Selection(entropy, difference, slots, leaders.tolist(), views[kept])

    def _difference(self, logits: Tensor) -> Tensor:
        """(B, V, K) -> (B,). Released are logits, each view's own largest; described is one class's probability."""
        if self.adapt.slot_rule == "described":
            probabilities = logits.softmax(-1)
            top = probabilities[:, :1].argmax(-1, keepdim=True).expand(-1, logits.shape[1], 1)
            sure = probabilities.gather(-1, top)[..., 0]
        else:
            sure = logits.amax(-1)
        return (sure[:, :1] - sure[:, 1:]).sum(1) / max(1, logits.shape[1] - 1)

    def gradients(self, model: TextModel, buffer: Buffer, selection: Selection) -> Tensor:
        """Of the loss with respect to all offsets (B, n, W); zero where a slot is not selected."""
        counts = Counter(selection.slots)
        leaders = sorted({selection.leaders[slot] for slot in counts})  # equal slots take the very same step

        def loss(features: Tensor) -> Tensor:
            return self.losses(model, features, selection.kept) / len(selection.slots)

        contexts = buffer.context + buffer.offsets[leaders]
        found, _ = gradients_at(model, contexts, lambda features, _: gradient_of(loss, features))
        gradients = torch.zeros_like(buffer.offsets)
        for slot, count in counts.items():
            gradients[slot] = count * found[leaders.index(selection.leaders[slot])]
        return gradients

    def losses(self, model: TextModel, features: Tensor, kept: Tensor) -> Tensor:
        """(B, K, D) features of prompts and the views that were selected -> (B,), of which the mean is minimised."""
        losses = averaged_entropy(model.logits(kept[None], features))
        if self.penalty is None:
            return losses
        with exactly(features):
            return losses + self.weight * self.penalty(features)

    def step(self, model: TextModel, buffer: Buffer, gradients: Tensor, slots: Sequence[int]) -> Buffer:
        """The buffer after the selected slots' step; the offsets of all others decay."""
        stepped, _ = adamw(buffer.offsets, gradients, None, lr=self.adapt.lr, weight_decay=self.adapt.weight_decay)
        selected, features = sorted(set(slots)), buffer.features.clone()
        features[selected] = features_of(model, buffer.context + stepped[selected])
        same = buffer.known & (stepped == buffer.offsets).flatten(1).all(1)
        same[selected] = True
        return replace(buffer.selecting(slots), offsets=stepped, features=features, known=same)


def choose(rule: str, entropy: Sequence[float], difference: Sequence[float], fresh: int) -> list[int]:
    """The slots that are selected, by each slot's entropy and difference and those of the fresh one.

    >>> values = [3.0, 1.0, 2.0], [0.5, 0.9, 0.7]
    >>> {rule: choose(rule, *values, fresh=2) for rule in ("described", "corrected", "released")}
    {'described': [1], 'corrected': [1, 2], 'released': [2, 2]}
    """
    by_entropy, by_difference = descending(entropy), descending(difference)
    if rule == "released":
        # two slips: the fresh slot's place by entropy cuts both rankings, and what is found indexes one of them
        place = by_entropy.index(fresh)
        surer = by_entropy[min(place + 1, len(by_entropy) - 1) :]
        found = sorted({*surer} & {*by_difference[:place]})
        return [*(by_entropy[slot] for slot in found), fresh]
    no_worse = [
        slot
        for slot in by_entropy
        if slot != fresh and entropy[slot] <= entropy[fresh] and difference[slot] >= difference[fresh]
    ]
    return [*sorted(no_worse), fresh] if rule == "corrected" else no_worse or [fresh]


def descending(values: Sequence[float]) -> list[int]:
    """Slots by value; of equal ones, the lower slot first."""
    return sorted(range(len(values)), key=lambda slot: -values[slot])


def known(model: TextModel, buffer: Buffer) -> Buffer:
    """The buffer with the features of all slots; equal slots have the same ones."""
    leaders = buffer.leaders()
    features, is_known = buffer.features, buffer.known[leaders]
    if not is_known.all():
        missing = leaders[~is_known].unique()
        features = features.clone()
        features[missing] = features_of(model, buffer.context + buffer.offsets[missing])
    return replace(buffer, features=features[leaders], known=torch.ones_like(is_known))


def features_of(model: TextModel, contexts: Tensor) -> Tensor:
    """(B, n, W) -> (B, K, D)."""
    return halving(model.features, contexts, model.texts.rows_at_once())
