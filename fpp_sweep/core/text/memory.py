"""Smaller batches where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Rows = TypeVar("Rows", bound=Tensor | Sequence[Any])


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
            if at_once == 1 or not _is_out_of_memory(error):
                raise
            at_once //= 2
            continue
        start += at_once
    return torch.cat(done)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA's error has a type of its own; the CPU allocator's is recognised by its text."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
