"""Check the plugins of a sweep before it starts; workers check methods once more, on the sweep's own model.

Results may depend neither on earlier calls nor on the process, since chance decides which worker computes a task, and
after which other tasks. Two new processes compute the same made-up data. The second one first computes other data, and
has another seed of hash() and another time. The results must have the same bits.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fpp_sweep.core.metric_contract import check_metric
from fpp_sweep.space.space import Space
from fpp_sweep.spec import catalogue, plugins
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import stage
from fpp_sweep.spec.plugins import ContractError
from fpp_sweep.sweep.child_process import child_environment
from fpp_sweep.sweep.plugin_process import ANSWERS, FAILS, LOADING, REQUEST, STALLED, START_SECONDS, PluginRow, Request

CLOCK_STEP = 10**7  # seconds between the clocks of two processes
ERRORS = "errors.txt"  # the standard error of a process
MAX_LAST_LINE = 2_000  # bytes
HASH_SEEDS = ("1", "2")  # seeds of Python's hash(), one for each process


@dataclass(slots=True)
class ProcessReport:
    """The outcomes of the steps of a process that has ended, and how it ended."""

    status: int  # exit status
    outcomes: dict[str, str] = field(default_factory=dict)  # by the titles of the steps
    unfinished: str = ""  # title of the step that did not end
    last_line: str = ""  # the last line of the standard error
    stack: str = ""  # calls of the step that took too long, in the form of `faulthandler`


def check_plugins(space: Space, methods: Sequence[str]) -> None:
    """Raise InputError if a metric, a sampler or one of these methods is a plugin's and breaks its contract."""
    check_in_new_processes(space, methods)  # first, because code that never ends can be stopped there only
    if space.search.sampler in catalogue.SAMPLERS:
        from fpp_sweep.search.sampler_contract import check_sampler  # loads Optuna

        check_sampler(space)
    for row in catalogue.METRICS.values():
        if row.digest:
            check_metric(row, space.work.task_timeout)


def check_in_new_processes(space: Space, methods: Sequence[str]) -> None:
    """Raise ContractError if the results of a plugin's row differ between processes, or its code ends a process."""
    rows = _plugin_rows(space, methods)
    if not rows:
        return
    stage("checking plugins")
    request = Request(files=plugins.loaded(), rows=rows, space=space, seconds=space.work.task_timeout)
    alone, after_others = _run_processes(request, replace(request, after_others=True))
    for row in rows:
        outcome, other_outcome = alone.outcomes[row.title], after_others.outcomes[row.title]
        if outcome == other_outcome:
            continue
        problems = [_cause(request, row, outcome)]
        for text in (outcome, other_outcome):
            if text.startswith(FAILS):
                problems.append(text)
        raise ContractError(f"{_where(row)}: {'; '.join(problems)}")


def _plugin_rows(space: Space, methods: Sequence[str]) -> tuple[PluginRow, ...]:
    """Return the rows of plugins among all metrics, the space's sampler and these methods."""
    rows = []
    for metric in catalogue.METRICS.values():
        if metric.digest:
            rows.append(PluginRow("metric", metric.name))
    if space.search.sampler in catalogue.SAMPLERS:
        rows.append(PluginRow("sampler", space.search.sampler))
    for name in methods:
        if catalogue.method(name).digest:
            rows.append(PluginRow("method", name))
    return tuple(rows)


def _cause(request: Request, row: PluginRow, outcome: str) -> str:
    """Return why outcomes differ: the row keeps something between calls, or has other results in every process."""
    first, second = _run_processes(request, request)
    if first.outcomes[row.title] == second.outcomes[row.title] == outcome:
        return "results depend on earlier calls in the same process; keep nothing in a class or module"
    return "other bits in another process; results must not depend on the time, the process or the order of a set"


