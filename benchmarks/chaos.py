"""Fault after fault while a sweep runs: `python -m benchmarks.chaos --rounds 100 --seed 0`.

A sweep is left alone once. Then the same sweep runs again and again, with random faults at random moments (see
`benchmarks.faults`), and is resumed whenever it has ended early, until there were as many faults as asked for. At the
end of each sweep every trial must stand exactly once in folder, Optuna's study and MLflow, every sample once in each
trial's predictions, and every value must be the undisturbed one's; nothing may be left running, and the terminal may
have shown no traceback.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults import AT_REST, RUNNING, Victim, small_disk
from benchmarks.resume import DRIVER, compare, start, state
from fpp_sweep.cli.command import parser, run
from fpp_sweep.spec.errors import InputError
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
PATIENCE = 120.0  # seconds without any trial's end after which the next fault comes all the same
LEFT = 90.0  # seconds within which nothing of a driver that has ended may be left
HANGS = 900.0  # seconds without a record's change after which a sweep is said to hang


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    draw = random.Random(args.seed)
    book = Book()
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        root = Path(scratch)
        (root / "space.yaml").write_text(SPACE.replace("TRIALS", str(args.trials)))
        with small_disk(root / "sweeps"):
            expected = undisturbed(root)
            sweep = 0
            while book.count < args.rounds:
                sweep += 1
                disturbed(root, f"struck{sweep}", expected, book, args, draw)
                print(f"sweep {sweep}: {book.count} faults so far, all as undisturbed", flush=True)
    book.tell()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.chaos", __doc__ or "")
    add = options.add_argument
    add("--rounds", type=int, default=100, metavar="N", help="faults")
    add("--trials", type=int, default=20, metavar="N", help="of each sweep")
    add("--most", type=int, default=8, metavar="N", help="faults in one sweep")
    add("--kinds", nargs="+", metavar="NAME", choices=[*RUNNING, *AT_REST], help="these alone")
    add("--seed", type=int, default=0, metavar="N", help="of faults and moments")
    add("--keep", metavar="FOLDER", help="where the terminal's text is kept")
    return options.parse_args(argv)


@dataclass(slots=True)
class Book:
    """Faults, and the seconds until the next trial had ended."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    resumed: int = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.seconds.values()))

    def least(self, kinds: Sequence[str]) -> list[str]:
        """The kinds that came least often so far."""
        fewest = min(len(self.seconds[kind]) for kind in kinds)
        return [kind for kind in kinds if len(self.seconds[kind]) == fewest]

    def tell(self) -> None:
        kinds = sum(map(bool, self.seconds.values()))
        print(f"{self.count} faults of {kinds} kinds, {self.resumed} drivers after the first of a sweep")
        print("lost 0, doubled 0, other values 0, tracebacks 0, left running 0")
        print(f"{'kind':28} {'faults':>6}  seconds until a trial ended (median, most)")
        for kind, seconds in self.seconds.items():
            print(
                f"{kind:28} {len(seconds):6}  {statistics.median(seconds):.0f}, {max(seconds):.0f}" if seconds else kind
            )


def undisturbed(root: Path) -> dict[str, Any]:
    server = store(root, "alone")
    try:
        if start(root, "alone", resume=False, uri=server.uri).wait():
            raise InputError((root / "alone.log").read_text()[-2000:])
    finally:
        server.kill()
    return state(root, "alone")


def store(root: Path, name: str) -> Server:
    folder = root / f"store-{name}"
    folder.mkdir()
    server = Server(folder)
    server.database = root / f"{name}.db"
    server.start()
    return server


def disturbed(
    root: Path, name: str, expected: dict[str, Any], book: Book, args: argparse.Namespace, draw: random.Random
) -> None:
    victim = Victim(root, name, store(root, name), draw)
    kinds = args.kinds or [*RUNNING, *AT_REST]
    left = min(args.most, args.rounds - book.count)
    try:
        while True:
            victim.driver = start(root, name, resume=(victim.folder / "sweep.json").is_file(), uri=victim.server.uri)
            left = besiege(victim, book, kinds, left)
            if ended(victim):
                break
            book.resumed += 1
            victim.repair(all_of_them=True)
            left -= strike(victim, book, [kind for kind in kinds if kind in AT_REST], left)
        victim.repair(all_of_them=True)
        check(victim, expected)
    finally:
        victim.repair(all_of_them=True)
        if args.keep:
            Path(args.keep).mkdir(parents=True, exist_ok=True)
            (Path(args.keep) / f"{name}.log").write_text((root / f"{name}.log").read_text())
        victim.server.kill()


