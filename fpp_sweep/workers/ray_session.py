"""The part of a session that needs Ray; imported by `session` after the environment that Ray reads was set."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RayTaskError
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.spec.errors import InputError, MachineError, first_line
from fpp_sweep.workers import token
from fpp_sweep.workers.session_folders import RAY_FOLDER, fatal_message

OBJECT_STORE = 200 * 2**20  # bytes, of a session of the driver: prompts and predictions are small


def set_verbosity(verbose: bool) -> None:
    """Silence what Ray and Tune print of trials and processes, unless verbose: the driver reports each once."""
    level = logging.INFO if verbose else logging.CRITICAL
    for name in ("ray.tune", "ray.air"):
        logging.getLogger(name).setLevel(level)
    ray._private.worker._worker_logs_enabled = verbose


def start(folder: str, **options: Any) -> None:
    """Start a session that no other user of this machine can reach.

    Ray makes the folder that it is given writable for all users; therefore the session gets a folder inside one that
    only this user can enter. Ray listens on the loopback only if it believes that the system has no clusters.
    """
    clusters_enabled = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE, "job_config": _job()}
    try:
        with _own_signal_handlers():
            ray.init(address="local", _temp_dir=f"{folder}/{RAY_FOLDER}", **options)
    except Exception as error:  # Ray reports a lack of memory or time by various exceptions
        reason = fatal_message(folder) or first_line(error)
        advice = "free processors, memory or disk, then go on with --resume"
        raise MachineError(f"Ray does not start ({reason}); {advice}") from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters_enabled


def join(address: str, **options: Any) -> None:
    """Join the cluster at an address; raise InputError if it cannot be reached or refuses the token."""
    try:
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # GcsClient ends the process without a token
        GcsClient(address)  # a refusal comes at once; ray.init would retry for minutes
        with _own_signal_handlers():
            ray.init(address=address, job_config=_job(), **options)
    except Exception as error:
        problem = f"{first_line(error)}; is it up?"
        if "AuthenticationError" in f"{type(error)} {error.__cause__ or error}":
            problem = _remedy_for_refused_token()
        raise InputError(f"--address {address}: {problem}") from error


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray would replace by one that ends the process at once."""
    set_handler = ray._private.utils.set_sigterm_handler
    ray._private.utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = set_handler


def _job() -> JobConfig:
    """Return a job whose workers import from the current folder only if this process does.

    Ray lets all workers do so, except those of its client; a folder from another person may have a numpy.py.
    """
    imports_from_here = "" in sys.path or os.getcwd() in sys.path
    return JobConfig(_client_job=not imports_from_here)


def _remedy_for_refused_token() -> str:
    if not token.is_required():
        return "the cluster asks for a token; put RAY_AUTH_MODE=token before the command (Ray reads ~/.ray/auth_token)"
    return "the token is missing or wrong; copy the cluster's, by default ~/.ray/auth_token of its head, to this path"


def is_open() -> bool:
    """Return whether this process has a session, which its own program may have begun."""
    return bool(ray.is_initialized())


def end() -> None:
    ray.shutdown()


def machines_of_session() -> list[dict[str, float]]:
    """Return the resources of each machine that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of each node that is up, by its id."""
    return dict(ray._private.state.state.available_resources_per_node())


def count_own_gpus() -> float:
    """Return the number of GPUs that Ray finds on this machine and that CUDA_VISIBLE_DEVICES shows."""
    manager, count = ResourceAndLabelSpec._get_current_node_accelerator(None, {})
    if manager is None or manager.get_resource_name() != "GPU":
        return 0.0
    return float(count)


def on_every_node(
    call: Callable[..., dict[str, Any]], *arguments: Any, env: Mapping[str, str], seconds: float
) -> dict[str, dict[str, Any]]:
    """Return what a function returns on each node, by the node's address; wait at most that many seconds.

    The function returns its node's time as `clock`, which is replaced by the difference to the time here.
    """
    remote: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1, runtime_env={"env_vars": dict(env)})(call)
    began = time.time()
    calls = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            calls[node["NodeManagerAddress"]] = remote.options(scheduling_strategy=there).remote(*arguments)
    ray.wait(list(calls.values()), num_returns=len(calls), timeout=seconds)
    return {address: _readings_of_node(reference, began) for address, reference in sorted(calls.items())}


def _readings_of_node(reference: Any, began: float) -> dict[str, Any]:
    """Return the readings of a node; if it gave none, one reading that says why.

    That reading is `code` if the function raised an error on the node, and `answer` if no answer has come.
    """
    try:
        readings: dict[str, Any] = ray.get(reference, timeout=0.0)
    except RayTaskError as error:  # its own text is a traceback
        return {"code": {"failed": first_line(error.cause)}}
    except Exception as error:
        return {"answer": {"failed": first_line(error)}}
    # the function read the clock at some time between the call and now
    time_here = min(max(readings["clock"], began), time.time())
    return readings | {"clock": readings["clock"] - time_here}
