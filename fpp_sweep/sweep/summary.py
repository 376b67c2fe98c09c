"""The summary of a sweep, from its folder: state, front and baselines, failures, work, and what to open next."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from fpp_sweep.cli import SWEEPS
from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord, WorkTotals
from fpp_sweep.records.state import is_abandoned, progress_of, state_text
from fpp_sweep.records.texts import format_values, question_texts
from fpp_sweep.report.answer_section import answer_sections, settings_table
from fpp_sweep.report.document import Block, Section, blocks_to_text
from fpp_sweep.report.formatting import labelled_lines, output_width, wrap_words
from fpp_sweep.report.front_table import front_table
from fpp_sweep.report.progress import repeat_command, use_command
from fpp_sweep.report.writing import RESULTS as RESULTS_FILE
from fpp_sweep.report.writing import write_results
from fpp_sweep.spec.messages import command_line, plural, printable, runnable, runnable_record
from fpp_sweep.spec.progress import time_shares
from fpp_sweep.tracking.stores import DEFAULT_URI, absolute
from fpp_sweep.trial.trial import sum_by_stage

INDENT = 2  # spaces before the second line of a sentence


def summary_lines(folder: SweepFolder, width: int | None = None, mlflow_links: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines that are printed at the end of a sweep, and by `show` at any time."""
    if width is None:
        width = output_width()
    info, records = folder.info(), folder.trials()
    statistics = statistics_of(folder, info, records)
    yield from wrap_words(printable(state_line(folder, info, records)), width, INDENT)
    running = [record.name for record in records if record.state == "running"]
    if state_text(folder, info) == "running":
        yield f"progress    {progress_of(info, records, info.spent).text}"
        yield printable(f"running     {', '.join(running)}")
    notes = [f"Note: {note}." for note in statistics.notes]
    for line in (*front_notes(statistics.front), *notes):
        yield from wrap_words(printable(line), width, INDENT)
    if records:
        yield f"{final_table(statistics, width)}\n"
    for line in failure_lines(folder, info, records):
        yield printable(line)
    for text in question_texts(info):
        yield from labelled_lines("asked", printable(text), width, indent=LABEL_COLUMNS)
    for command, answer in zip_longest(folder.commands(), info.answers):
        yield printable(f"steered     {command.text}: {answer or 'waits for a driver'}")
    for label, text in work_texts(info, records).items():
        yield from labelled_lines(label, printable(text), width, indent=LABEL_COLUMNS)
    for line in next_lines(folder, statistics, mlflow_links):
        yield printable(line)


def has_results_file(folder: SweepFolder) -> bool:
    return (folder.path / RESULTS_FILE).exists()


def export_results(folder: SweepFolder) -> str:
    """Write results.json, and return the line that names it."""
    return f"results     {write_results(folder)}"


def state_line(folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord]) -> str:
    """Return the state of the sweep, with the number of trials in each state."""
    states = Counter(record.state for record in records if record.kind == "trial")
    trials = "no trial has begun"
    if states:
        trials = "trials: " + ", ".join(f"{count} {state}" for state, count in states.items())
    state = state_text(folder, info)
    line = f"{info.name} {state}"
    if state == info.state:  # one word, such as `finished`; other states are phrases with a verb
        verb = "has" if state == "failed" else "is"
        line = f"{info.name} {verb} {state}"
    if info.end_reason and info.finished:
        line += f" ({info.end_reason})"
    return f"{line}; {trials}."


def front_notes(front: Front) -> Iterator[str]:
    """Yield notes on a front that is empty or has no volume."""
    if front.infeasible and not front.members:
        yield f"{front.why_empty.capitalize()}: none is on the front."
    if front.info.reference is not None and front.hypervolume:
        _, volume = front.hypervolume[-1]
        if volume == 0:
            corner = format_values(front.objectives, front.info.reference)
            yield f"Hypervolume 0: no trial is better in every objective than the corner it is measured from, {corner}."


def work_texts(info: SweepInfo, records: Sequence[TrialRecord]) -> dict[str, str]:
    """Return what the workers have done, by the label of the line."""
    texts = {}
    work = info.work
    if work != WorkTotals():
        tasks, results = plural(work.tasks, "task"), plural(work.cached, "cached result")
        loads, lost = plural(work.model_loads, "model load"), plural(work.workers_lost, "worker")
        texts["work"] = f"{tasks} run, {results}, {loads}, {lost} lost"
    features = features_text(records)
    if features:
        texts["features"] = features
    return texts


