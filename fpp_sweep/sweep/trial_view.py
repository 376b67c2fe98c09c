"""One trial on the terminal: its settings, its numbers by dataset, its files, and the command that repeats it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.records.skipped_images import skipped_lines
from fpp_sweep.records.texts import format_time, setting_text
from fpp_sweep.report.repeat import repeat_command
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import printable
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.sweep.display import trial_line
from fpp_sweep.sweep.trial_numbers import split_text

LOG_LINES = 5  # last lines of a trial's log


def trial_lines(folder: SweepFolder, name: str, *, every_metric: bool = False) -> Iterator[str]:
    """Yield all that the sweep's folder says of a trial; of its metrics those that tables show, or every one."""
    record = folder.known_trial(name)
    shown = None
    if not every_metric:
        shown = metrics_of(folder.info().objectives)
    state, *settings = _state_lines(record)
    yield printable(state)
    for split in record.results:
        yield ""
        yield split_text(record, split, shown)
        for line in skipped_lines(folder, record.name, split):
            yield printable(line)
    if record.results:
        yield ""
    for line in (*settings, *_file_lines(folder, record)):
        yield printable(line)
    yield printable(f"repeat      {repeat_command(folder, folder.info(), record)}")


def print_trial(objectives: Sequence[Objective], folder: SweepFolder, record: TrialRecord) -> None:
    """Print a line about an ended trial, and its table by dataset if it has numbers."""
    Screen(sys.stderr).draw([trial_line(record, objectives)])
    for split in record.results:
        lines = [f"{record.name}: {_settings_line(record)}", split_text(record, split, metrics_of(objectives))]
        lines += [printable(line) for line in skipped_lines(folder, record.name, split)]
        print("\n".join(["", *lines]), flush=True)


def _settings_line(record: TrialRecord) -> str:
    """Return such as `prompt=fpp, method=tpt`."""
    settings = (f"{key}={setting_text(key, value)}" for key, value in record.params.items())
    return escaped(", ".join(settings))


def _state_lines(record: TrialRecord) -> Iterator[str]:
    parts = [f"{record.name}  {record.state}"]
    if record.started:
        parts.append(f"begun {format_time(record.started)}")
    if record.duration is not None:
        parts.append(duration(record.duration))
    parts += [f"attempt {record.attempt}", record.origin, f"config {record.key}"]
    yield ", ".join(parts)
    if record.reason:
        yield f"reason      {record.reason}"
    for key, value in (record.params or record.config).items():
        yield f"    {key} = {setting_text(key, value)}"
    if record.drift is not None:
        yield f"drift       {record.drift:.3g}"
    for name in record.broken:
        yield f"breaks      {name}, by {record.constraints[name]:.4g}"


def _file_lines(folder: SweepFolder, record: TrialRecord) -> Iterator[str]:
    """Yield the paths of a trial's prompts, and its log with its last lines."""
    for path in folder.prompt_files(record.name):
        yield f"prompt      {path}"
    lines = folder.last_log_lines(record.name, LOG_LINES)
    if lines:
        yield f"log         {folder.log_file(record.name)}"
    for line in lines:
        yield f"    {line}"
