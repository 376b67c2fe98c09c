"""DynaPrompt, one sample and one slot at a time, written from the protocol alone.

The released selection has two mistakes, which the rule `released` repeats. First, the fresh slot's rank by entropy also
cuts the ranking by difference. Second, the numbers of the slots that pass both cuts are used as ranks by entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference.naive import NaiveText, Penalty, marginal_entropy, prompt_features, unit

SAME_OFFSET = 1e-5  # slots whose offsets differ by at most this share entropy and difference of the lowest such slot


@dataclass
class NaiveBuffer:
    """A buffer of slots that each sample changes in place."""

    context: Tensor  # (n, W)
    offsets: Tensor  # (B, n, W)
    order: list[int]
    use: list[int]

    @classmethod
    def empty(cls, context: Tensor, slots: int) -> NaiveBuffer:
        return cls(context, torch.zeros(slots, *context.shape), list(range(slots)), [0] * slots)


@dataclass
class Trace:
    """Everything that was computed for one sample."""

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
    """Adapt to one sample's views (V, D), which need not be of unit norm, and predict view 0."""
    views, trace = unit(views), Trace()
    slots = len(buffer.offsets)
    # 1. make a fresh slot if all are used
    if all(count > 0 for count in buffer.use):
        oldest = buffer.order[0]
        buffer.offsets[oldest] = 0
        buffer.use[oldest] = 0
    trace.init_slot = buffer.order[0]
    # 2. compute the logits of each view under each slot
    logits = []
    with torch.no_grad():
        for slot in range(slots):
            features = prompt_features(text, token_ids, buffer.context + buffer.offsets[slot])
            logits.append(logit_scale * views @ features.T)
    # 3. rank the slots by mean entropy and by difference, and select some
    view_entropies = [entropies(slot_logits) for slot_logits in logits]
    trace.entropy = [values.mean().item() for values in view_entropies]
    difference = probability_difference if rule == "described" else logit_difference
    trace.difference = [difference(slot_logits) for slot_logits in logits]
    for slot in range(slots):
        for lower in range(slot):
            if (buffer.offsets[slot] - buffer.offsets[lower]).abs().max() <= SAME_OFFSET:
                trace.entropy[slot] = trace.entropy[lower]
                trace.difference[slot] = trace.difference[lower]
                break
    naive_select_slots(trace, rule)
    for slot in trace.selected:
        buffer.order.remove(slot)
        buffer.order.append(slot)
        buffer.use[slot] += 1
    # 4. select views by their mean entropy over the selected slots
    mean = torch.stack([view_entropies[slot] for slot in trace.selected]).mean(dim=0)
    trace.views = torch.argsort(mean)[: max(1, int(selection * len(views)))].tolist()
    # 5. take one step; slots are optimized separately, because AdamW treats each coordinate separately
    count = len(trace.selected)
    for slot in range(slots):
        offset = buffer.offsets[slot].clone().requires_grad_()
        optimizer = torch.optim.AdamW([offset], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
        times = trace.selected.count(slot)
        if times:
            features = prompt_features(text, token_ids, buffer.context + offset)
            entropy = times / count * marginal_entropy(logit_scale * views[trace.views] @ features.T)
            regulariser = torch.zeros(()) if penalty is None else times / count * penalty(features)
            torch.autograd.backward(entropy + weight * regulariser)
            trace.entropy_loss += entropy.item()
            trace.penalty += regulariser.item()
        else:
            offset.grad = torch.zeros_like(offset)
        optimizer.step()
        buffer.offsets[slot] = offset.detach()
    trace.loss = trace.entropy_loss + weight * trace.penalty
    # 6. average the selected slots' logits after the step
    logits_after = {}
    with torch.no_grad():
        for slot in sorted(set(trace.selected)):
            features = prompt_features(text, token_ids, buffer.context + buffer.offsets[slot])
            logits_after[slot] = logit_scale * views[0] @ features.T
    trace.logits = torch.stack([logits_after[slot] for slot in trace.selected]).mean(dim=0)
    return trace


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each view."""
    return -(torch.softmax(logits, dim=-1) * torch.log_softmax(logits, dim=-1)).sum(dim=-1)


def logit_difference(logits: Tensor) -> float:
    """Return the largest logit of view 0 minus the mean of the largest logits of the other views."""
    largest = [max(view_logits) for view_logits in logits.tolist()]
    return mean_difference(largest[0], largest[1:])


def probability_difference(logits: Tensor) -> float:
    """Return the probability of view 0's class in view 0 minus its mean probability in the other views."""
    probabilities = torch.softmax(logits, dim=-1)
    top = int(probabilities[0].argmax())
    return mean_difference(probabilities[0, top].item(), probabilities[1:, top].tolist())


def mean_difference(value: float, rest: Sequence[float]) -> float:
    """Return the mean of `value - number` over the numbers of the rest, or 0 if there are none."""
    total = 0.0
    for number in rest:
        total += value - number
    return total / max(1, len(rest))


def descending(values: Sequence[float]) -> list[int]:
    """Return the slots in descending order of their values; of slots with equal values, the lower one comes first."""
    return sorted(range(len(values)), key=lambda slot: (-values[slot], slot))


def naive_select_slots(trace: Trace, rule: str) -> None:
    """Fill in the trace's rankings, candidates and selected slots by the rule."""
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
        not_worse = trace.entropy[slot] <= trace.entropy[init] and trace.difference[slot] >= trace.difference[init]
        if slot != init and not_worse:
            trace.candidates.append(slot)
    if rule == "corrected":
        trace.selected = [*trace.candidates, init]
    else:
        ranked_candidates = [slot for slot in trace.entropy_order if slot in trace.candidates]
        trace.selected = ranked_candidates or [init]
