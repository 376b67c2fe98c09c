"""Simulate sweeps once and judge them by several rules: `python -m experiments.recommendation.simulate --out FILE`.

The sweeps are those of `benchmarks.answer`, parts `search` and `gain`. `--out` keeps a line for each sweep: the
differences of its tested finalists to the baselines, and the true values. A second run adds the sweeps that are
missing. The tables follow from the lines, so that a further rule costs no simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.answer import (
    BASE_GAP,
    GAINS,
    LEAST_GAIN,
    METRICS,
    TRUE,
    Count,
    Simulation,
    Truth,
    baselines_truth,
    measured_trial,
)
from benchmarks.answer import simulated_answer as simulate
from benchmarks.harness import append_line, read_lines
from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.datasets import fair_order
from fpp_sweep.statistics import block_stats
from fpp_sweep.statistics.paired import Difference, adjust_p_values, t_quantile
from fpp_sweep.statistics.verdicts import Answer

TRIALS = 24
PLANTED = "trial-0007"
REFERENCES = ("baseline-zero_shot", "baseline-tpt")
SPREADS = (0.002, 0.005)  # of the planted trial and of the baselines, over seeds
MARGINS = (0.5, 0.75, 1.0)  # points of ECE; that of accuracy is 1
LEVELS = {"two-sided 5 %": 0.025, "one-sided 5 %": 0.05}


def faster() -> None:
    """Hash the names of images once, which changes no number."""
    orders: dict[tuple[str, str], Any] = {}

    def cached(dataset: str, ids: Sequence[str]) -> Any:
        key = dataset, ids[0]
        if key not in orders:
            orders[key] = fair_order(dataset, ids)
        return orders[key]

    mock.patch.object(block_stats, "fair_order", cached).start()


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("experiments.recommendation.simulate", __doc__ or "")
    options.add_argument("--sweeps", type=int, default=200, help="simulated sweeps of each kind")
    options.add_argument("--kinds", nargs="+", default=kinds(), choices=kinds(), metavar="KIND", help="default: all")
    options.add_argument("--images", type=int, default=1000, help="of each of five datasets, in a split")
    options.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    args = options.parse_args(argv)
    wanted = {f"{args.images}/{kind}/{seed}": (kind, seed) for seed in range(args.sweeps) for kind in args.kinds}
    faster()
    known = {row["id"] for row in read_lines(args.out)}
    for name, (kind, seed) in wanted.items():
        if name not in known:
            append_line(args.out, {"id": name, "kind": kind, **simulated(kind, seed, args.images)})
    print_tables([row for row in read_lines(args.out) if row["id"] in wanted], args.kinds)


def kinds() -> list[str]:
    """Return the kinds of sweeps: `search`, and the planted gains at each spread."""
    names = ["search"]
    for gain in GAINS:
        names.extend(f"{gain} {100 * spread:g}" for spread in SPREADS)
    return names


def simulated(kind: str, seed: int, images: int) -> dict[str, Any]:
    """Simulate a sweep and return what rules need."""
    if kind == "search":
        truths = measured_truths(baselines_truth(0.005), [seed, 5])
    else:
        gain, _, points = kind.partition(" ")
        spread = float(points) / 100
        accuracy, calibration = GAINS[gain]
        truths = measured_truths(baselines_truth(spread), [seed, 6])
        truths[PLANTED] = Truth(accuracy, BASE_GAP - calibration, spread, spread)
    simulation, answer = simulate(truths, images, seed)
    return row_of(simulation, answer)


def measured_truths(truths: dict[str, Truth], seed: Sequence[int]) -> dict[str, Truth]:
    generator = np.random.default_rng(seed)
    for number in range(TRIALS):
        truths[f"trial-{number:04d}"] = measured_trial(generator)
    return truths


def row_of(simulation: Simulation, answer: Answer) -> dict[str, Any]:
    zero_shot = TRUE.of(Truth())
    gains = {}
    for name in answer.finalists:
        own = TRUE.of(simulation.truths[name])
        gains[name] = [own["accuracy"] - zero_shot["accuracy"], zero_shot["ece"] - own["ece"]]
    return {
        "finalists": list(answer.finalists),
        "true_gains": gains,
        "differences": [asdict(difference) for difference in answer.differences.values()],
        "recommended": answer.recommended,
    }


def family_of(row: Mapping[str, Any]) -> dict[tuple[str, str, str], Difference]:
    members = [Difference(**fields) for fields in row["differences"]]
    return {(member.first, member.second, member.metric): member for member in adjust_p_values(members)}


def recommended(row: Mapping[str, Any], margins: Mapping[str, float], level: float) -> str | None:
    """Return the first finalist that is safe at a level, beats a reference, and is beaten by no baseline."""
    family = family_of(row)
    for name in row["finalists"]:
        own = [member for member in family.values() if member.first == name]
        if any(member.mark == "-" for member in own):
            continue
        gains = [member for member in own if member.second in REFERENCES and member.mark == "+"]
        losses = []
        for metric in METRICS:
            paired = family[name, REFERENCES[0], metric]
            uncertainty = t_quantile(1 - level, paired.degrees_of_freedom) * paired.standard_error
            bound = paired.gain - uncertainty - paired.hidden_loss
            losses.append(bound <= -margins[metric])
        if gains and not any(losses):
            return str(name)
    return None


def print_tables(rows: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> None:
    print("| sweeps | margin of ECE | bound | recommend a trial | worse by more than the margin | the better trial |")
    print("|---|---|---|---|---|---|")
    for kind in shown:
        of_kind = [row for row in rows if row["kind"] == kind]
        for margin in MARGINS:
            for name, level in LEVELS.items():
                counts = judged(of_kind, {"accuracy": 1.0, "ece": margin}, level)
                print(f"| {kind} | {margin:g} | {name} | {' | '.join(str(count) for count in counts)} |")


def judged(rows: Sequence[Mapping[str, Any]], margins: Mapping[str, float], level: float) -> tuple[Count, Count, Count]:
    """Return how many sweeps recommend a trial, how many of these are truly worse, and how many sweeps find a gain."""
    any_trial, worse, better = Count(), Count(), Count()
    for row in rows:
        name = recommended(row, margins, level)
        any_trial.add(name is not None)
        is_worse = False
        is_better = False
        if name is not None:
            accuracy, calibration = row["true_gains"][name]
            is_worse = accuracy < -margins["accuracy"] or calibration < -margins["ece"]
            is_better = max(accuracy, calibration) > LEAST_GAIN and not is_worse
            worse.add(is_worse)
        better.add(is_better)
    return any_trial, worse, better


if __name__ == "__main__":
    run(main)
