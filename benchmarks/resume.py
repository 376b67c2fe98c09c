"""Kill a sweep's driver again and again, resume it each time: `python -m benchmarks.resume --kills 20 --trials 30`.

Two sweeps of the same space, one at a time: one is left alone, the driver of the other is killed with SIGKILL at random
moments, spread over the sweep so that every kill finds something to do. At the end both must have found the same: the
same trials with the same values and the same front, in the folder, in Optuna's study and in MLflow; no trial may be
left running, none may be there twice, and none that had finished may have been run again. With --race the sweeps race:
what was decided before a kill must stand, and lead to the same. With --concurrency of two or more, where a sweep is not
the same twice, what stands must stand and folder, study and MLflow must agree.
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
# beside the two points, steps of which most are so large that they destroy the prompt
RACE = """
base: {method: tpt, prompt: a photo of a, views.count: 2, adapt.view_fraction: 0.5}
params: {adapt.lr: {low: 0.0001, high: 2.0}}
points: [{adapt.lr: 0.003}, {adapt.lr: 0.005}]
search: {trials: TRIALS, concurrency: 1, sampler: tpe, race: {rungs: [1/3, 2/3], reserve: 2}}
work: {datasets: [digits], limit: 192, baselines: [zero_shot], workers: 1, reuse_results: false}
"""
DRIVER = "=== driver"  # in the terminal's text, before each
WRITES = 3  # of a trial's record
ENDED = ("complete", "stopped")
# what a run of the same thing at another time may have otherwise
TIMES = ("started", "finished", "attempt", "results", "details", "held")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        space = (RACE if args.race else SPACE).replace("TRIALS", str(args.trials))
        for word in ("concurrency", "workers"):
            space = space.replace(f"{word}: 1", f"{word}: {args.concurrency}")
        (root / "space.yaml").write_text(space)
        began = time.time()
        expected = undisturbed(root)
        pace = Pace.of(root / "sweeps/alone", began)
        found, kills = disturbed(root, args.kills, WRITES * args.trials, pace, random.Random(args.seed))
        agree(found)
        if args.concurrency == 1:
            compare(root, expected, found)
    rerun, same = found["rerun"], "as in the undisturbed run" if args.concurrency == 1 else "agree with each other"
    lost = sum(bool(looks) and looks[-1]["reason"] is not None for looks in found["looks"].values())
    raced = f", {found['decisions']} decisions of which {lost} stop a trial, none changed" if args.race else ""
    print(f"{kills} kills, {args.trials} trials{raced}: {rerun} ended trials run again, results {same}")
    if rerun:
        sys.exit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.resume", __doc__ or "")
    options.add_argument("--kills", type=int, default=20, metavar="N")
    options.add_argument("--trials", type=int, default=30, metavar="N")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments")
    options.add_argument("--race", action="store_true", help="stop trials that another beats on a part of the images")
    options.add_argument("--concurrency", type=int, default=1, metavar="N", help="trials, and workers")
    return options.parse_args(argv)


def start(
    root: Path,
    name: str,
    *,
    resume: bool,
    uri: str = "",
    settings: Sequence[str] = (),
    words: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fpp_sweep.tune", "--space", "space.yaml", "--name", name]
    command += ["--tracking-uri", uri or f"sqlite:///{root / name}.db", *(["--resume"] if resume else [])]
    command += ["--set", *settings] if settings else []
    command += words
    with (root / f"{name}.log").open("a") as log:
        log.write(f"{DRIVER}\n")
        log.flush()
        return subprocess.Popen(
            command, cwd=root, env={**environment(root), **(variables or {})}, stdout=log, stderr=log, text=True
        )


def undisturbed(root: Path) -> dict[str, Any]:
    if start(root, "alone", resume=False).wait():
        raise InputError((root / "alone.log").read_text()[-2000:])
    return state(root, "alone")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds on this machine, within which a kill finds what it is meant for."""

    start: float  # of a driver, until its first trial begins
    write: float  # from one write of a record to the next

    @classmethod
    def of(cls, folder: Path, began: float) -> Pace:
        trials = [json.loads(path.read_text()) for path in (folder / "trials").glob("trial-*.json")]
        every = [json.loads(path.read_text())["started"] for path in (folder / "trials").glob("[!.]*.json")]
        seconds = max(trial["finished"] for trial in trials) - min(trial["started"] for trial in trials)
        return cls(start=min(every) - began, write=seconds / (WRITES * len(trials)))


def disturbed(root: Path, kills: int, writes: int, pace: Pace, draw: random.Random) -> tuple[dict[str, Any], int]:
    """Kill, resume, kill, ...; then let it finish."""
    folder = root / "sweeps/killed"
    killed = rerun = 0
    before: dict[str, str] = {}
    decided: dict[str, list[Any]] = {}
    while True:
        driver = start(root, "killed", resume=(folder / "sweep.json").is_file())
        moment = "at the end"
        if killed < kills:
            share = (writes - WRITES * len(before)) // (kills - killed + 1)  # what is left of the sweep, shared out
            moment = strike(driver, folder, max(share, 1), pace, draw)
        code = driver.wait()
        now = finished(folder)
        rerun += sum(now.get(name) != text for name, text in before.items())
        before = now
        decided = still_decided(folder, decided)
        if code == -signal.SIGKILL:
            killed += 1
            stand = f", {sum(map(len, decided.values()))} decisions stand" if decided else ""
            print(f"kill {killed}, {moment}: {len(now)} trials have ended{stand}", flush=True)
            continue
        if code:
            raise InputError((root / "killed.log").read_text()[-2000:])
        return {**state(root, "killed"), "rerun": rerun, "decisions": sum(map(len, decided.values()))}, killed


