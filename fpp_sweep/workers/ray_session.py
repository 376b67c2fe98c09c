"""The part of a session that needs Ray; `session` imports it after it has set the environment that Ray reads."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import parameter, ray_constants
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.parameter import RayParams
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.services import get_node, start_ray_process
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RayTaskError
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.spec.errors import InputError, MachineError, first_line
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.process import interrupts_wait
from fpp_sweep.workers.needs import WorkerNeeds
from fpp_sweep.workers.status import LostSession

UNUSED_PORTS = ("metrics-agent-port", "metrics_export_port", "dashboard_agent_listen_port")
START_SECONDS = 90.0  # for the services of a session of the driver
OBJECT_STORE = 200 * 2**20  # bytes, of a session of the driver: prompts and predictions are small
_own_folders: list[tempfile.TemporaryDirectory[str]] = []  # of sessions that this process started


def set_verbosity(verbose: bool) -> None:
    """Silence what Ray and Tune print of trials and processes, unless verbose: the driver reports each once."""
    level = logging.INFO if verbose else logging.CRITICAL
    for name in ("ray.tune", "ray.air"):
        logging.getLogger(name).setLevel(level)
    ray._private.worker._worker_logs_enabled = verbose


def is_open() -> bool:
    """Return whether this process has a session, which its own program may have begun."""
    return bool(ray.is_initialized())


# ------------------------------------------------------------ a session on this machine


def start(**options: Any) -> None:
    """Start a session, in a second attempt if the first one fails."""
    _protect_token()
    try:
        _start_once(options)
    except MachineError as error:
        note(f"{error}; trying once more")
        _start_once(options)


def _start_once(options: Mapping[str, Any]) -> None:
    """Start a session that no other user of this machine can reach.

    Ray makes the folder that it is given writable for all users; therefore the session gets a folder inside one that
    only this user can enter. The names of sockets in it must be short. Ray listens on the loopback only if it believes
    that the system has no clusters.
    """
    parent = os.environ.get("RAY_TMPDIR", "/tmp")
    folder = tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True)
    _own_folders.append(folder)
    clusters_enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    ray._private.services.get_node = _wait_for_node
    ray._private.services.start_ray_process = _start_process
    with socket.create_server(("127.0.0.1", 0)) as free:
        setattr(parameter, "RayParams", partial(RayParams, runtime_env_agent_port=free.getsockname()[1]))  # noqa: B010
    options = {**options, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        _init(address="local", _temp_dir=f"{folder.name}/r", **options)
    except Exception as error:  # Ray reports a lack of memory or time by various exceptions
        end_session()
        problem = f"Ray does not start ({first_line(error)})"
        raise MachineError(f"{problem}; free processors, memory or disk, then go on with --resume") from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters_enabled
        ray._private.services.get_node = get_node
        ray._private.services.start_ray_process = start_ray_process
        setattr(parameter, "RayParams", RayParams)  # noqa: B010


def _start_process(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
    """Start a process of Ray; its raylet gets the ports of its agents.

    Else it waits until the agents have chosen them, for 15 s only, and ends itself. The dashboard's agent is not used.
    """
    if process_type == ray_constants.PROCESS_TYPE_RAYLET:
        command = [*command, *(f"--{name}=-1" for name in UNUSED_PORTS)]
    return start_ray_process(command, process_type, *arguments, **options)


def _wait_for_node(gcs_address: str, node_id: str) -> Any:
    """Return the node once it has started; Ray's own 30 s are too short on a machine whose processors are busy."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return get_node(gcs_address, node_id)
        except RuntimeError:
            if time.monotonic() > end:
                raise
        time.sleep(1.0)


def _init(**options: Any) -> None:
    """Initialize Ray, and keep this process's handler of SIGTERM: Ray's would end the process at once."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(job_config=_job(), **options)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _job() -> JobConfig:
    """Return a job whose workers import from the current folder only if this process does.

    Ray lets all workers do so, except those of its client; a folder from another person may have a numpy.py.
    """
    imports_from_here = "" in sys.path or os.getcwd() in sys.path
    return JobConfig(_client_job=not imports_from_here)


def _protect_token() -> None:
    """Close the folder of Ray's token for other users: Ray makes the token readable for all, and it lets run code."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    folder = Path.home() / ".ray"
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)


