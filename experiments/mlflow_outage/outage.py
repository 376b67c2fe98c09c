"""Cost of an MLflow outage to a sweep: `python -m experiments.mlflow_outage.outage`.

The same sweep runs alternately with a server that stays up, and with a server that is killed as soon as the first
record is written and stays down until the sweep is over. Then the server is started again, and `sync` delivers the
records. Both stores must hold the same runs, params, metrics and tags, each of them once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import require_complete
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from tests.kit.processes import environment
from tests.kit.stores import Server, contents

SPACES = Path(__file__).parents[2] / "search_spaces"
KEYS = {"runs": 2, "params": 2, "metrics": 2, "latest": 2, "tags": 2}  # number of columns of a row that identify it
STEP = 3  # index of the column with a metric's step


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    seconds: dict[str, list[float]] = {"up": [], "down": []}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for pair in range(args.pairs + 1):
            held = {}
            for state in ("up", "down") if pair % 2 == 0 else ("down", "up"):
                folder = root / f"{pair}-{state}"
                folder.mkdir()
                took, held[state] = run_sweep(folder, environment(root), args, down=state == "down")
                if pair:  # the first pair only fills the cache of image features
                    seconds[state].append(took)
            require_equal(held["up"], held["down"])
            if pair:
                print(f"pair {pair}: {seconds['down'][-1] / seconds['up'][-1] - 1:+.1%}", flush=True)
    lost = statistics.median(down / up for down, up in zip(seconds["down"], seconds["up"], strict=True)) - 1
    print(f"MLflow down for a whole sweep, {args.pairs} pairs: {lost:+.1%} time (median); everything delivered once")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("experiments.mlflow_outage.outage", __doc__ or "")
    options.add_argument("--pairs", type=int, default=3, metavar="N")
    options.add_argument("--trials", type=int, default=8, metavar="N", help="trials of the space `perturb`")
    return options.parse_args(argv)


def run_sweep(
    folder: Path, env: dict[str, str], args: argparse.Namespace, *, down: bool
) -> tuple[float, dict[str, set[object]]]:
    """Run a sweep; return the seconds from its first trial's start to its last trial's end, and MLflow's contents."""
    server = Server(folder)
    server.start()
    words = ["--space", str(SPACES / "perturb.yaml"), "--name", "swept", "--trials", str(args.trials)]
    try:
        with (folder / "log").open("w") as log:
            driver = subprocess.Popen(
                [*module("tune"), *words, "--set", "search.concurrency=1", "--tracking-uri", server.uri],
                cwd=folder,
                env=env,
                stdout=log,
                stderr=log,
            )
        sweep = folder / "sweeps/swept"
        while down and driver.poll() is None and not list((sweep / "trials").glob("[!.]*.json")):
            time.sleep(0.05)
        if down:
            server.kill()
        if driver.wait():
            raise InputError((folder / "log").read_text()[-2000:])
        require_complete(SweepFolder(sweep), args.trials)
        if down:
            server.start()
            subprocess.run([*module("sync"), str(sweep)], cwd=folder, env=env, check=True)
        return seconds_of_trials(sweep), holdings(server.database)
    finally:
        server.kill()


def module(name: str) -> list[str]:
    return [sys.executable, "-m", f"fpp_sweep.{name}"]


def seconds_of_trials(sweep: Path) -> float:
    records = [json.loads(path.read_text()) for path in (sweep / "trials").glob("[!.]*.json")]
    return float(max(trial["finished"] for trial in records) - min(trial["started"] for trial in records))


def holdings(database: Path) -> dict[str, set[object]]:
    """Return the keys of all rows of each table; raise an error for duplicates."""
    held: dict[str, set[object]] = {}
    for table, rows in contents(database).items():
        keys = []
        for row in rows:
            key = row[: KEYS[table]]
            if table == "metrics":
                key = (*key, *row[STEP : STEP + 1])
            keys.append(key)
        held[table] = set(keys)
        repeated = [key for key, count in Counter(keys).items() if count > 1]
        if repeated:
            raise InputError(f"{table}: {repeated[:5]} occur more than once")
    return held


def require_equal(up: dict[str, set[object]], down: dict[str, set[object]]) -> None:
    """Raise an error if the two stores have different rows."""
    for table, expected in up.items():
        different = expected ^ down[table]
        if different:
            raise InputError(f"{table}: rows that only one store has: {sorted(map(str, different))[:5]}")


if __name__ == "__main__":
    run(main)
