"""Sweeps of trials that never ran, with sums of predictions whose truth is known."""

from dataclasses import replace

import numpy as np

from fpp_sweep.core.datasets import fair_order
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, BlockStats, metric_value, to_bytes
from tests.names import PLAIN, TPT
from tests.report.made import baseline, info, trial

SETS = ("digits", "scenes")


class World:
    """Images that are easier or harder for every model; a trial is right more often, or over-confident by more."""

    def __init__(self, images, seed=0, sets=SETS):
        generator = np.random.default_rng(seed)
        self.images, self.sets, self.hard = images, sets, generator.random((len(sets), images))
        self.own = generator

    def sums(self, right, shift, limit=None, seeds=(0,)):
        """Of a trial: it is right where the image is easy enough, and says `shift` more than is true."""
        return {key: one for seed in seeds for key, one in self._of_seed(right, shift, limit, seed)}

    def _of_seed(self, right, shift, limit, seed):
        for dataset, hard in zip(self.sets, self.hard, strict=True):
            easy = hard + 0.005 * self.own.standard_normal(self.images) < right
            confidence = np.clip(right + shift + 0.05 * self.own.standard_normal(self.images), 0.05, 1)
            ids = [f"image {index}" for index in range(self.images)]
            first = fair_order(dataset, ids)[0][:limit]
            given = Confidences(confidence.astype(np.float32)[first], easy[first])
            ones = np.ones(len(first))
            yield (dataset, seed), BlockStats.of(dataset, [ids[index] for index in first], given, ones, ones)


def write(folder, world, sides, splits=("val",), *, limit=None, seeds=(0,), **changes):
    """A sweep of these trials and baselines: (right, shift) by name."""
    folder.write_info(replace(info(), name=folder.path.name, **changes))
    for number, (name, (right, shift)) in enumerate(sides.items()):
        table = world.sums(right, shift, limit, seeds)
        datasets = {dataset: {} for dataset, _ in table}
        for (dataset, seed), one in table.items():
            datasets[dataset][seed] = {metric: metric_value(metric, one) for metric in BLOCKWISE_METRICS}
        by_dataset = {dataset: mean(list(numbers.values())) for dataset, numbers in datasets.items()}
        average = mean(list(by_dataset.values()))
        accuracy, ece = average["accuracy"], average["ece"]
        made = baseline(name, accuracy, ece) if name in (PLAIN, TPT) else trial(number, accuracy, ece)
        by_seed = {str(seed): {name: numbers[seed] for name, numbers in datasets.items()} for seed in seeds}
        result = replace(made.results["val"], datasets=by_dataset, average=average, deviation={},
                         by_seed=by_seed if len(seeds) > 1 else {})  # fmt: skip
        made = replace(made, name=made.name if made.kind == "baseline" else name)
        folder.write_trial(replace(made, key=name, results=dict.fromkeys(splits, result)))
        for split in splits:
            path = folder.artifacts(made.name) / split / BLOCK_STATS_FILE
            path.parent.mkdir(parents=True)
            path.write_bytes(to_bytes(table))
    return folder


def mean(rows):
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


FAR = {PLAIN: (0.6, 0.2), TPT: (0.62, 0.3), "trial-0002": (0.7, 0.1), "trial-0003": (0.5, 0.3)}
NEAR = {PLAIN: (0.6, 0.1), "trial-0001": (0.602, 0.098), "trial-0002": (0.601, 0.097), "trial-0003": (0.599, 0.096)}
