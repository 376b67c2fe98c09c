"""The proof of a device for `doctor --device`: a line for each check, and a file that users can attach to an issue."""

from __future__ import annotations

import torch

from fpp_sweep.core.compute.devices import choose_device
from fpp_sweep.core.images.cache import default_cache
from fpp_sweep.trial.proof import CheckResult, DeviceKind
from fpp_sweep.trial.proving import proof_folder, prove_fully


def print_proof(name: str) -> bool:
    """Run all checks and print each result; return whether none has failed."""
    device = torch.device(choose_device(name))
    kind = DeviceKind.of(device)
    driver = f", driver {kind.driver}" if kind.driver else ""
    print(f"{kind.name}{driver}, torch {kind.torch_version}, Pillow {kind.pillow}, {kind.engine}", flush=True)
    folder = proof_folder(default_cache())
    proof = prove_fully(device, folder, _print_result)
    failed = [check.name for check in proof.checks if check.state == "failed"]
    for line in proof.notes():
        print(f"note: {line}")
    if failed:
        print(f"failed: {', '.join(failed)}; attach the report to an issue")
    print(f"report: {folder / kind.file_name}")
    return not failed


def _print_result(result: CheckResult) -> None:
    print(f"{result.name:21} {result.state:6} {result.seconds:5.1f} s  {result.text}", flush=True)
