"""A sweep's folder with every kind of file, and hostile objects that replace its files and subfolders one at a time."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gzip
import hashlib
import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.records.folder import FORMAT, SweepFolder
from fpp_sweep.records.log import write_line
from fpp_sweep.records.records import Command, SweepInfo, TrialRecord
from fpp_sweep.records.skipped_images import write_skipped
from fpp_sweep.report.results_file import write_results
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.published import baseline_configs, preset_for
from fpp_sweep.space.reading import load_space, space_of
from fpp_sweep.space.space import Space
from fpp_sweep.spec import keys
from fpp_sweep.spec.files import write_json
from fpp_sweep.trial.artifacts import FITTED_ON, write_predictions
from fpp_sweep.trial.results import TaskResult
from fpp_sweep.trial.store import TaskStore
from tests.kit.layout import generalized
from tests.kit.measured import FAR_APART, World, write_measured_sweep
from tests.kit.names import ZERO_SHOT
from tests.kit.records import running

KINDS = ("link out", "link to nothing", "link to the sweep", "folder", "pipe", "unreadable", "huge")
SECRET = "not for your eyes"  # in every text of the folder that links lead to
OWN = "\x1b]0;title\x07 of \x1b[31mthe sweep"  # in every text of the sweep's own folder
PLOTLY = b'id="plotly"'  # behind it, pages have a library only
OPENED = 0x20  # IN_OPEN
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
HUGE = 2**41  # bytes of a sparse file: more than any machine has memory
TRIAL = "trial-0002"
WAITING = "trial-0004"
OBJECTIVES = "objectives=[{metric: accuracy, goal: max}, {metric: ece, goal: min}]"
TASK = "abcd" * 6
COMMAND = "20261120-191233-000000-1"
DATASET = "scenes"  # a second one would take time only
IMAGES, CLASSES = 64, ("cat", "dog")


def build_template(path: Path, text: str) -> SweepFolder:
    """Build a sweep with a file of every kind that a sweep writes; its records and artifacts contain the text."""
    space = {**load_space("perturb", [OBJECTIVES]).plain(), "question": text}
    sides = {name: FAR_APART[name] for name in (ZERO_SHOT, TRIAL, "trial-0003")}
    folder = write_measured_sweep(path, World(IMAGES, datasets=[DATASET]), sides, space=space)
    folder.write_info(_info_with(folder.info(), text))
    resolved = space_of(space, "space")
    for record in folder.trials():
        folder.write_trial(_record_with(record, resolved, text))
    params = folder.trial(TRIAL).params
    folder.write_trial(_record_with(running(4, state="waiting", params=params), resolved, text))
    _write_artifacts(folder, text)
    write_line(folder.path / "logs/machine-1.log", f"evaluate scenes, config {TRIAL}: {text}")
    command = Command(name=COMMAND, kind="budget", written=1.0, values={"trials": 20}, applied=2.0, outcome=text)
    write_json(folder.path / f"steering/{COMMAND}.json", {"format": FORMAT, **_plain(command)})
    for name in ("lock", "study.journal", "mlflow_sync.lock"):
        (folder.path / name).write_text(text)
    write_json(folder.path / "mlflow_sync.json", {"note": text})
    TaskStore(folder.tasks).put(TASK, TaskResult(prompt=text.encode()))
    write_results(folder)
    write_report(folder, pages=True)
    for name in ("answer.md", "front.csv"):
        with (folder.report / name).open("a") as file:
            file.write(text)
    return folder


def _info_with(info: SweepInfo, text: str) -> SweepInfo:
    return replace(
        info, model=text, end_reason=text, datasets={DATASET: text}, versions={"torch": text}, steered=[text]
    )


def _record_with(record: TrialRecord, space: Space, text: str) -> TrialRecord:
    """Return a record with the config that the space gives it, and with the text."""
    if record.kind == "trial":
        config = space.resolve(record.params)
    else:
        preset = preset_for(space.preset, space.work.model)
        config = baseline_configs([record.label], space.start(), preset)[record.label]
    results = {}
    for split, result in record.results.items():
        datasets = {name: _objectives_of(values) for name, values in result.datasets.items()}
        average = _objectives_of(result.average)
        results[split] = replace(result, average=average, datasets=datasets, notes=[text], devices=[text])
    return replace(record, config=config.flat(), key=keys.config_key(config), results=results, reason=text)


def _objectives_of(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the objectives: intervals of all metrics would take most of the time."""
    return {metric: values[metric] for metric in ("accuracy", "ece")}


def _plain(command: Command) -> dict[str, object]:
    return {name: getattr(command, name) for name in Command.__dataclass_fields__}


