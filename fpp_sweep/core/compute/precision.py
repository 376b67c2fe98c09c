"""In which numbers matrices are multiplied: a trial's setting, in force for a while and never left behind."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import Precision

# torch 2.9 on what `_set` has to do for its own compiler, and that on being exact
for advice in ("Please use the new API settings to control TF32", "TensorFloat32 tensor cores"):
    warnings.filterwarnings("ignore", advice)

LOSS_SCALE = 64.0  # of a loss whose gradient goes back in half precision, from 6e-8 to 65504


@contextmanager
def computing(precision: Precision, device: torch.device) -> Iterator[None]:
    """Matrices in that precision on that device, whatever the caller has set; InputError where it cannot."""
    require_able(precision, device)
    before = [place.fp32_precision for place in _float32()]
    _set(["tf32" if precision == "tf32" else "ieee"] * len(before))
    try:
        with torch.autocast(device.type, torch.float16, enabled=precision == "fp16"):
            yield
    finally:
        _set(before)


def _float32() -> Sequence[Any]:
    """What torch asks how exact a product of float32 matrices must be."""
    gpu, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn
    return gpu, torch.backends.cudnn.conv, cpu.matmul, cpu.conv  # type: ignore[attr-defined]


def _set(values: Sequence[str]) -> None:
    # torch keeps two answers, and whoever reads the older one fails where they differ
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = (value == "tf32" for value in values[:2])
    for place, value in zip(_float32(), values, strict=True):
        place.fp32_precision = value


def require_able(precision: Precision, device: torch.device | str) -> None:
    """InputError, with what would do, where a device cannot compute in a precision."""
    device = torch.device(device) if isinstance(device, str) else device
    if precision == "tf32":
        version = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        if version is None or version < (8, 0):
            found = f"this is a {device.type}" if version is None else "this one has {}.{}".format(*version)
            raise InputError(f"precision tf32: needs a GPU with compute capability 8.0 or later, {found}; use float32")
    if precision == "fp16" and (reason := _lacks_half(device)):
        raise InputError(f"precision fp16: {device} cannot compute in it ({reason}); use float32")


@cache  # it is asked at every group of views
def _lacks_half(device: torch.device) -> str:
    """Why a device cannot multiply in half precision; empty where it can."""
    try:
        one = torch.ones(1, 1, 1, 1, dtype=torch.float16, device=device)
        torch.nn.functional.conv2d(one @ one, one)
    except (RuntimeError, NotImplementedError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def exactly(like: Tensor) -> torch.autocast:
    """What the released code leaves out of half precision: the penalties."""
    return torch.autocast(like.device.type, enabled=False)


def full(values: Tensor) -> Tensor:
    """In float32 where a matrix product has left half precision: what all but matrices is computed in."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def kept_type(like: Tensor) -> torch.dtype:
    """Of a matrix that is kept to be multiplied with."""
    return torch.float16 if torch.is_autocast_enabled(like.device.type) else like.dtype


def loss_scale(device: torch.device) -> float:
    """What a loss is multiplied by, and its gradient divided by."""
    return LOSS_SCALE if torch.is_autocast_enabled(device.type) else 1.0


def gradient_scale(gradients: Tensor) -> Tensor | float:
    """What each of the gradients (B, K, D) is multiplied by on its way back: its largest entry becomes 8 to 16."""
    if not torch.is_autocast_enabled(gradients.device.type):
        return 1.0
    largest = gradients.abs().amax((-2, -1), keepdim=True).clamp(min=1e-30)
    return torch.exp2(4 - largest.log2().ceil())
