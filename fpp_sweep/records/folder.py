"""The folder `sweeps/<name>/`, the one record of what has happened in a sweep.

    sweep.json              what the sweep is: space, objectives, tags, state
    study.db                the Optuna study, named after the sweep
    trials/<name>.json      one record for each trial and baseline, rewritten whole at every change
    tasks/                  results of tasks by key, so that no trial computes one again
    artifacts/<name>/       a trial's prompts, predictions and reliability diagrams
    report/                 the front as table, picture and page; best configs; importances
    lock                    held by the driver while it runs

The driver and its trials write here first; MLflow is brought up to date from here when it can be reached.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from fpp_sweep.cli import masked
from fpp_sweep.errors import InputError
from fpp_sweep.files import write_json
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective

FORMAT = 2


class SweepFolder:
    """A sweep's folder: any process may read it, the holder of its lock writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # trials read it from processes with other working folders
        self.info_file = self.path / "sweep.json"
        self.study_file = self.path / "study.db"
        self.tasks = self.path / "tasks"
        self.report = self.path / "report"

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing sweep."""
        folder = cls(path)
        if not folder.info_file.is_file():
            raise InputError(f"{path} is not a sweep's folder (it has no sweep.json)")
        return folder

    def artifacts(self, trial: str) -> Path:
        return self.path / "artifacts" / trial

    def info(self) -> SweepInfo:
        document = _read(self.info_file)
        objectives = tuple(Objective.recorded(**fields) for fields in document.pop("objectives"))
        return SweepInfo(objectives=objectives, **document)

    def write_info(self, info: SweepInfo) -> None:
        secret = masked(info.tracking_uri) != info.tracking_uri
        write_json(self.info_file, {"format": FORMAT, **asdict(info)}, mode=0o600 if secret else 0o666)

    def trial_file(self, name: str) -> Path:
        return self.path / "trials" / f"{name}.json"

    def trial(self, name: str) -> TrialRecord:
        document = _read(self.trial_file(name))
        results = {split: SplitResult(**result) for split, result in document.pop("results").items()}
        return TrialRecord(results=results, **document)

    def write_trial(self, record: TrialRecord) -> None:
        write_json(self.trial_file(record.name), {"format": FORMAT, **asdict(record)})

    def trials(self) -> list[TrialRecord]:
        """All records: baselines, then trials by number."""
        names = sorted(path.stem for path in (self.path / "trials").glob("[!.]*.json"))
        return [self.trial(name) for name in names]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only driver of this sweep; the lock goes with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
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
        version = document.pop("format")
    except (ValueError, KeyError, OSError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: not readable as a record of a sweep ({error})") from error
    if version != FORMAT:
        raise InputError(f"{path}: written by another version of fpp_sweep; use that one to read it")
    return dict(document)
