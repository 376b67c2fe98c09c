"""Drawing with fewer kernels: torch.compile, with every product and sum rounded as they are one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.compute.compiling import P, Runner, T, eagerly

APART = {"emulate_precision_casts": True}  # on a GPU a compiler makes one rounding of a product and a sum otherwise
WHOLE = {"realize_reads_threshold": 1000, "realize_opcount_threshold": 10000}  # else long sums are cut into kernels
PROBES = 4096  # random products and sums; some in ten differ where they are fused


def fused(device: torch.device) -> Runner:
    """Runs functions through torch.compile; eagerly where that cannot be had, or would give other bits."""
    runner = _Fused()
    numbers = torch.rand(3, PROBES, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    for values in (numbers, numbers.float()):
        if not torch.equal(runner(_product_and_sum, *values), _product_and_sum(*values)):
            return eagerly
    return eagerly if runner.failed else runner


def _product_and_sum(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


class _Fused:
    """Compiles a function at its first call, for any number of rows; after a failure it compiles nothing more."""

    def __init__(self) -> None:
        self.failed = ""
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        if self.failed:
            return function(*arguments, **named)
        compiled = self._compiled.setdefault(
            function, torch.compile(function, fullgraph=True, options={**APART, **WHOLE})
        )
        for each in arguments:
            if isinstance(each, Tensor) and len(each) > 1:  # torch has a form of its own for one row
                torch._dynamo.maybe_mark_dynamic(each, 0)
        try:
            result: T = compiled(*arguments, **named)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # no compiler, a GPU that is too old, too many shapes
            self.failed = str(error).partition("\n")[0]
            return function(*arguments, **named)
        return result
