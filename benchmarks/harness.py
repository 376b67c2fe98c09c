"""Clocks, statistics, tables and checks that all benchmarks share."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from fpp_sweep.cli import Parser, parser
from fpp_sweep.core.compute import choose_device
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds for one unit of work: wall-clock time, and CPU time of all threads of this process."""

    wall: float
    cpu: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)

    def __mul__(self, factor: float) -> Spent:
        return Spent(self.wall * factor, self.cpu * factor)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values with their minimum and maximum.

    >>> str(Spread.of([3.0, 1.0, 2.0]))
    '2.0 (1.0..3.0)'
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return format(self, ".1f")

    def __format__(self, form: str) -> str:
        form = form or ".1f"
        return f"{self.median:{form}} ({self.low:{form}}..{self.high:{form}})"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of the seconds of two sides, taken round by round."""

    wall: Spread
    cpu: Spread

    @classmethod
    def of(cls, slow: Sequence[Spent], fast: Sequence[Spent]) -> Ratio:
        """Return the ratios of pairs; a pair is measured in succession, so that disturbances cancel out."""
        pairs = list(zip(slow, fast, strict=True))
        return cls(
            wall=Spread.of([a.wall / b.wall for a, b in pairs]), cpu=Spread.of([a.cpu / b.cpu for a, b in pairs])
        )


def now(device: str) -> Spent:
    """Return the clocks after the device has finished all its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return Spent(time.perf_counter(), time.process_time())


def measure(work: Work, *, units: float = 1, device: str = "cpu") -> Spent:
    """Return the cost of one of the `units` that `work` does."""
    start = now(device)
    work()
    return (now(device) - start) * (1 / units)


def rounds(works: Mapping[str, tuple[Work, float]], repeats: int, device: str) -> dict[str, list[Spent]]:
    """Measure all works in turn, `repeats` times; a work comes with its number of units."""
    spent: dict[str, list[Spent]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, (work, units) in works.items():
            spent[name].append(measure(work, units=units, device=device))
    return spent


def parse(module: str, description: str, extend: Callable[[Parser], None], argv: Sequence[str] | None = None) -> Any:
    """Parse the options of a module: those of all benchmarks and its own."""
    options = parser(module, description)
    options.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds; ratios are medians over them")
    options.add_argument("--threads", type=int, default=2, metavar="N", help="threads of torch")
    options.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    options.add_argument("--quick", action="store_true", help="small sizes; asserts equal results, never a time")
    options.add_argument("--out", type=Path, metavar="FILE", help="write all that was measured as JSON")
    extend(options)
    args = options.parse_args(argv)
    args.device = choose_device(args.device)
    if args.quick:
        args.repeats = 1
    torch.set_num_threads(args.threads)
    return args


def require_open_clip() -> None:
    """Raise InputError without open_clip, which benchmarks of whole models need."""
    if importlib.util.find_spec("open_clip") is None:
        raise InputError("this benchmark needs open_clip_torch; benchmarks.adapt and benchmarks.pretrain do not")


def machine(device: str) -> dict[str, object]:
    """Return the conditions of a measurement apart from the code."""
    return {
        "date": date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with equal keys as a Markdown table.

    >>> print(table([{"K": 10, "ratio": Spread.of([2.0])}]))
    | K | ratio |
    |---|---|
    | 10 | 2.0 (2.0..2.0) |
    """
    heads = list(rows[0])
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [str(value) for value in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def finish(args: Any, rows: Sequence[Mapping[str, object]], raw: Mapping[str, object], notes: Sequence[str]) -> None:
    """Print the results, and write them to --out if it is given."""
    facts = machine(args.device)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    if torch.device(args.device).type == "cuda":
        facts["peak_bytes"] = torch.cuda.max_memory_allocated(args.device)
        print(f"peak memory on the device: {torch.cuda.max_memory_allocated(args.device) / 2**30:.2f} GiB")
    print("\n" + table(rows) + "\n")
    for note in notes:
        print(note)
    if args.out:
        args.out.write_text(json.dumps({"machine": facts, "measured": raw, "notes": notes}, indent=1, default=_plain))


def _plain(value: object) -> object:
    return asdict(value)  # type: ignore[call-overload]  # Spent, Spread, Ratio


def append_line(file: Path, row: Mapping[str, Any]) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def check_equal(
    result: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = 1e-4, *, predictions: bool = False
) -> None:
    """Raise AssertionError unless both sides have equal numbers and, with `predictions`, equal predicted classes."""
    result, expected = result.cpu(), expected.cpu()
    error = (result - expected).abs().max().item()
    if not error <= tolerance:
        raise AssertionError(f"{what}: the two sides differ by {error:.1e}, more than {tolerance:.0e}")
    if predictions and not torch.equal(result.argmax(-1), expected.argmax(-1)):
        raise AssertionError(f"{what}: the two sides predict different classes")
    print(f"{what}: equal within {error:.0e}", flush=True)


def require_complete(folder: SweepFolder, trials: int) -> None:
    """Raise InputError unless so many trials of a sweep ran and all records are complete."""
    records = folder.trials()
    for record in records:
        if record.state != "complete":
            raise InputError(f"{record.name} {record.state}: {record.reason}")
    ran = [record for record in records if record.kind == "trial"]
    if len(ran) < trials:
        raise InputError(f"{len(ran)} of {trials} trials ran")
