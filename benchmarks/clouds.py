"""Clouds of real trials of the embedded model, from `clouds.csv`: random trials of search_spaces/perturb.yaml.

The same points ran on each embedded dataset with each of three seeds, on 200 validation images with 16 views
(2026-11-23 and 24). The mean over seeds is the surface, the differences between seeds are the noise.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "clouds.csv"
METRICS = ("accuracy", "smooth_ece")


@dataclass(frozen=True, slots=True, eq=False)
class Cloud:
    """The trials of one dataset."""

    dataset: str
    keys: tuple[str, ...]  # names of the settings
    points: np.ndarray  # (trials, settings), as a trial takes them
    values: np.ndarray  # (trials, seeds, metrics): accuracy and smooth ECE, percent


def read_clouds(file: Path = FILE) -> dict[str, Cloud]:
    """Return the clouds by dataset."""
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    keys = tuple(key for key in rows[0] if key not in ("trial", "seed", "dataset", *METRICS))
    clouds = {}
    for name in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == name]
        own.sort(key=lambda row: (int(row["trial"]), int(row["seed"])))
        seeds = len({row["seed"] for row in own})
        points = [[float(row[key]) for key in keys] for row in own[::seeds]]
        values = np.array([[float(row[metric]) for metric in METRICS] for row in own])
        clouds[name] = Cloud(name, keys, np.array(points), values.reshape(-1, seeds, len(METRICS)))
    return clouds
