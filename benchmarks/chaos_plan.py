"""The faults of a chaos run, which depend on the seed only; moments are numbers of events, so runs can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

EVENTS = ("records", "tasks", "requests")  # ended trials, tasks that workers started, requests to MLflow
EVENTS_OF_A_TRIAL = {"records": 1.0, "tasks": 3.0, "requests": 4.0}  # approximate numbers
AT_ONCE = (1, 1, 1, 2, 2, 3)  # number of faults of one moment, drawn uniformly from this list


@dataclass(frozen=True, slots=True)
class Moment:
    """Faults that occur together once `count` events of a kind have happened since the start of the sweep."""

    event: str
    count: int
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' and '.join(self.kinds)}, after {self.count} {self.event}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The faults of one sweep: while drivers run, and after each driver that has ended early."""

    number: int
    moments: tuple[Moment, ...]
    at_rest: tuple[str, ...]  # by driver; an empty text means no fault

    def stream(self, seed: int, *names: object) -> random.Random:
        """Return the random stream of one fault, which does not depend on earlier faults."""
        return random.Random("/".join([f"{part}" for part in (seed, self.number, *names)]))


def plan_of(
    seed: int, number: int, *, trials: int, most: int, running: Sequence[str], rest: Sequence[str]
) -> SweepPlan:
    """Return the faults of a sweep by its number: `most` faults, with all kinds equally frequent over many sweeps."""
    draw = random.Random(f"{seed}/{number}")
    kinds = deck(seed, running, number * most, most)
    moments = []
    while kinds:
        together = tuple(dict.fromkeys(kinds[: draw.choice(AT_ONCE)]))
        kinds = kinds[len(together) :]
        event = draw.choice(EVENTS)
        moments.append((draw.random(), event, together))
    ordered = []
    for share, event, together in sorted(moments):
        ordered.append(Moment(event, int(share * trials * EVENTS_OF_A_TRIAL[event]), together))
    at_rest = [kind if draw.random() < 0.5 else "" for kind in deck(seed, rest, number * most, most)]
    return SweepPlan(number=number, moments=tuple(ordered), at_rest=tuple(at_rest))


def deck(seed: int, kinds: Sequence[str], start: int, count: int) -> list[str]:
    """Return `count` cards, from `start` on, of an endless sequence of shuffled decks of all kinds."""
    if not kinds:
        return []
    draw = random.Random(f"{seed}/deck/{'/'.join(kinds)}")

    def cards():
        while True:
            yield from draw.sample(list(kinds), len(kinds))

    return list(islice(cards(), start, start + count))
