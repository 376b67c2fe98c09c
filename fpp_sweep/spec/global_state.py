"""Settings of this process that a plugin may change, and that would change the results of later tasks.

A process computes tasks of many trials. A plugin that sets torch's default type, a seed or an environment variable must
not change the numbers of the next trial: `plugin_guard` restores the settings after each call.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fpp_sweep.spec.patched_functions import KnownFunctions

ReadAndWrite = tuple[Callable[[], Any], Callable[[Any], object]]  # two functions that read and write a setting

# importing a library may change these, too: rich draws a random number
CHANGED_BY_IMPORTS = ("the environment", "the filters of warnings", "Python's random state")
_entered_modes: list[Any] = []  # torch's inference modes: one ends when its object is freed
SMALLEST_FLOAT64 = 5e-324  # a denormal number: zero where torch flushes such numbers


def process_settings() -> dict[str, ReadAndWrite]:
    """Return the settings by name; those of NumPy and torch only if this process has loaded the library."""
    by_name: dict[str, ReadAndWrite] = {
        "Python's random state": (random.getstate, random.setstate),
        "the working folder": (os.getcwd, os.chdir),
        "the environment": (os.environ.copy, _write_environment),
        "the filters of warnings": (lambda: list(warnings.filters), _write_warnings),
    }
    if "numpy" in sys.modules:
        by_name |= _numpy_settings(sys.modules["numpy"])
    if "torch" in sys.modules:
        by_name |= _torch_settings(sys.modules["torch"])
    if "PIL.Image" in sys.modules and "PIL.ImageFile" in sys.modules:
        by_name |= _pillow_settings(sys.modules["PIL.Image"], sys.modules["PIL.ImageFile"])
    return by_name


def _write_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _write_warnings(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]  # as `warnings.catch_warnings` does


def _numpy_settings(numpy: Any) -> dict[str, ReadAndWrite]:
    def read_random() -> tuple[Any, bytes]:
        generator = numpy.random.get_bit_generator()
        return generator, pickle.dumps(generator.state)

    def write_random(state: tuple[Any, bytes]) -> None:
        generator, pickled = state
        generator.state = pickle.loads(pickled)
        numpy.random.set_bit_generator(generator)

    return {
        "NumPy's random state": (read_random, write_random),
        "NumPy's handling of errors (seterr)": (numpy.geterr, lambda state: numpy.seterr(**state)),
    }


def _pillow_settings(image: Any, image_file: Any) -> dict[str, ReadAndWrite]:
    """Return the settings that decide which damaged images Pillow reads: features of them would be cached."""

    def read() -> tuple[Any, Any]:
        return image_file.LOAD_TRUNCATED_IMAGES, image.MAX_IMAGE_PIXELS

    def write(state: tuple[Any, Any]) -> None:
        image_file.LOAD_TRUNCATED_IMAGES, image.MAX_IMAGE_PIXELS = state

    return {"Pillow's limits (LOAD_TRUNCATED_IMAGES, MAX_IMAGE_PIXELS)": (read, write)}


def _torch_settings(torch: Any) -> dict[str, ReadAndWrite]:
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
        "torch's random state": (read_random, write_random),
        "torch's tiny numbers (set_flush_denormal)": (read_flushing, torch.set_flush_denormal),
        **_autograd_settings(torch),
        **_algorithm_settings(torch),
        **_attention_settings(torch),
        **_library_settings(torch),
    }


def _autograd_settings(torch: Any) -> dict[str, ReadAndWrite]:
    """Return the settings of gradients that a plugin may have entered and not left."""
    autograd = torch._C._autograd

    def write_inference_mode(enabled: bool) -> None:
        _entered_modes.append(torch._C._InferenceMode(enabled))

    def read_hooks() -> Any:
        return autograd._top_saved_tensors_default_hooks(True)

    def write_hooks(hooks: Any) -> None:
        while read_hooks() not in (hooks, None):
            autograd._pop_saved_tensors_default_hooks()

    def read_anomalies() -> tuple[bool, bool]:
        return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()

    def write_anomalies(state: tuple[bool, bool]) -> None:
        torch.autograd.set_detect_anomaly(*state)

    devices = ("cpu", "cuda")

    def read_autocast() -> list[tuple[bool, Any]]:
        return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices]

    def write_autocast(states: list[tuple[bool, Any]]) -> None:
        for device, (enabled, dtype) in zip(devices, states, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)

    return {
        "torch's inference mode": (torch.is_inference_mode_enabled, write_inference_mode),
        "torch's gradients (set_grad_enabled)": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch's hooks on saved tensors": (read_hooks, write_hooks),
        "torch's search for anomalies (set_detect_anomaly)": (read_anomalies, write_anomalies),
        "torch's autocast": (read_autocast, write_autocast),
    }


def _attention_settings(torch: Any) -> dict[str, ReadAndWrite]:
    """Return torch's switches of the kernels that compute attention."""
    cuda, layers = torch.backends.cuda, torch.backends.mha
    switches = {
        "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        "mem_efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
        "cudnn": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        "half precision": (cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp),
        "encoder layers": (layers.get_fastpath_enabled, layers.set_fastpath_enabled),
    }

    def read() -> dict[str, bool]:
        return {kernel: is_enabled() for kernel, (is_enabled, _) in switches.items()}

    def write(state: dict[str, bool]) -> None:
        for kernel, enabled in state.items():
            _, enable = switches[kernel]
            enable(enabled)

    return {"torch's attention kernels (enable_*_sdp)": (read, write)}


