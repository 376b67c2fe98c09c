"""Rendering with fewer kernels: torch.compile, with every product and sum rounded one by one as in eager code.

A failure is never silent: it is logged, and from then on functions run eagerly, with the same results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fpp_sweep.core.compute.compiling import P, T
from fpp_sweep.core.compute.memory import is_out_of_memory
from fpp_sweep.spec.errors import first_line

# without it a compiler for GPUs rounds a product and the sum that follows only once
ROUND_EACH_STEP = {"emulate_precision_casts": True}
# without them long sums are cut into several kernels
ONE_KERNEL_PER_SUM = {"realize_reads_threshold": 1000, "realize_opcount_threshold": 10000}
PROBES = 4096  # random products and sums; some in ten differ where they are fused

_log = logging.getLogger(__name__)


def fused_runner(device: torch.device) -> FusedRunner:
    """Return a runner that compiles functions; it runs eagerly, and says why, if compiling fails or changes bits."""
    runner = FusedRunner()
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(3, PROBES, dtype=torch.float64, generator=generator).to(device)
    for operands in (numbers, numbers.float()):
        fused = runner(_product_and_sum, *operands)
        if not torch.equal(fused, _product_and_sum(*operands)):
            runner.fail(f"torch.compile rounds a product and a sum together on {device}")
    return runner


def _product_and_sum(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return a * b + c


class FusedRunner:
    """A runner that compiles a function at its first call, for any number of rows; after a failure it runs eagerly."""

    def __init__(self) -> None:
        self.failure = ""  # why functions run eagerly
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __call__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        if self.failure:
            return function(*arguments, **named)
        if function not in self._compiled:
            options: dict[str, Any] = {**ROUND_EACH_STEP, **ONE_KERNEL_PER_SUM}
            self._compiled[function] = torch.compile(function, fullgraph=True, options=options)
        for argument in arguments:
            if isinstance(argument, Tensor) and len(argument) > 1:  # torch has a separate form for one row
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        try:
            result: T = self._compiled[function](*arguments, **named)
        except Exception as error:  # no compiler, a GPU that is too old, too many shapes
            if is_out_of_memory(error):
                raise
            self.fail(f"torch.compile failed ({first_line(error)})")
            return function(*arguments, **named)
        return result

    def fail(self, reason: str) -> None:
        """Run eagerly from now on."""
        self.failure = reason
        _log.warning("views are rendered eagerly from now on: %s", reason)
