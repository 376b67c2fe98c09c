"""Trials whose true metrics the test chooses, with simulated block statistics; resamples with noise of chosen size."""

from dataclasses import replace

import numpy as np

from fpp_sweep.core.datasets import fair_order
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.answer import SweepStatistics
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.records.recommendation import answer_of
from fpp_sweep.space.work import DEFAULT_FLOOR
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, BlockStats, metric_value, to_bytes
from fpp_sweep.statistics.bootstrap import (
    N_RESAMPLES,
    NO_MAP,
    MetricSamples,
    RecordSamples,
    SplitSamples,
    sample_record,
)
from fpp_sweep.statistics.paired import SplitStatistics, adjust_p_values
from tests.kit.names import TPT, ZERO_SHOT
from tests.kit.records import baseline, sweep_info, trial

DATASETS = ("digits", "scenes")
SEARCH_SEED = 100  # the seeds of the search are those of later stages plus this number
# trials of a world by name: (accuracy, over-confidence), where over-confidence is confidence minus accuracy
FAR_APART = {ZERO_SHOT: (0.6, 0.2), TPT: (0.62, 0.3), "trial-0002": (0.7, 0.1), "trial-0003": (0.56, 0.3)}
CLOSE_TOGETHER = {
    ZERO_SHOT: (0.6, 0.1), "trial-0001": (0.602, 0.098), "trial-0002": (0.601, 0.097), "trial-0003": (0.599, 0.096)
}  # fmt: skip


def block_stats(correct, confidence=0.9, *, dataset="dtd", ids=None, nll=1.0, brier=1.0):
    """Return block statistics of images; `confidence` and the losses may be one number for all images."""
    correct = np.asarray(correct, bool)
    count = len(correct)
    confidences = Confidences(np.broadcast_to(np.float32(confidence), count).astype(np.float32), correct)
    if ids is None:
        ids = [f"image {index}" for index in range(count)]
    return BlockStats.of(dataset, ids, confidences, np.broadcast_to(nll, count), np.broadcast_to(brier, count))


def write_block_stats(folder, name, split, table):
    """Write a trial's block statistics by dataset and seed."""
    path = folder.artifacts(name) / split / BLOCK_STATS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_bytes(table))


class World:
    """Images that are easier or harder for every model; trials differ in accuracy and over-confidence.

    The names of the images begin with `prefix`.
    """

    def __init__(self, images, seed=0, datasets=DATASETS, prefix="image"):
        self.prefix = prefix
        self.generator = np.random.default_rng(seed)
        self.images, self.datasets = images, datasets
        self.difficulty = self.generator.random((len(datasets), images))

    def block_stats(self, accuracy, overconfidence, limit=None, seeds=(0,), shifts=()):
        """Return a trial's block statistics by dataset and seed; `shifts` are added to the accuracy of each seed."""
        table = {}
        for position, seed in enumerate(seeds):
            shifted = accuracy + (shifts[position] if shifts else 0.0)
            for dataset, difficulty in zip(self.datasets, self.difficulty, strict=True):
                table[dataset, seed] = self._of_dataset(dataset, difficulty, shifted, overconfidence, limit)
        return table

    def _of_dataset(self, dataset, difficulty, accuracy, overconfidence, limit):
        correct = difficulty + 0.005 * self.generator.standard_normal(self.images) < accuracy
        confidence = accuracy + overconfidence + 0.05 * self.generator.standard_normal(self.images)
        confidence = np.clip(confidence, 0.05, 1)
        ids = [f"{self.prefix} {index}" for index in range(self.images)]
        first = fair_order(dataset, ids)[0][:limit]
        return block_stats(correct[first], confidence[first], dataset=dataset, ids=[ids[index] for index in first])


