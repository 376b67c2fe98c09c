"""Kill a sweep's driver repeatedly and resume it each time: `python -m benchmarks.resume --kills 20 --trials 30`.

Two sweeps of the same space run one after the other. The first is undisturbed; the driver of the second is killed with
SIGKILL at random moments, which are spread over the sweep. At the end, both must have the same trials, values and front
in the folder and in MLflow. No trial may be left running, appear twice, or run again after it had finished. With
--concurrency of two or more, two sweeps may differ: finished trials must be kept, and folder and MLflow must agree.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpp_sweep.cli import parser, run
from fpp_sweep.spec.errors import InputError
from tests.kit.processes import environment

SPACE = """
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  fpp.gamma2: {low: 0.1, high: 20, log: true}
search: {trials: TRIALS, concurrency: CONCURRENCY}
work: {datasets: [scenes], limit: 10, baselines: [zero_shot], workers: CONCURRENCY, reuse_results: false}
"""
DRIVER = "=== driver"  # line before the output of each driver in the log
WRITES = 3  # number of writes of a trial's record
# fields that may differ between two runs of the same trial
TIMES = ("started", "finished", "attempt", "results", "details", "seconds_without_result")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        space = SPACE.replace("TRIALS", str(args.trials)).replace("CONCURRENCY", str(args.concurrency))
        (root / "space.yaml").write_text(space)
        began = time.time()
        expected = run_undisturbed(root)
        pace = Pace.of(root / "sweeps/alone", began)
        found, kills, rerun = run_disturbed(root, args.kills, WRITES * args.trials, pace, random.Random(args.seed))
        agree(found)
        if args.concurrency == 1:
            compare(root, expected, found)
    same = "as in the undisturbed run" if args.concurrency == 1 else "agree with each other"
    print("| kills | trials | ended trials run again | results |\n|---|---|---|---|")
    print(f"| {kills} | {args.trials} | {rerun} | {same} |")
    if rerun:
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.resume", __doc__ or "")
    options.add_argument("--kills", type=int, default=20, metavar="N")
    options.add_argument("--trials", type=int, default=30, metavar="N")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the moments")
    options.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="number of simultaneous trials and of workers"
    )
    return options.parse_args(argv)


def start(root: Path, name: str, *, resume: bool, uri: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fpp_sweep.tune", "--space", "space.yaml", "--name", name]
    command += ["--tracking-uri", uri or f"sqlite:///{root / name}.db"]
    if resume:
        command.append("--resume")
    with (root / f"{name}.log").open("a") as log:
        log.write(f"{DRIVER}\n")
        log.flush()
        return subprocess.Popen(command, cwd=root, env=environment(root), stdout=log, stderr=log, text=True)


def run_undisturbed(root: Path, uri: str = "") -> dict[str, Any]:
    if start(root, "alone", resume=False, uri=uri).wait():
        raise InputError((root / "alone.log").read_text()[-2000:])
    return state(root, "alone")


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations on this machine, from which the moments of kills are drawn."""

    start: float  # seconds from the start of a driver to its first trial
    write: float  # seconds between two writes of records

    @classmethod
    def of(cls, folder: Path, began: float) -> Pace:
        records = read_records(folder).values()
        trials = [record for record in records if record["kind"] == "trial"]
        first_start = min(record["started"] for record in records)
        seconds = max(trial["finished"] for trial in trials) - min(trial["started"] for trial in trials)
        return cls(start=first_start - began, write=seconds / (WRITES * len(trials)))


