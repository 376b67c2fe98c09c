"""A Ray session: a small one that the driver starts for itself, or a cluster's.

Ray is imported when a session begins, because it reads the environment variables that are set here.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from fpp_sweep.spec.errors import InputError

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
    with _only_session() as ray_session:
        level = logging.INFO if verbose else logging.ERROR
        options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": True}
        ray_session.set_verbosity(verbose)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address is None or address == "local":
                ray_session.start(num_cpus=cpus, **options)
            else:
                with nullcontext() if verbose else _silence_stderr():
                    ray_session.join(require_reachable(address), **options)
        try:
            yield
        finally:
            ray_session.end_session()


@contextmanager
def _only_session() -> Iterator[ModuleType]:
    """Let this process begin no other session within the block; raise InputError if it has one."""
    if not _session_lock.acquire(blocking=False):
        raise InputError("Ray: another thread of this process runs a sweep; wait for its end, or use another process")
    try:
        ray_session = _import_ray_session()
        if ray_session.is_open():
            raise InputError("Ray: this process has a session already; call ray.shutdown() first")
        yield ray_session
    finally:
        _session_lock.release()


def _import_ray_session() -> ModuleType:
    """Set the variables that Ray reads, and import the module that imports Ray."""
    os.environ.update(ENVIRONMENT)
    gpu_ids = os.environ.get(VISIBLE_GPUS)
    if gpu_ids is not None:
        os.environ[VISIBLE_GPUS] = ids_before_negative(gpu_ids)
    from fpp_sweep.workers import ray_session  # Ray reads the environment when it is imported

    return ray_session


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


def require_reachable(wanted: str) -> str:
    """Return HOST:PORT of the cluster that `--address` names; raise InputError if no process listens there.

    This takes seconds and needs no Ray, which would retry for minutes.
    """
    if wanted != "auto":
        _require_listener(wanted, f"--address {wanted}")
        return wanted
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address != "auto":
        _require_listener(address, f"--address auto: RAY_ADDRESS={address}")
        return address
    record = ray_temp_folder() / "ray" / "ray_current_cluster"  # written by `ray start`
    try:
        address = record.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(
            f"--address auto: no cluster was started on this machine (there is no {record}); run `ray start --head`, "
            "run the command on the cluster's head node, or give HOST:PORT"
        ) from error
    _require_listener(address, f"--address auto: {address}, which `ray start` has left in {record}")
    return address


def ray_temp_folder() -> Path:
    """Return the folder that the user names for Ray's temporary files, or that of all programs."""
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def _require_listener(address: str, where: str) -> None:
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


# ------------------------------------------------------------ machines of the session; see ray_session


def machines_of_session() -> list[dict[str, float]]:
    machines: list[dict[str, float]] = _import_ray_session().machines_of_session()
    return machines


def free_resources() -> Mapping[str, Mapping[str, float]]:
    free: Mapping[str, Mapping[str, float]] = _import_ray_session().free_resources()
    return free


def gpus_of_this_machine() -> float:
    count: float = _import_ray_session().gpus_of_this_machine()
    return count


def on_every_node(
    call: Callable[..., Any], *arguments: Any, env: Mapping[str, str], seconds: float
) -> dict[str, Any | Exception]:
    results: dict[str, Any] = _import_ray_session().on_every_node(call, *arguments, env=env, seconds=seconds)
    return results
