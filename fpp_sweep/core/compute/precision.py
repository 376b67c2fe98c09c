"""Precision of matrix products: a setting of the trial, in force inside a `with` block only."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.compute.devices import is_device_failure
from fpp_sweep.spec.errors import InputError, first_line
from fpp_sweep.spec.specs import StagePrecision

# torch 2.9 warns about what `_set_float32_precision` must do for torch's own compiler, and about exact products
for advice in ("Please use the new API settings to control TF32", "TensorFloat32 tensor cores"):
    warnings.filterwarnings("ignore", advice)

# factor of a loss whose gradient is computed in half precision, whose range is 6e-8 to 65504
LOSS_SCALE = 64.0


@contextmanager
def computing(precision: StagePrecision, device: torch.device) -> Iterator[None]:
    """Compute matrix products in a precision, whatever the caller has set; InputError if the device cannot."""
    require_precision_support(precision, device)
    before = [setting.fp32_precision for setting in _float32_settings()]
    inside = "ieee"
    if precision == "tf32":
        inside = "tf32"
    _set_float32_precision([inside] * len(before))
    try:
        with torch.autocast(device.type, torch.float16, enabled=precision == "fp16"):
            yield
    finally:
        _set_float32_precision(before)


def _float32_settings() -> Sequence[Any]:
    """Return torch's settings for float32: products and convolutions on CUDA, then both on a CPU."""
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn
    return cuda, torch.backends.cudnn.conv, cpu.matmul, cpu.conv  # type: ignore[attr-defined]


def _set_float32_precision(precisions: Sequence[str]) -> None:
    """Set `_float32_settings`, in their order."""
    cuda, cudnn, *_ = precisions
    # torch stores these two settings twice, and code that reads the older copy fails where the two differ
    torch.backends.cuda.matmul.allow_tf32 = cuda == "tf32"
    torch.backends.cudnn.allow_tf32 = cudnn == "tf32"
    for setting, precision in zip(_float32_settings(), precisions, strict=True):
        setting.fp32_precision = precision


def require_precision_support(precision: StagePrecision, device: torch.device | str) -> None:
    """Raise InputError if a device cannot compute in a precision."""
    device = torch.device(device)
    if precision == "tf32":
        _require_tf32(device)
    if precision == "fp16":
        reason = _lacks_half(device)
        if reason:
            raise InputError(f"precision fp16: {device} cannot compute in it ({reason}); use float32")


def _require_tf32(device: torch.device) -> None:
    needed = "precision tf32: needs a GPU with compute capability 8.0 or later"
    if device.type != "cuda":
        raise InputError(f"{needed}, this is a {device.type}; use float32")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 0):
        raise InputError(f"{needed}, this one has {major}.{minor}; use float32")


@cache  # called for every group of views
def _lacks_half(device: torch.device) -> str:
    """Return why a device cannot multiply in half precision; an empty text if it can."""
    try:
        ones = torch.ones(1, 1, 1, 1, dtype=torch.float16, device=device)
        torch.nn.functional.conv2d(ones @ ones, ones)
    except (RuntimeError, NotImplementedError) as error:
        if is_device_failure(error):
            raise
        return first_line(error)
    return ""


def without_autocast(like: Tensor) -> torch.autocast:
    """Disable autocast on a tensor's device, as the released code does for the penalties."""
    return torch.autocast(like.device.type, enabled=False)


def upcast(values: Tensor) -> Tensor:
    """Return half-precision values in float32: only matrix products are computed in half precision."""
    if values.dtype in (torch.float16, torch.bfloat16):
        return values.float()
    return values


def product_dtype(like: Tensor) -> torch.dtype:
    """Return the type in which to store a matrix that will be multiplied with a tensor."""
    if torch.is_autocast_enabled(like.device.type):
        return torch.float16
    return like.dtype


def loss_scale(device: torch.device) -> float:
    """Return the factor by which to multiply a loss before, and to divide its gradient after, a backward pass."""
    if torch.is_autocast_enabled(device.type):
        return LOSS_SCALE
    return 1.0


def gradient_scale(gradients: Tensor) -> Tensor | float:
    """Return a power of two for each of the gradients (B, K, D) that brings its largest entry to 8..16.

    A scaled gradient neither underflows nor overflows in half precision.
    """
    if not torch.is_autocast_enabled(gradients.device.type):
        return 1.0
    largest = gradients.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
    return torch.exp2(4 - largest.log2().ceil())
