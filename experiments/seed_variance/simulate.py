"""Simulate rules for the variance of seeds in paired differences: `python -m experiments.seed_variance.simulate`.

Three finalists are compared with six baselines in two objectives. The finalists and two baselines draw a pretraining
with each of three seeds. `spread` is the standard deviation over seeds in percentage points. Each record's spread is
multiplied by a lognormal factor with the standard deviation `unevenness`. Images contribute a standard error of 0.4
points to each difference.

For each rule the command prints the share of simulations with a false difference (Holm, 5 %) if nothing differs, the
share in which a true gain of 2 points is found, and the coverage of 95 % intervals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Numbers = NDArray[np.float64]

SIMULATIONS = 4000
FINALISTS, BASELINES, PRETRAINED_BASELINES, OBJECTIVES, SEEDS = 3, 6, 2, 2, 3
IMAGE_ERROR = 0.4  # standard error of a difference, in percentage points
IMAGE_DEGREES = 150.0
GAIN = 2.0  # true gain of the first finalist in the first objective, in percentage points
SPREADS = (0.2, 0.5, 1.0)
UNEVENNESS = (0.0, 0.6, 1.2)


def rules(variances: Numbers) -> dict[str, tuple[Numbers, float]]:
    """Return the variance of each record by each rule, together with the rule's degrees of freedom."""
    own_degrees = SEEDS - 1
    pooled = np.broadcast_to(variances.mean(axis=1, keepdims=True), variances.shape)
    bias = special.digamma(own_degrees / 2) - np.log(own_degrees / 2)  # bias of the mean logarithm of a variance
    logarithms = np.log(np.maximum(variances, 1e-6)).mean(axis=1, keepdims=True)
    typical = np.broadcast_to(np.exp(logarithms - bias), variances.shape)
    return {
        "own": (variances, float(own_degrees)),
        "pooled": (pooled, float(own_degrees * variances.shape[1])),
        "moderated by the mean": ((pooled + own_degrees * variances) / SEEDS, float(SEEDS)),
        "moderated by the typical": ((typical + own_degrees * variances) / SEEDS, float(SEEDS)),
        "larger of own and typical": (np.maximum(variances, typical), float(SEEDS)),
        "own and half of the typical": (variances + typical / 2, float(SEEDS)),
    }


def holm(p_values: Numbers) -> NDArray[np.bool_]:
    """Return which comparisons of each row are significant at 5 % after Holm's correction."""
    order = np.argsort(p_values, axis=1)
    ranked = np.take_along_axis(p_values, order, axis=1)
    levels = 0.05 / (p_values.shape[1] - np.arange(p_values.shape[1]))
    rejected = np.cumprod(ranked <= levels, axis=1).astype(bool)
    result = np.zeros_like(rejected)
    np.put_along_axis(result, order, rejected, axis=1)
    return result


def simulate(spread: float, unevenness: float, gain: float, generator: np.random.Generator) -> dict[str, list[float]]:
    """Return for each rule the % with any difference found, the % with the true one found, and coverage in %."""
    records = FINALISTS + BASELINES
    pretrained = np.arange(records) < FINALISTS + PRETRAINED_BASELINES
    truth = np.zeros((SIMULATIONS, records, OBJECTIVES))
    truth[:, 0, 0] = gain
    factors = np.exp(unevenness * generator.normal(size=(SIMULATIONS, records, 1)))
    spreads = spread * factors * pretrained[None, :, None] * np.ones((1, 1, OBJECTIVES))
    images = IMAGE_ERROR / np.sqrt(2) * generator.normal(size=truth.shape)
    shape = (SIMULATIONS, records, SEEDS, OBJECTIVES)
    seeds = spreads[:, :, None, :] * generator.normal(size=shape)
    estimates = truth + images + seeds.mean(axis=2)
    variances = seeds.var(axis=2, ddof=1)[:, pretrained]
    results = {}
    for name, (variance, degrees) in rules(variances).items():
        full = np.zeros_like(truth)
        full[:, pretrained] = variance
        results[name] = judge(truth, estimates, full / SEEDS, degrees)
    return results


def judge(truth: Numbers, estimates: Numbers, errors: Numbers, degrees: float) -> list[float]:
    """Return the % with any difference found, the % with the true difference found, and coverage in %."""
    first, second = errors[:, :FINALISTS, None], errors[:, None, FINALISTS:]
    total = IMAGE_ERROR**2 + first + second
    effective = total**2 / (first**2 / degrees + second**2 / degrees + IMAGE_ERROR**4 / IMAGE_DEGREES)
    difference = estimates[:, :FINALISTS, None] - estimates[:, None, FINALISTS:]
    p_values = 2 * stats.t.sf(np.abs(difference) / np.sqrt(total), effective)
    found = holm(p_values.reshape(SIMULATIONS, -1)).reshape(p_values.shape)
    true_difference = truth[:, :FINALISTS, None] - truth[:, None, FINALISTS:]
    covered = np.abs(difference - true_difference) <= stats.t.ppf(0.975, effective) * np.sqrt(total)
    return [100 * found.any(axis=(1, 2, 3)).mean(), 100 * found[:, 0, 0, 0].mean(), 100 * covered.mean()]


def main() -> None:
    generator = np.random.default_rng(0)
    print("| spread | unevenness | rule | false difference | gain found | coverage |\n|---|---|---|---|---|---|")
    for unevenness in UNEVENNESS:
        for spread in SPREADS:
            null = simulate(spread, unevenness, 0.0, generator)
            planted = simulate(spread, unevenness, GAIN, generator)
            for name in null:
                false, _, coverage = null[name]
                print(f"| {spread} | {unevenness} | {name} | {false:.1f} | {planted[name][1]:.0f} | {coverage:.1f} |")


if __name__ == "__main__":
    main()