def features_text(records: Sequence[TrialRecord]) -> str:
    """Return how fast image features were computed for these trials, and the time by step."""
    results: list[SplitResult] = []
    for record in records:
        results += record.results.values()
    seconds = sum_by_stage(result.features for result in results)
    images = seconds.pop("images", 0.0)
    total = math.fsum(seconds.values())
    if images <= 0 or total <= 0:
        return ""
    rate = images / total
    return f"of {plural(int(images), 'image')} at {rate:.3g} images/s a worker; time went to {time_shares(seconds)}"


def final_table(statistics: SweepStatistics, width: int) -> str:
    """Return the answer, the front, and the settings of its trials, in lines of at most `width` columns."""
    front = statistics.front
    sections = answer_sections(statistics)
    blocks: list[Block] = [front_table(front.info, front, statistics, settings=False, title=_title(front))]
    settings = settings_table(front.chosen, _settings_title(front))
    if not statistics.answer.differences and len(settings.columns) > 1:
        blocks.append(settings)
    sections.append(Section("", blocks))
    return blocks_to_text(sections, width).removeprefix("\n")


def _title(front: Front) -> str:
    """Return the title of the table of the front, or of the trials if the sweep has no search."""
    info = front.info
    if front.evaluate_only and not front.finished:
        return f"no trial of {info.name} has finished"
    if front.evaluate_only:
        return f"trials of {info.name} on {info.search_split}"
    finished = plural(len(front.finished), "finished trial")
    title = f"front of {info.name}: {len(front.members)} of {finished}, by {info.goals} on {info.search_split}"
    if _has_other_finalists(front):
        title += "; then other finalists"
    return title


def _settings_title(front: Front) -> str:
    if front.evaluate_only:
        return "Settings of the trials"
    if _has_other_finalists(front):
        return "Settings of the front and other finalists"
    return "Settings of the front"


def _has_other_finalists(front: Front) -> bool:
    """Return whether there are finalists that are not on the front."""
    return len(front.chosen) > len(front.members)


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


LABEL_COLUMNS = 12  # width of a line's label, such as `work`


def next_lines(folder: SweepFolder, statistics: SweepStatistics, mlflow_links: Sequence[str] = ()) -> Iterator[str]:
    """Yield what there is to open, and the command that uses the best config.

    Without links to MLflow, the command that brings it up to date stands for them, since it prints them.
    """
    yield f"sweep       {folder.path}"
    page = folder.report / "sweep.html"
    if page.is_file():
        yield f"page        {page.as_uri()}"
    yield from _use_lines(folder, statistics)
    label = "MLflow"
    for line in mlflow_links or [runnable(command_line("sync", [str(folder.path)]))]:
        yield f"{label:{LABEL_COLUMNS}}{line}"
        label = ""  # on the first line only


def _use_lines(folder: SweepFolder, statistics: SweepStatistics) -> Iterator[str]:
    """Yield the command that evaluates the recommended trial on the test split, or else the best baseline or the knee.

    The best baseline replaces the knee only after the sweep.
    """
    info, answer = statistics.front.info, statistics.answer
    if info.evaluate_only:
        return
    label, name = "the knee", statistics.front.trial_with("knee")
    if answer.recommended:
        label, name = "use it", answer.recommended
    elif answer.best_baseline and info.state == "finished":
        label, name = "baseline", answer.best_baseline
    if name is not None and not folder.trial(name).is_imported:
        yield f"{label:{LABEL_COLUMNS}}{use_command(folder, info, name)}"


def command_that_continues(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the command that resumes the sweep; empty if it runs or has come to its end."""
    if info.state != "interrupted" and not is_abandoned(folder, info):
        return ""
    return resume_command(folder, info)


def resume_command(folder: SweepFolder, info: SweepInfo) -> str:
    """Return the command that resumes the sweep; a table of a reproduction is continued by the command that began it.

    The command names what a folder from elsewhere must not choose: plugins, the Ray cluster, and another MLflow.
    """
    if info.group:
        return runnable_record(info.command)
    name = str(folder.path)
    if folder.path.parent == SWEEPS.absolute():
        name = folder.path.name
    words = ["--resume", name, *info.plugin_words]
    if info.address:
        words += ["--address", info.address]
    if info.tracking_uri and info.tracking_uri != absolute(DEFAULT_URI):
        words += ["--tracking-uri", info.tracking_uri]
    return runnable(command_line("evaluate" if info.evaluate_only else "tune", words))


def print_next_command(folder: SweepFolder, command: str, event: str) -> None:
    """Print what ended the run of a command, and what resumes the sweep; a sweep without a first step begins again."""
    if folder.has_sweep:
        print(f"{event}; to continue:\n    {resume_command(folder, folder.info())}", file=sys.stderr)
    else:
        print(f"{event} before the sweep began; to begin:\n    {runnable(command)}", file=sys.stderr)
