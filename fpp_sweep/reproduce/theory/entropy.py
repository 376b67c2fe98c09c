"""Theorem 1: the mean entropy of a classifier's answers to random unit vectors, from the spread of its rows.

The rows T (K, D) have unit length, v is uniform on the sphere and s = T v. The theorem says that

    H = E[entropy of softmax(s)] = log K - S / (2 K D) + O(D^-3/2),

with S the sum of squared distances of the rows from their mean. H depends on the inner products of the rows only. So T
is kept as its coordinates (K, K) within the space that it spans, the same for every D, and only the K coordinates of v
in that space are drawn. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fpp_sweep.core.methods.penalties import dispersion, orthogonality
from fpp_sweep.reproduce.theory.finding import Finding, Verdict, judge
from fpp_sweep.reproduce.theory.setting import Setting

THROUGH_S = "C-TPT and O-TPT lower or raise the mean entropy through S alone"
MIN_R_SQUARED = 0.95  # share of variance at which a measure explains the entropy
MADE_UP_DIMENSION = 512  # D for the penalties on made-up T, as in ViT-B/16


def spread(rows: Tensor) -> Tensor:
    """Return S, the sum of squared distances from the mean row: (*B, K, D) -> (*B,)."""
    return (rows - rows.mean(-2, keepdim=True)).square().sum((-2, -1))


def signed_overlap(rows: Tensor) -> Tensor:
    """Return L_orth, the sum of the inner products of all pairs of rows: (*B, K, D) -> (*B,)."""
    gram = rows @ rows.transpose(-1, -2)
    return gram.triu(diagonal=1).sum((-2, -1))


def negative_spread(rows: Tensor) -> Tensor:
    """Return L_disp = -S: (*B, K, D) -> (*B,)."""
    return -spread(rows)


# text features -> a number that falls as the features spread: the paper's two stand-ins, then the penalties that run
MEASURES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "L_disp": negative_spread,
    "L_orth": signed_overlap,
    "C-TPT as run": dispersion,
    "O-TPT as run": orthogonality,
}


def made_up_classifiers(classes: int, generator: torch.Generator) -> Tensor:
    """Return 16 classifiers T (16, K, K) with unit rows.

    They are random (4), drawn towards a common centre (7), near orthogonal (3), a simplex, and mirrored pairs.
    """
    noise = torch.randn(14, classes, classes, generator=generator, dtype=torch.float64)
    centre = torch.randn(classes, generator=generator, dtype=torch.float64)
    identity = torch.eye(classes, dtype=torch.float64)
    pull = torch.tensor([4.0, 2.0, 1.5, 1.0, 0.7, 0.4, 0.2], dtype=torch.float64)[:, None, None]
    half = classes // 2
    shapes = [
        *noise[:4],
        *(pull * centre + noise[4:11]),
        *(identity + 0.05 * noise[11:]),
        identity - 1 / classes,
        torch.cat([noise[0, :half], -noise[0, : classes - half]]),
    ]
    return F.normalize(torch.stack(shapes), dim=-1)


def entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def draw_coordinates(classes: int, size: int, draws: int, generator: torch.Generator) -> Tensor:
    """Return K coordinates (draws, K) of vectors that are uniform on the unit sphere of R^size."""
    inside = torch.randn(draws, classes, generator=generator, dtype=torch.float64)
    if size == classes:
        return F.normalize(inside, dim=-1)
    # The squared length of the other coordinates is chi squared with size - classes degrees of freedom.
    half = torch.full((draws,), (size - classes) / 2, dtype=torch.float64)
    outside = 2 * torch._standard_gamma(half, generator=generator)
    return inside / (inside.square().sum(-1) + outside).sqrt()[:, None]


def remainders(rows: Tensor, size: int, draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return H - (log K - S / (2 K D)) of each T (*, K, K), and its standard error.

    Half the variance of a draw's logits has mean S / (2 K D) exactly. Adding it to each draw's entropy removes that
    part of the noise, whether the theorem is right or not. Odd terms vanish because v and -v are drawn in pairs.
    """
    classes = rows.shape[-1]
    coordinates = draw_coordinates(classes, size, draws, generator)
    means, errors = [], []
    for shape in rows:
        logits = coordinates @ shape.T
        pairs = (entropy(logits) + entropy(-logits)) / 2
        remainder = pairs - math.log(classes) + logits.var(-1, unbiased=False) / 2
        means.append(remainder.mean())
        errors.append(remainder.std() / math.sqrt(draws))
    return torch.stack(means), torch.stack(errors)


def next_term(rows: Tensor, size: int) -> Tensor:
    """Return the term after S / (2 K D): odd powers of v vanish, so it is the fourth cumulant's, of order D^-2."""
    classes = rows.shape[-2]
    centred = rows - rows.mean(-2, keepdim=True)
    gram = centred @ centred.transpose(-1, -2)
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    squares = (lengths.sum(-1).square() + 2 * gram.square().sum((-2, -1))) / classes**2
    return -3 / 8 * (lengths.square().mean(-1) - squares) / (size * (size + 2))


