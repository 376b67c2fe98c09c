"""Theorem 1: the mean entropy of a classifier's answers to random unit vectors, from the spread of its rows.

Rows T (K, D) of unit length, v uniform on the sphere, s = T v: H = E[entropy of softmax(s)] should be
log K - S / (2 K D) + O(D^-3/2), with S the sum of squared distances of the rows from their mean. H depends on the
inner products of the rows only, so that T is kept as its coordinates (K, K) within the space that it spans, the same
for every D, and of v only the K coordinates in that space are drawn. All in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.methods.penalties import dispersion, orthogonality


def spread(rows: Tensor) -> Tensor:
    """S: the sum of squared distances from the mean; (*B, K, D) -> (*B,)."""
    return (rows - rows.mean(-2, keepdim=True)).square().sum((-2, -1))


def signed_overlap(rows: Tensor) -> Tensor:
    """L_orth: the sum of the inner products of all pairs of rows."""
    gram = rows @ rows.transpose(-1, -2)
    return gram.triu(diagonal=1).sum((-2, -1))


# of text features to a number that falls as the features spread: the paper's two stand-ins, then what runs
MEASURES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "L_disp": lambda rows: -spread(rows),
    "L_orth": signed_overlap,
    "C-TPT as run": dispersion,
    "O-TPT as run": orthogonality,
}


def families(classes: int, generator: torch.Generator) -> Tensor:
    """(T, K, K) unit rows: random, from one cluster to none, near orthogonal, a simplex, mirrored pairs."""
    noise = torch.randn(14, classes, classes, generator=generator, dtype=torch.float64)
    centre = torch.randn(classes, generator=generator, dtype=torch.float64)
    identity = torch.eye(classes, dtype=torch.float64)
    pull = torch.tensor([4.0, 2.0, 1.5, 1.0, 0.7, 0.4, 0.2], dtype=torch.float64)[:, None, None]
    shapes = [
        *noise[:4],
        *(pull * centre + noise[4:11]),
        *(identity + 0.05 * noise[11:]),
        identity - 1 / classes,
        torch.cat([noise[0, : classes // 2], -noise[0, : classes - classes // 2]]),
    ]
    return F.normalize(torch.stack(shapes), dim=-1)


def entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def within(classes: int, size: int, draws: int, generator: torch.Generator) -> Tensor:
    """(draws, K): K coordinates of vectors that are uniform on the unit sphere of R^size."""
    inside = torch.randn(draws, classes, generator=generator, dtype=torch.float64)
    if size == classes:
        return F.normalize(inside, dim=-1)
    half = torch.full((draws,), (size - classes) / 2, dtype=torch.float64)
    outside = 2 * torch._standard_gamma(half, generator=generator)  # chi squared: all other coordinates, squared
    return inside / (inside.square().sum(-1) + outside).sqrt()[:, None]


def rests(rows: Tensor, size: int, draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """H - (log K - S / (2 K D)) of each T, and its standard error.

    Half the variance of the logits, whose mean is S / (2 K D) exactly, is added to each draw's entropy and so taken out
    of the noise, whether the theorem is right or not; odd terms leave with pairs v, -v.
    """
    classes = rows.shape[-1]
    sampled = within(classes, size, draws, generator)
    found = []
    for shape in rows:
        logits = sampled @ shape.T
        pairs = (entropy(logits) + entropy(-logits)) / 2
        rest = pairs - math.log(classes) + logits.var(-1, unbiased=False) / 2
        found.append((rest.mean(), rest.std() / math.sqrt(draws)))
    mean, error = zip(*found, strict=True)
    return torch.stack(mean), torch.stack(error)


def next_term(rows: Tensor, size: int) -> Tensor:
    """The term after S / (2 K D): odd powers of v vanish, so it is the fourth cumulant's, and of order D^-2."""
    classes = rows.shape[-2]
    centred = rows - rows.mean(-2, keepdim=True)
    gram = centred @ centred.transpose(-1, -2)
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    squares = (lengths.sum(-1).square() + 2 * gram.square().sum((-2, -1))) / classes**2
    return -3 / 8 * (lengths.square().mean(-1) - squares) / (size * (size + 2))


