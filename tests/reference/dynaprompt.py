"""DynaPrompt, one sample and one slot at a time; written from the protocol, and imports nothing from the package.

The released selection is kept with its two slips: the fresh slot's place among the entropies also cuts the ranking by
difference, and the ids that are found so are used as places in the ranking by entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference.naive import NaiveText, Penalty, averaged_entropy, prompt_features, unit

CLOSE = 1e-5  # offsets that differ by no more share the values of the lowest slot


@dataclass
class NaiveBuffer:
    """Changed in place, sample by sample."""

    context: Tensor  # (n, W)
    offsets: Tensor  # (B, n, W)
    order: list[int]
    use: list[int]

    @classmethod
    def empty(cls, context: Tensor, slots: int) -> NaiveBuffer:
        return cls(context, torch.zeros(slots, *context.shape), list(range(slots)), [0] * slots)


@dataclass
class Trace:
    """What happened to one sample."""

    init_slot: int = -1
    entropy: list[float] = field(default_factory=list)
    difference: list[float] = field(default_factory=list)
    entropy_order: list[int] = field(default_factory=list)
    difference_order: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    views: list[int] = field(default_factory=list)
    loss: float = 0.0
    entropy_loss: float = 0.0
    penalty: float = 0.0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def dynaprompt_one(
    text: NaiveText,
    token_ids: Tensor,
    buffer: NaiveBuffer,
    views: Tensor,
    *,
    logit_scale: float,
    rule: str = "released",
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    selection: float = 0.1,
    penalty: Penalty | None = None,
    weight: float = 0.0,
) -> Trace:
    """Take one sample's views (V, D), which need not be of unit norm."""
    views, trace = unit(views), Trace()
    slots = len(buffer.offsets)
    # a fresh slot
    if all(count > 0 for count in buffer.use):
        oldest = buffer.order[0]
        buffer.offsets[oldest] = 0
        buffer.use[oldest] = 0
    trace.init_slot = buffer.order[0]
    # what each slot makes of each view
    logits = []
    with torch.no_grad():
        for slot in range(slots):
            features = prompt_features(text, token_ids, buffer.context + buffer.offsets[slot])
            logits.append(logit_scale * views @ features.T)
    view_entropies = [entropies(of_slot) for of_slot in logits]
    trace.entropy = [values.mean().item() for values in view_entropies]
    trace.difference = [
        probability_difference(of_slot) if rule == "described" else logit_difference(of_slot) for of_slot in logits
    ]
    for slot in range(slots):  # slots that are the same prompt
        for lower in range(slot):
            if (buffer.offsets[slot] - buffer.offsets[lower]).abs().max() <= CLOSE:
                trace.entropy[slot] = trace.entropy[lower]
                trace.difference[slot] = trace.difference[lower]
                break
    select_slots(trace, rule)
    for slot in trace.selected:
        buffer.order.remove(slot)
        buffer.order.append(slot)
        buffer.use[slot] += 1
    # views, by their mean entropy over the selected slots
    mean = torch.stack([view_entropies[slot] for slot in trace.selected]).mean(dim=0)
    trace.views = torch.argsort(mean)[: max(1, int(selection * len(views)))].tolist()
    # one step, slot by slot: AdamW treats each coordinate by itself
    count = len(trace.selected)
    for slot in range(slots):
        offset = buffer.offsets[slot].clone().requires_grad_()
        optimizer = torch.optim.AdamW([offset], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
        times = trace.selected.count(slot)
        if times:
            features = prompt_features(text, token_ids, buffer.context + offset)
            entropy = times / count * averaged_entropy(logit_scale * views[trace.views] @ features.T)
            regulariser = torch.zeros(()) if penalty is None else times / count * penalty(features)
            torch.autograd.backward(entropy + weight * regulariser)
            trace.entropy_loss += entropy.item()
            trace.penalty += regulariser.item()
        else:
            offset.grad = torch.zeros_like(offset)
        optimizer.step()
        buffer.offsets[slot] = offset.detach()
    trace.loss = trace.entropy_loss + weight * trace.penalty
    # the mean of the selected slots' logits after the step
    after = {}
    with torch.no_grad():
        for slot in sorted(set(trace.selected)):
            features = prompt_features(text, token_ids, buffer.context + buffer.offsets[slot])
            after[slot] = logit_scale * views[0] @ features.T
    trace.logits = torch.stack([after[slot] for slot in trace.selected]).mean(dim=0)
    return trace


def entropies(logits: Tensor) -> Tensor:
    """Of each view."""
    return -(torch.softmax(logits, dim=-1) * torch.log_softmax(logits, dim=-1)).sum(dim=-1)


def logit_difference(logits: Tensor) -> float:
    """How much larger the largest logit of view 0 is than that of each other view, on average."""
    largest = [max(of_view) for of_view in logits.tolist()]
    others = largest[1:]
    return sum(largest[0] - other for other in others) / len(others) if others else 0.0


def probability_difference(logits: Tensor) -> float:
    """How much of view 0's top class is lost in each other view, on average."""
    probabilities = torch.softmax(logits, dim=-1)
    top = int(probabilities[0].argmax())
    others = probabilities[1:, top].tolist()
    return sum(probabilities[0, top].item() - other for other in others) / len(others) if others else 0.0


def descending(values: Sequence[float]) -> list[int]:
    """Slots by value, the lower one first where they are equal."""
    return sorted(range(len(values)), key=lambda slot: (-values[slot], slot))


def select_slots(trace: Trace, rule: str) -> None:
    slots, init = len(trace.entropy), trace.init_slot
    trace.entropy_order = descending(trace.entropy)
    trace.difference_order = descending(trace.difference)
    if rule == "released":
        rank = trace.entropy_order.index(init)
        lower = trace.entropy_order[min(rank + 1, slots - 1) :]
        higher = trace.difference_order[:rank]
        trace.candidates = [slot for slot in range(slots) if slot in lower and slot in higher]
        trace.selected = [*(trace.entropy_order[slot] for slot in trace.candidates), init]
        return
    for slot in range(slots):
        no_worse = trace.entropy[slot] <= trace.entropy[init] and trace.difference[slot] >= trace.difference[init]
        if slot != init and no_worse:
            trace.candidates.append(slot)
    if rule == "corrected":
        trace.selected = [*trace.candidates, init]
    else:
        trace.selected = [slot for slot in trace.entropy_order if slot in trace.candidates] or [init]
