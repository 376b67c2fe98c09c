"""Intervals of the settings' effects on planted worlds: `python -m benchmarks.effects`.

A world is a known function of four settings; trials are random points with noise. The benchmark counts how often the
95 % interval of an effect (the mean over the other settings, at nine values of each setting) contains the true effect,
and how often the interval of a setting's share of the variance contains the true share.

`--falls N` instead uses N worlds in which one setting decides the values of most trials and another setting makes the
values of the rest fall. It counts how often both have larger shares than the two settings without an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

from benchmarks.harness import table
from fpp_sweep.cli.command import parser, run
from fpp_sweep.report.effects import SPREAD, Z, moved_into_range
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.surface import Dimension, Surface

Function = Callable[[Numbers], Numbers]
SETTINGS = 4
WAVES = 200
VALUES = np.linspace(0.05, 0.95, 9)
GRID = (np.arange(24) + 0.5) / 24  # values of a setting that a true mean is taken over
N_TRUTH = 1500  # number of random points over which true effects are averaged
FALLEN = (0.12, 0.4)  # share of trials with fallen values
N_SOBOL = 1024  # points that true shares are computed at
TOLERANCE = 0.01  # error of a true share


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the intervals of one world that contain the truth, and their mean half-width."""

    effects: float
    shares: float
    half_width: float  # of effects, in standard deviations of the function


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.effects", __doc__ or "")
    options.add_argument("--worlds", type=int, default=20, metavar="N", help="worlds of each kind")
    options.add_argument("--trials", type=int, nargs="+", default=[30, 60], metavar="N")
    options.add_argument(
        "--noise", type=float, nargs="+", default=[0.3, 1.0], help="noise in standard deviations of the function"
    )
    options.add_argument("--falls", type=int, metavar="N", help="instead: worlds with fallen values, N of each kind")
    args = options.parse_args(argv)
    rows = []
    if args.falls:
        for trials in args.trials:
            for fallen in FALLEN:
                rows.append(measure_falls(args.falls, trials, fallen))
                print(rows[-1], flush=True)
        print(table(rows))
        return
    for kind in WORLDS:
        for trials in args.trials:
            for noise in args.noise:
                coverages = [measure(kind, trials, noise, seed) for seed in range(args.worlds)]
                rows.append(summary(kind, trials, noise, coverages))
                print(rows[-1], flush=True)
    print(table(rows))


def summary(kind: str, trials: int, noise: float, coverages: Sequence[Coverage]) -> dict[str, object]:
    effects = np.array([coverage.effects for coverage in coverages])
    error = effects.std(ddof=1) / np.sqrt(len(effects)) if len(effects) > 1 else 0.0
    return {
        "world": kind,
        "trials": trials,
        "noise": noise,
        "effects inside, %": f"{100 * effects.mean():.1f} ± {100 * error:.1f}",
        "shares inside, %": f"{100 * np.mean([coverage.shares for coverage in coverages]):.1f}",
        "half-width": f"{np.mean([coverage.half_width for coverage in coverages]):.2f}",
    }


def measure(kind: str, trials: int, noise: float, seed: int) -> Coverage:
    """Return how often the intervals on one world contain the truth."""
    rng = np.random.default_rng([seed, trials])
    function = WORLDS[kind](rng)
    everywhere = rng.random((N_TRUTH, SETTINGS))
    deviation = float(function(everywhere).std())
    points = rng.random((trials, SETTINGS))
    values = function(points) + noise * (deviation or 1.0) * rng.standard_normal(trials)
    surface = Surface([Dimension()] * SETTINGS, points, values, seed)
    inside, widths = [], []
    for index in range(SETTINGS):
        estimate = surface.at(surface.locations_of({index: VALUES}))
        truth = np.array([function(with_value(everywhere, index, value)).mean() for value in VALUES])
        inside.append(np.abs(estimate.mean - truth) <= Z * estimate.deviation)
        widths.append(Z * estimate.deviation / (deviation or 1.0))
    lows, highs = np.quantile(surface.variance_shares(), SPREAD, axis=0)
    truth = true_shares(function)
    shares_inside = (truth >= lows - TOLERANCE) & (truth <= highs + TOLERANCE)
    return Coverage(float(np.mean(inside)), float(shares_inside.mean()), float(np.mean(widths)))


