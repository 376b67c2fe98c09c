"""What a machine is like, as plain values: gathered where workers run, judged elsewhere (findings.py)."""

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.checks.provenance import versions
from fpp_sweep.core.images.cache import default_cache
from fpp_sweep.space.published import preset_for
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.process import memory
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.spec.tasks import BATCH, EvalTask

if TYPE_CHECKING:
    from fpp_sweep.trial.worker import Worker

Facts = dict[str, Any]  # by what was looked at; where that went wrong, {"failed": the reason}
SAMPLE = 4 * 2**20  # bytes that are written to see whether a disk takes them, and how fast
TMPFILES = tuple(Path(folder, "tmpfiles.d") for folder in ("/etc", "/run", "/usr/lib"))  # the first with a file counts
SYSTEMD = Path("/run/systemd/system")  # there where it runs
COUNT_GPUS = "import torch; print(torch.cuda.device_count())"


def look(spec: WorkerSpec, key: str | None) -> Facts:
    """What takes no second to see; `key` is what the digest of the cluster's token is made with, where there is one."""
    if spec.folder and Path(spec.folder).is_dir():
        os.chdir(spec.folder)
    looks: dict[str, Callable[[], Any]] = {
        "cache": lambda: _disk(_cache(spec)),
        "temporary files": lambda: _disk(Path(tempfile.gettempdir())),
        "memory": lambda: memory()[0],
        "open files": lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    if key is not None:
        asked = os.environ.get("RAY_AUTH_MODE") == "token"
        looks |= {"clock": time.time, "token": lambda: _token()[0] if asked else "none"}
        looks["same token"] = lambda: hmac.new(key.encode(), _token()[1].encode(), "sha256").hexdigest()[:12]
    return {**versions(), "code": code(), **gathered(looks)}


def look_closely(spec: WorkerSpec, key: str | None, datasets: Sequence[str], split: str) -> Facts:
    """All of it; with datasets, also the model, and what it makes of their first images."""
    facts = look(spec, key)
    folders = [_cache(spec).absolute(), Path(tempfile.gettempdir())]
    facts |= gathered({"GPUs": _gpus, "ports": _open_ports, "cleaners": lambda: cleaners(folders)})
    return facts | (_data(spec, datasets, split) if datasets else {})


def gathered(looks: Mapping[str, Callable[[], Any]]) -> Facts:
    facts: Facts = {}
    for what, see in looks.items():
        try:
            facts[what] = see()
        except Exception as error:
            facts[what] = {"failed": " ".join(str(error).split()) or type(error).__name__}
    return facts


def code() -> str:
    """A digest of the package's own files: what its version does not tell."""
    root = Path(__file__).parents[1]
    files = sorted(path for path in root.rglob("*") if path.suffix in (".py", ".yaml"))
    hashed = [(str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return keys.digest(hashed, length=12)


def _cache(spec: WorkerSpec) -> Path:
    return Path(spec.cache) if spec.cache else default_cache()


def _disk(folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(SAMPLE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"{folder}: {error.strerror}") from error
    speed = SAMPLE / (time.perf_counter() - began)
    return {"folder": str(folder), "free": shutil.disk_usage(folder).free, "speed": speed}


def _token() -> tuple[str, str]:
    """Where Ray's token is kept, and the token: in the environment, or in a file of this mode."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return "environment", token
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return f"{file.stat().st_mode & 0o777:04o}", file.read_text().strip()


def _gpus() -> dict[str, Any]:
    """As the driver lists them, and how many torch sees in a process whose GPUs Ray has not hidden."""
    if shutil.which("nvidia-smi") is None:
        return {"listed": [], "torch": 0}
    ask = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    shown = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    listed, seen = (
        subprocess.run(words, capture_output=True, text=True, env=shown, check=True).stdout
        for words in (ask, [sys.executable, "-c", COUNT_GPUS])
    )
    return {"listed": listed.splitlines(), "torch": int(seen)}


def _open_ports() -> list[str]:
    """Ports on all interfaces but Ray's, which want the token; of the processes that this user may look at."""
    sockets = {}
    for table in (path for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.is_file()):
        for fields in (line.split() for line in table.read_text().splitlines()[1:]):
            address, _, port = fields[1].partition(":")
            if fields[3] == "0A" and not address.strip("0"):  # it listens
                sockets[f"socket:[{fields[9]}]"] = int(port, 16)
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ports = {os.readlink(file) for file in (process / "fd").iterdir()} & sockets.keys()
            if ports and "/ray/" not in (process / "maps").read_text():
                command = (process / "cmdline").read_text().replace("\0", " ")[:40].strip()
                found |= {f"{sockets[port]} ({command})" for port in ports}
        except OSError:  # another user's, or gone
            continue
    return sorted(found)


def cleaners(folders: Sequence[Path], rules: Sequence[Path] = TMPFILES, running: Path = SYSTEMD) -> list[str]:
    """systemd's rules by which what is in these folders goes after a time."""
    files: dict[str, Path] = {}
    for path in (file for folder in rules for file in folder.glob("*.conf") if running.is_dir()):
        files.setdefault(path.name, path)
    lines = [line.split() for path in files.values() for line in path.read_text().splitlines()]
    aged = [line for line in lines if len(line) > 5 and line[0][0] in "dDeqQvC" and line[5] != "-"]
    return [f"{folder} after {line[5]}" for folder in folders for line in aged if folder.is_relative_to(line[1])]


def _data(spec: WorkerSpec, datasets: Sequence[str], split: str) -> Facts:
    """The weights, each dataset, and how many of its first images are recognised."""
    from fpp_sweep.core.datasets import expand, read_custom
    from fpp_sweep.trial.worker import Worker  # loads torch

    with tempfile.TemporaryDirectory() as scratch:
        try:
            worker = Worker(replace(spec, cache=scratch, device="cpu", compile=False))
            facts: Facts = {"weights": worker.model_info().digest[:12]}
        except Exception as error:
            return {"weights": {"failed": str(error)}}
        for name in expand(datasets, read_custom(Path(spec.dataset_file)) if spec.dataset_file else ()):
            try:
                facts |= _dataset(worker, name, split)
            except Exception as error:
                facts[f"dataset {name}"] = {"failed": str(error)}
    return facts


def _dataset(worker: Worker, name: str, split: str) -> Facts:
    (facts,) = worker.describe([name], split)
    dataset = worker.datasets.open(name, split)
    config = preset(preset_for("auto", worker.spec.model)).replace({"method": "zero_shot", "prompt": "a photo of a"})
    size = min(BATCH, facts.size)
    task = EvalTask(config=config, dataset=name, split=split, seed=0, start=0, stop=size)
    seen = worker.run(task, []).predictions
    right = 0 if seen is None else int((seen.predicted == seen.labels).sum())
    return {
        f"dataset {name}": keys.digest(facts.digest, facts.classes, length=12),
        f"images of {name}": facts.images,
        f"labels of {name}": misnamed(dataset.ids, dataset.labels.tolist(), facts.classes),
        f"accuracy on {name}": {"right": right, "seen": size, "classes": len(facts.classes)},
    }


def misnamed(samples: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> list[str]:
    """The first sample whose folder or file has another class's name than its label, if there is one.

    >>> misnamed(["cat/1.jpg", "dog_2.jpg"], [0, 0], ["cat", "dog"])
    ["dog_2.jpg is labelled 'cat'"]
    """
    known = ["".join(filter(str.isalpha, name.lower())) for name in classes]
    for sample, label in zip(samples, labels, strict=True):
        parts = Path(sample).parent.name, Path(sample).stem
        told = {"".join(filter(str.isalpha, part.lower())) for part in parts} & {*known}
        if told - {""} and known[label] not in told:
            return [f"{sample} is labelled {classes[label]!r}"]
    return []
