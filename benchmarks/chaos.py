"""Random faults while a sweep runs: `python -m benchmarks.chaos --rounds 100 --seed 0`.

A sweep runs once without faults. Then the same sweep runs repeatedly with random faults, up to three at once (see
`benchmarks.faults`), until there were as many faults as requested. A sweep that ends early is resumed. Faults and
their moments depend on the seed and the sweep's number only: a moment is a number of ended trials, started tasks or
sent requests. `--sweep N` repeats one sweep.

After each kill of a driver or scheduler, every result that a trial's log has acknowledged must be on disk. At the end
of each sweep, every trial must be exactly once in folder, Optuna's study and MLflow; every sample must be once in each
trial's predictions; every value must equal the undisturbed one; no process may be left running; and the terminal may
have shown no traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos_plan import Moment, SweepPlan, plan_of
from benchmarks.faults import AT_REST, RUNNING, Link, Victim, small_disk
from benchmarks.resume import DRIVER, agree, compare, start, state
from fpp_sweep.cli.command import parser, run
from fpp_sweep.spec.errors import InputError
from tests.kit.processes import descendants, environment
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
PLANTED_BUG = "CHAOS_BUG"  # see changed_python/sitecustomize.py
CHANGED_PYTHON = Path(__file__).with_name("changed_python")
TIME_COLUMNS = 20  # width of the date and time at the start of a line
ACKNOWLEDGED = re.compile(r": (cached|[0-9.]+ s, .*)$")  # the end of the line of a result in a trial's log
HANG_SECONDS = 900.0  # a sweep hangs if no record changes for this time


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    fault_log = FaultLog()
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        root = Path(scratch)
        (root / "space.yaml").write_text(SPACE.replace("TRIALS", str(args.trials)))
        with small_disk(root / "sweeps"):
            expected = run_undisturbed(root)
            number = args.sweep or 1
            while fault_log.count < args.rounds:
                try:
                    run_disturbed(root, expected, fault_log, args, plan_for(args, number))
                except InputError as error:
                    if args.plant and isinstance(error, LostResults):
                        print(f"the planted bug was found in sweep {number}, after {fault_log.count} faults: {error}")
                        return
                    words = f"--seed {args.seed} --trials {args.trials} --most {args.most}"
                    raise InputError(f"{error}; repeat this sweep with {words} --sweep {number}") from error
                print(f"sweep {number}: {fault_log.count} faults so far, all as undisturbed", flush=True)
                if args.sweep:
                    break
                number += 1
    if args.plant:
        raise InputError(f"the planted bug was not found with {fault_log.count} faults")
    fault_log.print_summary()


class LostResults(InputError):
    """Acknowledged results are not on disk."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.chaos", __doc__ or "")
    add = options.add_argument
    add("--rounds", type=int, default=100, metavar="N", help="faults")
    add("--trials", type=int, default=20, metavar="N", help="trials of each sweep")
    add("--most", type=int, default=8, metavar="N", help="faults in one sweep")
    add("--kinds", nargs="+", metavar="NAME", choices=[*RUNNING, *AT_REST], help="only these kinds of faults")
    add("--seed", type=int, default=0, metavar="N", help="seed of faults and moments")
    add("--sweep", type=int, default=0, metavar="N", help="run only the sweep with this number")
    add("--plant", action="store_true", help="plant a bug that must be found: results are written too late")
    add("--keep", metavar="FOLDER", help="folder for the terminal's text")
    return options.parse_args(argv)