def _write_artifacts(folder: SweepFolder, text: str) -> None:
    """Write the files of trials that block statistics do not have."""
    for record in folder.trials():
        file = folder.artifacts(record.name) / f"val/{DATASET}.seed0.predictions.parquet"
        write_predictions(made_predictions(text), (*CLASSES, text), file)
    artifacts = folder.artifacts(TRIAL)
    write_line(folder.log_file(TRIAL), f"{TRIAL} begins on val: {text}")
    write_skipped(artifacts / "val", [{"dataset": DATASET, "seed": 0, "image": text, "reason": text}])
    shutil.copyfile(artifacts / "val/block_stats.npz", artifacts / "val/block_stats@isotonic.npz")
    (artifacts / "prompts").mkdir()
    (artifacts / f"prompts/{DATASET}.seed0.safetensors").write_text(text)
    (artifacts / f"prompts/{text}.seed0.safetensors").write_text(text)
    write_json(artifacts / "val/posthoc.json", [{"dataset": text}])
    (artifacts / "val/reliability.png").write_bytes(b"\x89PNG" + text.encode())
    fitted_on = artifacts / f"val/{FITTED_ON}/{DATASET}.seed0.predictions.parquet"
    write_predictions(made_predictions(text), (*CLASSES, text), fitted_on)


def made_predictions(text: str) -> Predictions:
    """Return predictions with the text in the samples' names."""
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(len(CLASSES) + 1), IMAGES).astype(np.float32)
    ids = [f"{text} {number}" for number in range(IMAGES)]
    return Predictions.of(ids, random.integers(0, len(CLASSES), IMAGES), probabilities)


# ------------------------------------------------------------ kinds of files


def kind_of(path: str) -> str:
    """Return a path without the names of trials, splits, datasets, seeds, maps, machines and times.

    >>> kind_of("artifacts/baseline-tpt/val/scenes.seed0.predictions.parquet")
    'artifacts/trial-N/SPLIT/DATASET.seedN.predictions.parquet'
    """
    path = re.sub(r"\bbaseline-\w+", "trial-N", generalized(path))
    path = re.sub(r"/(train|val|test|final)\b", "/SPLIT", path)
    path = re.sub(r"[^/]+\.seed\d+", "DATASET.seedN", path)
    path = re.sub(r"@\w+\.npz", "@MAP.npz", path)
    path = re.sub(r"report/best/[\w-]+\.yaml", "report/best/MARK.yaml", path)
    return re.sub(r"\d{8}-\d{6}-\d+(-\d+)?", "TIME", path)


def paths_by_kind(root: Path) -> dict[str, str]:
    """Return a path of each kind of file and subfolder below a folder, relative to it; of a trial, where it can be."""
    paths: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if OWN in name:
            continue
        kind = kind_of(name)
        if path.is_dir():
            kind += "/"
        if kind not in paths or (TRIAL in name and TRIAL not in paths[kind]):
            paths[kind] = name
    return paths


# ------------------------------------------------------------ hostile objects


def plant(sweep: Path, element: str, kind: str, target: Path, secret: Path) -> bool:
    """Replace a file or folder with a hostile object; return False if the kind does not apply to it.

    A link out leads to `target`, which is a copy of the same file or folder of `secret`, with a secret in its texts.
    """
    path = sweep / element
    is_folder = path.is_dir()
    if kind == "unreadable":
        path.chmod(0)
        return True
    if is_folder and kind in ("folder", "huge"):
        return False
    if is_folder:
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "link out":
        copy(secret / element, target)
    if kind == "link to the sweep":
        path.symlink_to(os.path.relpath(sweep, path.parent))
    elif kind.startswith("link"):
        path.symlink_to(target)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, HUGE)
    return True


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


# ------------------------------------------------------------ effects of a command


@contextlib.contextmanager
def opened_below(folder: Path) -> Iterator[list[str]]:
    """Yield a list that has, after the block, the names of files and folders below a folder that were opened in it.

    The kernel reports them (inotify), whichever library opens them.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        assert libc.inotify_add_watch(descriptor, os.fsencode(directory), OPENED) > 0
    names: list[str] = []
    try:
        yield names
        with contextlib.suppress(BlockingIOError):  # there are no events, or no more
            while events := os.read(descriptor, 2**16):
                names += _names_of(events)
    finally:
        os.close(descriptor)


def _names_of(events: bytes) -> Iterator[str]:
    """Yield the names in events of inotify; the watched folder itself has none."""
    position = 0
    while position < len(events):
        *_, length = EVENT.unpack_from(events, position)
        position += EVENT.size
        yield events[position : position + length].rstrip(b"\0").decode() or "the folder"
        position += length


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return mode, owner, time, links and content of everything below a folder; links are not followed."""
    states: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        digest = ""
        if path.is_file() and not path.is_symlink():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        states[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_nlink, digest)
    return states


def stamps_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return inode and times of everything below a folder; links are not followed."""
    stamps: dict[str, tuple[int, ...]] = {}
    for directory, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            stamps[path] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return stamps


def holds_secret(path: Path) -> bool:
    """Return whether a file contains the secret: in its name, as it is, or packed as pages pack pictures and trials."""
    if SECRET in path.name:
        return True
    if path.is_symlink() or not path.is_file() or path.stat().st_size >= HUGE:
        return False
    content = path.read_bytes().partition(PLOTLY)[0]
    return SECRET.encode() in content or any(SECRET.encode() in packed for packed in _unpacked(content))


def _unpacked(content: bytes) -> Iterator[bytes]:
    """Yield the content of each part that is packed as base64, and of those that are compressed as well."""
    for text in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", content):
        with contextlib.suppress(ValueError):
            data = base64.b64decode(text)
            yield data
            with contextlib.suppress(OSError, EOFError):
                yield gzip.decompress(data)
