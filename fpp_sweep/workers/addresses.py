"""The address of a Ray cluster, checked in seconds and without Ray, which would retry for minutes."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from fpp_sweep.spec.errors import InputError

CONNECT_TIMEOUT = 5.0  # seconds


def require_reachable(wanted: str) -> str:
    """Return HOST:PORT of the cluster that `--address` names; raise InputError if no process listens there."""
    if wanted != "auto":
        _require_listener(wanted, f"--address {wanted}")
        return wanted
    from_environment = os.environ.get("RAY_ADDRESS") or "auto"
    if from_environment != "auto":
        _require_listener(from_environment, f"--address auto: RAY_ADDRESS={from_environment}")
        return from_environment
    record = _record_of_ray_start()
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


def _record_of_ray_start() -> Path:
    """Return the file in which `ray start` leaves the address of this machine's cluster."""
    return ray_temp_folder() / "ray" / "ray_current_cluster"


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
