"""The effect of commands to a sweep: the budget in force, and the points that are tried before others are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import ADDED, Command, SweepInfo
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import QueuedPoint, Space
from fpp_sweep.space.work import STEERED, Search
from fpp_sweep.spec.validation import as_mapping


def budget_in_force(info: SweepInfo, search: Search, commands: Sequence[Command]) -> Search:
    """Return the search with the budget at the start, changed by the commands in their order.

    A point that is added is one trial more.
    """
    recorded_search = as_mapping(info.space_at_start.get("search", {}))
    recorded = {}
    for key in STEERED:
        if key in recorded_search:
            recorded[key] = recorded_search[key]
    search_at_start = Search(**recorded)  # with the defaults of keys that are not recorded
    values = {key: getattr(search_at_start, key) for key in STEERED}
    for command in commands:
        if command.kind == "add" and values["trials"] is not None:
            values["trials"] += 1
        elif command.kind == "budget":
            values |= command.values
    return replace(search, **values)


@dataclass(slots=True)
class Queue:
    """The points that are tried before others are sampled, by number of the trial."""

    points: Sequence[QueuedPoint]  # points of the space at the start of the sweep
    added: dict[int, dict[str, Any]] = field(default_factory=dict)  # by `steer`; later points move back by one

    @classmethod
    def of(cls, folder: SweepFolder, info: SweepInfo) -> Self:
        """Return the queue of a sweep; a trial whose command is lost stays an added one."""
        added = {}
        for record in folder.trials():
            if record.origin == ADDED and record.number is not None:
                added[record.number] = dict(record.params)
        for command in folder.commands():
            if command.number is not None:
                added[command.number] = dict(command.values)
        return cls(space_at_start(folder, info).queue(), added)

    def __len__(self) -> int:
        return len(self.points) + len(self.added)

    def at(self, number: int) -> QueuedPoint | None:
        """Return the point of a trial; None if its settings are sampled."""
        if number in self.added:
            return QueuedPoint(ADDED, self.added[number])
        index = number
        for added in self.added:
            if added < number:
                index -= 1
        if index >= len(self.points):
            return None
        return self.points[index]


def space_at_start(folder: SweepFolder, info: SweepInfo) -> Space:
    """Return the space as it was when the sweep began."""
    return space_of(info.space_at_start, str(folder.info_file))