def _library_settings(torch: Any) -> dict[str, ReadAndWrite]:
    """Return torch's switches of the libraries that it calls."""
    mkldnn, cuda, products = torch.backends.mkldnn, torch.backends.cuda, torch.backends.cuda.matmul

    def read_onednn() -> tuple[bool, bool]:
        return mkldnn.enabled, mkldnn.deterministic

    def write_onednn(state: tuple[bool, bool]) -> None:
        mkldnn.enabled, mkldnn.deterministic = state

    def read_sums() -> tuple[Any, Any, Any]:
        return (
            products.allow_fp16_reduced_precision_reduction,
            products.allow_bf16_reduced_precision_reduction,
            products.allow_fp16_accumulation,
        )

    def write_sums(state: tuple[Any, Any, Any]) -> None:
        in_fp16, in_bf16, accumulation = state
        products.allow_fp16_reduced_precision_reduction = in_fp16
        products.allow_bf16_reduced_precision_reduction = in_bf16
        products.allow_fp16_accumulation = accumulation

    def read_libraries() -> tuple[Any, Any]:
        return cuda.preferred_linalg_library(), cuda.preferred_blas_library()

    def write_libraries(state: tuple[Any, Any]) -> None:
        linalg, blas = state
        cuda.preferred_linalg_library(linalg)
        cuda.preferred_blas_library(blas)

    return {
        "oneDNN's settings": (read_onednn, write_onednn),
        "torch's sums in half precision": (read_sums, write_sums),
        "torch's preferred libraries": (read_libraries, write_libraries),
    }


def _algorithm_settings(torch: Any) -> dict[str, ReadAndWrite]:
    """Return torch's settings that choose between algorithms of different last bits."""
    backends = torch.backends
    products = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv)

    def read_deterministic() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def write_deterministic(state: tuple[bool, bool]) -> None:
        enabled, warn_only = state
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)

    def read_cudnn() -> tuple[bool, bool, bool, Any]:
        cudnn = backends.cudnn
        return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.benchmark_limit

    def write_cudnn(state: tuple[bool, bool, bool, Any]) -> None:
        cudnn = backends.cudnn
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.benchmark_limit = state

    def read_products() -> tuple[str, ...]:
        return tuple(product.fp32_precision for product in products)

    def write_products(state: tuple[str, ...]) -> None:
        # torch keeps older copies of these settings, and its functions that read a copy fail where the two differ
        _, in_matmul, in_convolution, *_ = state
        torch.set_float32_matmul_precision("high" if in_matmul == "tf32" else "highest")
        backends.cudnn.allow_tf32 = in_convolution == "tf32"
        for product, precision in zip(products, state, strict=True):
            product.fp32_precision = precision

    return {
        "torch's deterministic algorithms": (read_deterministic, write_deterministic),
        "cuDNN's settings": (read_cudnn, write_cudnn),
        "torch's precision of float32 products": (read_products, write_products),
    }


class ProcessState:
    """The settings of this process and the functions of its modules, as they were when this object was made."""

    def __init__(self, ignored: tuple[str, ...] = ()) -> None:
        """Read the state without the ignored settings, which `restore` does not restore."""
        self._functions = KnownFunctions()
        self._settings = {}
        for name, (read, write) in process_settings().items():
            if name not in ignored:
                value = read()
                self._settings[name] = (read, write, value)

    def restore(self, on_change: Callable[[str], None]) -> None:
        """Restore the state; call `on_change` with the name of each setting and function that had changed."""
        for name, (read, write, value) in self._settings.items():
            if read() != value:
                write(value)
                on_change(name)
        self._functions.put_back(on_change)


@contextmanager
def restored(on_change: Callable[[str], None], ignored: tuple[str, ...] = ()) -> Iterator[None]:
    """Restore the state of the process at the end of the block: see ProcessState."""
    state = ProcessState(ignored)
    try:
        yield
    finally:
        state.restore(on_change)
