"""Samples with known means, image noise and seed noise."""

import numpy as np

from fpp_sweep.statistics.bootstrap import N_RESAMPLES, MetricSamples, RecordSamples, SplitSamples


def metric_samples(values_by_seed, image_noise, calibrated_bias=0.0, blocks=200):
    """Samples of one metric: a value for each seed, and resamples around it; `image_noise` is (resamples,)."""
    by_seed = []
    for value in values_by_seed:
        by_seed.append(np.concatenate([[value], value + image_noise]))
    return MetricSamples(np.array(by_seed), blocks=blocks, calibrated_bias=calibrated_bias)


def split_samples(records, *, image_sd=0.5, deterministic=(), images=1000, seed=0):
    """Samples of records: {name: {metric: values by seed}}; images act on each record independently."""
    generator = np.random.default_rng(seed)
    built = {}
    for name, metrics in records.items():
        samples = {}
        for metric, values in metrics.items():
            noise = generator.standard_normal(N_RESAMPLES)
            noise = image_sd / np.sqrt(2) * (noise - noise.mean()) / noise.std()
            samples[metric] = metric_samples(values, noise)
        seeds = tuple(range(len(next(iter(metrics.values())))))
        built[name] = RecordSamples(name, seeds, name in deterministic, samples)
    return SplitSamples("test", {"dtd": images}, built)