def end_session() -> None:
    """End the session, or leave the cluster. An interrupt waits, because half a session would stay otherwise."""
    try:
        with interrupts_wait("interrupted; leaving Ray ..."):
            ray.shutdown()
    finally:
        end_services()


def end_services() -> None:
    """Kill what is left of the services of this process's own sessions, and remove their folders.

    Ray ends them itself unless it could not start or was interrupted. The workers end with the services.
    """
    while _own_folders:
        folder = _own_folders.pop()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # ended meanwhile
                if any(f"{folder.name}/" in word for word in process.cmdline()):
                    process.kill()
        folder.cleanup()


def require_session() -> None:
    """Raise LostSession if a process of Ray's own session died; a cluster is not watched."""
    node: Any = ray._private.worker._global_node
    if node is None:
        return
    for kind, process in node.dead_processes():
        if kind in ("raylet", "gcs_server"):
            raise LostSession(f"Ray's {kind} (process {process.pid}) died")


# ------------------------------------------------------------ a cluster


def join(address: str, **options: Any) -> None:
    """Join the cluster at an address; raise InputError if it cannot be reached or refuses the token."""
    try:
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # GcsClient ends the process without a token
        GcsClient(address)  # a refusal comes at once; ray.init would retry for minutes
        _init(address=address, **options)
    except Exception as error:
        problem = f"{first_line(error)}; is it up?"
        if "AuthenticationError" in f"{type(error)} {error.__cause__ or error}":
            problem = _remedy_for_refused_token()
        raise InputError(f"--address {address}: {problem}") from error


def _remedy_for_refused_token() -> str:
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return "the cluster asks for a token; put RAY_AUTH_MODE=token before the command (Ray reads ~/.ray/auth_token)"
    return "the token is missing or wrong; copy the cluster's, by default ~/.ray/auth_token of its head, to this path"


# ------------------------------------------------------------ machines of the session


def machines_of_session() -> list[dict[str, float]]:
    """Return the resources of each machine that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node that is up, by its id."""
    return dict(ray._private.state.state.available_resources_per_node())


def gpus_of_this_machine() -> float:
    """Return the number of GPUs that a session on this machine would have; no session is started."""

    manager, count = ResourceAndLabelSpec._get_current_node_accelerator(None, {})
    if manager is None or manager.get_resource_name() != "GPU":
        return 0.0
    return float(count)


def wanted_workers(needs: WorkerNeeds) -> int:
    """Return how many workers there should be on the machines that are up now; at least one."""
    if needs.workers is not None:
        return needs.workers
    return needs.workers_with_room(machines_of_session())


def share_of_machine() -> float:
    """Return the share of its machine's GPUs that Ray has assigned to this process."""
    context = ray.get_runtime_context()
    assigned = context.get_assigned_resources()["GPU"]
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            return float(assigned / node["Resources"]["GPU"])
    return 1.0


def on_every_node(
    call: Callable[..., Any], *arguments: Any, env: Mapping[str, str], seconds: float
) -> dict[str, Any | Exception]:
    """Return what a function returns on each node, by the node's address; wait at most that many seconds.

    If a node gave no answer in time, or an error, an exception with the cause takes the place of the result.
    """
    remote: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1, runtime_env={"env_vars": dict(env)})(call)
    calls = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            calls[node["NodeManagerAddress"]] = remote.options(scheduling_strategy=there).remote(*arguments)
    ray.wait(list(calls.values()), num_returns=len(calls), timeout=seconds)
    return {address: _result_of_node(reference) for address, reference in sorted(calls.items())}


def _result_of_node(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=0.0)
    except RayTaskError as error:  # its own text is a traceback
        return error.cause
    except Exception as error:
        return error
