"""The proof of a device: the results of its checks, which decide for what the device may be used.

The file of a proof is in the cache folder. A proof belongs to a kind of GPU, its driver, torch, cuDNN, Pillow and the
code of the engine. If one of them changes, the device is proven anew.
"""

from __future__ import annotations

import ctypes
import json
import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import PIL
import torch

from fpp_sweep.core.models.clip import DeviceViews
from fpp_sweep.spec import keys
from fpp_sweep.spec.files import write_json
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.trial.code import code_digest

FORMAT = 1  # format of the file
DRIVER_FILE = Path("/proc/driver/nvidia/version")  # some containers do not show it
DRIVER_LIBRARY = "libcuda.so.1"

# names of the checks
VIEWS, COMPILED_VIEWS, COMPILED_TEXT = "views", "compiled views", "compiled text tower"
METHODS, PRETRAINING, MEMORY, REPEAT, SPEED = "method rows", "pretraining", "memory", "repeat", "speed"
CheckState = Literal["passed", "failed", "noted"]  # a result that is noted limits nothing


def tower_check(precision: StagePrecision) -> str:
    """Return the name of the check of both towers in a precision."""
    return f"towers, {precision}"


# without these a device cannot be used at all
REQUIRED = (tower_check("float32"), METHODS, PRETRAINING, MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """A kind of device with the software whose results on it were checked."""

    name: str
    driver: str
    torch_version: str
    cudnn: str
    pillow: str
    engine: str

    @classmethod
    def of(cls, device: torch.device) -> DeviceKind:
        name, driver = platform.processor() or platform.machine(), ""
        if device.type == "cuda":
            name, driver = torch.cuda.get_device_name(device), _driver_version()
        return cls(
            name=name,
            driver=driver,
            torch_version=torch.__version__,
            cudnn=str(torch.backends.cudnn.version()),
            pillow=PIL.__version__,
            engine=f"engine {keys.ENGINE}, views {keys.VIEWS}, code {code_digest()}",
        )

    @property
    def file_name(self) -> str:
        readable = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")
        return f"{readable}-{keys.digest(asdict(self), length=8)}.json"


def _driver_version() -> str:
    """Return the version of NVIDIA's driver; if its file cannot be read, the CUDA version that the driver supports."""
    with suppress(OSError):
        version = re.search(r"\d+\.\d+(\.\d+)?", DRIVER_FILE.read_text())
        if version is not None:
            return version[0]
    return _supported_cuda_version()


def _supported_cuda_version() -> str:
    """Return the CUDA version that the driver supports, such as `CUDA 13.0`; empty if its library cannot be loaded."""
    version = ctypes.c_int()  # 1000 * major + 10 * minor
    try:
        ctypes.CDLL(DRIVER_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of a check."""

    name: str
    state: CheckState
    text: str  # a sentence for the user
    figures: Mapping[str, float] = field(default_factory=dict)  # measured figures, by name
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The results of the checks of a kind of device."""

    kind: DeviceKind
    created: str  # time of the last check, in ISO format; empty without checks
    checks: tuple[CheckResult, ...] = ()

    def result(self, name: str) -> CheckResult | None:
        for check in self.checks:
            if check.name == name:
                return check
        return None

    def has_passed(self, name: str) -> bool:
        result = self.result(name)
        return result is not None and result.state == "passed"

    def failures(self, names: Iterable[str]) -> list[CheckResult]:
        """Return the results of the named checks that have failed."""
        results = [self.result(name) for name in names]
        return [result for result in results if result is not None and result.state == "failed"]

    def with_results(self, results: Iterable[CheckResult], created: str) -> Proof:
        """Return the proof with new results, which replace older ones of the same checks."""
        by_name = {check.name: check for check in self.checks}
        by_name.update({check.name: check for check in results})
        return replace(self, checks=tuple(by_name.values()), created=created)

    @property
    def device_views(self) -> DeviceViews:
        """The fastest way to render views that is proven to give Pillow's bytes."""
        if not self.has_passed(VIEWS):
            return "off"  # Pillow renders them
        if not self.has_passed(COMPILED_VIEWS):
            return "eager"
        return "compiled"

    def notes(self) -> list[str]:
        """Return a line for each use of the device that a failed check has turned off."""
        fallbacks = {
            VIEWS: "Pillow renders the views",
            COMPILED_VIEWS: "views are rendered without compiled kernels",
            COMPILED_TEXT: "the text tower runs without torch.compile",
        }
        lines = []
        for check in self.failures(fallbacks):
            lines.append(f"{self.kind.name}: {check.name}: {check.text}; {fallbacks[check.name]}")
        return lines


def pass_or_fail(is_passed: bool) -> CheckState:
    if is_passed:
        return "passed"
    return "failed"


def read_proof(folder: Path, kind: DeviceKind) -> Proof:
    """Return the stored proof of a kind of device; if none can be read, a proof without checks."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        data: dict[str, Any] = json.loads((folder / kind.file_name).read_text())
        if data.pop("format") == FORMAT and DeviceKind(**data["kind"]) == kind:
            checks = tuple([CheckResult(**check) for check in data["checks"]])
            return Proof(kind=kind, created=data["created"], checks=checks)
    return Proof(kind=kind, created="")


def write_proof(folder: Path, proof: Proof) -> Path:
    """Write the file that users can attach to an issue; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / proof.kind.file_name
    write_json(path, {"format": FORMAT, **asdict(proof)})
    return path
