"""How much memory may be used on a device, and smaller batches where it runs out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fpp_sweep.spec.process import memory

Rows = TypeVar("Rows", bound=Tensor | Sequence[Any])
BATCHES, KEPT = 1 / 4, 1 / 2  # of the room: what goes through a model at once; what is kept for all samples, such as J

# the CPU's allocator, CUDA itself, cuBLAS, and cuDNN where no algorithm finds room for what it needs beside its result
SHORT = ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED", "unable to find an engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes for all that a process computes: on its device beside the model, and on the machine that feeds a GPU."""

    device: float = math.inf
    host: float = 0.0

    @classmethod
    def of(cls, device: torch.device, share: float) -> Room:
        """What is free, no more than a share of what there is, so that as many as share it find the same.

        To be asked once the model is there; a GPU then gives this process no more than its share.
        """
        free, whole = memory()
        host = min(free, share * whole)
        if device.type != "cuda":
            return cls(device=host)
        if share < 1:
            torch.cuda.set_per_process_memory_fraction(share, device)
        return cls(device=free_on(device), host=host)

    def batch(self, most: int, bytes_each: float) -> int:
        """How many may go through the model at once: as many as fit, halved from `most` until they do.

        >>> Room().batch(2048, 1e6), Room(device=4e9).batch(2048, 1e6), Room(device=0).batch(2048, 1e6)
        (2048, 512, 1)
        """
        while most > 1 and most * bytes_each > BATCHES * self.device:
            most //= 2
        return most


def free_on(device: torch.device) -> int:
    """Bytes that this process may still take: what nobody has and torch keeps for it unused, up to its share."""
    if device.type != "cuda":
        return memory()[0]
    (free, whole), held = torch.cuda.mem_get_info(device), torch.cuda.memory_allocated(device)
    share = torch.cuda.get_per_process_memory_fraction(device)
    return int(min(free + torch.cuda.memory_reserved(device), share * whole) - held)


def halving(work: Callable[[Rows], Tensor], rows: Rows, at_once: int) -> Tensor:
    """`work` on all rows, `at_once` at a time; where memory runs out, on half as many from then on.

    >>> halving(lambda part: 2 * part, torch.arange(5), 2)
    tensor([0, 2, 4, 6, 8])
    """
    done: list[Tensor] = []
    start = 0
    while start < len(rows) or not done:
        try:
            part: Any = rows[start : start + at_once]
            done.append(work(part))
        except RuntimeError as error:
            if at_once == 1 or not is_out_of_memory(error):
                raise
            at_once //= 2
            continue
        start += at_once
    return torch.cat(done)


def is_out_of_memory(error: BaseException) -> bool:
    """The GPU allocator's error has a type of its own; others are recognised by their text."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in SHORT)


def told(error: Exception, device: torch.device) -> Exception:
    """The same; of memory that does not suffice for the least that can be done at once, a line that says so."""
    if not is_out_of_memory(error):
        return error
    asked = re.search(r"tried to allocate ([0-9.]+) (\w+)", str(error), re.IGNORECASE)
    size = float(asked[1]) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}.get(asked[2], 1) if asked else 0.0
    needs = f"{size / 2**30:.1f} GiB" if asked else f"more memory ({str(error).partition(chr(10))[0]})"
    free = 0
    with suppress(RuntimeError):  # of a full GPU even this asks for too much
        free = free_on(device)
    free_here = f"{free / 2**30:.1f} GiB are free on {device}"
    line = MemoryError(f"needs {needs}, {free_here}; give it a larger device, or fewer workers on one")
    line.__cause__ = error
    return line
