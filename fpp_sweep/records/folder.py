"""What a sweep leaves on disk, and the one truth about what has happened in it: the folder `sweeps/<name>/`.

    sweep.json              what the sweep is: space, objectives, tags, state
    study.db                the Optuna study, named after the sweep
    trials/<name>.json      one record for each trial and baseline, rewritten whole when something happens to it
    units/                  finished pieces of work by content, which no trial repeats
    artifacts/<name>/       a trial's prompts, predictions and reliability diagrams
    report/                 the front as table, picture and page; best configs; importances
    lock                    held by the driver while it lives

The driver and its trials write here first; MLflow is brought up to date from here, whenever it can be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from fpp_sweep.errors import InputError
from fpp_sweep.files import written_whole
from fpp_sweep.space.objectives import Objective

FORMAT = 1
State = Literal["running", "complete", "failed", "interrupted"]
Kind = Literal["trial", "baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a trial found on one split, over all its datasets and seeds."""

    average: Mapping[str, float]  # metric -> mean over datasets and seeds; percent where the metric is
    datasets: Mapping[str, Mapping[str, float]]  # dataset -> metric -> mean over seeds
    deviation: Mapping[str, float]  # metric -> standard deviation over seeds of the average; empty for one seed
    samples: int  # images, over datasets; each once
    seconds: Mapping[str, float]  # by stage, summed over workers; what was at hand costs 0
    device_seconds: float  # seconds that actors were held for it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial or a baseline, from its start on."""

    name: str  # trial-0007, baseline-zero_shot; a file's name
    kind: Kind
    state: State
    number: int | None = None  # Optuna's; baselines have none
    origin: str = "sampled"  # sampled, grid, point, code, paper, baseline, or retry of trial-0003
    params: Mapping[str, Any] = field(default_factory=dict)  # what was searched, by dotted key
    config: Mapping[str, Any] = field(default_factory=dict)  # TrialConfig.flat()
    key: str = ""  # TrialConfig.key()
    started: float = 0.0  # seconds since 1970
    finished: float | None = None
    reason: str | None = None  # why it failed or was interrupted, one line
    details: str | None = None  # its traceback
    found: Mapping[str, Found] = field(default_factory=dict)  # by split: val, and test for the front
    values: Sequence[float] | None = None  # of the objectives, in their order, on the search split
    constraints: Mapping[str, float] = field(default_factory=dict)  # by name; holds where <= 0
    attempt: int = 1

    @property
    def feasible(self) -> bool:
        return all(value <= 0 for value in self.constraints.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """What a sweep is, and how it is doing."""

    name: str  # perturb-20261120-185232
    created: float
    state: Literal["running", "finished", "interrupted", "failed"]
    space: Mapping[str, Any]  # as resolved, plain values: load_space understands it
    objectives: tuple[Objective, ...]
    search_split: str
    tags: Mapping[str, str]  # git commit, versions, model and digest, seeds, command, ...
    reference: Sequence[float] | None = None  # hypervolume's corner, in the order of the objectives
    tracking_uri: str = ""
    spent: float = 0.0  # seconds that drivers have worked on it
    finished: float | None = None


class SweepFolder:
    """A sweep's folder, to be read by anybody and written by whoever holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # trials read it from processes that live elsewhere

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing sweep."""
        folder = cls(path)
        if not folder.info_file.is_file():
            raise InputError(f"{path} is not a sweep's folder (it has no sweep.json)")
        return folder

    @property
    def info_file(self) -> Path:
        return self.path / "sweep.json"

    @property
    def study_file(self) -> Path:
        return self.path / "study.db"

    @property
    def units(self) -> Path:
        return self.path / "units"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def artifacts(self, trial: str) -> Path:
        return self.path / "artifacts" / trial

    def info(self) -> SweepInfo:
        document = _read(self.info_file)
        objectives = tuple(Objective(**each) for each in document.pop("objectives"))
        return SweepInfo(objectives=objectives, **document)

    def write_info(self, info: SweepInfo) -> None:
        _write(self.info_file, {"format": FORMAT, **asdict(info)})

    def trial_file(self, name: str) -> Path:
        return self.path / "trials" / f"{name}.json"

    def trial(self, name: str) -> TrialRecord:
        document = _read(self.trial_file(name))
        found = {split: Found(**each) for split, each in document.pop("found").items()}
        return TrialRecord(found=found, **document)

    def write_trial(self, record: TrialRecord) -> None:
        _write(self.trial_file(record.name), {"format": FORMAT, **asdict(record)})

    def trials(self) -> list[TrialRecord]:
        """All records: baselines, then trials by number."""
        names = sorted(path.stem for path in (self.path / "trials").glob("[!.]*.json"))
        return [self.trial(name) for name in names]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only driver of this sweep; the lock goes with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, 40, 0).decode(errors="replace").strip() or "another process"
                raise InputError(f"sweep {self.path.name} is being run by process {owner}; wait, or stop it") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
        if document.pop("format") != FORMAT:
            raise InputError(f"{path}: written by another version of fpp_sweep; use that one to read it")
    except (ValueError, KeyError, OSError, AttributeError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not readable as a record of a sweep ({error})") from error
    return dict(document)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    with written_whole(path) as partial:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