def besiege(victim: Victim, book: Book, kinds: Sequence[str], left: int) -> int:
    """Strike until the driver has ended; how many faults are left then."""
    assert victim.driver is not None
    pids: set[int] = set()
    open_since: dict[str, float] = {}  # faults after which no trial has ended yet
    before, changed, moment = progress(victim), time.monotonic(), first_moment(victim)
    while victim.running:
        time.sleep(0.05)
        victim.repair()
        pids |= set(descendants(victim.driver.pid))
        now = time.monotonic()
        if now - changed > HANGS:
            raise InputError(f"hangs: {(victim.root / f'{victim.name}.log').read_text()[-2000:]}")
        if (seen := progress(victim)) != before:
            before, changed = seen, now
            for kind, began in open_since.items():
                book.seconds[kind].append(now - began)
            if open_since:
                moment, open_since = now + victim.draw.uniform(0, 4), {}
        if left and now > moment and (not open_since or now - changed > PATIENCE):
            kind = victim.draw.choice(book.least([kind for kind in kinds if kind in RUNNING]))
            if RUNNING[kind](victim):
                print(f"  {kind}, after {len(before)} trials", flush=True)
                open_since[kind], left = now, left - 1
            moment = now + victim.draw.uniform(0, 4)
    for kind, began in open_since.items():
        book.seconds[kind].append(time.monotonic() - began)
    gone(pids)
    return left


def first_moment(victim: Victim) -> float:
    """One time in four while the driver starts, else once it is at work."""
    return time.monotonic() + (victim.draw.uniform(0, 15) if victim.draw.random() < 0.25 else 20)


def strike(victim: Victim, book: Book, kinds: Sequence[str], left: int) -> int:
    """Between two drivers, one time in two."""
    if not left or not kinds or victim.draw.random() < 0.5:
        return 0
    kind = victim.draw.choice(book.least(kinds))
    if not AT_REST[kind](victim):
        return 0
    print(f"  {kind}", flush=True)
    book.seconds[kind].append(0.0)
    return 1


def progress(victim: Victim) -> set[str]:
    """The records of trials that have ended."""
    found = set()
    for path in (victim.folder / "trials").glob("[!.]*.json"):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if record["state"] not in ("waiting", "running"):
            found.add(f"{path.stem} {record['state']} {sorted(record['results'])}")
    return found


def ended(victim: Victim) -> bool:
    """Return True if the sweep is over, with all its trials and its last delivery to MLflow."""
    assert victim.driver is not None
    if victim.driver.returncode:
        return False
    text = (victim.root / f"{victim.name}.log").read_text()
    return "MLflow lacks" not in text.rpartition(DRIVER)[2]


def gone(pids: set[int]) -> None:
    """Nothing that a driver started may outlive it for long."""
    end = time.monotonic() + LEFT
    while alive := [pid for pid in pids if _alive(pid)]:
        if time.monotonic() > end:
            raise InputError(f"left running: {[Path(f'/proc/{pid}/cmdline').read_text()[:80] for pid in alive]}")
        time.sleep(0.2)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def without_costs(found: dict[str, Any]) -> dict[str, Any]:
    """A trial whose record was lost is run again, and takes another time."""
    metrics = [row for row in found["metrics"] if row[1] not in ("seconds", "device_seconds")]
    return {**found, "metrics": metrics}


def check(victim: Victim, expected: dict[str, Any]) -> None:
    compare(victim.root, without_costs(expected), without_costs(state(victim.root, victim.name)))
    from fpp_sweep.trial.artifacts import read_predictions

    for path in sorted(victim.folder.glob("artifacts/*/*/*.parquet")):
        ids = read_predictions(path)["id"].tolist()
        if len(ids) != SAMPLES or len(set(ids)) != SAMPLES:
            raise InputError(f"{path}: {len(ids)} rows of {len(set(ids))} samples")
    text = (victim.root / f"{victim.name}.log").read_text()
    if found := re.search(r"Traceback.*", text, re.DOTALL):
        raise InputError(f"a traceback on the terminal: {found[0][:3000]}")


if __name__ == "__main__":
    run(main)
