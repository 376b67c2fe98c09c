"""Kill a sweep's driver repeatedly and resume it each time: `python -m benchmarks.resume --kills 20 --trials 30`.

Two sweeps of the same space run one after the other. The first is undisturbed; the driver of the second is killed with
SIGKILL at random moments, which are spread over the sweep. At the end, both must have the same trials, values and front
in the folder, in Optuna's study and in MLflow. No trial may be left running, appear twice, or run again after it had
finished. With --concurrency of two or more, two sweeps may differ: finished trials must be kept, and
folder, study and MLflow must agree.
"""

from __future__ import annotations

import argparse
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

from fpp_sweep.cli.command import parser, run
from fpp_sweep.search.study_file import load_study
from fpp_sweep.spec.errors import InputError
from tests.kit.processes import environment

SPACE = """
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
  fpp.gamma2: {low: 0.1, high: 20, log: true}
search: {trials: TRIALS, concurrency: 1}
work: {datasets: [scenes], limit: 10, baselines: [zero_shot], workers: 1, reuse_results: false}
"""
DRIVER = "=== driver"  # line before the output of each driver in the log
WRITES = 3  # number of writes of a trial's record
# fields that may differ between two runs of the same trial
TIMES = ("started", "finished", "attempt", "results", "details", "seconds_without_result")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        space = SPACE.replace("TRIALS", str(args.trials))
        for word in ("concurrency", "workers"):
            space = space.replace(f"{word}: 1", f"{word}: {args.concurrency}")
        (root / "space.yaml").write_text(space)
        began = time.time()
        expected = run_undisturbed(root)
        pace = Pace.of(root / "sweeps/alone", began)
        found, kills = run_disturbed(root, args.kills, WRITES * args.trials, pace, random.Random(args.seed))
        agree(found)
        if args.concurrency == 1:
            compare(root, expected, found)
    print_outcome(args, found, kills)
    if found["rerun"]:
        sys.exit(1)


def print_outcome(args: argparse.Namespace, found: Mapping[str, Any], kills: int) -> None:
    same = "agree with each other"
    if args.concurrency == 1:
        same = "as in the undisturbed run"
    print(f"{kills} kills, {args.trials} trials: {found['rerun']} ended trials run again, results {same}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.resume", __doc__ or "")
    options.add_argument("--kills", type=int, default=20, metavar="N")
    options.add_argument("--trials", type=int, default=30, metavar="N")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the moments")
    options.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="number of simultaneous trials and of workers"
    )
    return options.parse_args(argv)


