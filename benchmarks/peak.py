"""Peak memory of a process that adapts to K classes: `python -m benchmarks.peak K FORM THREADS DEVICE`.

The command prints bytes. FORM `jacobian` builds a part of J and multiplies with a complete one; `pullback` sends
gradients back through the tower. A number as FORM is a device's memory in GiB: the engine then chooses the form that
fits, possibly with J in the machine's memory. In that case the tower has two blocks and half the features, so that J is
built within minutes, and the command prints the engine's choice and the size of J after the peak.
"""

from __future__ import annotations

import math
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.adapt import build_jacobian, start_state
from benchmarks.world import VIT_B_16, Shape, World, build
from fpp_sweep.core.compute.memory import MemoryBudget
from fpp_sweep.core.methods.gradients import ByJacobian, ByPullback, FirstGradient, first_gradient, jacobian_bytes
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.spec.config import AdaptConfig

SHALLOW = Shape(width=512, heads=8, layers=2, embed_dim=256)


def peak_bytes() -> int:
    """Return the peak memory of this process; Linux's counter, unlike getrusage, excludes the parent's memory."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(classes: str, form: str, threads: str, device: str) -> None:
    torch.set_num_threads(int(threads))
    if form in ("jacobian", "pullback"):
        world = build(VIT_B_16, int(classes), samples=2, device=device)
        adapt(world, first_gradient_of_form(world, form, device))
        print_peak(device)
        return
    world = with_memory(build(SHALLOW, int(classes), samples=2, device=device), gib=float(form))
    with torch.no_grad():
        first = first_gradient(world.texts, world.context, samples=50_000)
    logits = adapt(world, first)
    print_peak(device)
    choice = "no J"
    if isinstance(first, ByJacobian):
        choice = f"{first._block} classes at a time"
    size = jacobian_bytes(world.texts, world.context)
    print(f"{choice}, J of {size} bytes, the largest probabilities {logits.softmax(-1).amax(-1).tolist()}")


@torch.no_grad()
def first_gradient_of_form(world: World, form: str, device: str) -> FirstGradient:
    if form == "jacobian":
        return build_jacobian(world, whole=False, device=device)[1]
    return ByPullback(world.texts, world.context)


def with_memory(world: World, gib: float) -> World:
    """Return the world with a tower on a device of that memory."""
    memory = MemoryBudget(device=gib * 2**30, host=math.inf)
    return replace(world, texts=replace(world.texts, tower=replace(world.texts.tower, memory=memory)))


def adapt(world: World, first: FirstGradient) -> Tensor:
    """Return the logits of the images after TPT with a first gradient."""
    method = Tpt(adapt=AdaptConfig())
    logits, _ = method.predict(world.model, start_state(method, world, first), world.views)
    return logits


def print_peak(device: str) -> None:
    if device == "cpu":
        print(peak_bytes())
    else:
        print(torch.cuda.max_memory_allocated(device))


if __name__ == "__main__":
    main(*sys.argv[1:])
