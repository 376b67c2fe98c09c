"""The package's commands as processes, as users start them, and the files and processes that they leave."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.sweep.plan import make_plan
from fpp_sweep.sweep.worker_pool import worker_spec
from fpp_sweep.trial.trial import run_trial
from fpp_sweep.trial.worker import LocalExecutor, Worker
from tests.kit.names import named

ROOT = Path(__file__).parent.parent.parent
# one dataset: tests of whole sweeps would test nothing more with two
SMALL_SPACE = named("""
base: {fpp.steps: 2, views.count: 4, adapt.view_fraction: 0.5}
params:
  fpp.gamma1: {low: 0.1, high: 10, log: true}
search: {trials: 4, concurrency: 1}
work: {datasets: [scenes], limit: 10, baselines: [zero_shot], workers: 1}
""")


def tune_command(folder, *words, space=SMALL_SPACE):
    """Write the space into the folder and return the command line of a sweep over it."""
    (folder / "small.yaml").write_text(space)
    return [sys.executable, "-m", "fpp_sweep.tune", "--space", "small.yaml", *words]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a command: a cache in the folder, and this checkout's package."""
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return os.environ | {"FPP_SWEEP_CACHE": str(folder / "cache"), "PYTHONPATH": path}


def run_command(folder: Path, name: str, *words: str) -> str:
    """Run a command of the package in a folder; return what it prints, or raise InputError if it fails."""
    line = [sys.executable, "-m", f"fpp_sweep.{name}", *words]
    done = subprocess.run(line, cwd=folder, env=environment(folder), capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{' '.join(line)}: {done.stderr.strip()}")
    return done.stdout


def error_lines(err):
    """Return the lines of stderr without the header, stages and notes."""
    header = r"(sweep|question|searches|evaluates|work|budget|then|folder|page) +\S.*|(?!error: ).* \.\.\.|note: .*"
    return [line for line in err.splitlines() if not re.fullmatch(header, line)]


def only_sweep(folder) -> SweepFolder:
    """Open the only sweep that was started in the folder."""
    (path,) = (folder / "sweeps").glob("*/sweep.json")
    return SweepFolder.open(path.parent)


def descendants(pid):
    """Return the command lines of a process's descendants by process ID."""
    command_lines, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command_line = (path / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):  # the process has ended since the folder was listed
            continue
        parents[int(path.name)] = parent
        command_lines[int(path.name)] = command_line
    found: dict[int, str] = {}
    generation = {pid}
    while generation:
        children = {child for child, parent in parents.items() if parent in generation}
        generation = children - found.keys()
        found |= {child: command_lines[child] for child in generation}
    return found


def start_tune(folder, *words, space=SMALL_SPACE):
    """Start a sweep over the space in a process."""
    return subprocess.Popen(
        tune_command(folder, *words, space=space),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background processes with SIGINT ignored, and child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def complete_records(folder):
    """Return the files of the trials that are complete."""
    paths = (folder / "sweeps").glob("*/trials/trial-*.json")
    return [path for path in paths if '"complete"' in path.read_text()]


def assert_same_as_in_one_process(sweep, space, cache, records=None):
    """Run the trials of the sweep, or only `records`, again with one worker in this process; compare the bits."""
    space = replace(space, work=replace(space.work, cache=str(cache)))
    worker = Worker(worker_spec(space, gpus=0.0))
    plan = make_plan(space, worker)
    inline = LocalExecutor(worker, TaskKeys(worker.model_info(), plan.datasets_by_key()))
    for record in records or sweep.trials():
        result, _ = run_trial(plan, TrialConfig().replace(record.config), "val", inline)
        assert dict(result.average) == dict(record.results["val"].average), record.name


@contextmanager
def killed_at_end(process):
    """Kill the process and its descendants at the end of the block if the process still runs."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_tree(process.pid)


def kill_tree(pid):
    """Kill a process and its descendants with SIGKILL, as a power cut does."""
    signal_tree(pid, signal.SIGKILL)


def signal_tree(pid, number):
    """Send a signal to a process and its descendants."""
    for process_id in (pid, *descendants(pid)):
        with suppress(ProcessLookupError):
            os.kill(process_id, number)
