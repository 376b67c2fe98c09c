"""Break random lines of the package, run the tests that call the broken function, and list what no test notices.

    python -m tools.mutate --breaks 200                  # 200 random breaks; minutes for the tests' reach, once
    python -m tools.mutate --again nightly/mutate/breaks.jsonl   # the survivors of an earlier run, after new tests

The tests run in a copy of the checkout. First all fast tests run once and record which functions they call, in every
process that they start. Then each break runs the tests that call its function, the fastest first, up to a limit of
time, and ends at the first failure. A break that no test reaches counts as a survivor.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools.mutate.breaks import Break, breaks_of
from tools.mutate.sitecustomize import IMPORT

ROOT = Path(__file__).parents[2]
WEIGHTS = dict.fromkeys(("search", "trial", "workers", "records", "sweep", "tracking", "statistics"), 2.0)
PRELOADED = ("torch", "numpy", "scipy.stats", "pandas", "matplotlib.pyplot", "pydantic", "optuna", "ray", "PIL.Image",
             "safetensors.torch", "open_clip", "sklearn", "pyarrow", "filelock", "psutil", "rich")  # fmt: skip
# these tests check texts and other programs, and cannot notice a change of behaviour
LEFT_OUT = ("docs", "words", "layers", "printed", "conformance", "reading_paths", "install", "kuberay", "cluster")
SECONDS = 40.0  # limit of seconds for the tests of a break
WARNINGS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # warnings of plugins that the libraries have loaded
TIME_LIMIT = "time limit"
FACTOR, ALLOWANCE = 4.0, 60.0  # time limit of a break: factor on the usual seconds of its tests, and additional seconds
PATIENCE = 10.0  # factor on the time limit for the unbroken copy, in case the machine is busy with other work


Reach = dict[str, tuple[float, set[str]]]  # seconds and called functions of a test, by its name


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    copy = args.folder.absolute() / "copy"
    make_copy(copy)
    for name in PRELOADED:
        importlib.import_module(name)
    reach = args.folder / "reach.json"
    if not reach.is_file():
        reach.write_text(json.dumps(record_reach(copy, args.folder.absolute() / "hits", args.tests)))
    tests = {name: (seconds, set(functions)) for name, (seconds, functions) in json.loads(reach.read_text()).items()}
    log = args.folder / "breaks.jsonl"
    if args.again:
        chosen = survivors_of(args.again, copy)
        log = args.folder / "again.jsonl"
        log.unlink(missing_ok=True)
    else:
        chosen = choose(copy, args.breaks, args.seed, args.packages)
    done = [Break(**line["break"]) for line in read_lines(log)]
    for number, change in enumerate(chosen):
        if change in done:
            continue
        outcome, by = try_break(change, copy, tests)
        with log.open("a") as file:
            file.write(json.dumps({"break": change.as_dict(), "outcome": outcome, "by": by}) + "\n")
        print(f"{number + 1}/{len(chosen)} {outcome:10} {change}  {by}", flush=True)
    print("\n".join(table(read_lines(log))))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="tools.mutate", description=__doc__)
    options.add_argument("--breaks", type=int, default=200, metavar="N")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--packages", nargs="*", help="break these packages only")
    options.add_argument("--folder", type=Path, default=Path("nightly/mutate"), help="of the copy and the results")
    options.add_argument("--tests", nargs="*", default=["tests", "fpp_sweep"], help="tests that may notice a break")
    options.add_argument("--again", type=Path, metavar="FILE", help="repeat the survivors of an earlier run")
    return options.parse_args(argv)


def make_copy(copy: Path) -> None:
    """Copy what git knows, so that a break never reaches the checkout."""
    shutil.rmtree(copy, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    subprocess.run("git init -q && git add -A && git -c user.name=m -c user.email=m@m commit -qm copy", cwd=copy,
                   shell=True, check=True)  # fmt: skip


def record_reach(copy: Path, hits: Path, tests: Sequence[str]) -> dict[str, tuple[float, list[str]]]:
    """Run all tests once; return seconds and called functions of each test that passed, of which there must be one."""
    shutil.rmtree(hits, ignore_errors=True)
    hits.mkdir(parents=True)
    path = [str(Path(__file__).parent), str(copy)]
    environment = {**os.environ, "MUTATE_HITS": str(hits), "PYTHONPATH": os.pathsep.join(path)}
    ignored = [f"--ignore=tests/test_{name}.py" for name in LEFT_OUT]
    command = [sys.executable, "-m", "pytest", *tests, *ignored, "-n0", "-p", "tools.mutate.plugin"]
    subprocess.run([*command, "-p", "no:cacheprovider"], cwd=copy, env=environment, check=False)
    seconds: defaultdict[str, float] = defaultdict(float)
    failed = set()
    for name, _, outcome, duration in read_lines(hits / "outcomes.jsonl"):
        seconds[name] += duration
        if outcome != "passed":
            failed.add(name)
    functions: defaultdict[str, set[str]] = defaultdict(set)
    for file in hits.glob("*.hits"):
        for line in file.read_text().splitlines():
            name, _, function = line.partition("\t")
            functions[name].add(function)
    for name, fixture in read_lines(hits / "uses.jsonl"):
        functions[name] |= functions[fixture]
    add_calls_of_imports(functions)
    shutil.rmtree(hits)
    passed = [name for name in seconds if name not in failed]
    if not passed:
        raise SystemExit(f"no test passes on the unbroken copy: {' '.join(tests)}")
    return {name: (seconds[name], sorted(functions[name])) for name in passed}


def add_calls_of_imports(functions: dict[str, set[str]]) -> None:
    """Credit a function that is called by an import to all tests that call a function of the same module or class."""
    for function in functions.pop(IMPORT, set()):
        prefix = function.rpartition(".")[0] + "."
        for called in functions.values():
            if any(name.startswith(prefix) for name in called):
                called.add(function)


def choose(copy: Path, count: int, seed: int, packages: Sequence[str] | None) -> list[Break]:
    """Choose breaks at random: a package by weight and size, then a function, then a break of the function."""
    by_package: defaultdict[str, defaultdict[str, list[Break]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((copy / "fpp_sweep").rglob("*.py")):
        for change in breaks_of(path, copy):
            if not packages or change.package in packages:
                by_package[change.package][change.function].append(change)
    names = sorted(by_package)
    weights = [WEIGHTS.get(name, 1.0) * len(by_package[name]) ** 0.5 for name in names]
    rng = random.Random(seed)
    chosen: dict[Break, None] = {}
    while len(chosen) < count:
        functions = by_package[rng.choices(names, weights)[0]]
        change = rng.choice(functions[rng.choice(sorted(functions))])
        if change.compiles(copy):
            chosen[change] = None
    return list(chosen)


def survivors_of(file: Path, copy: Path) -> list[Break]:
    """Return earlier survivors whose lines still exist, at their present offsets."""
    chosen = []
    for line in read_lines(file):
        if line["outcome"] == "noticed":
            continue
        old = Break(**line["break"])
        same = [new for new in breaks_of(copy / old.path, copy)
                if (new.function, new.before, new.after) == (old.function, old.before, old.after)]  # fmt: skip
        chosen += sorted(same, key=lambda new: abs(new.line - old.line))[:1]
    return chosen


def try_break(change: Break, copy: Path, tests: Reach) -> tuple[str, str]:
    """Run the tests that call the broken function; return the outcome, and the test that noticed.

    A test counts only if it passes on the unbroken copy; a test that does not is taken out of `tests`. Likewise a time
    limit counts only if the unbroken copy keeps to it; a busy machine gets more time.
    """
    patience = 1.0
    while True:
        chosen = reaching_tests(change, tests)
        if not chosen:
            return "unreached", ""
        limit = patience * limit_of(chosen, tests)
        outcome, by = run_broken(change, copy, chosen, limit)
        if outcome == "survived":
            return outcome, by
        if by == TIME_LIMIT:
            _, by_unbroken = run_tests(copy, chosen, limit)
            if by_unbroken != TIME_LIMIT:
                return outcome, by
            patience *= FACTOR
            continue
        suspects = [by] if by in tests else chosen
        outcome_unbroken, by_unbroken = run_tests(copy, suspects, PATIENCE * limit_of(suspects, tests))
        if outcome_unbroken == "survived":
            return outcome, by
        if by_unbroken not in tests:
            output = copy.with_name("output.txt")
            raise SystemExit(f"the tests cannot run on the unbroken copy, see {output}: {suspects}")
        del tests[by_unbroken]


def run_broken(change: Break, copy: Path, names: Sequence[str], limit: float) -> tuple[str, str]:
    """Run tests as `run_tests` does, on the copy with a break, which is undone afterwards."""
    path = copy / change.path
    source = path.read_bytes()
    path.write_bytes(change.apply(source))
    try:
        return run_tests(copy, names, limit)
    finally:
        path.write_bytes(source)


def reaching_tests(change: Break, tests: Reach) -> list[str]:
    """Return the tests that call the broken function, the fastest first, as long as there is time."""
    reaching = sorted([(seconds, name) for name, (seconds, functions) in tests.items() if change.function in functions])
    chosen: list[str] = []
    total = 0.0
    for seconds, name in reaching:
        total += seconds
        if chosen and total > SECONDS:
            break
        chosen.append(name)
    return chosen


def limit_of(names: Sequence[str], tests: Reach) -> float:
    return FACTOR * sum(tests[name][0] for name in names) + ALLOWANCE


def run_tests(copy: Path, names: Sequence[str], limit: float) -> tuple[str, str]:
    """Run tests in a fork of this process, which has loaded the libraries, and stop at the first failure."""
    output = copy.with_name("output.txt")
    child = os.fork()
    if child == 0:
        run_child(copy, names, output)
    end = time.monotonic() + limit
    finished, status = 0, 0
    while not finished and time.monotonic() < end:
        time.sleep(0.1)
        finished, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):  # this also ends processes that the tests have left behind
        os.killpg(child, signal.SIGKILL)
    if not finished:
        os.waitpid(child, 0)
        return "noticed", TIME_LIMIT
    if status == 0:
        return "survived", f"{len(names)} tests"
    for line in output.read_text(errors="replace").splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return "noticed", line.partition(" ")[2].partition(" - ")[0]
    return "noticed", f"exit status {os.waitstatus_to_exitcode(status)}"


def run_child(copy: Path, names: Sequence[str], output: Path) -> None:
    """Become the leader of a process group, and run pytest on the copy; never return."""
    status = 1
    try:
        os.setpgid(0, 0)
        file = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        sys.path[:] = [str(copy), *[entry for entry in sys.path if entry not in ("", str(ROOT))]]
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for name in list(sys.modules):
            if name.partition(".")[0] in ("tools", "fpp_sweep", "tests"):
                del sys.modules[name]
        import pytest

        status = int(pytest.main([*names, "-x", "-n0", "-p", "no:cacheprovider", "-rfE", "--tb=line", *WARNINGS]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def read_lines(path: Path) -> list[Any]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the share of noticed breaks by package, then the survivors."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    survivors = []
    for line in lines:
        change = Break(**line["break"])
        column = ("noticed", "survived", "unreached").index(line["outcome"])
        for name in (change.package, "all"):
            counts[name][column] += 1
        if column:
            survivors.append(f"{line['outcome']}: {change}")
    rows = ["| package | breaks | noticed | survived | not reached by a fast test |", "| --- | --- | --- | --- | --- |"]
    for name, (noticed, survived, unreached) in sorted(counts.items()):
        total = noticed + survived + unreached
        rows.append(f"| {name} | {total} | {noticed} ({100 * noticed / total:.0f} %) | {survived} | {unreached} |")
    return [*rows, "", *survivors]


if __name__ == "__main__":
    main()
