"""The part of a session that needs Ray; `session` imports it after it has set the environment that Ray reads."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import ray
from ray._private import services
from ray.exceptions import RayTaskError
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.spec.errors import InputError, MachineError, first_line
from fpp_sweep.spec.messages import note
from fpp_sweep.spec.process import interrupts_wait

UNUSED_PORTS = ("metrics-agent-port", "metrics_export_port", "dashboard_agent_listen_port")
AGENT_PORT = re.compile(r"(runtime.env.agent.port)=0")
START_SECONDS = 90.0  # for the services of a session of the driver
OBJECT_STORE = 200 * 2**20  # bytes, of a session of the driver: prompts and predictions are small
_own_folders: list[tempfile.TemporaryDirectory[str]] = []  # of sessions that this process started
_own_services: dict[str, psutil.Process] = {}  # raylet and GCS of the session that this process started
_get_node: Any = services.get_node
_start_ray_process: Any = services.start_ray_process


def set_verbosity(verbose: bool) -> None:
    """Silence what Ray and Tune print of trials and processes, unless verbose: the driver reports each once.

    No option of Ray silences its messages about dead workers.
    """
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
    that the system has no clusters. It has no options for that, nor for the time that its services may take to start.
    """
    parent = os.environ.get("RAY_TMPDIR", "/tmp")
    folder = tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True)
    _own_folders.append(folder)
    options = {**options, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        with (
            patch("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False),
            patch.multiple(services, get_node=_wait_for_node, start_ray_process=_start_process),
        ):
            _init(address="local", _temp_dir=f"{folder.name}/r", **options)
        for process in psutil.Process().children():
            if process.name() in ("raylet", "gcs_server"):
                _own_services[process.name()] = process
    except Exception as error:  # Ray reports a lack of memory or time by various exceptions
        end_session()
        problem = f"Ray does not start ({first_line(error)})"
        raise MachineError(f"{problem}; free processors, memory or disk, then go on with --resume") from error


def _start_process(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
    """Start a process of Ray; its raylet gets the ports of its agents.

    Else it waits until the agents have chosen them, for 15 s only, and ends itself. The dashboard's agent is not used.
    """
    if process_type == "raylet":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [AGENT_PORT.sub(rf"\1={port}", word) for word in command]
        command += [f"--{name}=-1" for name in UNUSED_PORTS]
    return _start_ray_process(command, process_type, *arguments, **options)


def _wait_for_node(gcs_address: str, node_id: str) -> Any:
    """Return the node once it has started; Ray's own 30 s are too short on a machine whose processors are busy."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return _get_node(gcs_address, node_id)
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

    Ray lets all workers do so, except those of its client, and has no option for it; a folder from another person may
    have a numpy.py.
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
        _own_services.clear()
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


def dead_service() -> str:
    """Return which process of Ray's own session died; empty if none did. A cluster is not watched."""
    for name, process in _own_services.items():
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return f"Ray's {name} (process {process.pid})"
    return ""


# ------------------------------------------------------------ a cluster


def join(address: str, **options: Any) -> None:
    """Join the cluster at an address; raise InputError if it cannot be reached or refuses the token."""
    try:
        _init(address=address, **options)
    except Exception as error:
        token = "if it asks for a token, set RAY_AUTH_MODE=token and copy ~/.ray/auth_token from its head"
        raise InputError(f"--address {address}: {first_line(error)}; is it up? {token}") from error


# ------------------------------------------------------------ machines of the session


def machines_of_session() -> list[dict[str, float]]:
    """Return the resources of each machine that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


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
