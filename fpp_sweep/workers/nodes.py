"""A question to every node of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpp_sweep.workers.session import first_line


def on_every_node(
    call: Callable[..., dict[str, Any]], *arguments: Any, env: Mapping[str, str], seconds: float
) -> dict[str, dict[str, Any]]:
    """What a function finds on each node, by the node's address, with how far the node's clock is off."""
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "max_calls": 1}  # whatever it loads goes with it
    if env:
        options["runtime_env"] = {"env_vars": dict(env)}
    remote: Any = ray.remote(**options)(call)
    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[remote.options(scheduling_strategy=there).remote(*arguments)] = node["NodeManagerAddress"]
    began, found, waiting = time.time(), dict[str, dict[str, Any]](), list(asked)
    while waiting:
        ended, waiting = ray.wait(waiting, timeout=max(0.0, began + seconds - time.time()))
        for reference in ended or waiting:
            found[asked[reference]] = _answer(reference, began)
        waiting = waiting if ended else []
    return found


def _answer(reference: Any, asked: float) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = ray.get(reference, timeout=0)
    except RayTaskError as error:  # its text is a traceback
        return {"code": {"failed": first_line(error.cause)}}
    except Exception as error:
        return {"answer": {"failed": first_line(error)}}
    clock = facts["clock"]  # somewhere between the question and the answer
    return facts | {"clock": clock - min(max(clock, asked), time.time())}
