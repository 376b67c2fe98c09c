"""Functions and constants of this package, torch and NumPy that a plugin replaces.

Later tasks would compute with its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

PACKAGE = "fpp_sweep"
LIBRARY_MODULES = (
    "numpy",
    "numpy.linalg",
    "numpy.random",
    "torch",
    "torch.autograd",
    "torch.linalg",
    "torch.nn",
    "torch.nn.functional",
    "torch.optim",
)
# without optimizers: this package has its own, and torch replaces the `step` of each at its first use
LIBRARY_CLASSES = {"torch": ("Tensor",), "torch.nn": ("Module", "LayerNorm", "Linear")}


class KnownFunctions:
    """The functions and constants of the watched modules and classes, as they were when this object was made."""

    def __init__(self) -> None:
        self._values = [(owner, dict(vars(owner))) for owner in _owners()]

    def put_back(self, on_change: Callable[[str], None]) -> None:
        """Put replaced functions and constants back; call `on_change` with the name of each."""
        for owner, values in self._values:
            for name in _put_back(owner, values):
                on_change(_full_name(owner, name))


def _put_back(owner: Any, before: dict[str, Any]) -> list[str]:
    """Put the values of a module or a class back; return the names of those that had been replaced."""
    now = vars(owner)
    replaced = []
    for name, value in before.items():
        if now.get(name) is not value and _is_fixed(name, value):
            replaced.append(name)
    for name in replaced:
        setattr(owner, name, before[name])
    if isinstance(owner, type) and len(now) > len(before):
        for name in set(now) - set(before):
            if any(name in vars(base) for base in owner.__mro__[1:]):  # it hides a function of the base class
                delattr(owner, name)
                replaced.append(name)
    return replaced


def _owners() -> list[Any]:
    """Return the modules and classes that are watched, as far as this process has loaded them."""
    owners: list[Any] = []
    for module_name, module in list(sys.modules.items()):
        if module_name == PACKAGE or module_name.startswith(f"{PACKAGE}."):
            owners.append(module)
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == module_name:
                    owners.append(value)
    for module_name in LIBRARY_MODULES:
        if module_name in sys.modules:
            module = sys.modules[module_name]
            owners.append(module)
            for class_name in LIBRARY_CLASSES.get(module_name, ()):
                owners.append(getattr(module, class_name))
    return owners


def _is_fixed(name: str, value: Any) -> bool:
    """Return True for functions, classes and constants, which only a patch changes."""
    return callable(value) or isinstance(value, staticmethod | classmethod | property) or name.isupper()


def _full_name(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"
