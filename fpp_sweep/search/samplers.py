"""The samplers of the search, each with a random stream that is named after the sweep's seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from optuna import Study, samplers
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from fpp_sweep.search.gaussian_process import GaussianProcessSampler
from fpp_sweep.space.params import Param
from fpp_sweep.space.work import Search
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import InputError, type_and_message

# finished trials before a sampler has enough to learn from; the published points count, the rest is random
TPE_STARTUP_TRIALS = 8
GP_STARTUP_TRIALS = 4  # better than 2 and 8 (benchmarks/RESULTS.md, Search)
POPULATION_SIZE = 16  # population of NSGA-II: a sweep has tens to hundreds of trials, not thousands


class NSGAIISampler(samplers.NSGAIISampler):
    """NSGA-II with parents always in the order in which the study has them.

    Optuna's own class selects the parents for the first trial of a generation and stores them in the study. It returns
    them as selected to this trial, and in the study's order to later ones.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        super().get_parent_population(study, generation)  # selects and stores them
        return super().get_parent_population(study, generation)


GENERATION_KEY = NSGAIISampler._get_generation_key()  # key in a trial's system attributes


def stream_seed(seed: int, stream: str) -> int:
    """Return the seed of a named random stream."""
    digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def build_sampler(search: Search, stream: str) -> BaseSampler:
    """Return the space's sampler with the random stream of that name."""
    seed = stream_seed(search.seed, stream)
    if search.sampler in catalogue.SAMPLERS:
        return _of_plugin(search.sampler, seed)
    match search.sampler:
        case "tpe":
            return samplers.TPESampler(seed=seed, n_startup_trials=TPE_STARTUP_TRIALS, multivariate=True, group=True)
        case "nsga2":
            return NSGAIISampler(seed=seed, population_size=POPULATION_SIZE)
        case "gp":
            return GaussianProcessSampler(
                seed=seed, n_startup_trials=GP_STARTUP_TRIALS, warn_independent_sampling=False
            )
        case "random" | "grid":
            return samplers.RandomSampler(seed=seed)
    raise AssertionError(search.sampler)


# ------------------------------------------------------------ samplers of plugins


def _of_plugin(name: str, seed: int) -> BaseSampler:
    with naming_plugin(name):
        sampler = catalogue.SAMPLERS[name].build(seed)
        if not isinstance(sampler, BaseSampler):
            kind = type(sampler).__name__
            raise InputError(f"sampler {name}: must build an optuna.samplers.BaseSampler ({kind})")
    return sampler


@contextmanager
def naming_plugin(name: str, key: str = "") -> Iterator[None]:
    """Turn an exception of a plugin's sampler into one line.

    The line names the sampler, the line of its code where that is known, and the `key` of the parameter that it draws.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if name not in catalogue.SAMPLERS or isinstance(error, InputError):
            raise
        where = plugins.at_line(f"sampler {name}", plugins.line_of(error))
        if key:
            where = f"{where}: {key}"
        raise InputError(f"{where}: {type_and_message(error)}") from error


def require_possible(sampler: str, param: Param, value: Any) -> None:
    """Raise InputError if the parameter cannot take a value that a sampler has drawn."""
    problem = param.problem(value)
    if problem is not None:
        raise InputError(f"sampler {sampler}: draws {param.key}: {problem}")
