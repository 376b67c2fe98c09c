"""The resources that a worker needs, and the room that machines have for it; this module does not need Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fpp_sweep.spec.errors import InputError

ROUNDING = 1e-6  # tolerance in CPUs or GPUs: Ray's resources are sums of floats

Resources = Mapping[str, float]  # amounts on a machine by Ray's names: CPU, GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNeeds:
    """Number of workers and the resources of each."""

    workers: int | None  # None: as many as the machines have room for
    cpus: float
    gpus: float
    env: dict[str, str]

    def workers_with_room(self, machines: Sequence[Resources]) -> int:
        """Return how many workers the machines have room for; at least one."""
        return max(1, self.room_on(machines))

    def room_on(self, machines: Iterable[Resources]) -> int:
        """Return how many workers the machines have room for; perhaps none."""
        return sum(self._workers_on(machine) for machine in machines)

    def _workers_on(self, machine: Resources) -> int:
        """Return how many workers one machine has room for; a worker has no parts of two GPUs."""
        counts = []
        if self.cpus:
            counts.append(int(machine.get("CPU", 0.0) / self.cpus + ROUNDING))
        gpus = machine.get("GPU", 0.0)
        if 0 < self.gpus < 1:
            counts.append(int(gpus) * int(1 / self.gpus + ROUNDING))
        elif self.gpus:
            counts.append(int(gpus / self.gpus + ROUNDING))
        return min(counts, default=0)


def require_room(machines: Sequence[Resources], needs: WorkerNeeds, *, may_grow: bool) -> str | None:
    """Raise InputError if no machine has room for a worker; return a note instead if there may be more machines."""
    for kind, amount, key in (("GPU", needs.gpus, "gpus_per_worker"), ("CPU", needs.cpus, "cpus_per_worker")):
        most = max((machine.get(kind, 0.0) for machine in machines), default=0.0)
        if amount <= most:
            continue
        owner = "this machine has"
        if len(machines) > 1:
            owner = f"the {len(machines)} nodes of this cluster have at most"
        problem = f"work.{key}={amount:g}: {owner} {most:g} {kind}s"
        if may_grow:
            return f"{problem}; waiting for machines that have more"
        raise InputError(f"{problem}; lower work.{key}")
    return None
