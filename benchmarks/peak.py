"""Peak memory of a process that adapts to K classes: `python -m benchmarks.peak K FORM THREADS DEVICE`.

Prints bytes. FORM `jacobian` builds a part of J and multiplies with all of it; `pullback` sends gradients back.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from benchmarks.adapt import build_jacobian, started
from benchmarks.world import VIT_B_16, build
from fpp_sweep.config import AdaptConfig
from fpp_sweep.core.methods.gradients import ByPullback, FirstGradient
from fpp_sweep.core.methods.tpt import Tpt


def peak_bytes() -> int:
    """The most that this process has held; Linux's own mark, which no parent's memory gets into."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(classes: str, form: str, threads: str, device: str) -> None:
    torch.set_num_threads(int(threads))
    world = build(VIT_B_16, int(classes), samples=2, device=device)
    method = Tpt(adapt=AdaptConfig())
    with torch.no_grad():
        first: FirstGradient
        if form == "jacobian":
            _, first = build_jacobian(world, whole=False, device=device)
        else:
            first = ByPullback(world.texts, world.context)
    method.predict(world.model, started(method, world, first), world.views)
    print(peak_bytes() if device == "cpu" else torch.cuda.max_memory_allocated(device))


if __name__ == "__main__":
    main(*sys.argv[1:])
