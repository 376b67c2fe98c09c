"""Take readings of a machine, as plain values: on every node that workers run on. `checks` judges them elsewhere."""

from __future__ import annotations

import hashlib
import hmac
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fpp_sweep.checks.versions import versions
from fpp_sweep.core.images.cache import default_cache
from fpp_sweep.spec import keys
from fpp_sweep.spec.memory import memory
from fpp_sweep.spec.process import cores
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.workers.addresses import ray_temp_folder
from fpp_sweep.workers.session_folders import SHORT_FOLDER, folders_of_dead_drivers, is_too_long

Readings = dict[str, Any]  # by subject; where a probe fails, the reading is {"failed": the reason}
SAMPLE_BYTES = 4 * 2**20  # written to a disk to see whether and how fast it takes them
COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
LIST_GPUS = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


def node_readings(spec: WorkerSpec, token_key: str | None) -> Readings:
    """Return the readings that take less than a second.

    `token_key` is the key for the digest of the cluster's token; None on a machine that is not part of a cluster.
    """
    if spec.folder and Path(spec.folder).is_dir():
        os.chdir(spec.folder)
    disk_once = cache(disk)  # Ray's files are often in the folder of the other temporary files
    probes: dict[str, Callable[[], Any]] = {
        "cache": lambda: disk_once(cache_folder(spec)),
        "temporary files": lambda: disk_once(Path(tempfile.gettempdir())),
        "Ray's files": lambda: ray_disk(disk_once),
        "killed drivers": processes_of_dead_drivers,
        "home folder": home_folder,
        "threads": lambda: {"threads": spec.threads, "cores": cores()},
        "proxy": proxies_of_loopback,
        "memory": free_memory,
        "open files": open_files,
    }
    if token_key is not None:
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
            readings[subject] = {"failed": " ".join(str(error).split()) or type(error).__name__}
    return readings


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


def disk(folder: Path) -> dict[str, Any]:
    """Write a sample into the folder; return its free bytes and the bytes written per second."""
    began = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(SAMPLE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror}") from error
    speed = SAMPLE_BYTES / (time.perf_counter() - began)
    return {"folder": str(folder), "free": shutil.disk_usage(folder).free, "speed": speed}


def ray_disk(read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return the reading of the disk that a session's files will be on, and the requested folder if it is too long."""
    requested = ray_temp_folder()
    if is_too_long(requested):
        return read(SHORT_FOLDER) | {"too_long": str(requested)}
    return read(requested) | {"too_long": ""}


def processes_of_dead_drivers() -> dict[str, Any]:
    """Return how many folders dead drivers have left, and the processes that still use them."""
    n_folders = 0
    processes: list[int] = []
    for parent in sorted({str(ray_temp_folder()), str(SHORT_FOLDER), tempfile.gettempdir()}):
        for _, users in folders_of_dead_drivers(parent):
            n_folders += 1
            processes += [process.pid for process in users]
    return {"folders": n_folders, "processes": processes}


def home_folder() -> str:
    """Return the home folder after writing to it, as Ray does with its token."""
    home = Path.home()
    try:
        with tempfile.TemporaryFile(dir=home):
            return str(home)
    except OSError as error:
        raise OSError(f"{home}: {error.strerror}") from error


def proxies_of_loopback() -> list[str]:
    """Return the proxies that requests to this machine itself would go through."""
    if urllib.request.proxy_bypass("127.0.0.1") and urllib.request.proxy_bypass("localhost"):
        return []
    proxies = urllib.request.getproxies()
    return sorted({proxies[scheme] for scheme in ("http", "https") if scheme in proxies})


def free_memory() -> int:
    return memory()[0]


def open_files() -> int:
    """Return how many files a process may have open at a time."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def token_mode() -> str:
    """Return where Ray's token is kept: `environment`, or the mode of its file; `none` if Ray asks for no token."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return "none"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "environment"
    return f"{_token_file().stat().st_mode & 0o777:04o}"


def token_digest(key: str) -> str:
    """Return a digest of Ray's token, made with a key that is used once: it tells no more than equality."""
    token = os.environ.get("RAY_AUTH_TOKEN") or _token_file().read_text().strip()
    return hmac.new(key.encode(), token.encode(), "sha256").hexdigest()[:12]


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def gpus() -> dict[str, Any]:
    """Return the GPUs that the driver lists, and how many torch finds in a process from which Ray hides none."""
    if shutil.which("nvidia-smi") is None:
        return {"listed": [], "torch": 0}
    environment = dict(os.environ)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    outputs = []
    for command in (LIST_GPUS, [sys.executable, "-c", COUNT_GPUS]):
        outputs.append(subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout)
    return {"listed": outputs[0].splitlines(), "torch": int(outputs[1])}