def measure_falls(worlds: int, trials: int, fallen: float) -> dict[str, object]:
    """Return how often the two deciding settings come first, with raw values and with fallen values moved up."""
    n_first = {"as they are": 0, "moved": 0}
    half_widths: dict[str, list[float]] = {"as they are": [], "moved": []}
    for seed in range(worlds):
        rng = np.random.default_rng([seed, trials])
        points = rng.random((trials, SETTINGS))
        are_fallen = points[:, 1] > 1 - fallen
        values = 70 - 12 * (points[:, 0] - 0.4) ** 2 + 0.6 * rng.standard_normal(trials)
        values -= are_fallen * rng.uniform(25, 33, trials)
        for name, modelled in (("as they are", values), ("moved", moved_into_range(values, are_fallen))):
            surface = Surface([Dimension()] * SETTINGS, points, modelled, seed)
            shares = np.median(surface.variance_shares(), axis=0)
            n_first[name] += int(shares[:2].min() > shares[2:].max())
            deciding = surface.at(surface.locations_of({0: VALUES}))
            half_widths[name].append(float(Z * deciding.deviation.mean()))
    row: dict[str, object] = {"fallen, %": round(100 * fallen), "trials": trials}
    for name in n_first:
        row[f"both first, {name}, %"] = round(100 * n_first[name] / worlds)
        row[f"half-width, {name}"] = f"{np.mean(half_widths[name]):.2f}"
    return row


def true_shares(function: Function) -> Numbers:
    """Return the share of the variance that a mean over each setting removes."""
    points = qmc.Sobol(SETTINGS, seed=0).random(N_SOBOL)
    values = function(points)
    shares = []
    for index in range(SETTINGS):
        averaged = np.mean([function(with_value(points, index, value)) for value in GRID], axis=0)
        shares.append(np.square(values - averaged).mean() / values.var() if values.var() else 0.0)
    return np.array(shares)


def with_value(points: Numbers, index: int, value: float) -> Numbers:
    changed = points.copy()
    changed[:, index] = value
    return changed


# ------------------------------------------------------------ worlds


def smooth(rng: np.random.Generator) -> Function:
    """Return waves with the spectrum of a Matern 3/2 kernel with a different length scale for each setting."""
    lengths = rng.uniform(0.3, 1.5, SETTINGS)
    # the same chi-square for all settings of a wave makes the kernel isotropic
    waves = rng.standard_normal((WAVES, SETTINGS)) / np.sqrt(rng.chisquare(3, (WAVES, 1)) / 3) / lengths
    phases, heights = rng.uniform(0, 2 * np.pi, WAVES), rng.standard_normal(WAVES)
    return lambda points: np.cos(points @ waves.T + phases) @ heights * np.sqrt(2 / WAVES)


def additive(rng: np.random.Generator) -> Function:
    """Return a sum of parabolas whose last one is flat."""
    weights, tops = 3 * rng.standard_normal(SETTINGS) * np.array([1, 0.5, 0.2, 0]), rng.random(SETTINGS)
    return lambda points: (points - tops) ** 2 @ weights


def cliff(rng: np.random.Generator) -> Function:
    """Return a plateau with a slope, and a cliff where two settings are large."""
    edges = rng.uniform(0.5, 0.8, 2)
    return lambda points: 0.3 * points[:, 0] - 3.0 * (points[:, 1] > edges[0]) * (points[:, 2] > edges[1])


def flat(rng: np.random.Generator) -> Function:
    """Return a constant function: noise alone must not look like an effect."""
    return lambda points: np.zeros(len(points))


WORLDS: dict[str, Callable[[np.random.Generator], Function]] = {
    "smooth": smooth,
    "additive": additive,
    "cliff": cliff,
    "flat": flat,
}


if __name__ == "__main__":
    run(main)
