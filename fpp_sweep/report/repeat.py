"""Commands that evaluate a trial of a sweep again, with the model, the data and the seeds of the sweep."""

from __future__ import annotations

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.spec.messages import command_line, runnable


def repeat_command(folder: SweepFolder, info: SweepInfo, record: TrialRecord) -> str:
    """Return the command that evaluates a trial again; results that are in the cache are not computed again."""
    if record.is_imported:
        words = [str(record.config.get("file")), "--as", record.label, "--into", str(folder.path)]
        return runnable(command_line("import", words))
    return runnable(command_line("evaluate", _words(folder, info, record.name)))


def use_command(folder: SweepFolder, info: SweepInfo, name: str) -> str:
    """Return the command that evaluates a trial on all images of the test split."""
    assignments = ["search.split=test"]
    if info.work_settings.get("limit") is not None:
        assignments.append("work.limit=null")
    return runnable(command_line("evaluate", [*_words(folder, info, name), "--set", *assignments]))


def _words(folder: SweepFolder, info: SweepInfo, name: str) -> list[str]:
    """Return the flags that name a trial and the plugins of its sweep, which no folder may load by itself."""
    words = ["--trial", str(folder.path / name)]
    if info.plugin_files:
        words += ["--plugin", *info.plugin_files.values()]
    return words
