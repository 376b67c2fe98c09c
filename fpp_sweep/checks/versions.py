"""The versions of the libraries, and the commit of this package."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fpp_sweep.spec.version import VERSION

LIBRARIES = ("torch", "open_clip_torch", "ray", "optuna", "mlflow", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of this package, Python and the libraries that decide results, by name."""
    by_name = {"fpp_sweep": VERSION, "python": sys.version.split()[0]}
    for library in LIBRARIES:
        by_name[library] = version(library)
    return by_name


def allowed_versions(name: str) -> str:
    """Return the versions of a library, or of Python, that this package's own metadata allow, such as `>=2.9,<3`."""
    if name == "python":
        return metadata("fpp_sweep")["Requires-Python"] or ""
    for text in requires("fpp_sweep") or ():
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == canonicalize_name(name) and requirement.marker is None:
            return str(requirement.specifier)
    return ""


def git_state() -> tuple[str, bool]:
    """Return the commit of the running code and whether files were changed since; ("", False) outside a checkout."""
    try:
        _git("ls-files", "--error-unmatch", __file__)
        return _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", ".") != ""
    except (OSError, subprocess.CalledProcessError):
        return "", False


def _git(*words: str) -> str:
    package = Path(__file__).parent.parent
    command = ["git", "-C", str(package), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
