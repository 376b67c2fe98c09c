"""The methods of docs/methods.md, written for readers and not for speed.

Plain loops over samples and cache items follow the formulas of docs/methods.md; nothing is imported from the package.
Letters in shapes: V views (view 0 is the plain one), K classes, D feature dimension. `text` are unit features (K, D).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference.naive import Adapted, NaiveText, adamw_of, most_confident, prompt_features, unit

VOTE_FLOOR = 1e-6  # added to each class's votes, so that no share is zero


def entropy(probabilities: Tensor) -> float:
    """Return the entropy in nats of a probability vector."""
    return -sum(p * math.log(p) for p in probabilities.tolist() if p > 0)


def order_of_entropy(views: Tensor, text: Tensor, scale: float) -> list[int]:
    """Return the indices of the views (V, D) by entropy, the most confident view first."""
    entropies = [entropy(torch.softmax(scale * text @ view, dim=0)) for view in views]
    return sorted(range(len(views)), key=entropies.__getitem__)


# Template ensembles


def ensemble(text: NaiveText, token_ids_by_class: list[Tensor]) -> Tensor:
    """Return the class vectors (K, D): the mean of the unit features of a class's texts, with unit norm again."""
    vectors = []
    for token_ids in token_ids_by_class:
        features = []
        for ids in token_ids:
            features.append(text.features(text.embed(ids[None]), ids[None])[0])
        vectors.append(unit(torch.stack(features).mean(dim=0)))
    return torch.stack(vectors)


# ZERO


def zero(cosines: Tensor, order: list[int], voting: int, *, released: bool) -> Tensor:
    """Return the votes (K,) of one sample with cosines (V, K), including the extra vote that breaks a tie."""
    classes = cosines.shape[1]
    votes = torch.zeros(classes, dtype=cosines.dtype)
    for view in order[:voting]:
        if released:
            votes += torch.softmax(1024 * cosines[view], dim=0)
        else:
            votes[int(cosines[view].argmax())] += 1
    tied = [k for k in range(classes) if votes[k] == votes.max()]
    if len(tied) == 1 or voting == len(order):
        return votes
    for view in order[voting:]:
        if int(cosines[view].argmax()) in tied:
            votes[int(cosines[view].argmax())] += 1
            return votes
    candidates = tied
    if released:  # a wrong index in the released code: it excludes class K - 1 - k for every tied class k
        excluded = [classes - 1 - k for k in tied]
        candidates = [k for k in range(classes) if k not in excluded]
    first_other_view = cosines[order[voting]]
    votes[max(candidates, key=lambda k: float(first_other_view[k]))] += 1
    return votes


def vote_shares(votes: Tensor) -> Tensor:
    """Return the classes' shares of the votes, after VOTE_FLOOR is added to each."""
    return (votes + VOTE_FLOOR) / (votes.sum() + len(votes) * VOTE_FLOOR)


def zero_mean(views: Tensor, text: Tensor, scale: float, fraction: float = 0.3) -> Tensor:
    """Return the mean of the predictions of the views that vote."""
    chosen = order_of_entropy(views, text, scale)[: max(1, int(fraction * len(views)))]
    return torch.stack([torch.softmax(scale * text @ views[view], dim=0) for view in chosen]).mean(0)


# MTA


