"""The paper's qualitative claims on a finished run, image by image: `python -m benchmarks.claims RESULTS`.

RESULTS is the folder of a run with zero_shot, tpt, ctpt and otpt from the words and from fpp (docs/claims.md has the
command). Trials saw the same images, so their differences are compared on resamples of the images, the same
for both sides and all seeds; a difference is the mean over datasets and seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet

from fpp_sweep.cli import parser, run
from fpp_sweep.core.metrics import EDGES

DRAWS = 2000
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

Terms = NDArray[np.float64]  # (images, bins + 1): correct minus confidence in the bin's column; then correct
Side = tuple[str, str]


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.claims", __doc__ or "")
    options.add_argument("results", type=Path)
    terms = read(options.parse_args(argv).results)
    print("| claim | accuracy | ECE |\n| --- | --- | --- |")
    for claim, first, second in CLAIMS:
        accuracy, ece = differences(terms[first], terms[second])
        print(f"| {claim} | {shown(accuracy)} | {shown(ece)} |")


def read(folder: Path) -> dict[Side, list[list[Terms]]]:
    """By side: datasets, and for each the seeds' terms, images in one order."""
    sides: dict[Side, dict[str, list[Terms]]] = {}
    document = json.loads((folder / "results.json").read_text())
    for trial in document["trials"]:
        side = sides.setdefault((trial["config"]["method"], trial["config"]["prompt"]), {})
        for dataset in trial["datasets"]:
            name = f"{dataset}.seed{trial['seed']}.predictions.parquet"
            rows = parquet.read_table(folder / trial["files"] / document["split"] / name).sort_by("id")
            correct = rows["label"].to_numpy() == rows["predicted"].to_numpy()
            side.setdefault(dataset, []).append(terms_of(rows["confidence"].to_numpy(), correct))
    return {side: list(datasets.values()) for side, datasets in sides.items()}


def terms_of(confidence: NDArray[np.float32], correct: NDArray[np.bool_]) -> Terms:
    terms = np.zeros((len(correct), len(EDGES)))
    terms[np.arange(len(correct)), np.searchsorted(EDGES, confidence) - 1] = correct - confidence.astype(np.float64)
    terms[:, -1] = correct
    return terms


def differences(first: list[list[Terms]], second: list[list[Terms]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Accuracy and ECE of the first side minus the second's, in percent: of all images, then of each resample."""
    generator = np.random.default_rng(0)
    total = np.zeros((2, 1 + DRAWS))
    for left, right in zip(first, second, strict=True):
        images = len(left[0])
        weights = np.concatenate(
            [np.ones((1, images)), generator.multinomial(images, np.full(images, 1 / images), size=DRAWS)]
        )
        for sign, seeds in ((1, left), (-1, right)):
            for terms in seeds:
                sums = weights @ terms * (100 / images)
                scores = np.stack([sums[:, -1], np.abs(sums[:, :-1]).sum(1)])
                total += sign * scores / (len(seeds) * len(first))
    return total[0], total[1]


def shown(values: NDArray[np.float64]) -> str:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:+.2f} [{low:+.2f}, {high:+.2f}]"


if __name__ == "__main__":
    run(main)