def sphere_entropy(rows: Tensor, size: int, draws: int, generator: torch.Generator, scale: float) -> Tensor:
    """Return H of each T (*, K, K) for logits times `scale`: the plain mean over the same draws for all."""
    coordinates = draw_coordinates(rows.shape[-1], size, draws, generator)
    return torch.stack([entropy(scale * coordinates @ shape.T).mean() for shape in rows])


def in_own_space(features: Tensor) -> Tensor:
    """Return the coordinates (B, K, K) of rows (B, K, D) within the space that they span."""
    rows: Tensor = torch.linalg.qr(features.double().transpose(-1, -2)).R.transpose(-1, -2)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The agreement of the theorem's two terms with H."""

    slope_ratio: Mapping[int, float]  # by D: slope of H against S, over -1 / (2 K D)
    r_squared: Mapping[int, float]  # by D
    largest_remainder: Mapping[int, float]  # by D, over all T
    exponent: float  # exponent of the largest remainder as a power of D
    exponent_error: float
    coefficient_ratio: float  # remainder at the largest D over the fourth cumulant's term, fitted over all T
    coefficient_error: float


def expand(rows: Tensor, sizes: Sequence[int], draws: int, generator: torch.Generator) -> Expansion:
    """Measure H of all T (*, K, K) at every D and compare it with the theorem's terms."""
    classes, spreads = rows.shape[-1], spread(rows)
    slopes, shares, largest = {}, {}, {}
    for size in sizes:
        remainder, error = remainders(rows, size, draws, generator)
        values = math.log(classes) - spreads / (2 * classes * size) + remainder
        slope, shares[size] = fit_line(spreads, values)
        slopes[size] = slope * -2 * classes * size
        largest[size] = float(remainder.abs().max())
    term = next_term(rows, sizes[-1])
    weight = term / error.square()  # inverse-variance weights at the last, largest D
    exponent, exponent_error = fit_power(largest)
    return Expansion(
        slope_ratio=slopes,
        r_squared=shares,
        largest_remainder=largest,
        exponent=exponent,
        exponent_error=exponent_error,
        coefficient_ratio=float((weight * remainder).sum() / (weight * term).sum()),
        coefficient_error=float((weight * term).sum() ** -0.5),
    )


