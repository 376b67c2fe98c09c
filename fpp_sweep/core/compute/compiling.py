"""Runners for functions that are called many times: eager calls, or calls through torch.compile.

With few classes a fast GPU waits for the launches of small kernels. Compilation fuses kernels, and on CUDA it launches
all kernels of a call as one graph.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from fpp_sweep.core.compute.devices import is_device_failure
from fpp_sweep.core.compute.memory import is_out_of_memory
from fpp_sweep.spec.errors import InputError, first_line
from fpp_sweep.spec.messages import warn_once

P = ParamSpec("P")
T = TypeVar("T")

EAGER_CALLS = 16  # calls of a shape before it is compiled, because a compilation takes seconds or minutes
MAX_SHAPES = 8  # compiled shapes of a function: torch's own limit


class Runner(Protocol):
    """A way to call a function with its arguments."""

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T: ...


def eagerly(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function without compilation."""
    return function(*arguments, **named)


class Compiler:
    """Runner that compiles a function for frequent shapes of its arguments and calls it eagerly for all other shapes.

    A function that torch cannot compile runs eagerly from then on, and a line of the log says so.

    Torch recompiles for every new value of a plain number, so numbers that vary must be tensors. Torch would also trace
    into an `lru_cache`, so a cached value must be an argument. Torch counts shapes per process, so a new Compiler makes
    torch forget what others have compiled; use one at a time.
    """

    def __init__(
        self,
        device: torch.device,
        frozen: Iterable[Tensor],
        constant_types: tuple[type, ...],
        *,
        eager_calls: int = EAGER_CALLS,
    ) -> None:
        """Prepare compilation for a device; InputError if torch cannot compile there.

        `frozen` are tensors that never change. `constant_types` are types with few objects, because torch recompiles
        for each of them.
        """
        self._constant_types = constant_types
        self._eager_calls = eager_calls
        self._mode: str | None = None
        if device.type == "cuda":
            self._mode = "reduce-overhead"
        self._thread = threading.get_ident() if self._mode else None
        self._calls: Counter[Hashable] = Counter()
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._shapes: dict[Callable[..., Any], set[Hashable]] = defaultdict(set)
        self.failures: dict[Callable[..., Any], str] = {}  # functions that torch could not compile, and why
        torch.compiler.reset()
        try:
            _call_compiled(self._compile(torch.neg), torch.ones(1, device=device))
        except Exception as error:  # a C++ compiler or Triton is missing, the GPU is too old, ...
            cause = _cause_of(error)
            if is_device_failure(cause):
                raise cause from None
            raise InputError(f"work.compile: torch.compile cannot be used on {device}: {first_line(cause)}") from error
        for tensor in frozen:  # a CUDA graph copies all other inputs at every launch
            torch._dynamo.mark_static_address(tensor)

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        modes = (  # torch compiles once for each of these, too
            torch.is_grad_enabled(),
            torch.backends.cuda.matmul.fp32_precision,
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_enabled("cuda"),
        )
        shapes = modes, self._signature(arguments), self._signature(named)
        if not self._should_compile(function, shapes):
            return function(*arguments, **named)
        self._require_same_thread()
        if function not in self._compiled:
            self._compiled[function] = self._compile(function)
        try:
            result: T = _clone(_call_compiled(self._compiled[function], *arguments, **named))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._run_eagerly(function, error)
            return function(*arguments, **named)
        return result

    def _run_eagerly(self, function: Callable[..., Any], error: Exception) -> None:
        """Never compile a function again that torch could not compile, and log why."""
        name = getattr(function, "__name__", str(function))
        self.failures[function] = f"torch.compile fails on {name}: {first_line(error)}"
        warn_once(self.notes()[-1])

    def notes(self) -> list[str]:
        """Return a line for each function that runs uncompiled because torch could not compile it."""
        return [f"work.compile: {failure}; it runs uncompiled from now on" for failure in self.failures.values()]

    def _require_same_thread(self) -> None:
        """Raise RuntimeError in another thread than the one that built the runner: torch keeps CUDA graphs by thread.

        There torch would record all graphs anew, or replay one whose memory another thread uses.
        """
        if self._thread is not None and threading.get_ident() != self._thread:
            raise RuntimeError("CUDA graphs must be built and replayed in the thread that made their compiler")

    def _should_compile(self, function: Callable[..., Any], shapes: Hashable) -> bool:
        """Count a call with these shapes; return True from the call on at which they are frequent enough."""
        if function in self.failures:
            return False
        compiled_shapes = self._shapes[function]
        if shapes not in compiled_shapes and len(compiled_shapes) < MAX_SHAPES:
            self._calls[function, shapes] += 1
            if self._calls[function, shapes] > self._eager_calls:
                compiled_shapes.add(shapes)
        return shapes in compiled_shapes

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, fullgraph=True, mode=self._mode)

    def _signature(self, value: Any) -> Hashable:
        """Return everything about an argument for which torch recompiles."""
        if isinstance(value, Tensor):
            return value.shape, value.stride(), value.dtype, value.requires_grad
        if isinstance(value, self._constant_types):
            return id(value)
        if isinstance(value, tuple | list):
            return tuple([self._signature(item) for item in value])
        if isinstance(value, dict):
            return tuple([(key, self._signature(item)) for key, item in value.items()])
        if is_dataclass(value):
            return tuple([self._signature(getattr(value, field.name)) for field in fields(value)])
        if hasattr(value, "__dict__"):
            return self._signature(vars(value))
        constant: Hashable = value
        return constant


def _call_compiled(compiled: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a compiled function; remove libraries of torch that cannot be loaded, so that torch builds them anew.

    A C++ compiler that is killed leaves a part of a library in torch's cache, which torch takes for a whole one from then on.
    """
    removed: set[Path] = set()
    while True:
        try:
            return compiled(*arguments, **named)
        except Exception as error:
            library = _damaged_library(error)
            if library is None or library in removed:
                raise
            library.unlink(missing_ok=True)
            removed.add(library)


def _damaged_library(error: Exception) -> Path | None:
    """Return the library in torch's cache whose loading has failed; None if the error has another cause."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # takes seconds, and is loaded once torch compiles

    cause = _cause_of(error)
    if not isinstance(cause, ImportError) or cause.path is None:
        return None
    library = Path(cause.path)
    if not library.is_relative_to(cache_dir()):
        return None
    return library


def _cause_of(error: Exception) -> Exception:
    """Return the error that torch's compiler has wrapped in one of its own."""
    cause: Exception = getattr(error, "inner_exception", error)
    return cause


def _clone(value: Any) -> Any:
    """Return a copy of a graph's outputs, which its next launch overwrites."""
    if isinstance(value, Tensor):
        return value.clone()
    return tuple([_clone(item) for item in value])
