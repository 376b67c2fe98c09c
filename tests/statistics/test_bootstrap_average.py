"""Averages over datasets of unequal sizes."""

import numpy as np
import pytest

from fpp_sweep.statistics.bootstrap import NO_MAP, sample_record
from tests.kit.measured import block_stats

SIZES = {"large": 1600, "small": 800}


@pytest.fixture(scope="module")
def record():
    generator = np.random.default_rng(0)
    table = {}
    for dataset, size in SIZES.items():
        confidence, correct = generator.random(size), generator.random(size) < 0.7
        table[dataset, 0] = block_stats(correct, confidence, dataset=dataset)
    return sample_record("a", {NO_MAP: table}, "val", ["accuracy", "ece"])


def test_an_average_is_the_unweighted_mean_of_its_datasets(record):
    for metric in ("accuracy", "ece"):
        rows = [record.metrics[f"{metric}/{dataset}"].by_seed for dataset in SIZES]
        np.testing.assert_allclose(record.metrics[metric].by_seed, np.mean(rows, axis=0), rtol=1e-12)


def test_one_image_is_worth_its_share_of_the_smallest_dataset(record):
    assert record.metrics["accuracy/large"].points_per_image == 100 / 1600
    assert record.metrics["accuracy/small"].points_per_image == 100 / 800
    assert record.metrics["accuracy"].points_per_image == 100 / 800 / 2
    assert record.metrics["accuracy"].extra_variance == pytest.approx(2 * (100 / 800 / 2) ** 2)
    assert record.metrics["ece"].points_per_image == 0.0
