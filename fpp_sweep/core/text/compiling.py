"""How functions that run again and again are called: as they are, or through torch.compile.

With few classes a fast GPU waits for the launches of its kernels. Compiled, several are one, and on CUDA all of a call
are launched as one graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from fpp_sweep.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")

OFTEN = 16  # calls before a shape is compiled: what comes once a trial is not worth the seconds or minutes
MOST = 8  # shapes of a function that are compiled: torch's own limit


class Runner(Protocol):
    """Calls a function with its arguments."""

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T: ...


def eagerly(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    return function(*arguments, **named)


class Compiler:
    """Compiles a function for shapes of its arguments that come often, and calls it as it is for all others.

    Torch compiles anew for another value of a plain number, so numbers that vary must come as tensors. It also traces
    what an `lru_cache` makes, so that must be an argument. One compiler a process: torch's limit is one for all.
    """

    def __init__(self, device: torch.device, frozen: Iterable[Tensor], known: tuple[type, ...]) -> None:
        """`frozen` tensors never change; arguments of a type in `known` are the same in all calls."""
        self._known = known
        self._mode = "reduce-overhead" if device.type == "cuda" else None
        self._calls: Counter[Hashable] = Counter()
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._shapes: dict[Callable[..., Any], set[Hashable]] = defaultdict(set)
        try:
            self._compile(torch.neg)(torch.ones(1, device=device))
        except Exception as error:  # a C++ compiler or Triton is missing, the GPU is too old, ...
            reason = str(getattr(error, "inner_exception", error)).partition("\n")[0]
            raise InputError(f"--compile: torch.compile cannot be used on {device}: {reason}") from error
        for tensor in frozen:  # a graph would copy all else that goes into it, at every launch
            torch._dynamo.mark_static_address(tensor)

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        modes = torch.is_grad_enabled(), *map(torch.is_autocast_enabled, ("cpu", "cuda"))
        shapes = modes, self._facts(arguments), self._facts(named)
        if not self._is_worth_it(function, shapes):
            return function(*arguments, **named)
        if function not in self._compiled:
            self._compiled[function] = self._compile(function)
        found: T = _kept(self._compiled[function](*arguments, **named))
        return found

    def _is_worth_it(self, function: Callable[..., Any], shapes: Hashable) -> bool:
        chosen = self._shapes[function]
        if shapes not in chosen and len(chosen) < MOST:
            self._calls[function, shapes] += 1
            if self._calls[function, shapes] > OFTEN:
                chosen.add(shapes)
        return shapes in chosen

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, fullgraph=True, mode=self._mode)

    def _facts(self, value: Any) -> Hashable:
        """All that torch compiles anew for."""
        if isinstance(value, Tensor):
            return value.shape, value.stride(), value.dtype, value.requires_grad
        if isinstance(value, self._known):
            return None
        if isinstance(value, tuple | list):
            return tuple(map(self._facts, value))
        if isinstance(value, dict):
            return tuple((key, self._facts(each)) for key, each in value.items())
        if is_dataclass(value):
            return tuple(self._facts(getattr(value, item.name)) for item in fields(value))
        return self._facts(vars(value)) if hasattr(value, "__dict__") else value


def _kept(value: Any) -> Any:
    """A copy: the next launch of a graph writes over what the last one gave."""
    return value.clone() if isinstance(value, Tensor) else tuple(map(_kept, value))
