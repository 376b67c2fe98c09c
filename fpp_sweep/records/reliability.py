"""Reliability diagrams of a trial as numbers, in a file among its artifacts.

The trial writes the numbers once: a page shows the diagrams of all trials, and the block statistics that they follow
from are a hundred times as large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fpp_sweep.core.metrics import BINS
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import write_json
from fpp_sweep.statistics.block_stats import BlockStats, StatsBySeed, bin_sums, datasets_of

FILE = "reliability.json"  # beside the picture
MAX_BYTES = 2**22
PERMILLE = 1000
_BIN = r"1?\d \d+ \d+ \d+"
_DIAGRAM = re.compile(f"({_BIN}(,{_BIN})*)?", re.ASCII)
assert BINS == 20  # as in the pattern


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


def diagram_of(stats_of_seeds: Sequence[BlockStats]) -> str:
    """Return the diagram of one dataset, as text that report/trial_sections.py reads.

    It has four numbers for each bin that has images: the bin's index, its images, the correct ones, and their mean
    confidence in permille. One text takes a fifth of the time of a list of numbers to read, to check and to write.
    """
    bins = []
    counts, hits, confidence_sums = np.sum([bin_sums(stats) for stats in stats_of_seeds], axis=0)
    for index, count in enumerate(counts):
        if count:
            mean_permille = round(PERMILLE * confidence_sums[index] / count)
            bins.append(f"{index} {count:.0f} {hits[index]:.0f} {mean_permille}")
    return ",".join(bins)


def read_reliability(folder: SweepFolder, trial: str, split: str) -> dict[str, str]:
    """Return a trial's diagrams by dataset; none if the file is absent, damaged or outside the folder."""
    try:
        document = json.loads(folder.read_artifact(trial, f"{split}/{FILE}", MAX_BYTES))
    except (InputError, OSError, ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or not all(_is_diagram(text) for text in document.values()):
        return {}
    return document


def _is_diagram(text: object) -> bool:
    return isinstance(text, str) and _DIAGRAM.fullmatch(text) is not None
