"""Metrics of records on resampled images: the bootstrap that intervals, tests and support are computed from.

A resample draws blocks of a dataset's images with replacement. Its weights follow from dataset, split and the number of
the resample alone, so that every record is measured on the same images in every resample: differences are paired.
Datasets are resampled independently. Seeds are not resampled: their variance is estimated from the seeds' own values
(see `paired.py`), because three seeds are too few for a bootstrap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from fpp_sweep.spec.catalogue import ACCURACY, parts_of
from fpp_sweep.statistics.block_stats import (
    BLOCKWISE_METRICS,
    BlockStats,
    Numbers,
    StatsBySeed,
    calibrated_bias,
    datasets_of,
    resample,
    seeds_of,
)

N_RESAMPLES = 500
NO_MAP = ""  # stands for the method itself among post-hoc maps
StatsByMap = Mapping[str, StatsBySeed]  # statistics of a record after post-hoc maps, and always those of `NO_MAP`


@dataclass(frozen=True, slots=True, eq=False)
class MetricSamples:
    """A metric of one record: for each seed its value on all images and on every resample."""

    by_seed: Numbers  # (seeds, 1 + resamples); column 0 holds all images
    points_per_image: float = 0.0  # one image's share of the accuracy; 0 for other metrics
    blocks: int = 1  # number of blocks of the smallest dataset
    calibrated_bias: float = 0.0  # value of a perfectly calibrated model; 0 for other metrics than calibration errors

    @property
    def mean_over_seeds(self) -> Numbers:
        """(1 + resamples,); of equal seeds exactly their values, which a sum of three would round."""
        first: Numbers = self.by_seed[0]
        if len(self.by_seed) == 1:
            return first
        mean: Numbers = first + (self.by_seed - first).mean(axis=0)
        return mean

    @property
    def value(self) -> float:
        """Mean over seeds, on all images."""
        return float(self.mean_over_seeds[0])

    @property
    def draws(self) -> Numbers:
        """(resamples,) mean over seeds."""
        return self.mean_over_seeds[1:]

    @property
    def bias(self) -> float:
        """The bootstrap's estimate of the bias of the value, which a small number of images causes."""
        return float(self.draws.mean() - self.value)

    @property
    def extra_variance(self) -> float:
        """Variance of two pseudo-images (Agresti): resamples of few images that differ vary too little."""
        return 2 * self.points_per_image**2


@dataclass(frozen=True, slots=True, eq=False)
class RecordSamples:
    """Metrics of one record on one split."""

    name: str
    seeds: tuple[int, ...]
    deterministic: bool  # no seed changes the record: a prompt of words whose views stay as drawn
    metrics: Mapping[str, MetricSamples]  # `ece`: average over datasets; `ece/dtd`: of one dataset

    def is_unvaried(self, metric: str) -> bool:
        """Return True if no seed changes a metric, as is known or as all seeds of the record show."""
        by_seed = self.metrics[metric].by_seed
        return self.deterministic or (len(by_seed) > 1 and bool((by_seed == by_seed[0]).all()))


@dataclass(frozen=True, slots=True, eq=False)
class SplitSamples:
    """Metrics of the records that were measured on the same images of a split."""

    split: str
    images: Mapping[str, int] = field(default_factory=dict)  # by dataset
    records: Mapping[str, RecordSamples] = field(default_factory=dict)
    digests: Mapping[str, bytes] = field(default_factory=dict)  # by dataset; they identify the images
    notes: Sequence[str] = ()  # on records that were left out

    def metric(self, name: str, metric: str) -> MetricSamples | None:
        if name not in self.records:
            return None
        return self.records[name].metrics.get(metric)


