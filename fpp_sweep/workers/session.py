"""A Ray session: a small one of our own, or a cluster's.

The border to Ray: it is imported where a session begins, after the environment that it reads has been set.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fpp_sweep.errors import InputError

OBJECT_STORE = 200 * 2**20  # bytes, of a session of our own: prompts and predictions are small
REACHABLE = 5.0  # seconds to wait for a cluster's door


@contextmanager
def session(address: str | None, *, cpus: int, verbose: bool) -> Iterator[None]:
    """Ray: a small session of our own, ended with us, or a cluster that is there."""
    os.environ.update(_QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        level = logging.INFO if verbose else logging.ERROR
        for name in ("ray.tune", "ray.air"):  # what befalls a trial is on its record, and told once
            logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)
        ray._private.worker._worker_logs_enabled = verbose  # nor what befalls a process: it goes to stdout otherwise
        shared: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": True}
        if address is None or address == "local":
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_STORE, **shared
            )
        else:
            _require_reachable(address)
            try:
                ray.init(address=address, **shared)
            except Exception as error:
                hint = "is it up? if it asks for a token: RAY_AUTH_MODE=token and ~/.ray/auth_token"
                raise InputError(f"--address {address}: {first_line(error)}; {hint}") from error
    try:
        yield
    finally:
        ray.shutdown()


_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the driver has its own
    "TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "3600",
}


def _require_reachable(address: str) -> None:
    """A cluster that is not there is told in seconds; Ray would try for minutes."""
    if address.startswith("ray://"):
        raise InputError(f"--address {address}: run the command on the cluster's head node, with --address auto")
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise InputError(f"--address {address!r}: expected auto, local or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHABLE).close()
    except OSError as error:
        raise InputError(f"--address {address}: cannot be reached ({error}); is the cluster up?") from error


def gpus_here() -> float:
    """GPUs of all nodes that are up."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
