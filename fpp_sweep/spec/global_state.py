"""Settings of this process that a plugin may change, and that would change the results of later tasks.

A process computes tasks of many trials. A plugin that sets torch's default type, a seed or an environment variable must
not change the numbers of the next trial: `plugin_guard` restores the settings after each call.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # read, write

# importing a library may change these, too
CHANGED_BY_IMPORTS = ("the environment", "the filters of warnings")
SMALLEST_FLOAT64 = 5e-324  # a denormal number: zero where torch flushes such numbers


def settings() -> dict[str, Setting]:
    """Return the settings by name; those of NumPy and torch only if this process has loaded the library."""
    by_name: dict[str, Setting] = {
        "Python's random state": (random.getstate, random.setstate),
        "the working folder": (os.getcwd, os.chdir),
        "the environment": (os.environ.copy, _write_environment),
        "the filters of warnings": (lambda: list(warnings.filters), _write_warnings),
    }
    if "numpy" in sys.modules:
        by_name |= _numpy_settings(sys.modules["numpy"])
    if "torch" in sys.modules:
        by_name |= _torch_settings(sys.modules["torch"])
    return by_name


def _write_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _write_warnings(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as `warnings.catch_warnings` does


def _numpy_settings(numpy: Any) -> dict[str, Setting]:
    def read_random() -> tuple[Any, ...]:
        kind, words, *rest = numpy.random.get_state(legacy=True)
        return kind, bytes(numpy.asarray(words)), *rest

    def write_random(state: tuple[Any, ...]) -> None:
        kind, words, *rest = state
        numpy.random.set_state((kind, numpy.frombuffer(words, numpy.uint32), *rest))

    return {
        "NumPy's random state": (read_random, write_random),
        "NumPy's handling of errors (seterr)": (numpy.geterr, lambda state: numpy.seterr(**state)),
    }


def _torch_settings(torch: Any) -> dict[str, Setting]:
    def read_random() -> tuple[bytes, ...]:
        states = [torch.get_rng_state()]
        if torch.cuda.is_initialized():
            states += torch.cuda.get_rng_state_all()
        return tuple(state.numpy().tobytes() for state in states)

    def write_random(states: tuple[bytes, ...]) -> None:
        cpu, *gpus = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states]
        torch.set_rng_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)

    def read_flushing() -> bool:
        return bool(torch.tensor(SMALLEST_FLOAT64, dtype=torch.float64, device="cpu").mul(1) == 0)

    return {
        "torch's default type": (torch.get_default_dtype, torch.set_default_dtype),
        "torch's default device": (torch.get_default_device, torch.set_default_device),
        "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
        "torch's gradients (set_grad_enabled)": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch's random state": (read_random, write_random),
        "torch's tiny numbers (set_flush_denormal)": (read_flushing, torch.set_flush_denormal),
        **_algorithm_settings(torch),
    }


def _algorithm_settings(torch: Any) -> dict[str, Setting]:
    """Return torch's settings that choose between algorithms of different last bits."""
    backends = torch.backends
    products = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)

    def read_deterministic() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def write_deterministic(state: tuple[bool, bool]) -> None:
        enabled, warn_only = state
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)

    def read_cudnn() -> tuple[bool, bool, bool]:
        return backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic

    def write_cudnn(state: tuple[bool, bool, bool]) -> None:
        backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic = state

    def read_products() -> tuple[str, ...]:
        return tuple(product.fp32_precision for product in products)

    def write_products(state: tuple[str, ...]) -> None:
        # torch keeps an older copy of this setting, and its functions that read the copy fail where the two differ
        torch.set_float32_matmul_precision("high" if state[1] == "tf32" else "highest")
        backends.cudnn.allow_tf32 = state[2] == "tf32"
        for product, precision in zip(products, state, strict=True):
            product.fp32_precision = precision

    return {
        "torch's deterministic algorithms": (read_deterministic, write_deterministic),
        "cuDNN's settings": (read_cudnn, write_cudnn),
        "torch's precision of float32 products": (read_products, write_products),
    }


@contextmanager
def restored(on_change: Callable[[str], None], kept: tuple[str, ...] = ()) -> Iterator[None]:
    """Restore all settings but the `kept` ones at the end of the block; call `on_change` with the name of each."""
    before = {}
    for name, (read, write) in settings().items():
        if name not in kept:
            before[name] = (read, write, read())
    try:
        yield
    finally:
        for name, (read, write, state) in before.items():
            if read() != state:
                write(state)
                on_change(name)