def write_measured_sweep(
    path, world, sides, splits=("val",), *, limit=None, seeds=(0,), shifts=None, is_search_apart=False, **changes
):
    """Write a sweep of trials and baselines; `sides` has each one's (accuracy, over-confidence) by name.

    `shifts` has each trial's shifts of accuracy by seed, for trials whose seeds differ; `changes` replace fields of
    the sweep's record. The search split has other images and seeds than later stages, if `is_search_apart`.
    """
    folder = SweepFolder(path)
    if "objectives" in changes:
        changes.setdefault("reference", None)  # the default corner belongs to the default objectives
    info = replace(sweep_info(), name=path.name, **changes)
    folder.write_info(info)
    for number, (name, side) in enumerate(sides.items()):
        table = world.block_stats(*side, limit, seeds, (shifts or {}).get(name, ()))
        tables = dict.fromkeys(splits, table)
        if is_search_apart and len(splits) > 1 and info.search_split in splits:
            tables[info.search_split] = of_search(table)
        results = {}
        for split, table_of_split in tables.items():
            record = _measured_record(number, name, table_of_split)
            results[split] = record.results["val"]
            write_block_stats(folder, record.name, split, table_of_split)
        constraints = {}
        if record.kind == "trial" and ZERO_SHOT in sides:
            constraints = {"floor": 100 * (sides[ZERO_SHOT][0] - side[0]) - DEFAULT_FLOOR}
        folder.write_trial(replace(record, key=name, results=results, constraints=constraints))
    return folder


def of_search(table):
    """Return block statistics with the same numbers, of other images and seeds."""
    searched = {}
    for (dataset, seed), stats in table.items():
        searched[dataset, SEARCH_SEED + seed] = replace(stats, digests=stats.digests ^ 1)
    return searched


def _measured_record(number, name, table):
    """Return the record of a trial or baseline with the metrics of its block statistics."""
    by_seed = {}
    for (dataset, seed), stats in table.items():
        metrics = {metric: metric_value(metric, stats) for metric in BLOCKWISE_METRICS}
        by_seed.setdefault(str(seed), {})[dataset] = metrics
    datasets = list(next(iter(by_seed.values())))
    by_dataset = {dataset: _mean([metrics[dataset] for metrics in by_seed.values()]) for dataset in datasets}
    average = _mean(list(by_dataset.values()))
    if not name.startswith("trial"):
        record = baseline(name, average["accuracy"], average["ece"])
    else:
        record = replace(trial(number, average["accuracy"], average["ece"]), name=name)
    if len(by_seed) == 1:
        by_seed = {}
    result = replace(record.results["val"], datasets=by_dataset, average=average, deviation={}, by_seed=by_seed)
    return replace(record, results={"val": result})


def _mean(rows):
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


# ------------------------------------------------------------ resamples


def metric_samples(values_by_seed, image_noise, calibrated_bias=0.0, blocks=200):
    """Return samples of one metric: a value for each seed, and resamples around it; `image_noise` is (resamples,)."""
    by_seed = []
    for value in values_by_seed:
        by_seed.append(np.concatenate([[value], value + image_noise]))
    return MetricSamples(np.array(by_seed), blocks=blocks, calibrated_bias=calibrated_bias)


def sampled(tables, metrics, deterministic=(), split="test"):
    """Resample records with block statistics of the same images, by name."""
    records = {}
    for name, table in tables.items():
        records[name] = sample_record(name, {NO_MAP: table}, split, metrics, deterministic=name in deterministic)
    return SplitSamples(split, {dataset: stats.total for (dataset, _), stats in sorted(table.items())}, records)


def split_samples(records, *, image_sd=0.5, deterministic=(), images=1000, seed=0):
    """Return samples of records {name: {metric: values by seed}}; the image noise of the records is independent."""
    generator = np.random.default_rng(seed)
    records_samples = {}
    for name, metrics in records.items():
        samples = {}
        for metric, values in metrics.items():
            noise = generator.standard_normal(N_RESAMPLES)
            noise = image_sd / np.sqrt(2) * (noise - noise.mean()) / noise.std()
            samples[metric] = metric_samples(values, noise)
        seeds = tuple(range(len(next(iter(metrics.values())))))
        records_samples[name] = RecordSamples(name, seeds, name in deterministic, samples)
    return SplitSamples("test", {"dtd": images}, records_samples)


def corrected_differences(samples, pairs, metrics):
    """Return the differences of all pairs in all metrics, corrected as one family."""
    return adjust_p_values(SplitStatistics(samples).differences(pairs, metrics))


def statistics_without_files(info, records):
    """Return the statistics of records that have no block statistics."""
    front = front_of(info, records)
    return SweepStatistics(front=front, splits={}, support={}, answer=answer_of(front, {}))