@lru_cache(maxsize=32)  # all records ask for the weights of the same few datasets
def block_weights(dataset: str, split: str, blocks: int) -> Numbers:
    """Return (1 + resamples, blocks): every block once, then how often each resample draws a block."""
    digest = hashlib.sha256(f"{dataset}/{split}".encode()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    weights = np.ones((1 + N_RESAMPLES, blocks))
    for row, drawn in enumerate(generator.integers(0, blocks, size=(N_RESAMPLES, blocks)), start=1):
        weights[row] = np.bincount(drawn, minlength=blocks)
    return weights


def sample_record(
    name: str, tables: StatsByMap, split: str, metrics: Sequence[str], *, deterministic: bool = False
) -> RecordSamples:
    """Resample the metrics of one record: on each dataset, and their average over datasets.

    Metrics after a post-hoc map without statistics are left out.
    """
    samples: dict[str, MetricSamples] = {}
    for metric in metrics:
        parts = parts_of(metric)
        if parts.posthoc not in tables:
            continue
        table = tables[parts.posthoc]
        seeds = seeds_of(table)
        by_dataset = {}
        for dataset in datasets_of(table):
            stats = [table[dataset, seed] for seed in seeds]
            by_dataset[dataset] = _sample_dataset(parts.stem, dataset, split, stats)
            samples[f"{metric}/{dataset}"] = by_dataset[dataset]
        samples[metric] = _average(list(by_dataset.values()))
    return RecordSamples(name, tuple(seeds_of(tables[NO_MAP])), deterministic, samples)


def _sample_dataset(metric: str, dataset: str, split: str, stats: Sequence[BlockStats]) -> MetricSamples:
    """Resample a metric of one dataset; `stats` has the statistics of each seed."""
    blocks = len(stats[0])
    weights = block_weights(dataset, split, blocks)
    rows = [resample(metric, seed_stats, weights) for seed_stats in stats]
    points_per_image = 0.0
    if metric == ACCURACY:
        points_per_image = 100 / stats[0].total
    bias = 0.0
    if BLOCKWISE_METRICS[metric].calibration_error:
        bias = float(np.mean([calibrated_bias(metric, seed_stats) for seed_stats in stats]))
    return MetricSamples(np.stack(rows), points_per_image=points_per_image, blocks=blocks, calibrated_bias=bias)


def is_biased(metric: str) -> bool:
    """Return True for a metric that few images bias: its differences leave out the bootstrap's estimate of that."""
    return BLOCKWISE_METRICS[parts_of(metric).stem].biased


def estimated_bias(measured: MetricSamples, metric: str) -> float:
    """Return the bootstrap's estimate of the bias of a metric on few images; 0 for metrics without such a bias."""
    if is_biased(metric):
        return measured.bias
    return 0.0


def _average(datasets: Sequence[MetricSamples]) -> MetricSamples:
    """Return the unweighted mean over datasets."""
    by_seed = []
    calibrated_biases = []
    points_per_image = datasets[0].points_per_image
    blocks = datasets[0].blocks
    for samples in datasets:
        by_seed.append(samples.by_seed)
        calibrated_biases.append(samples.calibrated_bias)
        points_per_image = max(points_per_image, samples.points_per_image)
        blocks = min(blocks, samples.blocks)
    return MetricSamples(
        by_seed=np.mean(by_seed, axis=0),
        points_per_image=points_per_image / len(datasets),
        blocks=blocks,
        calibrated_bias=float(np.mean(calibrated_biases)),
    )


def average_over(samples: SplitSamples, datasets: Collection[str]) -> SplitSamples:
    """Return the samples with averages over some of the datasets only."""
    images = {dataset: count for dataset, count in samples.images.items() if dataset in datasets}
    records = {}
    for name, record in samples.records.items():
        metrics: dict[str, MetricSamples] = {}
        for metric in record.metrics:
            if "/" in metric:
                continue
            by_dataset = {f"{metric}/{dataset}": record.metrics[f"{metric}/{dataset}"] for dataset in images}
            metrics |= by_dataset
            metrics[metric] = _average(list(by_dataset.values()))
        records[name] = replace(record, metrics=metrics)
    digests = {dataset: digest for dataset, digest in samples.digests.items() if dataset in images}
    return SplitSamples(samples.split, images, records, digests)


def image_digests(table: StatsBySeed) -> dict[str, bytes] | None:
    """Return the digests of each dataset's images; None unless every seed has the same images of every dataset."""
    if not table or len(table) != len(datasets_of(table)) * len(seeds_of(table)):
        return None
    digests: dict[str, bytes] = {}
    for (dataset, _), stats in table.items():
        digest_bytes = stats.digests.tobytes()
        if digests.setdefault(dataset, digest_bytes) != digest_bytes:
            return None
    return digests
