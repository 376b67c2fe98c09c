"""Names of models that can be checked without importing torch or open_clip, which take seconds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fpp_sweep.spec.errors import InputError, unknown

EMBEDDED = "tiny"


def architectures() -> list[str]:
    """Return open_clip's architectures, read from the names of its files if it is not imported yet."""
    if (imported := sys.modules.get("open_clip")) is not None:
        return list(imported.list_models())
    package = importlib.util.find_spec("open_clip")
    folders = package.submodule_search_locations if package else None
    names = []
    for folder in folders or ():
        names += [path.stem for path in Path(folder).glob("model_configs/*.json")]
    return sorted(names)


def require_model(model: str) -> None:
    """Raise InputError if the architecture is unknown or the file of weights does not exist.

    A tag after a slash and the content of the file are checked when the model is loaded.
    """
    ends = [index for index in (model.find("/"), model.find(":")) if index >= 0]
    end = min(ends, default=len(model))
    name = model[:end].partition("+")[0]
    if name not in (EMBEDDED, *architectures()):
        raise unknown("model", name, [EMBEDDED, *architectures()])
    path = model[end + 1 :]
    if model[end : end + 1] == ":" and path and not Path(path).expanduser().is_file():
        raise InputError(f"model {model!r}: {path} is not a file; give the path of a checkpoint")
