"""A Ray session: a small one of our own, or a cluster's.

The border to Ray: it is imported where a session begins, after the environment that it reads has been set.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, gettempdir
from typing import Any

from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.messages import note

OBJECT_STORE = 200 * 2**20  # bytes, of a session of our own: prompts and predictions are small
REACHABLE = 5.0  # seconds to wait for a cluster's door
_own: list[TemporaryDirectory[str]] = []  # folders of sessions of our own


@contextmanager
def session(address: str | None, *, cpus: int, verbose: bool) -> Iterator[None]:
    """Ray: a small session of our own, ended with us, or a cluster that is there."""
    os.environ.update(_QUIET)
    with ExitStack() as opened:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray

            level = logging.INFO if verbose else logging.ERROR
            for name in ("ray.tune", "ray.air"):  # what befalls a trial is on its record, and told once
                logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)
            ray._private.worker._worker_logs_enabled = verbose  # nor what befalls a process, which goes to stdout
            shared: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level, "configure_logging": True}
            if address is None or address == "local":
                _begin(opened.enter_context(_folder()), num_cpus=cpus, **shared)
            else:
                _require_reachable(address)
                _join(address, nullcontext() if verbose else _hushed(), **shared)
        opened.callback(ray.shutdown)
        yield


def _folder() -> TemporaryDirectory[str]:
    """For a session's sockets, logs and spilled objects; a socket's whole name has room for 107 bytes."""
    usual = os.environ.get("RAY_TMPDIR", gettempdir())
    _own.append(TemporaryDirectory(prefix="ray-", dir=usual if len(usual) < 24 else "/tmp", ignore_cleanup_errors=True))
    return _own[-1]


def remove_own() -> None:
    """The processes and the folder of a session of our own, where this process ends without leaving it."""
    import ray

    node: Any = ray._private.worker._global_node
    with suppress(Exception):  # some of its processes are dead, which is why it is left
        node.kill_all_processes(check_alive=False, wait=True)
    for folder in _own:
        folder.cleanup()


def _begin(folder: str, **options: Any) -> None:
    """A session that no other user of this machine reaches.

    Ray lets everybody write below what it is given as its folder, which is why that lies in one that is ours alone. It
    listens on the loopback only where it takes the system for one on which there are no clusters.
    """
    import ray
    from ray._private import ray_constants

    _keep_token()
    usual, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
        ray.init(address="local", _temp_dir=f"{folder}/r", **options)
    except Exception as error:  # a machine that is short of memory or time has many words for it
        raise MachineError(
            f"Ray does not start ({first_line(error)}); go on with --resume when there is room"
        ) from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual


def _keep_token() -> None:
    """The token, with which one may run code, is nobody else's to read; Ray would make it readable by all."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    folder = Path.home() / ".ray"
    token = folder / "auth_token"
    folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError), NamedTemporaryFile("w", dir=folder) as file:  # which nobody else can read
        file.write(secrets.token_hex(32))
        file.flush()
        os.link(file.name, token)
    for path, mode in ((folder, 0o700), (token, 0o600)):
        if path.stat().st_uid == os.getuid() and path.stat().st_mode & 0o077:
            path.chmod(mode)
            note(f"{path} was open to others and is yours alone now")


def _join(address: str, quietly: AbstractContextManager[None], **options: Any) -> None:
    import ray
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        with quietly:
            if address != "auto":  # refused at once, where ray.init would ask again for minutes
                ensure_token_if_auth_enabled(create_token_if_missing=False)  # without one, the next would end us
                GcsClient(address)
            ray.init(address=address, **options)
    except Exception as error:
        refused = "AuthenticationError" in f"{type(error)} {error.__cause__ or error}"
        hint = "the token is refused: RAY_AUTH_MODE=token and the cluster's ~/.ray/auth_token are needed"
        raise InputError(f"--address {address}: {hint if refused else f'{first_line(error)}; is it up?'}") from error


@contextmanager
def _hushed() -> Iterator[None]:
    """Nothing reaches the terminal's standard error, not even from compiled code."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_events_report_interval_ms": "0",  # nobody reads them, and the end waits for a head that takes no more
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
    if not colon or not port.isdecimal():
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
