"""How functions that are called many times run: eagerly, or through torch.compile.

With few classes a fast GPU idles between the launches of small kernels. Compiling fuses kernels, and on CUDA launches
all of a call as one graph.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from fpp_sweep.spec.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")

EAGER_CALLS = 16  # calls of a shape before it is compiled, which takes seconds or minutes
MAX_SHAPES = 8  # compiled shapes of a function: torch's own limit


class Runner(Protocol):
    """Calls a function with its arguments."""

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T: ...


def eagerly(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    return function(*arguments, **named)


class Compiler:
    """Compiles a function for frequent shapes of its arguments and calls it eagerly for all others.

    Torch recompiles for every new value of a plain number, so numbers that vary must be tensors. It would also trace
    into an `lru_cache`, so what one returns must be an argument. Use one per process: torch counts shapes per process.
    """

    def __init__(
        self,
        device: torch.device,
        frozen: Iterable[Tensor],
        constant_types: tuple[type, ...],
        *,
        eager_calls: int = EAGER_CALLS,
        graphs: bool = True,
    ) -> None:
        """`frozen` tensors never change; objects of `constant_types` are few, and torch recompiles for each.

        Without `graphs` a GPU launches kernel after kernel, and memory between them is not held.
        """
        self._constant_types = constant_types
        self._eager_calls = eager_calls
        self._mode = "reduce-overhead" if graphs and device.type == "cuda" else None
        self._calls: Counter[Hashable] = Counter()
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._shapes: dict[Callable[..., Any], set[Hashable]] = defaultdict(set)
        try:
            self._compile(torch.neg)(torch.ones(1, device=device))
        except Exception as error:  # a C++ compiler or Triton is missing, the GPU is too old, ...
            reason = str(getattr(error, "inner_exception", error)).partition("\n")[0]
            raise InputError(f"work.compile: torch.compile cannot be used on {device}: {reason}") from error
        for tensor in frozen:  # at every launch a graph copies all other inputs
            torch._dynamo.mark_static_address(tensor)

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        exact = torch.backends.cuda.matmul.fp32_precision
        modes = torch.is_grad_enabled(), exact, *map(torch.is_autocast_enabled, ("cpu", "cuda"))
        shapes = modes, self._signature(arguments), self._signature(named)
        if not self._should_compile(function, shapes):
            return function(*arguments, **named)
        if function not in self._compiled:
            self._compiled[function] = self._compile(function)
        result: T = _copied(self._compiled[function](*arguments, **named))
        return result

    def _should_compile(self, function: Callable[..., Any], shapes: Hashable) -> bool:
        chosen = self._shapes[function]
        if shapes not in chosen and len(chosen) < MAX_SHAPES:
            self._calls[function, shapes] += 1
            if self._calls[function, shapes] > self._eager_calls:
                chosen.add(shapes)
        return shapes in chosen

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, fullgraph=True, mode=self._mode)

    def _signature(self, value: Any) -> Hashable:
        """All that torch recompiles for."""
        if isinstance(value, Tensor):
            return value.shape, value.stride(), value.dtype, value.requires_grad
        if isinstance(value, self._constant_types):
            return id(value)
        if isinstance(value, tuple | list):
            return tuple(map(self._signature, value))
        if isinstance(value, dict):
            return tuple((key, self._signature(item)) for key, item in value.items())
        if is_dataclass(value):
            return tuple(self._signature(getattr(value, item.name)) for item in fields(value))
        return self._signature(vars(value)) if hasattr(value, "__dict__") else value


def _copied(value: Any) -> Any:
    """A copy, because the next launch of the graph overwrites its outputs."""
    return value.clone() if isinstance(value, Tensor) else tuple(map(_copied, value))
