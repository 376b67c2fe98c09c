"""Random faults while a sweep runs: `python -m benchmarks.chaos --rounds 20 --seed 0`.

A sweep runs once without faults. Then the same sweep runs repeatedly with random faults, up to two at once, until there
were as many as requested; a sweep that ends early is resumed. Faults and their moments (numbers of ended trials) depend
on the seed and the sweep's number only.

At the end of each sweep every trial must be exactly once in folder and MLflow, every sample once in each trial's
predictions, every value must equal the undisturbed one, no process may be left, and no traceback may be shown.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.resume import agree, compare, finished, run_undisturbed, start, state
from fpp_sweep.cli import parser, run
from fpp_sweep.spec.errors import InputError
from fpp_sweep.trial.artifacts import read_predictions
from tests.kit.processes import descendants
from tests.kit.stores import Server

SPACE = """
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  fpp.gamma2: {low: 0.1, high: 20, log: true}
search: {trials: TRIALS, sampler: random}
work: {datasets: [scenes], limit: 130, shards: 2, baselines: [zero_shot], workers: 2, task_timeout: 60,
       reuse_results: false}
"""
SAMPLES = 130
EXIT_SECONDS = 90.0  # processes of a driver that has ended must end within this time
HANG_SECONDS = 900.0  # a sweep hangs if no trial ends for this time
MOST_DRIVERS = 20  # of one sweep


@dataclass(slots=True)
class Victim:
    """A sweep with the processes, servers and files that faults can hit."""

    root: Path
    name: str
    server: Server
    draw: random.Random
    driver: subprocess.Popen[str] | None = None
    repairs: list[tuple[float, Callable[[], object]]] = field(default_factory=list)  # times and ends of faults

    @property
    def folder(self) -> Path:
        return self.root / "sweeps" / self.name

    @property
    def running(self) -> bool:
        return self.driver is not None and self.driver.poll() is None

    def repair(self, *, at_once: bool = False) -> None:
        """End the faults whose time has come, or all of them."""
        now = time.monotonic()
        due = [entry for entry in self.repairs if at_once or entry[0] <= now]
        self.repairs = [entry for entry in self.repairs if entry not in due]
        for _, end_fault in due:
            end_fault()


Strike = Callable[[Victim], bool]  # causes a fault; returns False if it finds no target


def send(pattern: str, number: int) -> Strike:
    """Return a fault that sends a signal to a process below the driver; a frozen process goes on seconds later."""

    def strike(victim: Victim) -> bool:
        if victim.driver is None:
            return False
        found = [pid for pid, line in descendants(victim.driver.pid).items() if re.search(pattern, line)]
        if not found:
            return False
        pid = victim.draw.choice(found)
        if number == signal.SIGSTOP:
            delay = victim.draw.uniform(1, 8)
            victim.repairs.append((time.monotonic() + delay, lambda: signal_process(pid, signal.SIGCONT)))
        return signal_process(pid, number)

    return strike


def signal_process(pid: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def signal_driver(number: int) -> Strike:
    return lambda victim: victim.driver is not None and signal_process(victim.driver.pid, number)


def stop_store(victim: Victim) -> bool:
    if victim.server.start in [end_fault for _, end_fault in victim.repairs]:
        return False
    victim.server.kill()
    victim.repairs.append((time.monotonic() + victim.draw.uniform(2, 10), victim.server.start))
    return True


def damage_task(victim: Victim) -> bool:
    """Truncate the stored result of a task."""
    files = sorted(victim.folder.glob("tasks/*/*.task"))
    if not files:
        return False
    path = victim.draw.choice(files)
    data = path.read_bytes()
    path.write_bytes(data[: victim.draw.randrange(max(1, len(data)))])
    return True


# a trial's process has the first title while it works, and the second otherwise
TRIAL = r"ray::(TrialRunner|ResourceTrainable)"
FAULTS: dict[str, Strike] = {
    "worker killed": send("ray::WorkerActor", signal.SIGKILL),
    "worker frozen": send("ray::WorkerActor", signal.SIGSTOP),
    "scheduler killed": send("ray::SchedulerActor", signal.SIGKILL),
    "trial's process killed": send(TRIAL, signal.SIGKILL),
    "raylet killed": send("raylet/raylet", signal.SIGKILL),
    "driver killed": signal_driver(signal.SIGKILL),
    "driver terminated": signal_driver(signal.SIGTERM),
    "MLflow down": stop_store,
    "task damaged": damage_task,
}


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.chaos", __doc__ or "")
    options.add_argument("--rounds", type=int, default=20, metavar="N", help="faults")
    options.add_argument("--trials", type=int, default=12, metavar="N", help="trials of each sweep")
    options.add_argument("--kinds", nargs="+", metavar="NAME", choices=FAULTS, default=list(FAULTS))
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed of faults and moments")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for the terminal's text")
    args = options.parse_args(argv)
    struck: Counter[str] = Counter()
    resumed = 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        root = Path(scratch)
        (root / "space.yaml").write_text(SPACE.replace("TRIALS", str(args.trials)))
        expected = with_store(root, "alone", lambda server: run_undisturbed(root, server.uri))
        agree(expected)  # a trial that failed here would fail in every sweep, and be equal
        number = 0
        while struck.total() < args.rounds:
            number += 1
            resumed += run_disturbed(root, expected, args, number, struck)
            print(f"sweep {number}: {struck.total()} faults so far, all as undisturbed", flush=True)
    print("| fault | times |\n|---|---|")
    for kind, times in struck.items():
        print(f"| {kind} | {times} |")
    print(f"{struck.total()} faults, {resumed} drivers after the first of a sweep: lost 0, doubled 0, changed 0")


def with_store(root: Path, name: str, work: Callable[[Server], Any]) -> Any:
    """Run something beside another MLflow server."""
    folder = root / f"store-{name}"
    folder.mkdir()
    server = Server(folder)
    server.database = root / f"{name}.db"
    server.start()
    try:
        return work(server)
    finally:
        server.kill()


def run_disturbed(root: Path, expected: dict[str, Any], args: Any, number: int, struck: Counter[str]) -> int:
    """Run a sweep with faults to its end, and check it; return the number of drivers after the first."""
    name = f"struck{number}"

    def work(server: Server) -> int:
        victim = Victim(root, name, server, random.Random(f"{args.seed}/{number}"))
        try:
            drivers = drive_to_end(victim, args, struck)
            check(victim, expected)
        except InputError as error:
            raise InputError(f"{error}; seed {args.seed}, sweep {number}") from error
        finally:
            if victim.running and victim.driver is not None:
                victim.driver.kill()
            victim.repair(at_once=True)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / f"{name}.log", args.keep)
        return drivers

    return int(with_store(root, name, work))


def drive_to_end(victim: Victim, args: Any, struck: Counter[str]) -> int:
    """Start and resume the driver until the sweep has ended; return the number of drivers after the first."""
    moments = sorted(victim.draw.randrange(args.trials) for _ in range(args.trials // 2))
    for drivers in range(MOST_DRIVERS):
        resume = (victim.folder / "sweep.json").is_file()
        victim.driver = start(victim.root, victim.name, resume=resume, uri=victim.server.uri)
        strike_until_end(victim, moments, args, struck)
        victim.repair(at_once=True)
        text = (victim.root / f"{victim.name}.log").read_text()
        if victim.driver.returncode == 0 and "MLflow lacks" not in text.rpartition("=== driver")[2]:
            return drivers
    raise InputError(f"not finished by {MOST_DRIVERS} drivers: {text[-2000:]}")


def strike_until_end(victim: Victim, moments: list[int], args: Any, struck: Counter[str]) -> None:
    """Cause faults at their moments until the driver has ended, and remove used moments from the list."""
    assert victim.driver is not None
    pids: set[int] = set()
    ended, changed = -1, time.monotonic()
    while victim.running:
        time.sleep(0.05)
        victim.repair()
        pids |= set(descendants(victim.driver.pid))
        count = len(finished(victim.folder))
        if count != ended:
            ended, changed = count, time.monotonic()
        if time.monotonic() - changed > HANG_SECONDS:
            raise InputError(f"hangs: {(victim.root / f'{victim.name}.log').read_text()[-2000:]}")
        if moments and ended >= moments[0] and struck.total() < args.rounds:
            moments.pop(0)
            for kind in victim.draw.sample(args.kinds, min(victim.draw.choice((1, 1, 2)), len(args.kinds))):
                print(f"  {kind}, after {ended} trials", flush=True)
                struck[kind] += FAULTS[kind](victim)
    require_no_processes(pids)


def require_no_processes(pids: set[int]) -> None:
    """Wait until all processes of a driver have ended; raise InputError if some do not end in time."""
    end = time.monotonic() + EXIT_SECONDS
    while alive := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > end:
            raise InputError(f"left running: {[Path(f'/proc/{pid}/cmdline').read_text()[:80] for pid in alive]}")
        time.sleep(0.2)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def check(victim: Victim, expected: dict[str, Any]) -> None:
    found = state(victim.root, victim.name)
    agree(found)
    compare(victim.root, expected, found)
    for path in sorted(victim.folder.glob("artifacts/*/*/*.parquet")):
        ids = read_predictions(path)["id"].tolist()
        if len(ids) != SAMPLES or len(set(ids)) != SAMPLES:
            raise InputError(f"{path}: {len(ids)} rows of {len(set(ids))} samples")
    traceback = re.search(r"Traceback.*", (victim.root / f"{victim.name}.log").read_text(), re.DOTALL)
    if traceback is not None:
        raise InputError(f"a traceback on the terminal: {traceback[0][:3000]}")


if __name__ == "__main__":
    run(main)
