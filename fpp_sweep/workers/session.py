"""A Ray session: its start or a cluster's address, its room for workers, and the thread that watches it.

Ray is imported when a session begins, because it reads the environment variables that are set here.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from fpp_sweep.spec.errors import InputError, MachineError

CONNECT_TIMEOUT = 5.0  # seconds to connect to a cluster's address
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# read by Ray when it is imported
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_gcs_server_port_wait_time_s": "120",  # on a machine whose processors are busy, Ray's 30 s are too short
    "RAY_task_events_report_interval_ms": "0",  # no program reads these events, and sending them delays the end
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the driver has its own handler
    "TUNE_GLOBAL_CHECKPOINT_S": "31536000",  # a sweep is resumed from its records, not from Tune's own
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "3600",
}
_session_lock = threading.Lock()  # held while this process has a session: Ray allows one in each process


@contextmanager
def session(address: str | None, *, cpus: int, verbose: bool) -> Iterator[None]:
    """Open a small Ray session, which ends with the context, or join the cluster at the address.

    Raise InputError if this process has a session already.
    """
    os.environ.update(ENVIRONMENT)
    if os.environ.get(VISIBLE_GPUS) == "-1":  # CUDA shows no GPU then, while Ray would count one
        os.environ[VISIBLE_GPUS] = ""
    ray_session = ray_part()
    if ray_session.is_open() or not _session_lock.acquire(blocking=False):
        raise InputError("Ray: this process has a session already; wait for its sweep, or call ray.shutdown()")
    try:
        level = logging.INFO if verbose else logging.ERROR
        options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": True}
        ray_session.set_verbosity(verbose)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address is None or address == "local":
                ray_session.start(num_cpus=cpus, **options)
            else:
                require_reachable(address)
                ray_session.join(address, **options)
        try:
            yield
        finally:
            ray_session.end_session()
    finally:
        _session_lock.release()


def ray_part() -> Any:
    """Return the module of a session that needs Ray, which reads the environment when it is imported."""
    from fpp_sweep.workers import ray_session  # see above

    return ray_session


def require_reachable(wanted: str) -> None:
    """Raise InputError if no process listens at the address of a cluster: Ray would retry for minutes.

    This needs no Ray. Ray itself looks for the cluster that was started on this machine.
    """
    address = wanted
    if wanted == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address == "auto":
        return
    where = f"--address {wanted}" if address == wanted else f"--address {wanted}: RAY_ADDRESS={address}"
    if address.startswith("ray://"):
        raise InputError(f"{where}: run the command on the cluster's head node, with --address auto")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise InputError(f"{where}: expected auto, local or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        raise InputError(
            f"{where}: cannot be reached ({error}); see with `ray status` whether the cluster is up"
        ) from error


# ------------------------------------------------------------ room for workers

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


# ------------------------------------------------------------ the state of a session's workers

POLL_INTERVAL = 0.5  # seconds between two requests for the status
INTERRUPT_TIMEOUT = 5.0  # seconds; a thread that has not reacted by then is inside Ray and will not react


@dataclass(slots=True, kw_only=True)
class WorkCounts:
    """Counts of the work of a run."""

    loads: int = 0  # workers that started, each of which loaded the model
    lost: int = 0  # workers lost, also while they started
    done: int = 0  # tasks computed
    cached: int = 0  # results that needed no work
    images: int = 0  # images adapted to


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """State of the scheduler and its workers."""

    workers: int = 0
    queued: int = 0
    running: int = 0
    counts: WorkCounts = field(default_factory=WorkCounts)
    fatal: str | None = None  # why no task can be computed any more
    notes: tuple[str, ...] = ()  # problems of some workers while others work
    doing: tuple[str, ...] = ()  # progress of long steps, by worker


class LostSession(MachineError):
    """The end of a process without which a Ray session computes nothing; another session may go on with the sweep."""


class StatusSource(Protocol):
    def status(self) -> SchedulerStatus:
        """Return the current status; raise LostSession if the scheduler is gone."""
        ...


class StatusPoller:
    """The latest status of a pool, kept up to date by a thread.

    `on_status` is called with each new status. If the scheduler is gone, `failure` says why, and the thread that
    created the poller is interrupted (`has_interrupted`). It may be inside Ray; then `on_stuck` is called.
    """

    def __init__(
        self,
        pool: StatusSource,
        on_status: Callable[[SchedulerStatus], None] | None = None,
        on_stuck: Callable[[], None] | None = None,
    ) -> None:
        self.status = SchedulerStatus()
        self.failure: LostSession | None = None
        self.has_interrupted = False
        self._pool = pool
        self._on_status = on_status
        self._on_stuck = on_stuck
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._caller = threading.current_thread()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    def poll(self) -> None:
        """Ask for the status now."""
        try:
            self.status = self._pool.status()
        except LostSession as error:
            self.failure = error
        except Exception:  # Ray may be shutting down, which other parts of the driver report
            return

    def _run(self) -> None:
        while not self._closed.wait(POLL_INTERVAL):
            self.poll()
            if self.failure:
                self._interrupt()
                return
            if self._on_status:
                with suppress(Exception):  # a terminal that cannot be written to must not end the sweep
                    self._on_status(self.status)

    def _interrupt(self) -> None:
        """Send SIGTERM to the caller (`spec.process.terminable`): nothing else ends a wait for a Ray that is gone."""
        can_react = self._caller is threading.main_thread() and callable(signal.getsignal(signal.SIGTERM))
        if not can_react or self._closed.is_set():
            return
        self.has_interrupted = True
        signal.pthread_kill(self._caller.ident or 0, signal.SIGTERM)
        if not self._closed.wait(INTERRUPT_TIMEOUT) and self._on_stuck:
            self._on_stuck()
