"""mlflow_sync.json, which remembers what was written to MLflow, and the stamps of files that show changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.files import stamp_of, written_whole
from fpp_sweep.spec.version import VERSION
from fpp_sweep.tracking.folder_files import find_artifacts, read_json

STATE_FILE = "mlflow_sync.json"
Stamp = tuple[int, int]  # a file's size and time of change, equal in a copy of the folder


def fingerprint(folder: SweepFolder) -> str:
    """Return a digest of all that the runs are computed from: names, sizes and times of the folder's files."""
    files = {"sweep.json": folder.info_file, **find_artifacts(folder, folder.path / "report", "report/").files}
    for record in folder.trial_files():
        files[f"trials/{record.name}"] = record
        subfolder = folder.path / "artifacts" / record.stem
        files |= find_artifacts(folder, subfolder, f"artifacts/{record.stem}/").files
    return hashlib.sha256(repr((VERSION, file_stamps(files))).encode(errors="surrogatepass")).hexdigest()


def file_stamps(files: Mapping[str, Path]) -> dict[str, Stamp]:
    stamps = {}
    for name, path in files.items():
        with suppress(FileNotFoundError):  # replaced meanwhile
            stamps[name] = file_stamp(path)
    return stamps


def file_stamp(path: Path) -> Stamp:
    size, changed, _ = stamp_of(path)
    return size, changed


def real_path(folder: SweepFolder) -> str:
    return os.path.realpath(folder.path)


@dataclass(slots=True)
class WrittenRun:
    """Part of `SyncState`: a run as it was written."""

    run_id: str = ""  # MLflow's
    digest: str = ""  # digest of the run and its artifacts; empty while something is missing
    files: dict[str, Any] = field(default_factory=dict)  # artifact's name -> stamp of its file, or digest of its text
    deleted: bool = False  # True if nothing was written, because the user has deleted the run in MLflow

    def __post_init__(self) -> None:
        texts_are_valid = isinstance(self.run_id, str) and isinstance(self.digest, str)
        if not (texts_are_valid and isinstance(self.files, dict) and isinstance(self.deleted, bool)):
            raise TypeError("damaged")  # `SyncState.read` catches it


@dataclass(slots=True)
class SyncState:
    """The contents of mlflow_sync.json."""

    experiment: str = ""  # MLflow's id
    store: str = ""  # the identity of the store of the last sync
    uri: str = ""  # the address of that store; empty if it has a secret
    fingerprint: str = ""  # fingerprint of the folder when all of it was written; empty if something was left
    folders: dict[str, str] = field(default_factory=dict)  # identity of a store -> the folder that its runs belong to
    runs: dict[str, WrittenRun] = field(default_factory=dict)  # by `DesiredRun.key`

    @classmethod
    def read(cls, folder: SweepFolder) -> Self:
        """Return the state; an empty one if the file is missing or damaged."""
        document = read_json(folder.path, folder.path / STATE_FILE)
        try:
            runs = {str(key): WrittenRun(**written) for key, written in document.get("runs", {}).items()}
            folders = {str(store): str(folder) for store, folder in document.get("folders", {}).items()}
            texts = {key: str(document.get(key, "")) for key in ("experiment", "store", "uri", "fingerprint")}
        except (TypeError, AttributeError):
            return cls()
        return cls(runs=runs, folders=folders, **texts)

    def write(self, file: Path) -> None:
        with written_whole(file) as partial:
            partial.write_text(json.dumps(self, default=_fields_of) + "\n")


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass without copies of what they hold, which take longer than to write the JSON."""
    return {item.name: getattr(value, item.name) for item in fields(value)}
