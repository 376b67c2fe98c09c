"""Settings of this process that a plugin may change, and that would change the results of later tasks.

A worker computes tasks of many trials. A method that sets torch's default type, a seed or an environment variable must
not change the numbers of the next trial: the settings are restored after each task.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.messages import note

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # read, write


def _read_numpy_random() -> tuple[Any, ...]:
    kind, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # it is the plugin that uses it
    return kind, bytes(np.asarray(words)), *rest


def _write_numpy_random(state: tuple[Any, ...]) -> None:
    kind, words, *rest = state
    np.random.set_state((kind, np.frombuffer(words, np.uint32), *rest))  # noqa: NPY002


def _read_deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _write_deterministic(state: tuple[bool, bool]) -> None:
    enabled, warn_only = state
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _read_convolutions() -> tuple[bool, bool, bool]:
    backend = torch.backends.cudnn
    return backend.enabled, backend.benchmark, backend.deterministic


def _write_convolutions(state: tuple[bool, bool, bool]) -> None:
    backend = torch.backends.cudnn
    backend.enabled, backend.benchmark, backend.deterministic = state


def _write_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _write_warnings(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as `warnings.catch_warnings` does


SETTINGS: Mapping[str, Setting] = {
    "torch's default type": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, torch.set_default_device),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's gradients (set_grad_enabled)": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's deterministic algorithms": (_read_deterministic, _write_deterministic),
    "cuDNN's settings": (_read_convolutions, _write_convolutions),
    "torch's random state": (
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    "NumPy's random state": (_read_numpy_random, _write_numpy_random),
    "NumPy's handling of errors (seterr)": (np.geterr, lambda state: np.seterr(**state)),
    "Python's random state": (random.getstate, random.setstate),
    "the working folder": (os.getcwd, os.chdir),
    "the environment": (os.environ.copy, _write_environment),
    "the filters of warnings": (lambda: list(warnings.filters), _write_warnings),
}

CHANGED_BY_IMPORTS = ("the environment", "the filters of warnings")  # libraries that load late change them, too


@contextmanager
def restored(on_change: Callable[[str], None]) -> Iterator[None]:
    """Restore all settings at the end of the block; call `on_change` with the name of each that had changed."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    try:
        yield
    finally:
        for name, (read, write) in SETTINGS.items():
            if read() != before[name]:
                write(before[name])
                on_change(name)


class PluginGuard:
    """Restores settings after each task of a plugin's method, and notes what only the plugin can have changed."""

    def __init__(self, on_note: Callable[[str], None] = note) -> None:
        self._on_note = on_note
        self._noted: set[str] = set()

    @contextmanager
    def around(self, method: str) -> Iterator[None]:
        """Restore what the method changes in the block; methods of this package change nothing and cost nothing."""
        row = catalogue.method(method)
        plugin = plugins.file_of(row)
        if plugin is None:
            yield
            return
        changed: list[str] = []
        try:
            with restored(changed.append):
                yield
        finally:
            for setting in changed:
                if setting in CHANGED_BY_IMPORTS:
                    continue
                text = f"plugin {plugin}: method {method} changes {setting}, which is restored after each task"
                if text not in self._noted:
                    self._noted.add(text)
                    self._on_note(text)
