"""Detection of plugins that write to tensors which they are given: the next task would compute with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.spec import plugins
from fpp_sweep.spec.catalogue import MethodRow
from fpp_sweep.spec.plugins import ContractError
from fpp_sweep.trial.adapting import reachable_tensors

WORD = torch.int64  # tensors are summed as words of this type: one pass through memory, without a copy


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


@contextmanager
def writes_refused(row: MethodRow, model: Any) -> Iterator[Callable[[Any], None]]:
    """Raise ContractError at the end of the block if a plugin's method has written to the model.

    Yield a function that adds values to watch. Methods of this package are not watched, which costs nothing.
    """
    if not row.digest:
        yield lambda _: None
        return
    guard = WriteGuard(model)
    try:
        yield guard.watch
    finally:
        if guard.has_change():
            problem = "writes to the model, the class texts or the state that it is given; it must work on copies"
            raise ContractError(f"method {row.name} ({plugins.origin_of(row)}): {problem}")


def _checksum(tensor: Tensor) -> int:
    """Return the sum of a tensor's words."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return 0
    contents = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if contents.storage_offset() % WORD.itemsize:
        contents = contents.clone()
    whole_words = len(contents) // WORD.itemsize * WORD.itemsize
    return int(contents[:whole_words].view(WORD).sum()) + int(contents[whole_words:].sum(dtype=WORD))
