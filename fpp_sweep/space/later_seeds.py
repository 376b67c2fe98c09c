"""Pretraining seeds of the stages after the search: the final stage and the test split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fpp_sweep.space.space import Space


class LaterSeeds(NamedTuple):
    """The seeds of each stage after the search; none where a stage does not have its own."""

    final: tuple[int, ...] = ()
    test: tuple[int, ...] = ()


def later_seeds(space: Space) -> LaterSeeds:
    """Return seeds that no earlier stage had.

    Finalists are chosen by their luck with the seeds of the search, and finalists for the test split by their luck with
    those of the final stage. Without a final stage (`search.finalists.seeds: 1`, or `search.evaluate_only`) the test
    split has the seeds of the search.
    """
    count = space.search.finalists.seeds
    if count == 1 or space.search.evaluate_only:
        return LaterSeeds()
    searched = space.work.seeds
    final = fresh_seeds(searched, count)
    if space.search.split == "test":
        return LaterSeeds(final)
    return LaterSeeds(final, fresh_seeds([*searched, *final], count))


def fresh_seeds(used: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the first seeds that are not used yet.

    >>> fresh_seeds([0], 3), fresh_seeds([1, 5], 2)
    ((1, 2, 3), (0, 2))
    """
    seeds: list[int] = []
    candidate = 0
    while len(seeds) < count:
        if candidate not in used:
            seeds.append(candidate)
        candidate += 1
    return tuple(seeds)
