"""The samplers of the search, each with a random stream that is named after the sweep's seed."""

from __future__ import annotations

import hashlib

from optuna import Study, samplers
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from fpp_sweep.search.gaussian_process import GaussianProcessSampler
from fpp_sweep.space.work import Search

# finished trials before a sampler has enough to learn from; the published points count, the rest is random
TPE_STARTUP_TRIALS = 8
GP_STARTUP_TRIALS = 4  # better than 2 and 8 (benchmarks/RESULTS.md, Search)
POPULATION_SIZE = 16  # of NSGA-II: a sweep has tens to hundreds of trials, not thousands


class NSGAIISampler(samplers.NSGAIISampler):
    """NSGA-II with parents always in the order in which the study has them.

    Optuna's own class returns them in another order to the trial that is the first of its generation.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        super().get_parent_population(study, generation)
        return super().get_parent_population(study, generation)


GENERATION_KEY = NSGAIISampler._get_generation_key()  # of a trial's system attributes


def stream_seed(seed: int, stream: str) -> int:
    """Return the seed of a named random stream."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def build_sampler(search: Search, stream: str) -> BaseSampler:
    """Return the space's sampler with the random stream of that name."""
    seed = stream_seed(search.seed, stream)
    match search.sampler:
        case "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=TPE_STARTUP_TRIALS, multivariate=True, group=True)
        case "nsga2":
            return NSGAIISampler(seed=seed, population_size=POPULATION_SIZE)
        case "gp":
            return GaussianProcessSampler(seed=seed, n_startup_trials=GP_STARTUP_TRIALS)
        case "random" | "grid":
            return samplers.RandomSampler(seed=seed)
        case "auto":
            raise AssertionError("a space has no sampler auto: it takes the one that auto stands for")