def sphere_entropy(rows: Tensor, size: int, draws: int, generator: torch.Generator, scale: float) -> Tensor:
    """H of each T (*, K, K) at a temperature: the plain mean over the same draws for all."""
    sampled = within(rows.shape[-1], size, draws, generator)
    return torch.stack([entropy(scale * sampled @ shape.T).mean() for shape in rows])


def in_own_space(features: Tensor) -> Tensor:
    """Coordinates (B, K, K) of rows (B, K, D) within the space that they span."""
    rows: Tensor = torch.linalg.qr(features.double().transpose(-1, -2)).R.transpose(-1, -2)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """How well the theorem's two terms describe H."""

    slope_ratio: Mapping[int, float]  # by D: slope of H against S, over -1 / (2 K D)
    r_squared: Mapping[int, float]
    largest_rest: Mapping[int, float]  # over all T
    exponent: float  # of the largest rest in D
    exponent_error: float
    coefficient_ratio: float  # rest at the largest D over that of the fourth cumulant, fitted over all T
    coefficient_error: float


def expand(rows: Tensor, sizes: Sequence[int], draws: int, generator: torch.Generator) -> Expansion:
    """Measure H of all T at every D."""
    classes, spreads = rows.shape[-1], spread(rows)
    slopes, shares, largest = {}, {}, {}
    for size in sizes:
        rest, error = rests(rows, size, draws, generator)
        values = math.log(classes) - spreads / (2 * classes * size) + rest
        slope, shares[size] = line(spreads, values)
        slopes[size] = slope * -2 * classes * size
        largest[size] = float(rest.abs().max())
    term = next_term(rows, sizes[-1])
    weight = term / error.square()  # of the last, largest D
    exponent, exponent_error = power(largest)
    return Expansion(
        slope_ratio=slopes,
        r_squared=shares,
        largest_rest=largest,
        exponent=exponent,
        exponent_error=exponent_error,
        coefficient_ratio=float((weight * rest).sum() / (weight * term).sum()),
        coefficient_error=float((weight * term).sum() ** -0.5),
    )


def line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Slope of the least-squares line, and the share of y's variance that it explains."""
    x, y = x - x.mean(), y - y.mean()
    slope = (x @ y) / (x @ x)
    return float(slope), float((x @ y).square() / ((x @ x) * (y @ y)))


def power(values: Mapping[int, float]) -> tuple[float, float]:
    """The exponent of a power law, fitted to logarithms, and its standard error."""
    x = torch.tensor(list(values), dtype=torch.float64).log()
    y = torch.tensor(list(values.values()), dtype=torch.float64).log()
    slope, share = line(x, y)
    residual = (y - y.mean()).square().sum() * (1 - share)
    return slope, float((residual / (len(values) - 2) / (x - x.mean()).square().sum()).sqrt())


def same_order(x: Tensor, y: Tensor) -> float:
    """The share of pairs that two measures order alike: 1/2 is chance.

    >>> same_order(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
    0.6666666865348816
    """
    upper = torch.ones(len(x), len(x)).triu(diagonal=1).bool()
    agree = (x[:, None] - x).sign() == (y[:, None] - y).sign()
    return float(agree[upper].float().mean())


def explained(entropies: Tensor, features: Tensor) -> dict[str, float]:
    """How much of the differences in H each of `MEASURES` explains, and how often it orders two T's alike."""
    found = {}
    for name, measure in MEASURES.items():
        values = measure(features)
        found[f"{name}: R2"] = line(values, entropies)[1]
        found[f"{name}: same order"] = same_order(values, entropies)
    return found
