"""Where a sweep's numbers come from: the versions and the commit that made them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fpp_sweep.space.space import Space
from fpp_sweep.spec.messages import masked
from fpp_sweep.spec.version import VERSION

LIBRARIES = ("torch", "open_clip_torch", "ray", "optuna", "mlflow", "numpy")


def plain(space: Space) -> dict[str, Any]:
    """The space as it is recorded, without the secret of its MLflow."""
    uri = space.work.tracking_uri
    return space.plain() if uri is None else replace(space, work=replace(space.work, tracking_uri=masked(uri))).plain()


def versions() -> dict[str, str]:
    return {
        "fpp_sweep": VERSION,
        "python": sys.version.split()[0],
        **{library: version(library) for library in LIBRARIES},
    }


def git_state() -> tuple[str, bool]:
    """Return the commit of the running code and whether files were changed since; ("", False) outside a checkout."""
    here = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(here))
        return git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".") != ""
    except (OSError, subprocess.CalledProcessError):
        return "", False
