"""TDA (Karmanov et al., 2024) and BoostAdapter (Zhang et al., 2024): caches of confident features along the stream.

A positive cache keeps the most confident features of each class and raises its logit near them. A negative cache keeps
moderately uncertain features and lowers the logits of the classes that they may belong to. A sample is filed before it
is predicted. BoostAdapter adds the sample's own confident views to a copy of the positive cache.

Shapes: B samples, V views, K classes, D feature dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from fpp_sweep.core.compute import upcast
from fpp_sweep.core.methods.base import Classifier, TextModel
from fpp_sweep.core.methods.penalties import Penalty
from fpp_sweep.core.methods.tpt import confident_indices, view_entropies
from fpp_sweep.spec.config import AdaptConfig

# constants that both released programs fix for all datasets
POSITIVE_CAPACITY, NEGATIVE_CAPACITY = 3, 2  # items of a class
NEGATIVE_ALPHA, NEGATIVE_BETA = 0.117, 1.0
UNCERTAIN_BAND = (0.2, 0.5)  # a sample whose `relative_entropy` lies between enters the negative cache
MASK_BAND = (0.03, 1.0)  # range of stored probabilities in which the negative cache acts on a class


class Query(NamedTuple):
    """The feature and the prediction of a sample, by which it is stored and predicted."""

    feature: Tensor  # (D,)
    logits: Tensor  # (K,)
    probabilities: Tensor  # (K,)
    entropy: Tensor  # () nats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Caches:
    """Items by class and rank; an empty item has infinite entropy and a zero key."""

    classifier: Classifier
    positive_keys: Tensor  # (K, 3, D)
    positive_entropies: Tensor  # (K, 3)
    negative_keys: Tensor  # (K, 2, D)
    negative_entropies: Tensor  # (K, 2)
    negative_masks: Tensor  # (K, 2, K) bool: the classes on which an item acts

    @classmethod
    def empty(cls, classifier: Classifier) -> Caches:
        features = classifier.features
        classes, size = features.shape
        return cls(
            classifier=classifier,
            positive_keys=features.new_zeros(classes, POSITIVE_CAPACITY, size),
            positive_entropies=features.new_full((classes, POSITIVE_CAPACITY), torch.inf),
            negative_keys=features.new_zeros(classes, NEGATIVE_CAPACITY, size),
            negative_entropies=features.new_full((classes, NEGATIVE_CAPACITY), torch.inf),
            negative_masks=torch.zeros(classes, NEGATIVE_CAPACITY, classes, dtype=torch.bool, device=features.device),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what the stream changes, by name."""
        names = [field.name for field in fields(self) if field.name != "classifier"]
        return {name: getattr(self, name) for name in names}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Caches:
        """Return caches with other items."""
        return Caches(classifier=self.classifier, **tensors)

    def copy(self) -> Caches:
        """Return caches that can be changed in place."""
        return self.with_tensors({name: tensor.clone() for name, tensor in self.tensors().items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tda:
    """TDA; the adapt config has the dataset's alpha and beta (`spec.released`)."""

    adapt: AdaptConfig
    penalty: Penalty | None = None
    weight: float = 0.0

    @torch.no_grad()
    def start(self, model: TextModel, context: Tensor, samples: int) -> Caches:
        return Caches.empty(model.classifier(context))

    @torch.no_grad()
    def predict(self, model: TextModel, state: Caches, views: Tensor) -> tuple[Tensor, Caches]:
        caches = state.copy()
        logits = []
        for sample, sample_logits in zip(views, caches.classifier.logits(views), strict=True):
            query = self.query(sample, sample_logits)
            predicted = int(query.logits.argmax())
            self.file_positive(caches, query, predicted)
            low, high = UNCERTAIN_BAND
            if low < relative_entropy(query) < high:
                self.file_negative(caches, query, predicted)
            added = self.positive_logits(caches, query, sample, sample_logits)
            logits.append(query.logits + added - negative_logits(caches, query))
        return torch.stack(logits), caches

    def pack(self, state: Caches) -> Mapping[str, Tensor]:
        return state.tensors()

    def unpack(self, state: Caches, tensors: Mapping[str, Tensor]) -> Caches:
        return state.with_tensors(tensors)

    def query(self, views: Tensor, logits: Tensor) -> Query:
        """Return a sample's query from its views (V, D): the mean over its confident views.

        The mean feature is not normalised again, as released. With one view it is the plain view's.
        """
        chosen = confident_indices(logits[None], self.adapt.view_fraction)[0]
        return query_of(views[chosen], logits[chosen])

    def file_positive(self, caches: Caches, query: Query, predicted: int) -> None:
        """File a query in the positive cache of its class: the least confident item gives way."""
        columns = [(caches.positive_keys[predicted], query.feature)]
        replace_least_confident(caches.positive_entropies[predicted], query.entropy, columns)

    def file_negative(self, caches: Caches, query: Query, predicted: int) -> None:
        """File a query in the negative cache of its class: the least confident item gives way."""
        columns = [
            (caches.negative_keys[predicted], query.feature),
            (caches.negative_masks[predicted], negative_mask(query)),
        ]
        replace_least_confident(caches.negative_entropies[predicted], query.entropy, columns)

    def positive_logits(self, caches: Caches, query: Query, views: Tensor, logits: Tensor) -> Tensor:
        """Return what the positive cache adds to the logits (K,) of a sample with views (V, D) and logits (V, K)."""
        affinities = self.affinities(caches.positive_keys, query)  # (K, 3)
        return self.alpha * (affinities * caches.positive_entropies.isfinite()).sum(-1)

    def affinities(self, keys: Tensor, query: Query) -> Tensor:
        """Return exp(-beta (1 - f . key)) for keys (..., D)."""
        return (-self.beta * (1 - upcast(keys @ query.feature))).exp()

    @property
    def alpha(self) -> float:
        """Weight of the positive cache in the logits."""
        assert self.adapt.cache_alpha is not None, "build_method fills released values in"
        return self.adapt.cache_alpha

    @property
    def beta(self) -> float:
        """Sharpness of the positive cache's affinities."""
        assert self.adapt.cache_beta is not None, "build_method fills released values in"
        return self.adapt.cache_beta


class BoostAdapter(Tda):
    """BoostAdapter: a sample's confident views boost the positive cache; the negative cache is first in, first out."""

    def query(self, views: Tensor, logits: Tensor) -> Query:
        """Return a sample's query: the plain view, or as in TDA the mean over its confident views."""
        if self.adapt.boost_query == "plain":
            return query_of(views[:1], logits[:1])
        return super().query(views, logits)

    def file_negative(self, caches: Caches, query: Query, predicted: int) -> None:
        """File a query in the negative cache of its class: the oldest item gives way."""
        entropies = caches.negative_entropies[predicted]
        slot = int(entropies.isfinite().sum())  # items in order of arrival
        if slot == NEGATIVE_CAPACITY:
            slot -= 1
            for tensor in (caches.negative_keys, caches.negative_entropies, caches.negative_masks):
                tensor[predicted, :slot] = tensor[predicted, 1:].clone()
        caches.negative_keys[predicted, slot] = query.feature
        caches.negative_entropies[predicted, slot] = query.entropy
        caches.negative_masks[predicted, slot] = negative_mask(query)

    def positive_logits(self, caches: Caches, query: Query, views: Tensor, logits: Tensor) -> Tensor:
        """Return what the boosted copy of the positive cache adds to the logits (K,).

        Each confident view is filed under its own class with its own entropy. The copy keeps the 3 + delta most
        confident items of a class; of equal entropies, the older item. One view alone does not boost, as released.
        """
        if len(views) == 1:
            return super().positive_logits(caches, query, views, logits)
        assert self.adapt.boost_delta is not None, "build_method fills released values in"
        chosen = confident_indices(logits[None], self.adapt.view_fraction)[0]
        boosts = boost_entropies(logits[chosen])  # (K, S)
        entropies = torch.cat([caches.positive_entropies, boosts], dim=1)  # (K, 3 + S): items, then confident views
        affinities_of_views = self.affinities(views[chosen], query).expand(len(boosts), -1)
        affinities = torch.cat([self.affinities(caches.positive_keys, query), affinities_of_views], dim=1)
        kept = entropies.argsort(dim=1, stable=True)[:, : POSITIVE_CAPACITY + self.adapt.boost_delta]
        is_item = entropies.gather(1, kept).isfinite()
        return self.alpha * (affinities.gather(1, kept) * is_item).sum(-1)


def replace_least_confident(entropies: Tensor, entropy: Tensor, columns: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Replace the least confident item of a class, which is the last one, by a more confident item; sort all again.

    `entropies` (items,) of the class are changed in place. So are the rows (items, ...) in `columns`, each of which
    stands beside the new item's value.
    """
    if entropy < entropies[-1]:  # an empty item has infinite entropy
        entropies[-1] = entropy
        order = entropies.argsort(stable=True)
        entropies.copy_(entropies[order])
        for rows, value in columns:
            rows[-1] = value
            rows.copy_(rows[order])


def query_of(views: Tensor, logits: Tensor) -> Query:
    """Return the query of views (S, D) with logits (S, K): the means of features, logits and probabilities."""
    probabilities = logits.softmax(-1).mean(0)
    log_probabilities = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
    entropy = -(probabilities * log_probabilities).sum()
    return Query(views.mean(0), logits.mean(0), probabilities, entropy)


def relative_entropy(query: Query) -> float:
    """Return the entropy in nats over log2 K, as released: at most ln 2, because the logarithms do not match."""
    return float(query.entropy) / math.log2(max(2, len(query.logits)))


def negative_mask(query: Query) -> Tensor:
    """Return the classes (K,) on which a negative item acts."""
    low, high = MASK_BAND
    return (query.probabilities > low) & (query.probabilities < high)


def negative_logits(caches: Caches, query: Query) -> Tensor:
    """Return what the negative cache takes from the logits (K,); an empty item acts on no class."""
    cosines = upcast(caches.negative_keys @ query.feature)  # (K, 2)
    affinities = (-NEGATIVE_BETA * (1 - cosines)).exp().flatten()  # (2 K,)
    masks = caches.negative_masks.flatten(0, 1).to(affinities.dtype)  # (2 K, K)
    return NEGATIVE_ALPHA * affinities @ masks


def boost_entropies(logits: Tensor) -> Tensor:
    """Return the entropies (K, S) of views with logits (S, K) in the rows of their classes, infinity elsewhere."""
    classes = logits.argmax(-1)
    boosts = logits.new_full((logits.shape[1], len(logits)), torch.inf)
    boosts[classes, torch.arange(len(logits), device=logits.device)] = view_entropies(logits)
    return boosts
