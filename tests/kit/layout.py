"""The layout of a sweep folder and of its MLflow runs, compared with tests/data/sweep_layout.yaml.

The layout has the names of files, fields, columns, params, metrics and tags, without values: numbers, times and the
choice of front members differ between machines. `python -m tests.kit.layout` prints the layout of a new sweep.
"""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from fpp_sweep.records.folder import SweepFolder
from tests.kit.processes import ROOT, environment, only_sweep, tune_command

LAYOUT_FILE = ROOT / "tests/data/sweep_layout.yaml"
SPACE = (ROOT / "search_spaces/smoke.yaml").read_text()
# a sweep that recommends a trial writes the first file and the tag, another one the second file
DEPENDS_ON_RESULTS = {"report/best/recommended.yaml", "report/best/baseline.yaml"}
TAG_OF_RECOMMENDATION = "recommended"
TABLES = {"params": "params", "metrics": "latest_metrics", "tags": "tags"}  # tables of MLflow's store


def layout_of(sweep: SweepFolder, database: Path) -> dict[str, Any]:
    """Return the names of a sweep's files, fields and columns, and of its runs' entries in MLflow's store."""
    return {
        "files": files_of(sweep.path),
        "records": fields_by_kind(sweep),
        "front.csv": columns_of(sweep.report / "front.csv"),
        "mlflow": runs_of(database),
    }


def files_of(folder: Path) -> list[str]:
    """Return the files of a folder, where trials, tasks and logs count once."""
    names = set()
    for path in folder.rglob("*"):
        if path.is_file():
            names.add(generalized(path.relative_to(folder).as_posix()))
    return sorted(names - DEPENDS_ON_RESULTS)


def generalized(name: str) -> str:
    """Return a name without the parts that differ between trials and machines.

    >>> generalized("trials/trial-0003.json")
    'trials/trial-N.json'
    """
    name = re.sub(r"trial-\d{4}", "trial-N", name)
    name = re.sub(r"^tasks/.*", "tasks/...", name)
    name = re.sub(r"^logs/.*", "logs/...", name)
    return re.sub(r"[0-9a-f]{16,}", "HASH", name)


def fields_by_kind(sweep: SweepFolder) -> dict[str, list[str]]:
    """Return the fields of all records of a kind: of the sweep, of trials and of baselines."""
    fields: dict[str, set[str]] = {"sweep": set(json.loads(sweep.info_file.read_text()))}
    for file in sweep.trial_files():
        document = json.loads(file.read_text())
        fields.setdefault(document["kind"], set()).update(document)
    return {kind: sorted(names) for kind, names in fields.items()}


def columns_of(file: Path) -> list[str]:
    with file.open() as lines:
        return next(csv.reader(lines))


def runs_of(database: Path) -> dict[str, dict[str, list[str]]]:
    """Return the names of params, metrics and tags of all runs of a kind."""
    runs: dict[str, dict[str, list[str]]] = {}
    with closing(sqlite3.connect(database)) as store:
        kinds = dict(store.execute("select run_uuid, value from tags where key = 'kind'"))
        for kind in sorted(set(kinds.values())):
            ids = [run_id for run_id in kinds if kinds[run_id] == kind]
            runs[kind] = {}
            for label, table in TABLES.items():
                runs[kind][label] = sorted(keys_of_runs(store, table, ids))
    return runs


def keys_of_runs(store: sqlite3.Connection, table: str, ids: Iterable[str]) -> set[str]:
    keys: set[str] = set()
    for run_id in ids:
        keys.update(key for (key,) in store.execute(f"select key from {table} where run_uuid = ?", [run_id]))
    return keys - {TAG_OF_RECOMMENDATION}


def assert_same_layout(sweep: SweepFolder, database: Path) -> None:
    assert layout_of(sweep, database) == yaml.safe_load(LAYOUT_FILE.read_text())


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run(
            tune_command(folder, space=SPACE), check=True, cwd=folder, env=environment(folder), capture_output=True
        )
        layout = layout_of(only_sweep(folder), folder / "mlflow.db")
        print("# Written by `python -m tests.kit.layout`. A change here changes what a sweep writes for its user.")
        print(yaml.safe_dump(layout, sort_keys=False, width=120), end="")


if __name__ == "__main__":
    main()
