"""What commands to a sweep come to: the budget in force, and what is tried before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import Command, SweepInfo
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.rules import as_mapping
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import STEERED, Search

Point = tuple[str, dict[str, Any]]  # where it comes from, and its values


def budget_in_force(info: SweepInfo, search: Search, commands: Sequence[Command]) -> Search:
    """A point that is added is one trial more; else the last word on each counts, and the first is how it began."""
    begun = Search(**as_mapping((info.begun or info.space).get("search", {})))
    values = {key: getattr(begun, key) for key in STEERED}
    for command in commands:
        if command.kind == "add" and values["trials"] is not None:
            values["trials"] += 1
        elif command.kind == "budget":
            values |= command.values
    return replace(search, **values)


@dataclass(slots=True)
class Queue:
    """The points that are known before anything is sampled, each at the number of its trial."""

    points: Sequence[Point]  # as the sweep began
    added: dict[int, dict[str, Any]] = field(default_factory=dict)  # they make room among the others

    @classmethod
    def of(cls, folder: SweepFolder, info: SweepInfo) -> Self:
        points = begun(folder, info).queue()
        return cls(points, {one.number: dict(one.values) for one in folder.commands() if one.number is not None})

    def __len__(self) -> int:
        return len(self.points) + len(self.added)

    def at(self, number: int) -> Point | None:
        if number in self.added:
            return "point", self.added[number]
        place = number - sum(other < number for other in self.added)
        return self.points[place] if place < len(self.points) else None


def begun(folder: SweepFolder, info: SweepInfo) -> Space:
    """The space as it was when the sweep began."""
    return space_of(info.begun or info.space, str(folder.info_file))
