"""The choice of the device that a process computes on."""

from __future__ import annotations

import torch

from fpp_sweep.core.compute.memory import is_out_of_memory
from fpp_sweep.spec.errors import DeviceError, InputError, first_sentence

# CUDA, its driver and Triton begin errors with these phrases; cuDNN's are about a full or broken device
FAILURE_PHRASES = (
    "CUDA error",
    "CUDA driver error",
    "Triton Error [CUDA]",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
)
# phrases of cuBLAS, and of CUDA, about a computation that a sound device cannot do; they outweigh the phrases above
UNSUPPORTED_PHRASES = (
    "CUBLAS_STATUS_NOT_SUPPORTED",
    "CUBLAS_STATUS_ARCH_MISMATCH",
    "CUBLAS_STATUS_INVALID_VALUE",
    "no kernel image is available",
    "device kernel image is invalid",
    "unsupported toolchain",
    "invalid argument",
)


def choose_device(name: str) -> str:
    """Return a device by name, `auto` for a GPU if there is one; raise InputError if it cannot be used.

    The error is a DeviceError unless torch was built without support for the device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "cpu"
    try:
        torch.zeros(1, device=name).cpu()
    except AssertionError as error:  # torch without CUDA
        raise InputError(_unusable(name, error)) from error
    except RuntimeError as error:
        raise DeviceError(_unusable(name, error)) from error
    return name


def _unusable(name: str, error: Exception) -> str:
    return f"device {name!r} cannot be used: {first_sentence(error)}; choose another one, such as cpu"


def is_device_failure(error: BaseException) -> bool:
    """Return whether an error says that a device is full or broken; the failed computation may be sound."""
    text = str(error)
    if any(phrase in text for phrase in UNSUPPORTED_PHRASES):
        return False
    return is_out_of_memory(error) or any(phrase in text for phrase in FAILURE_PHRASES)
