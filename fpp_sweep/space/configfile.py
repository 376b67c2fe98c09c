"""A trial's settings in a file, as a sweep's report writes them: `config:` and dotted keys with values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fpp_sweep.config import TrialConfig
from fpp_sweep.errors import InputError, unknown
from fpp_sweep.space.yamlfile import read


def read_config(path: Path) -> dict[str, Any]:
    """The settings by dotted key, each known and fit for a trial; a complaint names the line."""
    entries = read(path, "config").mapping(["config"])
    if "config" not in entries:
        raise InputError(f"{path}: has no `config:`; a sweep's best/*.yaml does")
    known = TrialConfig().flat()
    settings = {}
    for key, node in entries["config"].mapping().items():
        if key not in known:
            raise InputError(f"{node.where}: {unknown('config key', key, known)}")
        settings[key] = node.scalar()
    try:
        TrialConfig().replace(settings)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return settings
