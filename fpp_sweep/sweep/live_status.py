"""The state of a running sweep as one value, from the searcher and the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fpp_sweep.records.front import Front, front_of, values_of
from fpp_sweep.records.pareto import hypervolume
from fpp_sweep.records.progress import SweepProgress, progress_of
from fpp_sweep.records.records import SweepInfo

if TYPE_CHECKING:
    from fpp_sweep.search.searcher import SweepSearcher  # loads Ray
    from fpp_sweep.workers.status import SchedulerStatus


@dataclass(frozen=True)
class Status:
    """Progress, rates, front and troubles of a running sweep."""

    phase: str  # baselines, search, test, ...
    ended: Mapping[str, int]  # number of trials by state
    running: int
    total: int | None  # trials; None: as many as the time allows
    images_per_second: float | None
    front_size: int
    best: Sequence[float]  # the front's best value in each objective; empty without a member above the floor
    hypervolume: float | None
    whole: SweepProgress  # with the stages after the search
    workers: int
    note: str  # empty if there is none
    baselines: Mapping[str, Sequence[float]] = field(default_factory=dict)  # values, by name
    doing: Sequence[str] = ()  # long tasks of the workers

    @property
    def n_ended(self) -> int:
        return sum(self.ended.values())


def live_status(searcher: SweepSearcher, scheduler: SchedulerStatus, info: SweepInfo, *, seconds: float) -> Status:
    """Return the state of a sweep whose driver has worked for `seconds`."""
    progress = searcher.progress
    front = front_of(info, searcher.records())
    baselines = {baseline.label: values_of(baseline) for baseline in front.baselines}
    notes = list(scheduler.notes)
    images_per_second = None
    if scheduler.counts.images:
        images_per_second = scheduler.counts.images / seconds
    return Status(
        phase=progress.phase,
        ended=searcher.ended(),
        running=len(progress.running),
        total=progress.total,
        images_per_second=images_per_second,
        front_size=len(front.members),
        best=_best_values(front),
        hypervolume=_hypervolume(front),
        whole=progress_of(info, searcher.records(), info.spent + seconds),
        workers=scheduler.workers,
        note="; ".join(notes),
        baselines=baselines,
        doing=scheduler.doing,
    )


def _best_values(front: Front) -> list[float]:
    """Return the best value in each objective of the members that a table may mark as best."""
    if not front.eligible:
        return []
    best = []
    for index, goal in enumerate(front.goals):
        column = [values_of(member)[index] for member in front.eligible]
        choose = max if goal == "max" else min
        best.append(choose(column))
    return best


def _hypervolume(front: Front) -> float | None:
    if front.reference is None or not front.members:
        return None
    return hypervolume([values_of(member) for member in front.members], front.goals, front.reference)
