"""Checks of a machine: versions, code, disks, memory, Ray's token and GPUs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet

from fpp_sweep.checks.cache_entries import FEATURES, TASKS
from fpp_sweep.checks.findings import Finding, State, run_check
from fpp_sweep.checks.versions import allowed_versions, versions
from fpp_sweep.spec import keys
from fpp_sweep.spec.files import default_cache, existing_part
from fpp_sweep.spec.messages import readable_size
from fpp_sweep.spec.process import memory
from fpp_sweep.spec.specs import WorkerSpec

SAMPLE_BYTES = 4 * 2**20  # written to a disk to see whether it takes them
MIN_DISK, GOOD_DISK = 1e8, 2e9  # free bytes
MIN_MEMORY, GOOD_MEMORY = 1.5e9, 4e9  # free bytes
GPU_SECONDS = 60  # for nvidia-smi, or for torch with its start, to answer
NO_GPU = (6, 9)  # exit statuses of nvidia-smi: NVML's errors for no device, and for a driver that is not loaded
COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def check_machine(spec: WorkerSpec, on_cluster: bool) -> list[Finding]:
    """Return what is found on this machine; no check takes more than some seconds."""
    if spec.folder and Path(spec.folder).is_dir():
        os.chdir(spec.folder)  # relative paths, as that of the cache, start from it
    findings = []
    for name, version in versions().items():
        findings.append(run_check(name, "", partial(check_version, name, version)))
    findings += [
        run_check("code", "", check_code),
        run_check(
            "cache", "make room, allow writing, or set work.cache or FPP_SWEEP_CACHE", partial(check_cache, spec)
        ),
        run_check("memory", "free memory, or raise the limit of the user, job or container", check_memory),
        run_check("token", "name a file that has the token with RAY_AUTH_TOKEN_PATH", partial(check_token, on_cluster)),
    ]
    if spec.device != "cpu":
        findings.append(run_check("GPUs", "install a driver for torch's CUDA, or torch for the driver's", check_gpus))
    return findings


def check_version(name: str, version: str) -> Finding:
    """Require a version that this package allows, and the same one on all machines."""
    release = version.partition("+")[0]  # builds of torch for different devices, such as 2.9.0+cpu, are one version
    allowed = SpecifierSet(allowed_versions(name))
    if not allowed.contains(release, prereleases=True):
        return Finding("wrong", f"{version}, but this package needs {allowed}", f"install {name}{allowed}")
    return Finding("ok", version, must_match=release)


def check_code() -> Finding:
    """Compare this package's files, which may differ between machines with one version."""
    root = Path(__file__).parents[1]
    digests = []
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".yaml"):
            digests.append((str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest()))
    digest = keys.digest(digests, length=12)
    return Finding("ok", digest, must_match=digest)


def check_cache(spec: WorkerSpec) -> Finding:
    """Require room for the cache, in folders that can be written."""
    folder = Path(spec.cache or default_cache())
    for name in (FEATURES, TASKS):
        if os.path.lexists(folder / name):
            check_disk(folder / name)
    return check_disk(folder)


def check_disk(folder: Path) -> Finding:
    """Require room on the folder's disk, by writing a sample; a folder that does not exist is not made."""
    existing = existing_part(folder)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(SAMPLE_BYTES))
            file.flush()
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror}") from error
    free = shutil.disk_usage(existing).free
    return Finding(state_of(free, MIN_DISK, GOOD_DISK), f"{folder}: {readable_size(free)} free")


def check_memory() -> Finding:
    free = memory().free
    return Finding(state_of(free, MIN_MEMORY, GOOD_MEMORY), readable_size(free))


def state_of(value: float, minimum: float, good: float) -> State:
    if value < minimum:
        return "wrong"
    if value < good:
        return "note"
    return "ok"


def check_token(on_cluster: bool) -> Finding:
    """Require a token that only its owner can read: a process that has the token can run code.

    A sweep on this machine makes its own token, and closes the folder of Ray's default file for other users.
    """
    default_mode = "token"
    if on_cluster:
        default_mode = "none"
    if os.environ.get("RAY_AUTH_MODE", default_mode).lower() != "token":
        return Finding("wrong", "none", "set RAY_AUTH_MODE=token before Ray starts: without it anybody can run code")
    if os.environ.get("RAY_AUTH_TOKEN"):
        return Finding("ok", "in the environment")
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not named and not on_cluster:
        return Finding("ok", "made by the sweep")
    file = Path(named or Path.home() / ".ray" / "auth_token")
    if not file.read_text().strip():
        return Finding("wrong", f"{file}: is empty", f"write a token to {file}, or delete the file")
    rights = file.stat().st_mode & 0o777
    if rights & 0o077:
        return Finding("wrong", f"{rights:04o}", f"chmod 600 {file}: a user who can read the token can run code")
    return Finding("ok", f"{rights:04o}")


def check_gpus() -> Finding:
    """Require that torch finds all GPUs that the driver lists; Ray hides none from the processes that are asked."""
    if shutil.which("nvidia-smi") is None:
        return Finding("ok", "none")
    listing = run_gpu_tool("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if listing.returncode in NO_GPU:
        return Finding("note", last_words(listing))
    if listing.returncode:
        raise OSError(f"nvidia-smi: {last_words(listing)}")
    count = run_gpu_tool(sys.executable, "-P", "-c", COUNT_GPUS)
    if count.returncode:
        raise OSError(f"torch cannot count the GPUs: {last_words(count)}")
    gpus = listing.stdout.splitlines()
    text = f"{', '.join(gpus)}; torch sees {count.stdout.strip()}"
    if int(count.stdout) < len(gpus):
        return Finding("wrong", text)
    return Finding("ok", text)


def run_gpu_tool(*command: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=GPU_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{Path(command[0]).name}: no answer in {GPU_SECONDS} s") from error


def last_words(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that a program printed before it failed."""
    lines = [f"exit status {ended.returncode}", *ended.stdout.splitlines(), *ended.stderr.splitlines()]
    return lines[-1]
