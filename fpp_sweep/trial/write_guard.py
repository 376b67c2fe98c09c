"""Detection of plugins that write to tensors which they are given: the next task would compute with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fpp_sweep.trial.adapting import reachable_tensors

WORD = torch.int64  # tensors are summed as words of this type
CHUNK = 2**16  # words that are weighted at a time: they fit into a processor's cache
CHUNK_FACTOR = 0x9E3779B97F4A7C15 - 2**64  # odd, and as a signed number


class WriteGuard:
    """Checksums of the tensors of some values, which show whether code has written to one of them."""

    def __init__(self, *values: Any) -> None:
        self._checksums: list[tuple[Tensor, int]] = []
        self.watch(*values)

    def watch(self, *values: Any) -> None:
        for tensor in reachable_tensors(values):
            self._checksums.append((tensor, _checksum(tensor)))

    def has_change(self) -> bool:
        return any(_checksum(tensor) != checksum for tensor, checksum in self._checksums)


def _checksum(tensor: Tensor) -> int:
    """Return a sum of a tensor's words in which each position has another weight.

    Weights are odd, so that a change of one word always changes the sum; different weights show words that were moved.
    """
    if tensor.layout != torch.strided or tensor.is_meta:
        return 0
    contents = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if contents.storage_offset() % WORD.itemsize:
        contents = contents.clone()
    n_whole = len(contents) // WORD.itemsize * WORD.itemsize
    words = contents[:n_whole].view(WORD)
    rest = contents[n_whole:].to(WORD)
    weights = 2 * torch.arange(CHUNK, device=tensor.device) + 1
    total = torch.zeros((), dtype=WORD, device=tensor.device)
    for chunk in (*words.split(CHUNK), rest):
        total = total * CHUNK_FACTOR + (chunk * weights[: len(chunk)]).sum()  # wraps around
    return int(total)
