"""The paper's qualitative claims on a finished run, image by image: `python -m benchmarks.claims RESULTS`.

RESULTS is the folder of a run with zero_shot, tpt, ctpt and otpt from the words and from fpp (docs/claims.md has the
command). Trials saw the same images, so their differences are compared on resamples of the images, the same
for both sides and all seeds, and seeds are drawn, too; a difference is the mean over datasets and seeds, that of ECE
between debiased values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpp_sweep.cli.command import parser, run
from fpp_sweep.statistics.block_stats import BlockStats
from fpp_sweep.statistics.old_bootstrap import Interval, averaged, difference, drawn, needed
from fpp_sweep.trial.artifacts import read_sums

DRAWS = 2000
METRICS = ("accuracy", "ece")
WORDS = "a photo of a"
# the claim, then (method, prompt) of the two sides: the first minus the second
CLAIMS = (
    ("TPT against zero-shot", ("tpt", WORDS), ("zero_shot", WORDS)),
    ("C-TPT against TPT", ("ctpt", WORDS), ("tpt", WORDS)),
    ("O-TPT against TPT", ("otpt", WORDS), ("tpt", WORDS)),
    ("FPP + TPT against TPT", ("tpt", "fpp"), ("tpt", WORDS)),
    ("FPP + TPT against C-TPT", ("tpt", "fpp"), ("ctpt", WORDS)),
    ("FPP + TPT against zero-shot", ("tpt", "fpp"), ("zero_shot", WORDS)),
    ("FPP prompt against words, no tuning", ("zero_shot", "fpp"), ("zero_shot", WORDS)),
)

Side = tuple[str, str]


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.claims", __doc__ or "")
    options.add_argument("results", type=Path)
    sides, split = read(options.parse_args(argv).results)
    print("| claim | accuracy | ECE |\n| --- | --- | --- |")
    for claim, first, second in CLAIMS:
        gaps = differences(sides[first], sides[second], split)
        print(f"| {claim} | {' | '.join(shown(gaps[metric]) for metric in METRICS)} |")


def read(folder: Path) -> tuple[dict[Side, dict[str, list[BlockStats]]], str]:
    """By side and dataset the sums of each seed; and the split."""
    sides: dict[Side, dict[str, list[BlockStats]]] = {}
    document = json.loads((folder / "results.json").read_text())
    for trial in document["trials"]:
        side = sides.setdefault((trial["config"]["method"], trial["config"]["prompt"]), {})
        for (dataset, _), one in read_sums(folder / trial["files"], document["split"]).items():
            side.setdefault(dataset, []).append(one)
    return sides, document["split"]


def differences(
    first: Mapping[str, list[BlockStats]], second: Mapping[str, list[BlockStats]], split: str = "test"
) -> dict[str, Interval]:
    """The first side minus the second in accuracy and ECE, the mean over datasets and seeds."""
    found = averaged([drawn(name, split, [first[name], second[name]], needed(METRICS), DRAWS) for name in first])
    return {metric: gap for metric in METRICS if (gap := difference(found, metric, 0, 1))}


def shown(gap: Interval) -> str:
    return f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"


if __name__ == "__main__":
    run(main)
