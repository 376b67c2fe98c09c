"""The file of a sweep's study: Optuna's journal, with one line for each change.

Optuna's own file backend takes a lock and waits for the disk at each of a trial's twelve changes. Here one driver
writes the file, and builds it anew from the trial records when it starts, so it needs neither. Others may read it at
any time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from fpp_sweep.spec.files import FileTooLargeError, no_link

MAX_STUDY_BYTES = 2**26  # a trial takes about 2 kB


class _UnlockedJournal(JournalFileBackend):
    """A journal file that one process writes, without a lock."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = [f"{json.dumps(log)}\n" for log in logs]
        try:
            with open(self._file, "a", encoding="utf-8", opener=no_link) as file:
                file.write("".join(lines))
        except OSError as error:
            error.filename = str(self._file)  # a failed write does not name its file
            raise


def study_storage(file: Path) -> JournalStorage:
    """Return the storage in a file, which is created if it does not exist."""
    return JournalStorage(_UnlockedJournal(file.absolute()))  # the working folder may change


def load_study(file: Path, name: str) -> Study:
    """Return a stored study. A damaged file raises an error of any type."""
    if file.stat().st_size > MAX_STUDY_BYTES:
        raise FileTooLargeError(file, MAX_STUDY_BYTES)
    return optuna.load_study(study_name=name, storage=study_storage(file))