def fit_line(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the slope of the least-squares line, and R^2, the share of y's variance that it explains."""
    x, y = x - x.mean(), y - y.mean()
    slope = (x @ y) / (x @ x)
    return float(slope), float((x @ y).square() / ((x @ x) * (y @ y)))


def fit_power(values: Mapping[int, float]) -> tuple[float, float]:
    """Return the exponent of a power law, fitted to logarithms, and its standard error."""
    x = torch.tensor(list(values), dtype=torch.float64).log()
    y = torch.tensor(list(values.values()), dtype=torch.float64).log()
    slope, share = fit_line(x, y)
    residual = (y - y.mean()).square().sum() * (1 - share)
    return slope, float((residual / (len(values) - 2) / (x - x.mean()).square().sum()).sqrt())


def share_of_equal_order(x: Tensor, y: Tensor) -> float:
    """Return the share of pairs that two measures put in the same order; 1/2 is chance.

    >>> share_of_equal_order(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))
    0.6666666865348816
    """
    upper = torch.ones(len(x), len(x)).triu(diagonal=1).bool()
    agree = (x[:, None] - x).sign() == (y[:, None] - y).sign()
    return float(agree[upper].float().mean())


def explained(entropies: Tensor, features: Tensor) -> dict[str, float]:
    """Return for each of `MEASURES` its R^2 with the entropies (B,), and how often both order two T equally."""
    values: dict[str, float] = {}
    for name, measure in MEASURES.items():
        measured = measure(features)
        values[f"{name}: R2"] = fit_line(measured, entropies)[1]
        values[f"{name}: same order"] = share_of_equal_order(measured, entropies)
    return values


# findings


def theorem_findings(setting: Setting) -> list[Finding]:
    """Return the findings on Theorem 1 and on the relation of S to L_orth."""
    sizes, shapes = setting.sizes, _made_up(setting)
    expansion = expand(shapes, sizes.dimensions, sizes.draws, setting.generator("sphere"))
    low, high = sizes.dimensions[0], sizes.dimensions[-1]
    right_slope = all([abs(ratio - 1) < 2 / size for size, ratio in expansion.slope_ratio.items()])
    fast = expansion.exponent - 2 * expansion.exponent_error <= -1.5
    theorem = Finding(
        name="Theorem 1",
        says="at temperature 1 and for uniform views the mean entropy is log K - S/(2KD) + O(D^-3/2)",
        measured={
            f"slope over -1/(2KD), D {low}": expansion.slope_ratio[low],
            f"slope over -1/(2KD), D {high}": expansion.slope_ratio[high],
            f"R2, D {low}": expansion.r_squared[low],
            "exponent of the remainder": expansion.exponent,
            "its standard error": expansion.exponent_error,
            "remainder over the fourth cumulant's term": expansion.coefficient_ratio,
            "standard error of that ratio": expansion.coefficient_error,
        },
        verdict=judge(whole=right_slope and fast, part=right_slope or fast),
    )
    classes = shapes.shape[-2]
    by_overlap = classes - 1 - 2 / classes * signed_overlap(shapes)
    gap = float((spread(shapes) - by_overlap).abs().max())
    relation = Finding(
        name="S from L_orth",
        says="S = K - 1 - (2/K) L_orth",
        measured={"largest difference": gap},
        verdict=judge(whole=gap < 1e-10, part=False),
    )
    return [theorem, relation]


def _made_up(setting: Setting) -> Tensor:
    return made_up_classifiers(setting.sizes.classes, setting.generator("shapes"))


def made_up_penalty_findings(setting: Setting) -> list[Finding]:
    """Return how well the penalties explain the entropy of made-up T for uniform views, at temperatures 1 and 1/100."""
    shapes, draws = _made_up(setting), setting.sizes.draws
    classes, size = shapes.shape[-1], MADE_UP_DIMENSION
    theorem_term = spread(shapes) / (2 * classes * size)
    findings = []
    for scale in (1.0, 100.0):
        generator = setting.generator("sphere", "penalties")
        if scale == 1:  # differences between the T are of order 1/D, so that noise must be removed
            remainder, _ = remainders(shapes, size, draws, generator)
            entropies = -theorem_term + remainder + math.log(classes)
        else:
            entropies = sphere_entropy(shapes, size, draws, generator, scale)
        predicted = math.log(classes) - scale**2 * spread(shapes) / (2 * classes * size)
        values = explained(entropies, shapes)
        means = {"mean entropy": float(entropies.mean()), "the theorem's": float(predicted.mean())}
        findings.append(
            Finding(
                name=f"penalties on made-up T, uniform views, logits x {scale:g}",
                says=THROUGH_S,
                measured={**means, **values},
                verdict=_penalty_verdict(values),
            )
        )
    return findings


def _penalty_verdict(values: Mapping[str, float]) -> Verdict:
    whole = all([values[f"{name}: R2"] > MIN_R_SQUARED for name in MEASURES])
    part = values["L_disp: R2"] > MIN_R_SQUARED or values["C-TPT as run: R2"] > MIN_R_SQUARED
    return judge(whole=whole, part=part)


def nearby_features(setting: Setting) -> Tensor:
    """Return the text features (B, K, D) of contexts around the anchor prompt."""
    with torch.no_grad():
        return setting.model.features(setting.nearby_contexts()).double()


def uniform_entropy(setting: Setting, features: Tensor, scale: float) -> Tensor:
    """Return the mean entropy (B,) for uniform views; at temperature 1 the theorem's terms plus the remainder."""
    classes, size = features.shape[-2:]
    rows, generator = in_own_space(features), setting.generator("sphere", "real")
    if scale != 1:
        return sphere_entropy(rows, size, setting.sizes.draws, generator, scale)
    remainder, _ = remainders(rows, size, setting.sizes.draws, generator)
    return math.log(classes) - spread(features) / (2 * classes * size) + remainder


def image_entropy(setting: Setting, features: Tensor, scale: float) -> Tensor:
    """Return the mean entropy (B,) for the views of images."""
    views = setting.views.flatten(0, 1).double()
    return torch.stack([entropy(scale * views @ text.T).mean() for text in features])


def model_penalty_findings(setting: Setting) -> list[Finding]:
    """Return how well the penalties explain the entropy of the model's own text features."""
    features = nearby_features(setting)
    findings = []
    for scale in (1.0, setting.model.logit_scale):
        findings.append(_model_penalty(features, "uniform", scale, uniform_entropy(setting, features, scale)))
        findings.append(_model_penalty(features, "real", scale, image_entropy(setting, features, scale)))
    return findings


def _model_penalty(features: Tensor, views: str, scale: float, entropies: Tensor) -> Finding:
    classes, size = features.shape[-2:]
    slope, _ = fit_line(spread(features), entropies)
    values = explained(entropies, features)
    return Finding(
        name=f"penalties on the model's T, {views} views, logits x {scale:.4g}",
        says=THROUGH_S,
        measured={"slope over the theorem's": slope * -2 * classes * size / scale**2, **values},
        verdict=_penalty_verdict(values),
    )
