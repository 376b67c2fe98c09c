"""Reliability diagrams of a trial as numbers, in a file among its artifacts.

The trial writes the numbers once: a page shows the diagrams of all trials, and the block statistics that they follow
from are a hundred times as large.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fpp_sweep.core.metrics import BINS
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import write_json
from fpp_sweep.statistics.block_stats import BlockStats, StatsBySeed, bin_sums, datasets_of

FILE = "reliability.json"  # beside the picture
MAX_BYTES = 2**22
PERMILLE = 1000
NUMBERS_OF_A_BIN = 4

Diagram = list[int]  # for each bin that has images: its index, images, correct ones, mean confidence in permille


def write_reliability(folder: Path, table: StatsBySeed) -> None:
    """Write the diagram of each dataset, over all seeds."""
    diagrams = {}
    for dataset in datasets_of(table):
        stats_of_seeds = []
        for (name, _), stats in table.items():
            if name == dataset:
                stats_of_seeds.append(stats)
        diagrams[dataset] = diagram_of(stats_of_seeds)
    write_json(folder / FILE, diagrams)


def diagram_of(stats_of_seeds: Sequence[BlockStats]) -> Diagram:
    """Return the diagram of one dataset."""
    numbers: Diagram = []
    counts, hits, confidence_sums = np.sum([bin_sums(stats) for stats in stats_of_seeds], axis=0)
    for index, count in enumerate(counts):
        if count:
            mean_permille = round(PERMILLE * confidence_sums[index] / count)
            numbers += [index, int(count), int(hits[index]), mean_permille]
    return numbers


def read_reliability(folder: SweepFolder, trial: str, split: str) -> dict[str, Diagram]:
    """Return a trial's diagrams by dataset; none if the file is absent, damaged or outside the folder."""
    try:
        document = json.loads(folder.read_artifact(trial, f"{split}/{FILE}", MAX_BYTES))
    except (InputError, OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or not all(_is_diagram(numbers) for numbers in document.values()):
        return {}
    return document


def _is_diagram(numbers: Any) -> bool:
    if not isinstance(numbers, list) or len(numbers) % NUMBERS_OF_A_BIN != 0:
        return False
    types = set(map(type, numbers))
    if not types <= {int}:
        return False
    bins = numbers[::NUMBERS_OF_A_BIN]
    return not bins or (min(bins) >= 0 and max(bins) < BINS)