def mta(
    views: Tensor, text: Tensor, scale: float, *, affinity_weight: float = 4.0, temperature: float = 0.2
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mode (D,), the weights (V,) and the bandwidths (V,) of one sample."""
    count = len(views)
    neighbours = int(0.3 * (count - 1))
    bandwidths = []
    for view in range(count):
        distances = sorted(float(((views[view] - other) ** 2).sum()) for other in views)[1 : 1 + neighbours]
        bandwidths.append(math.sqrt(0.5 * sum(distances) / neighbours))
    h = torch.tensor(bandwidths, dtype=views.dtype)
    predictions = torch.stack([torch.softmax(scale * text @ view, dim=0) for view in views])
    affinities = predictions @ predictions.T

    def kernel(mode: Tensor) -> Tensor:
        return torch.exp(-((views - mode) ** 2).sum(-1) / (2 * h**2))

    weights, mode = torch.full((count,), 1 / count, dtype=views.dtype), views[0]
    for _ in range(5):
        density = kernel(mode)
        for _ in range(5):
            previous_weights = weights
            weights = torch.softmax((density + affinity_weight * affinities @ weights) / temperature, dim=0)
            if (weights - previous_weights).norm() < 1e-6:
                break
        for _ in range(5):
            previous_mode = mode
            mode = unit((weights * kernel(mode)) @ views)
            if (mode - previous_mode).norm() < 1e-6:
                break
    return mode, weights, h


# TPS


def tps(
    views: Tensor, text: Tensor, scale: float, *, lr: float = 5e-3, fraction: float = 0.1, shared: bool = False
) -> tuple[Tensor, Tensor]:
    """Return logits (K,) and the shift of the text features, with autograd and torch's AdamW."""
    shift = torch.zeros_like(text[0] if shared else text).requires_grad_()
    optimizer = adamw_of(shift, lr, 0.01)

    def logits() -> Tensor:
        return scale * views @ unit(text + shift).T

    chosen = most_confident(logits().detach(), fraction)
    mean = torch.softmax(logits()[chosen], dim=-1).mean(0)
    torch.autograd.backward(-(mean * mean.log()).sum())
    optimizer.step()
    return logits()[0].detach(), shift.detach()


# TDA and BoostAdapter


@dataclass
class Item:
    """An image feature in a cache, with its prediction."""

    feature: Tensor
    entropy: float
    probabilities: Tensor


@dataclass
class CacheStream:
    """The caches of TDA or BoostAdapter, which change with every sample of a stream."""

    text: Tensor
    scale: float
    alpha: float
    beta: float
    delta: int | None = None  # BoostAdapter's number of further items of a class; None: TDA
    plain: bool = False  # whether the query is the plain view instead of the mean of the confident views
    fraction: float = 0.1
    positive: dict[int, list[Item]] = field(default_factory=dict)
    negative: dict[int, list[Item]] = field(default_factory=dict)

    def predict(self, views: Tensor) -> Tensor:
        """Add one sample with views (V, D) to the caches, and return its logits (K,)."""
        order = order_of_entropy(views, self.text, self.scale)
        chosen = order[: max(1, int(self.fraction * len(views)))]
        query_views = views[chosen]
        if self.plain:
            query_views = views[:1]
        logits = self.scale * query_views @ self.text.T
        probabilities = torch.softmax(logits, dim=-1).mean(0)
        query = Item(query_views.mean(0), entropy(probabilities), probabilities)
        z = logits.mean(0)
        predicted = int(z.argmax())
        file_by_entropy(self.positive.setdefault(predicted, []), query, 3)
        if 0.2 < query.entropy / math.log2(len(z)) < 0.5:
            items = self.negative.setdefault(predicted, [])
            if self.delta is None:
                file_by_entropy(items, query, 2)
            else:
                items.append(query)
                del items[:-2]
        positive = {k: list(items) for k, items in self.positive.items()}
        if self.delta is not None:
            for view in chosen:
                p = torch.softmax(self.scale * self.text @ views[view], dim=0)
                boost = Item(views[view], entropy(p), p)
                file_by_entropy(positive.setdefault(int(p.argmax()), []), boost, 3 + self.delta)
        return z + self._positive_part(positive, query) - self._negative_part(query)

    def _positive_part(self, positive: dict[int, list[Item]], query: Item) -> Tensor:
        added = torch.zeros_like(query.probabilities)
        for k, items in positive.items():
            for item in items:
                added[k] += self.alpha * math.exp(-self.beta * (1 - float(query.feature @ item.feature)))
        return added

    def _negative_part(self, query: Item) -> Tensor:
        taken = torch.zeros_like(query.probabilities)
        for items in self.negative.values():
            for item in items:
                mask = (item.probabilities > 0.03) & (item.probabilities < 1.0)
                taken += 0.117 * math.exp(-(1 - float(query.feature @ item.feature))) * mask
        return taken


def file_by_entropy(items: list[Item], item: Item, capacity: int) -> None:
    """Add an item to a cache of one class; if the cache is full, it replaces a less confident item."""
    if len(items) < capacity:
        items.append(item)
    elif item.entropy < items[-1].entropy:
        items[-1] = item
    items.sort(key=lambda held: held.entropy)


# A-TPT, SoC and R-TPT


def nearest_angle(features: Tensor) -> Tensor:
    """Return A-TPT's mean angle of each class to its nearest class."""
    angles = []
    for k in range(len(features)):
        others = [features[k] @ features[j] for j in range(len(features)) if j != k]
        nearest = max(others, key=lambda cosine: float(cosine.detach()))
        if abs(float(nearest.detach())) > 0.99999:
            nearest = torch.sign(nearest.detach()) * torch.tensor(0.99999).to(features)
        angles.append(torch.arccos(nearest))
    return torch.stack(angles).mean()


def growing_angle(features: Tensor) -> Tensor:
    """Return the penalty with the sign that A-TPT's paper describes."""
    return -nearest_angle(features)


def huber(features: Tensor, delta: float = 0.5) -> Tensor:
    """Return SoC's penalty."""
    values = []
    for i in range(len(features)):
        for j in range(i + 1, len(features)):
            x = features[i] @ features[j]
            values.append(x**2 / 2 if float(x.detach()) <= delta else delta * (x - delta / 2))
    return torch.stack(values).mean()


def rtpt_scores(views: Tensor, neighbours: int = 20) -> Tensor:
    """Return R-TPT's score of each view: its mean cosine to the nearest of the other views."""
    scores = []
    for i in range(len(views)):
        cosines = sorted((float(views[i] @ views[j]) for j in range(len(views)) if j != i), reverse=True)
        nearest = cosines[:neighbours]
        scores.append(sum(nearest) / len(nearest))
    return torch.tensor(scores, dtype=views.dtype)


def adapt_rtpt(
    text: NaiveText,
    token_ids: Tensor,
    context0: Tensor,
    views: Tensor,
    *,
    logit_scale: float,
    steps: int = 1,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
    selection: float = 0.1,
    weight: float = 0.0,
) -> Adapted:
    """Adapt to one sample by R-TPT, which ignores `weight`."""
    views = unit(views)
    context = context0.clone().requires_grad_()
    optimizer = adamw_of(context, lr, weight_decay)

    def logits() -> Tensor:
        return logit_scale * views @ prompt_features(text, token_ids, context).T

    selected = most_confident(logits().detach(), selection)
    losses = []
    for _ in range(steps):
        log_probabilities = torch.log_softmax(logits()[selected], dim=-1)
        loss = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    weights = torch.softmax(rtpt_scores(views) / 0.01, dim=0)
    with torch.no_grad():
        probabilities = torch.softmax(weights @ logits(), dim=0)
    return Adapted(probabilities, context.detach(), losses)
