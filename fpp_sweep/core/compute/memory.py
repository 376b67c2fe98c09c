"""Memory of a device: how much a process may use, and smaller batches where memory runs out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fpp_sweep.spec.errors import first_line
from fpp_sweep.spec.memory import memory

Rows = TypeVar("Rows", bound=Tensor | Sequence[Any])

BATCH_FRACTION = 1 / 4  # share of the memory budget for one batch on its way through a model
CACHE_FRACTION = 1 / 2  # share of the memory budget for what is kept for all samples, such as the Jacobian

# phrases of the CPU's allocator, of CUDA, of cuBLAS, of cuDNN, and of cuDNN when no algorithm has enough workspace
OUT_OF_MEMORY_PHRASES = (
    "can't allocate memory",
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",
    "unable to find an engine",
)
UNIT_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes of its device that a process may use beside its model."""

    device: float = math.inf

    @classmethod
    def available(cls, device: torch.device, share: float) -> MemoryBudget:
        """Return the free memory, at most `share` of the total, so that processes that share a device get equal parts.

        Call this after the model is loaded. A GPU then gives this process no more than its share.
        """
        if device.type != "cuda":
            free, total = memory()
            return cls(device=min(free, share * total))
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
    free_gib = f"{free / 2**30:.1f} GiB are free on {device}"
    explanation = MemoryError(
        f"needs {_requested_memory(error)}, {free_gib}; use a larger device or fewer workers on it"
    )
    explanation.__cause__ = error
    return explanation


def _requested_memory(error: BaseException) -> str:
    """Return the size that an error's message names, or the message's first line if it names none."""
    request = re.search(r"tried to allocate ([0-9.]+) (\w+)", str(error), re.IGNORECASE)
    if request is None:
        return f"more memory ({first_line(error)})"
    size = float(request[1]) * UNIT_BYTES.get(request[2], 1)
    return f"{size / 2**30:.1f} GiB"