def still_decided(folder: Path, known: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the decisions of trials; raise InputError if an earlier one is missing or was made twice."""
    looks = decisions(folder)
    for name, made in looks.items():
        shares = [look["share"] for look in made]
        if shares != sorted(set(shares)):
            raise InputError(f"{name} decided twice after a block: {shares}")
    for name, made in known.items():
        if looks.get(name, [])[: len(made)] != made:
            raise InputError(f"{name} decided {made}, and after a kill {looks.get(name)}")
    return looks


def decisions(folder: Path) -> dict[str, list[Any]]:
    """By trial, after each block."""
    files = sorted(folder.glob("race/*/decisions.json"))
    return {path.parent.name: json.loads(path.read_text())["decisions"] for path in files}


def strike(driver: subprocess.Popen[str], folder: Path, most: int, pace: Pace, draw: random.Random) -> str:
    """Kill the driver: one time in four while it starts, else some moments after it has written some records."""
    starting = draw.random() < 0.25
    delay = draw.uniform(0, pace.start if starting else pace.write)
    writes = 0 if starting else draw.randint(1, most)
    if starting:  # at its first record, if it starts faster than the first did: it must not get away
        await_records(driver, folder, 1, delay)
    else:
        await_records(driver, folder, writes, math.inf)
        time.sleep(delay)
    if driver.poll() is None:
        os.kill(driver.pid, signal.SIGKILL)
    return f"{delay:.2f} s after {'its start' if starting else f'record {writes}'}"


def await_records(driver: subprocess.Popen[str], folder: Path, writes: int, seconds: float) -> None:
    """Wait until the driver has written so many records, or is over, or for so long."""
    end = time.monotonic() + seconds
    seen, now = 0, records(folder)
    while seen < writes and driver.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
        before, now = now, records(folder)
        seen += sum(now[name] != before.get(name) for name in now)


def records(folder: Path) -> dict[str, int]:
    """Every record and when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "trials").glob("[!.]*.json")}


def finished(folder: Path) -> dict[str, str]:
    """Return the records of trials that have ended, without the results of the final stage and of the test split."""
    texts = {}
    for path in (folder / "trials").glob("trial-*.json"):
        record = json.loads(path.read_text())
        if record["state"] in ENDED:
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
    with closing(sqlite3.connect(folder / "study.db")) as study:
        trials = study.execute("SELECT number, state FROM trials ORDER BY number").fetchall()
        values = study.execute(
            "SELECT number, objective, value FROM trial_values JOIN trials USING (trial_id) ORDER BY 1, 2"
        ).fetchall()
    with closing(sqlite3.connect(root / f"{name}.db")) as store:
        runs = store.execute("SELECT name, status FROM runs ORDER BY name").fetchall()
        metrics = store.execute(
            "SELECT r.name, m.key, count(*) FROM metrics m JOIN runs r USING (run_uuid)"
            " WHERE r.name NOT LIKE ? GROUP BY 1, 2 ORDER BY 1, 2",
            (f"{name}%",),
        ).fetchall()
    runs = sorted((run.replace(name, "NAME"), status) for run, status in runs)
    found = {"records": records, "front": front, "study": trials, "values": values, "runs": runs, "metrics": metrics}
    return {**found, "looks": decisions(folder)}


def agree(found: dict[str, Any]) -> None:
    """Folder, study and MLflow have each trial once and ended, with the same values, and as its race decided."""
    values: dict[int, list[float]] = {}
    for number, _, value in found["values"]:
        values.setdefault(number, []).append(value)
    trials = {name: record for name, record in found["records"].items() if record["kind"] == "trial"}
    if {number for number, _ in found["study"]} != {record["number"] for record in trials.values()}:
        raise InputError(f"the study has trials {found['study']}, the folder {sorted(trials)}")
    for name, record in trials.items():
        known = record["estimate"] or list(record["values"] or ())
        looks = found["looks"].get(name, [])
        reason = looks[-1]["reason"] if looks else None
        ended = "stopped" if reason else "complete"
        if (record["state"], record["reason"], values[record["number"]]) != (ended, reason, known):
            raise InputError(f"{name}: {record} is in the study as {values[record['number']]} and decided {looks}")
    runs = sorted(run[:4] for run, _ in found["runs"] if run[:4].isdigit())
    if runs != sorted(name.removeprefix("trial-") for name in trials):
        raise InputError(f"MLflow has {found['runs']}, the folder {sorted(trials)}")


def compare(root: Path, expected: dict[str, Any], found: dict[str, Any]) -> None:
    for part in ("records", "looks", "front", "study", "values", "runs", "metrics"):
        if found[part] != expected[part]:
            kept = Path(tempfile.mkdtemp(prefix="resume-"))
            for name, what in (("expected", expected), ("found", found)):
                (kept / f"{name}.json").write_text(json.dumps(what[part], indent=1))
            raise InputError(f"{part} differ from the undisturbed run's; see {kept}")


if __name__ == "__main__":
    run(main)
