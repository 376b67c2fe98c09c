"""A function call on every node of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.workers.ray_session import first_line


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
    return {address: _answer(reference, began) for address, reference in sorted(calls.items())}


def _answer(reference: Any, began: float) -> dict[str, Any]:
    try:
        readings: dict[str, Any] = ray.get(reference, timeout=0.0)
    except RayTaskError as error:  # its own text is a traceback
        return {"code": {"failed": first_line(error.cause)}}
    except Exception as error:
        return {"answer": {"failed": first_line(error)}}
    # the function read the clock at some time between the call and now
    time_here = min(max(readings["clock"], began), time.time())
    return readings | {"clock": readings["clock"] - time_here}