def run_disturbed(
    root: Path, kills: int, writes: int, pace: Pace, draw: random.Random
) -> tuple[dict[str, Any], int, int]:
    """Kill and resume the sweep `kills` times, then let it finish; return its state, kills and trials run again."""
    folder = root / "sweeps/killed"
    killed = 0
    rerun = 0  # trials that ran again after they had ended
    ended: dict[str, str] = {}
    while True:
        driver = start(root, "killed", resume=(folder / "sweep.json").is_file())
        moment = "at the end"
        if killed < kills:
            remaining_writes = writes - WRITES * len(ended)
            moment = strike(driver, folder, max(1, remaining_writes // (kills - killed + 1)), pace, draw)
        code = driver.wait()
        ended_before, ended = ended, finished(folder)
        rerun += sum(ended.get(name) != record for name, record in ended_before.items())
        if code == -signal.SIGKILL:
            killed += 1
            print(f"kill {killed}, {moment}: {len(ended)} trials have ended", flush=True)
            continue
        if code:
            raise InputError((root / "killed.log").read_text()[-2000:])
        return state(root, "killed"), killed, rerun


def strike(driver: subprocess.Popen[str], folder: Path, most: int, pace: Pace, draw: random.Random) -> str:
    """Kill the driver; in one of four cases while it starts, otherwise shortly after a number of writes."""
    if draw.random() < 0.25:
        delay = draw.uniform(0, pace.start)
        event = "its start"
        await_records(driver, folder, 1, delay)  # a driver that starts quickly is killed at its first record
    else:
        delay = draw.uniform(0, pace.write)
        writes = draw.randint(1, most)
        event = f"record {writes}"
        await_records(driver, folder, writes, math.inf)
        time.sleep(delay)
    if driver.poll() is None:
        os.kill(driver.pid, signal.SIGKILL)
    return f"{delay:.2f} s after {event}"


def await_records(driver: subprocess.Popen[str], folder: Path, writes: int, seconds: float) -> None:
    """Wait until the driver has made `writes` writes or has ended, or until the time is over."""
    end = time.monotonic() + seconds
    written = 0
    times = record_times(folder)
    while written < writes and driver.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
        times_before, times = times, record_times(folder)
        written += sum(times[name] != times_before.get(name) for name in times)


def record_times(folder: Path) -> dict[str, int]:
    """Return the modification time of every record."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "trials").glob("[!.]*.json")}


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "trials").glob("[!.]*.json"))}


def finished(folder: Path) -> dict[str, str]:
    """Return the records of trials that have ended, without the results of the final stage and of the test split."""
    texts = {}
    for name, record in read_records(folder).items():
        if record["kind"] == "trial" and record["state"] == "complete":
            for later_stage in ("final", "test"):
                record["results"].pop(later_stage, None)
            texts[name] = json.dumps(record)
    return texts


def state(root: Path, name: str) -> dict[str, Any]:
    """Return the state of a sweep in its folder and in MLflow, without times."""
    folder = root / "sweeps" / name
    records = {}
    for trial, record in read_records(folder).items():
        averages = {split: result["average"] for split, result in record["results"].items()}
        records[trial] = {key: value for key, value in record.items() if key not in TIMES} | {"averages": averages}
    with (folder / "report/front.csv").open() as file:
        front = [row["name"] for row in csv.DictReader(file) if row["kind"] == "trial"]
    with closing(sqlite3.connect(root / f"{name}.db")) as store:
        runs = store.execute("SELECT name, status FROM runs WHERE lifecycle_stage = 'active' ORDER BY name").fetchall()
    runs = sorted((run.replace(name, "NAME"), status) for run, status in runs)
    return {"records": records, "front": front, "runs": runs}


def agree(found: Mapping[str, Any]) -> None:
    """Check that all trials are complete, and that folder and MLflow have each of them once."""
    trials = {name: record for name, record in found["records"].items() if record["kind"] == "trial"}
    for name, record in trials.items():
        if record["state"] != "complete":
            raise InputError(f"{name} is {record['state']}: {record['reason']}")
    runs = sorted(run[:4] for run, _ in found["runs"] if run[:4].isdigit())
    if runs != sorted(name.removeprefix("trial-") for name in trials):
        raise InputError(f"MLflow has {found['runs']}, the folder {sorted(trials)}")


def compare(root: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for part in ("records", "front", "runs"):
        if found[part] != expected[part]:
            kept = Path(tempfile.mkdtemp(prefix="resume-"))
            for name, side in (("expected", expected), ("found", found)):
                (kept / f"{name}.json").write_text(json.dumps(side[part], indent=1))
            raise InputError(f"{part} differ from the undisturbed run's; see {kept}")


if __name__ == "__main__":
    run(main)
