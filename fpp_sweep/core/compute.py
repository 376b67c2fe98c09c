"""Helpers for computing with torch: memory, the device, precision and random streams."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fpp_sweep.spec.errors import DeviceError, InputError, first_line
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.spec.process import memory
from fpp_sweep.spec.specs import StagePrecision

Rows = TypeVar("Rows", bound=Tensor | Sequence[Any])

BATCH_FRACTION = 1 / 4  # share of the memory budget for one batch on its way through a model
KEPT_FRACTION = 1 / 4  # share of the memory budget for what is kept for all samples, such as the Jacobian

# phrases of the CPU's allocator, of CUDA, of cuBLAS, of cuDNN, and of cuDNN when no algorithm has enough workspace
OUT_OF_MEMORY_PHRASES = (
    "can't allocate memory",
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",
    "unable to find an engine",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes of its device that a process may use beside its model."""

    device: float = math.inf
    share: float | None = None  # its part of the whole memory, whether that is free or not; None: `device`

    @property
    def kept(self) -> float:
        """The bytes of what may be kept for all samples.

        On a CPU, where all workers must compute equal bits, they do not depend on what is free at the moment.
        """
        return KEPT_FRACTION * (self.device if self.share is None else self.share)

    @classmethod
    def available(cls, device: torch.device, share: float) -> MemoryBudget:
        """Return the free memory, at most `share` of the total, so that processes that share a device get equal parts.

        Call this after the model is loaded. A GPU then gives this process no more than its share.
        """
        if device.type != "cuda":
            free, total = memory()
            return cls(device=min(free, share * total), share=share * total)
        if share < 1:
            torch.cuda.set_per_process_memory_fraction(share, _gpu_number(device))
        return cls(device=free_bytes(device))

    def batch_size(self, largest: int, bytes_per_row: float) -> int:
        """Return the number of rows that fit in one batch: `largest`, halved until the batch fits.

        >>> MemoryBudget().batch_size(2048, 1e6)
        2048
        >>> MemoryBudget(device=4e9).batch_size(2048, 1e6)
        512
        >>> MemoryBudget(device=0).batch_size(2048, 1e6)
        1
        """
        size = largest
        while size > 1 and size * bytes_per_row > BATCH_FRACTION * self.device:
            size //= 2
        return size


def free_bytes(device: torch.device) -> int:
    """Return the bytes that this process may still allocate, up to its share of the device.

    Memory that torch has reserved and does not use counts as free.
    """
    if device.type != "cuda":
        return memory()[0]
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    share = torch.cuda.get_per_process_memory_fraction(_gpu_number(device))
    return int(min(free + reserved, share * total) - torch.cuda.memory_allocated(device))


def _gpu_number(device: torch.device) -> int:
    """Return the number of a GPU; `cuda` without a number is the current one, which some calls do not accept."""
    if device.index is None:
        return torch.cuda.current_device()
    return device.index


def run_in_batches(function: Callable[[Rows], Tensor], rows: Rows, batch_size: int) -> Tensor:
    """Apply a function to batches of rows and concatenate the results; halve the batch where memory runs out.

    >>> run_in_batches(lambda batch: 2 * batch, torch.arange(5), 2)
    tensor([0, 2, 4, 6, 8])
    """
    results: list[Tensor] = []
    start = 0
    while start < len(rows) or not results:  # without rows, one call gives the shape of the result
        try:
            batch: Any = rows[start : start + batch_size]
            results.append(function(batch))
        except RuntimeError as error:
            if batch_size == 1 or not is_out_of_memory(error):
                raise
            batch_size //= 2
            continue
        start += batch_size
    return torch.cat(results)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a lack of memory; only the GPU allocator has an exception type for that."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(phrase in str(error) for phrase in OUT_OF_MEMORY_PHRASES)


def explain_out_of_memory(error: BaseException, device: torch.device) -> BaseException:
    """Return a one-line MemoryError for a lack of memory; return any other error as it is."""
    if not is_out_of_memory(error):
        return error
    free = 0
    with suppress(RuntimeError):  # a full GPU may fail at this question, too
        free = free_bytes(device)
    problem = f"out of memory ({first_line(error)}); {free / 2**30:.1f} GiB are free on {device}"
    explanation = MemoryError(f"{problem}; use a larger device or fewer workers on it")
    explanation.__cause__ = error
    return explanation


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
    return f"device {name!r} cannot be used: {first_line(error)}; choose another one, such as cpu"


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


def torch_generator(*names: object) -> torch.Generator:
    """Return a random stream that depends on the names only.

    The stream is on the CPU, so that all devices get the same draws.

    >>> torch_generator(0, "dtd").initial_seed() == torch_generator(0, "dtd").initial_seed()
    True
    """
    key = "/".join(str(name) for name in names)
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


# ------------------------------------------------------------ CUDA graphs

TensorFunction = Callable[..., tuple[Tensor, ...]]
WARM_UPS = 3  # calls before the capture, which fill the caches of libraries and of attention masks


class CudaGraph:
    """A function of tensors of fixed shapes, captured at its first call; a call launches all its kernels together.

    Where it cannot be captured, a warning says so, and the function itself is called.
    """

    def __init__(self, function: TensorFunction) -> None:
        self._function = function
        self._replay: TensorFunction | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self._replay is None:
            self._replay = self._captured(inputs)
        return self._replay(*inputs)

    def _captured(self, inputs: Sequence[Tensor]) -> TensorFunction:
        device = inputs[0].device
        if device.type != "cuda":
            warn_once(f"work.cuda_graphs: needs a GPU ({device}); steps of pretraining run one kernel at a time")
            return self._function
        try:
            return _capture(self._function, inputs)
        except RuntimeError as error:
            reason = first_line(error)
            warn_once(f"work.cuda_graphs: a step cannot be captured ({reason}); steps run one kernel at a time")
            return self._function


def _capture(function: TensorFunction, inputs: Sequence[Tensor]) -> TensorFunction:
    buffers = [tensor.clone() for tensor in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            function(*buffers)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*buffers)

    def replay(*inputs: Tensor) -> tuple[Tensor, ...]:
        for buffer, tensor in zip(buffers, inputs, strict=True):
            buffer.copy_(tensor)
        graph.replay()
        return tuple([output.clone() for output in outputs])

    return replay
