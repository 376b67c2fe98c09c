"""The failures of a sweep on the terminal, with the commands that repeat them or run the failed trials again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.repeat import repeat_command
from fpp_sweep.spec.messages import command_line, runnable
from fpp_sweep.sweep.resume_command import resume_command

FAILURES_SHOWN = 3


def failure_lines(folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield each failure's cause, traceback and repeat command, then the command that runs all failed trials again."""
    failed = [record for record in records if record.has_failed]
    for record in failed[:FAILURES_SHOWN]:
        yield f"{record.name} failed: {record.reason}"
        log = folder.log_file(record.name)
        if log.is_file():  # a trial that failed before its start has none
            yield f"    traceback   {log}"
        yield f"    repeat      {repeat_command(folder, info, record)}"
    further = [record.name for record in failed[FAILURES_SHOWN:]]
    if further:
        yield f"and {len(further)} more failed: {', '.join(further)}"
        yield f"    reason      {runnable(command_line('show', [str(folder.path), further[0]]))}"
    yield from _run_again_lines(folder, info, failed)


def _run_again_lines(folder: SweepFolder, info: SweepInfo, failed: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield the command that runs failed trials again, for a user who has removed the cause."""
    if info.state == "running" or not any(record.can_run_again for record in failed):
        return
    yield f"run again   {resume_command(folder, info)}"
