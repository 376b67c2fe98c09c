"""Run the checks of a device: all of them for `doctor --device`, the necessary ones before a GPU's first sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import get_args

import torch

from fpp_sweep.core.compute.precision import require_precision_support
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.trial import proof, proof_checks, proof_views
from fpp_sweep.trial.proof import CheckResult, DeviceKind, Proof
from fpp_sweep.trial.proof_bench import Bench

IMAGES, FEW_IMAGES = 200, 24  # whose views are compared: by `doctor`, and before a first sweep

Check = Callable[[Bench], CheckResult]


def proof_folder(cache: Path) -> Path:
    """Return the folder of proofs in a cache folder."""
    return cache / "proofs"


def prove_fully(device: torch.device, folder: Path, on_result: Callable[[CheckResult], None]) -> Proof:
    """Run all checks anew and store the proof."""
    return _run_checks(_all_checks(device, IMAGES), device, folder, on_result)


def prove_once(device: torch.device, folder: Path, precisions: Iterable[StagePrecision], *, compiled: bool) -> Proof:
    """Return the stored proof, after the checks that a sweep needs and that are not in it."""
    needed = {*proof.REQUIRED, proof.VIEWS, *[proof.tower_check(precision) for precision in precisions]}
    if compiled:
        needed.add(proof.COMPILED_TOWERS)
    stored = proof.read_proof(folder, DeviceKind.of(device))
    missing = [name for name in needed if stored.result(name) is None]
    if not missing:
        return stored
    checks = _all_checks(device, FEW_IMAGES)
    return _run_checks({name: check for name, check in checks.items() if name in missing}, device, folder)


def require_proven(proven: Proof, precisions: Iterable[StagePrecision], folder: Path) -> None:
    """Raise InputError if the device's results are not the CPU's, in general or in a precision."""
    kind = proven.kind
    for failed in proven.failed(proof.REQUIRED):
        advice = f"compute with work.device=cpu, and attach {folder / kind.file_name} to an issue"
        raise InputError(f"{kind.name} fails a check of its results: {failed.name}: {failed.text}; {advice}")
    for precision in precisions:
        for failed in proven.failed([proof.tower_check(precision)]):
            advice = f"set precision=float32 if you agree, and attach {folder / kind.file_name} to an issue"
            raise InputError(f"precision {precision}: {kind.name} fails a check: {failed.text}; {advice}")


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
        proof.ROWS: proof_checks.check_rows,
        proof.PRETRAINING: proof_checks.check_pretraining,
        proof.MEMORY: proof_checks.check_memory,
        proof.REPEAT: proof_checks.check_repeat,
        proof.SPEED: proof_views.measure_speed,
        proof.COMPILED_TOWERS: proof_checks.check_compiled_towers,
        proof.COMPILED_VIEWS: partial(proof_views.check_compiled_views, images=images),
    }


def _ignore(_: CheckResult) -> None:
    """Do nothing after a check."""


def _run_checks(
    checks: Mapping[str, Check], device: torch.device, folder: Path, on_result: Callable[[CheckResult], None] = _ignore
) -> Proof:
    """Run checks, and store the proof after each one: a process that dies leaves what it has shown."""
    bench = Bench(device=device)
    proven = proof.read_proof(folder, DeviceKind.of(device))
    for name, check in checks.items():
        result = _run(name, check, bench)
        on_result(result)
        proven = proven.with_results([result], datetime.now(UTC).isoformat(timespec="seconds"))
        proof.write_proof(folder, proven)
    return proven


def _run(name: str, check: Check, bench: Bench) -> CheckResult:
    """Return the result of a check; an error of any kind is a failure."""
    began = perf_counter()
    try:
        result = check(bench)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        result = CheckResult(name=name, state="failed", text=reason[:300])
    return replace(result, seconds=perf_counter() - began)