def _run_processes(*requests: Request) -> list[ProcessReport]:
    """Run a process for each request, all at the same time; raise ContractError if a plugin's code ends one."""
    limit = 2 * START_SECONDS + requests[0].seconds * len(requests[0].rows)
    reports = []
    with tempfile.TemporaryDirectory() as scratch:
        processes: dict[Path, subprocess.Popen[bytes]] = {}  # by the folder of its files
        try:
            for number, request in enumerate(requests):
                folder = Path(scratch) / str(number)
                folder.mkdir()
                ahead = replace(request, clock_offset=number * CLOCK_STEP)
                (folder / REQUEST).write_bytes(pickle.dumps(ahead))
                processes[folder] = _start(folder, HASH_SEEDS[number])
            for folder, process in processes.items():
                status = process.wait(limit)
                reports.append(_read_report(folder, status))
        except subprocess.TimeoutExpired as error:
            raise InputError(f"plugins: a process that checks them has not ended after {limit:g} s") from error
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
    for report in reports:
        _require_finished(report, requests[0])
    return reports


def _start(folder: Path, hash_seed: str) -> subprocess.Popen[bytes]:
    environment = child_environment()
    environment["PYTHONHASHSEED"] = hash_seed
    environment["CUDA_VISIBLE_DEVICES"] = ""  # a worker has the GPU
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # two processes share the cores
    words = [sys.executable, "-m", "fpp_sweep.sweep.plugin_process", str(folder)]
    # the output is not shown: what plugins print, and their notes, were printed when they were loaded here
    with (folder / ERRORS).open("wb") as errors:
        return subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
        )


def _read_report(folder: Path, status: int) -> ProcessReport:
    """Return the report of a process that has ended, from the files in its folder."""
    report = ProcessReport(status=status, last_line=_last_line(folder / ERRORS))
    if not (folder / ANSWERS).is_file():  # the process has ended before it could begin
        return report
    for line in (folder / ANSWERS).read_text().splitlines():
        entry = json.loads(line)
        if "begins" in entry:
            report.unfinished = entry["begins"]
        else:
            report.outcomes[entry["ends"]] = entry["outcome"]
            report.unfinished = ""
    report.stack = (folder / STALLED).read_text()
    return report


def _last_line(file: Path) -> str:
    """Return the last line that a process has written to its standard error; a part of it, if it is long."""
    with file.open("rb") as errors:
        errors.seek(max(0, file.stat().st_size - MAX_LAST_LINE))
        lines = errors.read().decode(errors="replace").strip()
    return lines.rpartition("\n")[2]


def _require_finished(report: ProcessReport, request: Request) -> None:
    """Raise InputError if a plugin's code took too long or ended its process, or the process ended without it."""
    loading = report.outcomes.get(LOADING, "")
    if loading.startswith(FAILS):
        raise ContractError(f"{loading.removeprefix(FAILS)}, in another process")
    if report.unfinished:
        raise ContractError(_problem_of_unfinished_step(report, request))
    for row in request.rows:
        if row.title not in report.outcomes:
            problem = f"a process that checks them has ended too early (status {report.status})"
            raise InputError(f"plugins: {problem}: {report.last_line or 'is there memory for two?'}")


def _problem_of_unfinished_step(report: ProcessReport, request: Request) -> str:
    """Return where and why a step has not ended: its code took too long, or ended the process."""
    where, seconds = "plugins", START_SECONDS  # for the step that loads the plugins
    for row in request.rows:
        if row.title == report.unfinished:
            where, seconds = _where(row), request.seconds
    if not report.stack:
        return f"{where}: ends the process that runs it (status {report.status})"
    line = _plugin_line(report.stack)
    if line:
        where = f"{report.unfinished} ({line})"
    return f"{where}: {plugins.too_slow(seconds)}"


def _plugin_line(stack: str) -> str:
    """Return the innermost line of a plugin in a stack, such as `mine.py:12`; empty if there is none."""
    source = re.escape(plugins.SOURCE_PREFIX)
    frame = re.search(rf'File "{source}(.+?)>", line (\d+)', stack)  # the most recent call comes first
    if frame is None:
        return ""
    return f"{frame[1]}:{frame[2]}"


def _where(row: PluginRow) -> str:
    """Return the title of a row with the file and the line of its code."""
    registered: catalogue.Row
    match row.kind:
        case "method":
            registered = catalogue.method(row.name)
        case "metric":
            registered = catalogue.METRICS[row.name]
        case "sampler":
            registered = catalogue.SAMPLERS[row.name]
    return f"{row.title} ({plugins.origin_of(registered)})"