@dataclass(slots=True)
class FaultLog:
    """Faults by kind, each with the seconds until the next trial ended."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    resumed: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.seconds.values()))

    def print_summary(self) -> None:
        kinds = sum(map(bool, self.seconds.values()))
        print(f"{self.count} faults of {kinds} kinds, {self.resumed} drivers after the first of a sweep")
        print("lost 0, doubled 0, other values 0, tracebacks 0, left running 0")
        print(f"{'kind':28} {'faults':>6}  seconds until a trial ended (median, most)")
        for kind, seconds in self.seconds.items():
            print(
                f"{kind:28} {len(seconds):6}  {statistics.median(seconds):.0f}, {max(seconds):.0f}" if seconds else kind
            )


def plan_for(args: argparse.Namespace, number: int) -> SweepPlan:
    kinds = args.kinds or [*RUNNING, *AT_REST]
    running = [kind for kind in RUNNING if kind in kinds]
    rest = [kind for kind in AT_REST if kind in kinds]
    return plan_of(args.seed, number, trials=args.trials, most=args.most, running=running, rest=rest)


def run_undisturbed(root: Path) -> dict[str, Any]:
    server = start_store(root, "alone")
    try:
        if start(root, "alone", resume=False, uri=server.uri).wait():
            raise InputError((root / "alone.log").read_text()[-2000:])
    finally:
        server.kill()
    found = state(root, "alone")
    agree(found)  # a trial that failed here would fail in every sweep, and be equal
    return found


def start_store(root: Path, name: str) -> Server:
    folder = root / f"store-{name}"
    folder.mkdir()
    server = Server(folder)
    server.database = root / f"{name}.db"
    server.start()
    return server


def run_disturbed(
    root: Path, expected: dict[str, Any], fault_log: FaultLog, args: argparse.Namespace, plan: SweepPlan
) -> None:
    name = f"struck{plan.number}"
    server = start_store(root, name)
    link = Link(server.port)
    victim = Victim(root, name, server, random.Random(), link)
    moments = list(plan.moments)
    drivers = 0
    try:
        while True:
            victim.driver = start_driver(victim, plant=args.plant)
            strike_until_end(victim, fault_log, moments, args.seed, plan)
            require_results(victim)
            if is_finished(victim):
                break
            victim.repair(all_of_them=True)
            fault_log.resumed += 1
            victim.environment.clear()
            strike_at_rest(victim, fault_log, args.seed, plan, drivers)
            drivers += 1
        victim.repair(all_of_them=True)
        check(victim, expected)
        shutil.rmtree(victim.folder)  # else the small disk is full after some sweeps
    finally:
        if victim.driver is not None and victim.running:
            victim.driver.kill()
        victim.repair(all_of_them=True)
        if args.keep:
            Path(args.keep).mkdir(parents=True, exist_ok=True)
            (Path(args.keep) / f"{name}.log").write_text((root / f"{name}.log").read_text())
        link.close()
        victim.server.kill()


def start_driver(victim: Victim, *, plant: bool) -> subprocess.Popen[str]:
    variables = dict(victim.environment)
    if plant:
        variables[PLANTED_BUG] = "yes"
    if variables:
        variables["PYTHONPATH"] = os.pathsep.join([str(CHANGED_PYTHON), environment(victim.root)["PYTHONPATH"]])
    resume = (victim.folder / "sweep.json").is_file()
    assert victim.link is not None
    return start(victim.root, victim.name, resume=resume, uri=victim.link.uri, variables=variables)


def counts(victim: Victim) -> dict[str, int]:
    """Return the number of events of each kind since the start of the sweep."""
    begun = 0
    for path in (victim.folder / "logs").glob("*.log"):
        with suppress(OSError):
            begun += path.read_text(errors="replace").count(": begins\n")
    assert victim.link is not None
    return {"records": len(ended_trials(victim)), "tasks": begun, "requests": victim.link.requests}


def strike_until_end(victim: Victim, fault_log: FaultLog, moments: list[Moment], seed: int, plan: SweepPlan) -> None:
    """Cause faults at their moments until the driver has ended, and remove used moments from the list."""
    assert victim.driver is not None
    pids: set[int] = set()
    open_since: dict[str, float] = {}  # faults after which no trial has ended yet
    before, changed = ended_trials(victim), time.monotonic()
    while victim.running:
        time.sleep(0.05)
        victim.repair()
        pids |= set(descendants(victim.driver.pid))
        now = time.monotonic()
        if now - changed > HANG_SECONDS:
            raise InputError(f"hangs: {(victim.root / f'{victim.name}.log').read_text()[-2000:]}")
        ended = ended_trials(victim)
        if ended != before:
            before, changed = ended, now
            for kind, began in open_since.items():
                fault_log.seconds[kind].append(now - began)
            open_since = {}
        if moments and counts(victim)[moments[0].event] >= moments[0].count and victim.running:
            for kind in strike(victim, moments.pop(0), seed, plan):
                open_since[kind] = now
    for kind, began in open_since.items():
        fault_log.seconds[kind].append(time.monotonic() - began)
    require_no_processes(pids)


def strike(victim: Victim, moment: Moment, seed: int, plan: SweepPlan) -> list[str]:
    """Cause all faults of a moment; return the kinds that found a target."""
    print(f"  {moment}", flush=True)
    struck = []
    for kind in moment.kinds:
        victim.draw = plan.stream(seed, moment, kind)
        if RUNNING[kind](victim):
            struck.append(kind)
    if "scheduler killed" in struck:
        require_results(victim)
    return struck


def strike_at_rest(victim: Victim, fault_log: FaultLog, seed: int, plan: SweepPlan, drivers: int) -> None:
    """Cause the fault that the plan has between two drivers, if any."""
    if not plan.at_rest:
        return
    kind = plan.at_rest[drivers % len(plan.at_rest)]
    victim.draw = plan.stream(seed, "rest", drivers)
    if kind and AT_REST[kind](victim):
        print(f"  {kind}, after driver {drivers + 1}", flush=True)
        fault_log.seconds[kind].append(0.0)


def require_results(victim: Victim) -> None:
    """Raise LostResults if a trial's log has acknowledged more results than are on disk.

    Call it while no scheduler writes. Trials share no results, because all have different settings.
    """
    acknowledged = set()
    for path in (victim.folder / "artifacts").glob("*/log.txt"):
        for line in path.read_text(errors="replace").splitlines():
            if ACKNOWLEDGED.search(line):
                acknowledged.add((path.parent.name, ACKNOWLEDGED.split(line[TIME_COLUMNS:])[0]))
    on_disk = len(list((victim.folder / "tasks").glob("*/*.task")))
    if len(acknowledged) > on_disk + victim.lost:
        raise LostResults(f"{len(acknowledged)} results were acknowledged, {on_disk} are on disk")


def ended_trials(victim: Victim) -> set[str]:
    """Return the name, state and splits of each trial that has ended."""
    found = set()
    for path in (victim.folder / "trials").glob("[!.]*.json"):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if record["state"] not in ("waiting", "running"):
            found.add(f"{path.stem} {record['state']} {sorted(record['results'])}")
    return found


def is_finished(victim: Victim) -> bool:
    """Return True if the sweep is over, with all its trials and its last delivery to MLflow."""
    assert victim.driver is not None
    if victim.driver.returncode:
        return False
    text = (victim.root / f"{victim.name}.log").read_text()
    return "MLflow lacks" not in text.rpartition(DRIVER)[2]


def require_no_processes(pids: set[int]) -> None:
    """Wait until all processes of a driver have ended; raise InputError if some do not end in time."""
    end = time.monotonic() + EXIT_SECONDS
    alive = [pid for pid in pids if _is_alive(pid)]
    while alive:
        if time.monotonic() > end:
            raise InputError(f"left running: {[Path(f'/proc/{pid}/cmdline').read_text()[:80] for pid in alive]}")
        time.sleep(0.2)
        alive = [pid for pid in alive if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def without_costs(found: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a sweep without times, which differ for a trial that ran again after a lost record."""
    metrics = [row for row in found["metrics"] if row[1] not in ("duration", "seconds", "worker_seconds")]
    return {**found, "metrics": metrics}


def check(victim: Victim, expected: dict[str, Any]) -> None:
    compare(victim.root, without_costs(expected), without_costs(state(victim.root, victim.name)))
    from fpp_sweep.trial.artifacts import read_predictions

    for path in sorted(victim.folder.glob("artifacts/*/*/*.parquet")):
        ids = read_predictions(path)["id"].tolist()
        if len(ids) != SAMPLES or len(set(ids)) != SAMPLES:
            raise InputError(f"{path}: {len(ids)} rows of {len(set(ids))} samples")
    text = (victim.root / f"{victim.name}.log").read_text()
    traceback = re.search(r"Traceback.*", text, re.DOTALL)
    if traceback is not None:
        raise InputError(f"a traceback on the terminal: {traceback[0][:3000]}")


if __name__ == "__main__":
    run(main)
