"""A Ray session: a small one that the driver starts for itself, or a cluster's.

Ray is imported when a session begins, because it reads the environment variables that are set here.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType
from typing import Any, NoReturn

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.process import interrupts_wait
from fpp_sweep.workers.addresses import ray_temp_folder, require_reachable
from fpp_sweep.workers.session_folders import (
    SESSION_PREFIX,
    SHORT_FOLDER,
    DriverFolder,
    cleaner,
    is_too_long,
    new_folder,
    remove_abandoned_folders,
    remove_session,
)
from fpp_sweep.workers.token import protect_token

JOIN_TIMEOUT = 30.0  # seconds to join a cluster: a machine with too few free cores takes 20
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# read by Ray when it is imported
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_events_report_interval_ms": "0",  # no program reads these events, and sending them delays the end
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the driver has its own handler
    "TUNE_GLOBAL_CHECKPOINT_S": "31536000",  # a sweep is resumed from its records, not from Tune's own
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "3600",
}
ReadingsOfNodes = dict[str, dict[str, Any]]  # returned values of a function, by the node's address
_session_lock = threading.Lock()  # held while this process has a session: Ray allows one in each process
_own_folders: list[DriverFolder] = []  # folders of the sessions that this process started


@contextmanager
def session(address: str | None, *, cpus: int, verbose: bool) -> Iterator[None]:
    """Open a small Ray session, which ends with the context, or join the cluster at the address.

    Raise InputError if this process has a session already.
    """
    level = logging.INFO if verbose else logging.ERROR
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": True}
    with ExitStack() as session_resources:
        session_resources.enter_context(_only_session())
        folder = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray_session = _import_ray_session()
            ray_session.set_verbosity(verbose)
            if address is None or address == "local":
                protect_token()
                folder = session_resources.enter_context(_session_folder())
                session_resources.enter_context(cleaner(folder))
                ray_session.start(folder, num_cpus=cpus, **options)
            else:
                _join_cluster(ray_session, require_reachable(address), options, verbose=verbose)
        session_resources.callback(_leave, ray_session, folder)
        yield


@contextmanager
def _only_session() -> Iterator[None]:
    """Let this process begin no other session within the block; raise InputError if it has one."""
    if not _session_lock.acquire(blocking=False):
        raise InputError("Ray: another thread of this process runs a sweep; wait for its end, or use another process")
    try:
        _set_environment()
        if _import_ray_session().is_open():
            raise InputError("Ray: this process has a session already; call ray.shutdown() first")
        yield
    finally:
        _session_lock.release()


def _leave(ray_session: ModuleType, folder: str | None) -> None:
    """End the session, or leave the cluster; an interrupt waits, because half a session would stay otherwise.

    If a second Ctrl-C does not wait, the processes of a session in `folder` are killed.
    """
    has_left = False
    try:
        with interrupts_wait("interrupted; leaving Ray ..."):
            ray_session.end()
            has_left = True
    finally:
        if folder is not None and not has_left:
            remove_session(Path(folder))


def _set_environment() -> None:
    """Set the variables that Ray reads."""
    os.environ.update(ENVIRONMENT)
    gpu_ids = os.environ.get(VISIBLE_GPUS)
    if gpu_ids is not None:
        os.environ[VISIBLE_GPUS] = ids_before_negative(gpu_ids)


def ids_before_negative(gpu_ids: str) -> str:
    """Return the GPUs that CUDA shows to a process: a negative id ends the list, while Ray would count it as a GPU.

    >>> ids_before_negative("-1"), ids_before_negative("0,2,-1,3"), ids_before_negative("MIG-a,MIG-b")
    ('', '0,2', 'MIG-a,MIG-b')
    """
    shown = []
    for gpu_id in gpu_ids.split(","):
        if gpu_id.strip().startswith("-"):
            break
        shown.append(gpu_id)
    return ",".join(shown)


def _join_cluster(ray_session: ModuleType, address: str, options: Mapping[str, Any], *, verbose: bool) -> None:
    silence = nullcontext() if verbose else _silence_stderr()
    with silence, joining_time_limit(JOIN_TIMEOUT, address):
        ray_session.join(address, **options)


def _session_folder() -> DriverFolder:
    """Create a folder for a session's sockets, logs and spilled objects; remove those of dead drivers."""
    requested = ray_temp_folder()
    parent = str(requested)
    if is_too_long(requested):
        parent = str(SHORT_FOLDER)
    for temporary in {parent, gettempdir()}:
        remove_abandoned_folders(temporary)
    folder = new_folder(SESSION_PREFIX, parent)
    _own_folders.append(folder)
    return folder


def kill_session() -> None:
    """Kill the processes of this process's session and remove its folder, when the session cannot be closed."""
    for folder in _own_folders:
        remove_session(Path(folder.name))


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Discard what is written to standard error, also by compiled code."""
    sys.stderr.flush()
    original, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(nowhere)


class _TimeUp(BaseException):
    """The end of a time limit; no `except Exception` in Ray's loops holds it."""


@contextmanager
def joining_time_limit(seconds: float, address: str) -> Iterator[None]:
    """Raise InputError in the main thread if joining takes longer; Ray would wait for minutes for a cluster that hangs.

    A signal interrupts Ray's waiting, which is in Python. Other threads have no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeUp:
        raise InputError(
            f"--address {address}: something listens there, but this process has not joined a cluster within "
            f"{seconds:g} s; see with `ray status --address {address}` whether one is up, or give another HOST:PORT"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def machines_of_session() -> list[dict[str, float]]:
    """Return the resources of each machine of the session that is up."""
    machines: list[dict[str, float]] = _import_ray_session().machines_of_session()
    return machines


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node of the session that is up, by its id."""
    free: Mapping[str, Mapping[str, float]] = _import_ray_session().free_resources()
    return free


def gpus_of_this_machine() -> float:
    """Return the number of GPUs that a session on this machine would have; no session is started."""
    _set_environment()
    count: float = _import_ray_session().count_own_gpus()
    return count


def on_every_node(
    call: Callable[..., dict[str, Any]], *arguments: Any, env: Mapping[str, str], seconds: float
) -> ReadingsOfNodes:
    """Return what a function returns on each node; see ray_session."""
    readings: ReadingsOfNodes = _import_ray_session().on_every_node(call, *arguments, env=env, seconds=seconds)
    return readings


def _import_ray_session() -> ModuleType:
    """Import the module that imports Ray, after `session` has set the environment."""
    from fpp_sweep.workers import ray_session  # Ray reads the environment when it is imported

    return ray_session
