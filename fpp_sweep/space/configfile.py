"""A trial's settings in a file, as a sweep's report writes them: `config:` and dotted keys with values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fpp_sweep.config import TrialConfig
from fpp_sweep.errors import InputError
from fpp_sweep.space.settings import check_settings
from fpp_sweep.space.yamlfile import read


def read_config(path: Path) -> dict[str, Any]:
    """The settings by dotted key, each known and fit for a trial; a complaint names the line."""
    entries = read(path, "config").mapping(["config"])
    if "config" not in entries:
        raise InputError(f"{path}: has no `config:`; a sweep's best/*.yaml does")
    node = entries["config"]
    with node.locating():
        return check_settings(node.plain(), TrialConfig())
