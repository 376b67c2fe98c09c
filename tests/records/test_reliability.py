"""Reliability diagrams as numbers: they are computed from predictions, and a file without diagrams is ignored."""

import json

import numpy as np
import pytest

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import RELIABILITY, diagram_of, read_reliability, write_reliability
from tests.kit.measured import block_stats

CORRECT = np.array([True, False, True])
CONFIDENCE = np.array([0.91, 0.93, 0.42], np.float32)


def write_diagrams(tmp_path, content=None):
    """Write a sweep's folder with the diagrams of a trial, or with other content in their file."""
    folder = SweepFolder(tmp_path / "sweep")
    path = folder.artifacts("trial-0000") / "val"
    stats = block_stats(CORRECT, CONFIDENCE, dataset="dtd")
    write_reliability(path, {("dtd", 0): stats, ("dtd", 1): stats, ("pets", 0): stats})
    if content is not None:
        (path / RELIABILITY).write_text(content)
    return folder


def test_a_bin_has_its_number_of_images_its_correct_images_and_its_mean_confidence():
    assert diagram_of([block_stats(CORRECT, CONFIDENCE)]) == "8 1 1 420,18 2 1 920"


def test_the_diagram_of_a_dataset_pools_all_seeds(tmp_path):
    diagrams = read_reliability(write_diagrams(tmp_path), "trial-0000", "val")
    assert diagrams == {"dtd": "8 2 2 420,18 4 2 920", "pets": "8 1 1 420,18 2 1 920"}


@pytest.mark.parametrize(
    "diagrams",
    [
        [],
        {"dtd": 3},
        {"dtd": ["8 1 1 420"]},
        {"dtd": "8 1 1"},
        {"dtd": "8 1 1 <b>"},
        {"dtd": "8 1 1 420,"},
        {"dtd": "8 1 1 -9"},
        {"dtd": "8 1 1 \uff14"},
        {"dtd": "20 1 1 9"},
    ],
    ids=str,
)
def test_a_file_without_diagrams_is_ignored(tmp_path, diagrams):
    assert read_reliability(write_diagrams(tmp_path, json.dumps(diagrams)), "trial-0000", "val") == {}


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000])
def test_a_damaged_file_is_ignored(tmp_path, content):
    assert read_reliability(write_diagrams(tmp_path, content), "trial-0000", "val") == {}
