"""The contract of samplers, checked on made-up trials before the first trial of a sweep with a plugin's sampler.

A sampler draws values that the space holds. It takes trials that failed, broke a constraint or still run. In a study
that was built anew from the same trials it draws the same point, so that a killed sweep goes on as an undisturbed one.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpp_sweep.records.records import TrialRecord, trial_name
from fpp_sweep.search.study import Suggestion, SweepStudy
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError

NUMBERS_OF_TRIALS = (0, 12)  # before the point that is asked for
STATES = {3: "failed", 4: "stopped", 5: "running"}  # states of made-up trials by number; the others are complete
BROKEN = (1, 2)  # trials that break a constraint


def bits_of_sampler(space: Space, after_others: bool) -> str:
    """Return the points that a sampler draws in made-up studies, as text.

    With `after_others` the sampler first draws points with another seed. A sampler that keeps a state between studies
    then returns other points.
    """
    if after_others:
        other = replace(space, search=replace(space.search, seed=space.search.seed + 1))
        with contextlib.suppress(InputError):
            _drawn_points(other)
    return repr(_drawn_points(space))


def _drawn_points(space: Space) -> list[dict[str, Any]]:
    searched = _searched_only(space)
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for count in NUMBERS_OF_TRIALS:
            records = made_up_trials(Path(folder) / f"{count}-points.db", searched, count)
            study = SweepStudy(Path(folder) / f"{count}.db", "contract", searched, records=records)
            points.append(study.ask().settings)
    return points


def _searched_only(space: Space) -> Space:
    """Return the space without points that are tried first."""
    return replace(space, points=(), search=replace(space.search, include_published=False))


def check_sampler(space: Space) -> None:
    """Raise InputError if the plugin's sampler of a space breaks the contract there."""
    name = space.search.sampler
    searched = _searched_only(space)
    with tempfile.TemporaryDirectory() as folder, _random_state_kept():
        for count in NUMBERS_OF_TRIALS:
            records = made_up_trials(Path(folder) / f"{count}-points.db", searched, count)
            random.seed(0)
            ended, undisturbed = _next_two(Path(folder) / f"{count}.db", searched, records)
            random.seed(1)  # a sampler that draws from Python's own generator draws another point
            resumed = SweepStudy(Path(folder) / f"{count}-resumed.db", "contract", searched, records=[*records, ended])
            if resumed.ask() != undisturbed:
                problem = "draws another point after a kill; it must depend on its seed and the study's trials alone"
                raise InputError(f"sampler {name}: {problem}")


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def _next_two(file: Path, space: Space, records: Sequence[TrialRecord]) -> tuple[TrialRecord, Suggestion]:
    """Return the next trial as it ends, and the one that is asked for after it."""
    study = SweepStudy(file, "contract", space, records=records)
    suggestion = study.ask()
    ended = _made_up_trial(suggestion.number, suggestion.settings, [50.0 for _ in space.objectives])
    study.tell(ended)
    return ended, study.ask()


def made_up_trials(file: Path, space: Space, count: int) -> list[TrialRecord]:
    """Return trials at random points with random values: some failed, stopped, running or outside a constraint.

    The points are those of random search, in a study that is written to the file.
    """
    study = SweepStudy(file, "made up", replace(space, search=replace(space.search, sampler="random")))
    generator = random.Random(0)
    records = []
    for _ in range(count):
        suggestion = study.ask()
        values = [generator.uniform(0, 100) for _ in space.objectives]
        records.append(_made_up_trial(suggestion.number, suggestion.settings, values))
    return records


def _made_up_trial(number: int, point: dict[str, Any], values: list[float]) -> TrialRecord:
    constraints = {"made up": 1.0 if number in BROKEN else -1.0}
    record = TrialRecord(name=trial_name(number), kind="trial", state="complete", number=number, params=point)
    match STATES.get(number):
        case "failed":
            return replace(record, state="failed")
        case "stopped":
            return replace(record, state="stopped")
        case "running":
            return replace(record, state="running")
    return replace(record, values=values, constraints=constraints)
