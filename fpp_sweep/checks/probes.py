"""Take readings of a machine, as plain values: on every node that workers run on. `checks` judges them elsewhere."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fpp_sweep.checks.cache_entries import FEATURES, TASKS
from fpp_sweep.checks.versions import versions
from fpp_sweep.core.images.cache import default_cache
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import message_in_one_line
from fpp_sweep.spec.files import existing_part
from fpp_sweep.spec.memory import memory
from fpp_sweep.spec.specs import WorkerSpec

Readings = dict[str, Any]  # by subject; where a probe fails, the reading is {"failed": the reason}
SAMPLE_BYTES = 4 * 2**20  # written to a disk to see whether and how fast it takes them
COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
GPU_SECONDS = 60  # for nvidia-smi, or for torch with its start, to answer
NO_GPU = (6, 9)  # exit statuses of nvidia-smi: NVML's errors for no device, and for a driver that is not loaded
LIST_GPUS = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


def node_readings(spec: WorkerSpec, token_key: str | None) -> Readings:
    """Return the readings that take less than a second.

    `token_key` is the key for the digest of the cluster's token; None on a machine that is not part of a cluster.
    """
    if spec.folder and Path(spec.folder).is_dir():
        os.chdir(spec.folder)  # relative paths, as that of the cache, start from it
    probes: dict[str, Callable[[], Any]] = {"cache": lambda: cache_disk(cache_folder(spec)), "memory": free_memory}
    if token_key is None:
        probes["session token"] = session_token
        probes["clock"] = clock_behind_files
    else:
        probes["clock"] = time.time
        probes["token"] = token_mode
        probes["same token"] = lambda: token_digest(token_key)
    return {**versions(), "code": package_digest(), **run_probes(probes)}


def run_probes(probes: Mapping[str, Callable[[], Any]]) -> Readings:
    """Return the reading of each probe, or why the probe failed."""
    readings: Readings = {}
    for subject, probe in probes.items():
        try:
            readings[subject] = probe()
        except Exception as error:
            readings[subject] = {"failed": message_in_one_line(error)}
    return readings


def has_failed(reading: Any) -> bool:
    """Return whether a reading is the reason for which its probe failed."""
    return isinstance(reading, dict) and "failed" in reading


def package_digest() -> str:
    """Return a digest of this package's files, which may differ between nodes of one version."""
    root = Path(__file__).parents[1]
    digests = []
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".yaml"):
            digests.append((str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest()))
    return keys.digest(digests, length=12)


def cache_folder(spec: WorkerSpec) -> Path:
    if spec.cache:
        return Path(spec.cache)
    return default_cache()


def measure_disk(folder: Path) -> dict[str, Any]:
    """Write a sample into the folder; return its free bytes and the bytes written per second.

    A folder that does not exist is not made: the sample goes to the folder that it would be made in.
    """
    existing = existing_part(folder)
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(SAMPLE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror}") from error
    speed = SAMPLE_BYTES / (time.perf_counter() - began)
    return {"folder": str(folder), "free": shutil.disk_usage(existing).free, "speed": speed}


def cache_disk(folder: Path) -> dict[str, Any]:
    """Return the reading of the cache's disk; raise OSError if one of the folders in the cache cannot be written."""
    for name in (FEATURES, TASKS):
        inner = folder / name
        if os.path.lexists(inner):
            try:
                tempfile.TemporaryFile(dir=inner).close()
            except OSError as error:
                raise OSError(f"{inner}: {error.strerror}") from error
    return measure_disk(folder)


def free_memory() -> int:
    return memory()[0]


def clock_behind_files() -> float:
    """Return the seconds by which the clock is behind this package's files, as a negative number; 0 if it is not."""
    return min(0.0, time.time() - Path(__file__).stat().st_mtime)


def token_mode() -> str:
    """Return where Ray's token is kept: `environment`, or the mode of its file; `none` if Ray asks for no token."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return "none"
    return _kept_token_mode()


def session_token() -> dict[str, Any]:
    """Return how the token of a session on this machine is kept: see `token_mode`; `new` if a sweep creates it.

    The folder of Ray's default file is closed for other users when a session starts.
    """
    file = _token_file()
    is_named = bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys())
    reading = {"mode": "new", "is_made_private": not is_named, "file": str(file)}
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        reading["mode"] = "none"
    elif not is_named and file.exists() and not file.parent.stat().st_mode & 0o077:
        reading["mode"] = "0600"
    elif is_named or (file.exists() and file.stat().st_size):
        reading["mode"] = _kept_token_mode()
    return reading


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _kept_token_mode() -> str:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "environment"
    file = _token_file()
    if not file.read_text().strip():
        raise ValueError(f"{file}: is empty, but Ray reads its token from it")
    return f"{file.stat().st_mode & 0o777:04o}"


def token_digest(key: str) -> str:
    """Return a digest of Ray's token, made with a key that is used once: it tells no more than equality."""
    text = os.environ.get("RAY_AUTH_TOKEN") or _token_file().read_text().strip()
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()[:12]


def gpus() -> dict[str, Any]:
    """Return the GPUs that the driver lists, and how many torch finds in a process from which Ray hides none.

    Where there is none, the reading has the words of nvidia-smi, which nodes without GPUs may have, too.
    """
    reading = {"listed": [], "torch": 0, "no_gpu": ""}
    if shutil.which("nvidia-smi") is None:
        return reading
    listing = _run_gpu_tool(LIST_GPUS)
    if listing.returncode in NO_GPU:
        return reading | {"no_gpu": _words_of(listing)}
    if listing.returncode:
        raise OSError(f"nvidia-smi: {_words_of(listing)}")
    count = _run_gpu_tool([sys.executable, "-P", "-c", COUNT_GPUS])
    if count.returncode:
        raise OSError(f"torch cannot count the GPUs: {_words_of(count)}")
    return reading | {"listed": listing.stdout.splitlines(), "torch": int(count.stdout)}


def _run_gpu_tool(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=GPU_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{Path(command[0]).name}: no answer in {GPU_SECONDS} s") from error


def _words_of(ended: subprocess.CompletedProcess[str]) -> str:
    """Return what a program said before it failed: the last line of its errors, or the first of its output."""
    if ended.stderr.strip():
        return ended.stderr.strip().splitlines()[-1]
    if ended.stdout.strip():
        return ended.stdout.strip().splitlines()[0]
    return f"exit status {ended.returncode}"
