"""Run the checks of a device: all of them for `doctor --device`, the necessary ones before a GPU's first sweep."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import get_args

import torch

from fpp_sweep.core.compute.devices import is_device_failure
from fpp_sweep.core.compute.precision import require_precision_support
from fpp_sweep.spec.errors import InputError, MachineError, first_line, type_and_message
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.trial import proof, proof_checks, proof_views
from fpp_sweep.trial.proof import CheckResult, DeviceKind, Proof
from fpp_sweep.trial.proof_bench import Bench

# number of images whose views are compared
DOCTOR_IMAGES = 200
FIRST_SWEEP_IMAGES = 24
REASON_LIMIT = 300  # characters of an error's text that a result keeps

Check = Callable[[Bench], CheckResult]


def proof_folder(cache: Path) -> Path:
    """Return the folder of proofs in a cache folder."""
    return cache / "proofs"


def copy_proofs(cache: Path, other_cache: Path) -> None:
    """Copy the proofs of a cache folder, if there are any, to an empty cache folder."""
    proofs = proof_folder(cache)
    if proofs.is_dir():
        shutil.copytree(proofs, proof_folder(other_cache))


def prove_fully(device: torch.device, folder: Path, on_result: Callable[[CheckResult], None]) -> Proof:
    """Run all checks anew and store the proof."""
    unproven = Proof(kind=DeviceKind.of(device), created="")
    return _run_checks(_all_checks(device, DOCTOR_IMAGES), unproven, device, folder, on_result)


def prove_once(device: torch.device, folder: Path, precisions: Iterable[StagePrecision], *, compiled: bool) -> Proof:
    """Run the checks that a sweep needs and that the stored proof lacks; return the proof.

    Compiled views are checked by `prove_fully` only; without that check, views are rendered uncompiled.
    """
    needed = {*proof.REQUIRED, proof.VIEWS, *[proof.tower_check(precision) for precision in precisions]}
    if compiled:
        needed.add(proof.COMPILED_TEXT)
    stored = proof.read_proof(folder, DeviceKind.of(device))
    missing = [name for name in needed if stored.result(name) is None]
    if not missing:
        return stored
    checks = {name: check for name, check in _all_checks(device, FIRST_SWEEP_IMAGES).items() if name in missing}
    return _run_checks(checks, stored, device, folder)


def require_proven(proven: Proof, precisions: Iterable[StagePrecision], folder: Path) -> None:
    """Raise InputError if a required check has failed, or the check of one of the precisions."""
    device = proven.kind.name
    file = folder / proven.kind.file_name
    failures = proven.failures(proof.REQUIRED)
    if failures:
        first = failures[0]
        advice = f"compute with work.device=cpu, and attach {file} to an issue"
        raise InputError(f"{device} fails a check of its results: {first.name}: {first.text}; {advice}")
    for precision in precisions:
        result = proven.result(proof.tower_check(precision))
        if result is not None and result.state == "failed":
            advice = f"set precision=float32 if you agree, and attach {file} to an issue"
            raise InputError(f"precision {precision}: {device} fails a check: {result.text}; {advice}")


def _all_checks(device: torch.device, images: int) -> dict[str, Check]:
    """Return the checks by name; those of precisions that the device lacks are left out."""
    checks: dict[str, Check] = {proof.VIEWS: partial(proof_views.check_views, images=images)}
    for precision in get_args(StagePrecision):
        try:
            require_precision_support(precision, device)
        except InputError:
            continue
        checks[proof.tower_check(precision)] = partial(proof_checks.check_tower, precision=precision)
    return checks | {
        proof.METHODS: proof_checks.check_methods,
        proof.PRETRAINING: proof_checks.check_pretraining,
        proof.MEMORY: proof_checks.check_memory,
        proof.REPEAT: proof_checks.check_repeat,
        proof.SPEED: proof_views.measure_speed,
        proof.COMPILED_TEXT: proof_checks.check_compiled_text,
        proof.COMPILED_VIEWS: partial(proof_views.check_compiled_views, images=images),
    }


def _ignore(_: CheckResult) -> None:
    """Do nothing after a check."""


def _run_checks(
    checks: Mapping[str, Check],
    proven: Proof,
    device: torch.device,
    folder: Path,
    on_result: Callable[[CheckResult], None] = _ignore,
) -> Proof:
    """Add results of checks to a proof; store it after each check, so that a process that dies loses one at most."""
    bench = Bench(device=device)
    for name, check in checks.items():
        result = _run_check(name, check, bench)
        on_result(result)
        proven = proven.with_results([result], datetime.now(UTC).isoformat(timespec="seconds"))
        proof.write_proof(folder, proven)
    return proven


def _run_check(name: str, check: Check, bench: Bench) -> CheckResult:
    """Return the result of a check with its duration; a check that raises has failed.

    Raise MachineError if the device is full or broken, which says nothing about other devices of its kind.
    """
    began = perf_counter()
    try:
        result = check(bench)
    except Exception as error:
        if is_device_failure(error):
            problem = f"{bench.device}: the check `{name}` could not run: {first_line(error)}"
            raise MachineError(f"{problem}; free or replace the device, then start again") from error
        result = CheckResult(name=name, state="failed", text=type_and_message(error)[:REASON_LIMIT])
    return replace(result, seconds=perf_counter() - began)
