"""Tensors of the checkpoints of CoOp and MaPLe; no code in a file is ever run."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.spec.errors import InputError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a `torch.save` file; nested names are joined by dots."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_PLACEHOLDERS):
            warnings.simplefilter("ignore")
            can_be_mapped = zipfile.is_zipfile(path)  # then an optimizer's state is never read from disk
            return dict(_flatten(torch.load(path, map_location="cpu", weights_only=True, mmap=can_be_mapped)))
    except Exception as error:  # on damaged files torch raises errors without a common base class
        raise InputError(f"{path}: {why_unreadable(error)}") from error


def why_unreadable(error: Exception) -> str:
    """Return in one line why torch could not read a file."""
    code = re.search(r"GLOBAL ([\w.]+)", str(error))
    if code is not None:
        return f"refused, reading it would run code ({code[1]}); only plain weights are read"
    if isinstance(error, pickle.UnpicklingError):
        return "not a file of plain weights; damaged, or not a PyTorch checkpoint"
    return f"truncated, damaged, or not a checkpoint ({type(error).__name__})"  # its text may quote another file's


class Placeholder:
    """A replacement for an optimizer or scheduler, which keeps nothing."""

    def __init__(self, *_: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, state: object) -> None:
        """Drop the state."""


def _empty(*_: object) -> dict[Any, Any]:
    return {}


def _replacements() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return what replaces the classes of optimizers and schedulers, which CoOp's checkpoints hold as objects."""
    replacements: list[Any] = [(_empty, "collections.defaultdict"), (_empty, "builtins.dict")]
    for module in (torch.optim, torch.optim.lr_scheduler):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__.startswith("torch.optim."):
                replacements.append((Placeholder, f"{cls.__module__}.{cls.__qualname__}"))
    return replacements


_PLACEHOLDERS = _replacements()


def _flatten(content: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of nested mappings, with its name."""
    if isinstance(content, Tensor):
        yield prefix, content
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _flatten(value, f"{prefix}.{name}".removeprefix("."))