def start(
    root: Path, name: str, *, resume: bool, uri: str = "", variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fpp_sweep.tune", "--space", "space.yaml", "--name", name]
    command += ["--tracking-uri", uri or f"sqlite:///{root / name}.db"]
    if resume:
        command.append("--resume")
    variables = {**environment(root), **(variables or {})}
    with (root / f"{name}.log").open("a") as log:
        log.write(f"{DRIVER}\n")
        log.flush()
        return subprocess.Popen(command, cwd=root, env=variables, stdout=log, stderr=log, text=True)


def run_undisturbed(root: Path) -> dict[str, Any]:
    if start(root, "alone", resume=False).wait():
        raise InputError((root / "alone.log").read_text()[-2000:])
    return state(root, "alone")


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations on this machine, from which the moments of kills are drawn."""

    start: float  # seconds from the start of a driver to its first trial
    write: float  # seconds between two writes of records

    @classmethod
    def of(cls, folder: Path, began: float) -> Pace:
        records = [json.loads(path.read_text()) for path in (folder / "trials").glob("[!.]*.json")]
        trials = [record for record in records if record["kind"] == "trial"]
        first_start = min(record["started"] for record in records)
        seconds = max(trial["finished"] for trial in trials) - min(trial["started"] for trial in trials)
        return cls(start=first_start - began, write=seconds / (WRITES * len(trials)))


def run_disturbed(root: Path, kills: int, writes: int, pace: Pace, draw: random.Random) -> tuple[dict[str, Any], int]:
    """Kill and resume the sweep `kills` times, then let it finish; return its state and the number of kills."""
    folder = root / "sweeps/killed"
    killed = 0
    rerun = 0  # trials that ran again after they had ended
    ended: dict[str, str] = {}
    while True:
        driver = start(root, "killed", resume=(folder / "sweep.json").is_file())
        moment = "at the end"
        if killed < kills:
            remaining_writes = writes - WRITES * len(ended)
            remaining_kills = kills - killed
            moment = strike(driver, folder, max(1, remaining_writes // (remaining_kills + 1)), pace, draw)
        code = driver.wait()
        ended_before, ended = ended, finished(folder)
        rerun += sum(ended.get(name) != record for name, record in ended_before.items())
        if code == -signal.SIGKILL:
            killed += 1
            print(f"kill {killed}, {moment}: {len(ended)} trials have ended", flush=True)
            continue
        if code:
            raise InputError((root / "killed.log").read_text()[-2000:])
        return {**state(root, "killed"), "rerun": rerun}, killed


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


def finished(folder: Path) -> dict[str, str]:
    """Return the records of trials that have ended, without the results of the final stage and of the test split."""
    texts = {}
    for path in (folder / "trials").glob("trial-*.json"):
        record = json.loads(path.read_text())
        if record["state"] == "complete":
            for later_stage in ("final", "test"):
                record["results"].pop(later_stage, None)
            texts[path.stem] = json.dumps(record)
    return texts


def state(root: Path, name: str) -> dict[str, Any]:
    """Return the state of a sweep in its folder, in the study and in MLflow."""
    folder = root / "sweeps" / name
    records = {}
    for path in sorted((folder / "trials").glob("[!.]*.json")):
        record = json.loads(path.read_text())
        averages = {split: result["average"] for split, result in record["results"].items()}
        records[path.stem] = {key: value for key, value in record.items() if key not in TIMES} | {"averages": averages}
    front = [member["name"] for member in json.loads((folder / "report/front.json").read_text())["members"]]
    study_trials = load_study(folder / "study.journal", name).trials
    trials = [(trial.number, trial.state.name) for trial in study_trials]
    values = [(trial.number, trial.values or []) for trial in study_trials]
    with closing(sqlite3.connect(root / f"{name}.db")) as store:
        runs = store.execute("SELECT name, status FROM runs ORDER BY name").fetchall()
        metrics = store.execute(
            "SELECT r.name, m.key, count(*) FROM metrics m JOIN runs r USING (run_uuid)"
            " WHERE r.name NOT LIKE ? GROUP BY 1, 2 ORDER BY 1, 2",
            (f"{name}%",),
        ).fetchall()
    runs = sorted((run.replace(name, "NAME"), status) for run, status in runs)
    return {"records": records, "front": front, "study": trials, "values": values, "runs": runs, "metrics": metrics}


def agree(found: dict[str, Any]) -> None:
    """Check that folder, study and MLflow agree: each trial is there once, has ended and has the same values."""
    values = dict(found["values"])
    trials = {name: record for name, record in found["records"].items() if record["kind"] == "trial"}
    if {number for number, _ in found["study"]} != {record["number"] for record in trials.values()}:
        raise InputError(f"the study has trials {found['study']}, the folder {sorted(trials)}")
    for name, record in trials.items():
        values_of_study = values[record["number"]]
        if record["state"] != "complete" or values_of_study != record["values"]:
            raise InputError(f"{name}: {record} is in the study as {values_of_study}")
    runs = sorted(run[:4] for run, _ in found["runs"] if run[:4].isdigit())
    if runs != sorted(name.removeprefix("trial-") for name in trials):
        raise InputError(f"MLflow has {found['runs']}, the folder {sorted(trials)}")


def compare(root: Path, expected: dict[str, Any], found: dict[str, Any]) -> None:
    for part in ("records", "front", "study", "values", "runs", "metrics"):
        if found[part] != expected[part]:
            kept = Path(tempfile.mkdtemp(prefix="resume-"))
            for name, side in (("expected", expected), ("found", found)):
                (kept / f"{name}.json").write_text(json.dumps(side[part], indent=1))
            raise InputError(f"{part} differ from the undisturbed run's; see {kept}")


if __name__ == "__main__":
    run(main)
