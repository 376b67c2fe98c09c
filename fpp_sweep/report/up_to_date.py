"""Tell whether a sweep's report is up to date: to write it again takes seconds if the sweep has many trials.

`report/.fingerprint.json` holds a digest of the files that the report was computed from, and one of the report's own
files. Both contain each file's time of change, which the kernel sets and no archive or copy preserves. So the report of
a folder from elsewhere is always written again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec import plugins
from fpp_sweep.spec.files import read_inside, stamps_below, write_json

FINGERPRINT_FILE = ".fingerprint.json"
PACKAGE = Path(__file__).parents[1]
INPUTS = ("sweep.json", "sweep.json.copy", "trials", "artifacts", "logs")


def is_up_to_date(folder: SweepFolder) -> bool:
    """Return True if nothing has changed since `remember` was called, neither the sweep nor its report nor the code."""
    try:
        document = json.loads(read_inside(folder.path, folder.report / FINGERPRINT_FILE))
        return bool(document == {"inputs": fingerprint_of_inputs(folder), "report": _fingerprint_of_report(folder)})
    except (OSError, ValueError, RecursionError):  # missing, damaged, or a part of the folder cannot be read
        return False


def remember(folder: SweepFolder, inputs: str) -> None:
    """Note that the report was just written; `inputs` is the fingerprint from before its files were read."""
    document = {"inputs": inputs, "report": _fingerprint_of_report(folder)}
    write_json(folder.report / FINGERPRINT_FILE, document)


def fingerprint_of_inputs(folder: SweepFolder) -> str:
    """Return a digest of all that a report is computed from: the sweep's files, the plugins and the package."""
    lines = [f"folder {folder.path}"]
    for plugin in plugins.loaded():
        lines.append(f"plugin {plugin.name} {plugin.digest}")
    lines += stamps_below(PACKAGE)
    for name in INPUTS:
        lines += stamps_below(folder.path / name)
    return _digest(lines)


def _fingerprint_of_report(folder: SweepFolder) -> str:
    lines = []
    for line in stamps_below(folder.report):
        if FINGERPRINT_FILE not in line:
            lines.append(line)
    return _digest(lines)


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()
