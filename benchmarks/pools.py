"""Populations of predictions: the trials of finished sweeps with statistics of each image."""

from __future__ import annotations

import numpy as np

from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.statistics.block_stats import BlockStats, metric_value
from fpp_sweep.trial.artifacts import read_predictions

OBJECTIVES = ("accuracy", "ece")
Pool = dict[str, list[BlockStats]]  # by dataset, the statistics of each trial; a block is one image


def read_pool(folder: SweepFolder) -> Pool:
    """Read the complete trials of a sweep on its search split, in the order in which they finished."""
    split = folder.info().search_split
    complete = [record for record in folder.trials() if record.kind == "trial" and record.state == "complete"]
    complete.sort(key=lambda record: record.finished or 0.0)
    pool: Pool = {}
    for record in complete:
        for file in sorted((folder.artifacts(record.name) / split).glob("*.seed0.predictions.parquet")):
            dataset = file.name.partition(".seed")[0]
            rows = read_predictions(file)
            stats = BlockStats.of(dataset, list(rows["id"]), Confidences.of(rows), rows["nll"], rows["brier"], size=1)
            pool.setdefault(dataset, []).append(stats)
    return pool


def draw_images(pool: Pool, images: int, seed: int) -> Pool:
    """Draw images of each dataset with replacement; all trials get the same images."""
    generator = np.random.default_rng(seed)
    drawn = {}
    for dataset, trials in pool.items():
        chosen = generator.integers(0, len(trials[0]), images)
        drawn[dataset] = [stats.take(chosen) for stats in trials]
    return drawn


def values_of(pool: Pool, metrics: tuple[str, ...] = OBJECTIVES) -> np.ndarray:
    """Return the averages over datasets as an array (trials, metrics)."""
    columns = []
    for metric in metrics:
        by_dataset = [[metric_value(metric, stats) for stats in trials] for trials in pool.values()]
        columns.append(np.mean(by_dataset, axis=0))
    return np.stack(columns, axis=1)


def pretraining_share(folder: SweepFolder) -> float:
    """Return the share of pretraining in a trial's seconds when image features are cached."""
    split = folder.info().search_split
    pretraining = 0.0
    adaptation = 0.0
    for record in folder.trials():
        if split not in record.results:
            continue
        for stages in record.results[split].costs.values():
            pretraining += stages.get("pretrain", 0.0)
            adaptation += stages.get("adapt", 0.0)
    return pretraining / max(pretraining + adaptation, 1e-9)
