"""What a sweep leaves on disk, and the one truth about what has happened in it: the folder `sweeps/<name>/`.

    sweep.json              what the sweep is: space, objectives, tags, state
    study.db                the Optuna study, named after the sweep
    trials/<name>.json      one record for each trial and baseline, rewritten whole when something happens to it
    tasks/                  results of tasks by key, which no trial computes again
    artifacts/<name>/       a trial's prompts, predictions and reliability diagrams
    report/                 the front as table, picture and page; best configs; importances
    lock                    held by the driver while it lives

The driver and its trials write here first; MLflow is brought up to date from here, whenever it can be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from fpp_sweep.errors import InputError
from fpp_sweep.files import written_whole
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective

FORMAT = 2


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
    def tasks(self) -> Path:
        return self.path / "tasks"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def artifacts(self, trial: str) -> Path:
        return self.path / "artifacts" / trial

    def info(self) -> SweepInfo:
        document = _read(self.info_file)
        objectives = tuple(Objective.recorded(**objective) for objective in document.pop("objectives"))
        return SweepInfo(objectives=objectives, **document)

    def write_info(self, info: SweepInfo) -> None:
        _write(self.info_file, {"format": FORMAT, **asdict(info)})

    def trial_file(self, name: str) -> Path:
        return self.path / "trials" / f"{name}.json"

    def trial(self, name: str) -> TrialRecord:
        document = _read(self.trial_file(name))
        results = {split: SplitResult(**result) for split, result in document.pop("results").items()}
        return TrialRecord(results=results, **document)

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
