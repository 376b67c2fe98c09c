"""The choice of the device that a process computes on."""

from __future__ import annotations

import torch

from fpp_sweep.spec.errors import InputError


def choose_device(name: str) -> str:
    """Return a device by name, `auto` for a GPU if there is one; raise InputError if it cannot be used."""
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "cpu"
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise InputError(f"device {name!r} cannot be used: {reason}") from error
    return name
