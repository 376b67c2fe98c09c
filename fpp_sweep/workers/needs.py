"""The resources that a worker needs, and the room that machines have for it; this module does not need Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    @property
    def scarce(self) -> tuple[str, float]:
        """The resource that limits the number of workers, and how much of it a worker takes."""
        if self.gpus:
            return "GPU", self.gpus
        return "CPU", self.cpus

    def workers_with_room(self, machines: Sequence[Resources]) -> int:
        """Return how many workers the resources of all machines suffice for; at least one."""
        kind, amount = self.scarce
        total = sum(machine.get(kind, 0.0) for machine in machines)
        return max(1, int(total / amount + ROUNDING))


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
