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
    """What a function finds on each node, by the node's address, with how far the clock that it tells is off."""
    remote: Any = ray.remote(num_cpus=0, max_retries=0, max_calls=1, runtime_env={"env_vars": dict(env)})(call)
    began, asked = time.time(), {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[node["NodeManagerAddress"]] = remote.options(scheduling_strategy=there).remote(*arguments)
    ray.wait([*asked.values()], num_returns=len(asked), timeout=seconds)
    return {address: _answer(reference, began) for address, reference in sorted(asked.items())}


def _answer(reference: Any, asked: float) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = ray.get(reference, timeout=0.0)
    except RayTaskError as error:  # its text is a traceback
        return {"code": {"failed": first_line(error.cause)}}
    except Exception as error:
        return {"answer": {"failed": first_line(error)}}
    # it was told somewhere between question and answer
    return facts | {"clock": facts["clock"] - min(max(facts["clock"], asked), time.time())}
