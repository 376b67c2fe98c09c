"""A sweep's own record (sweep.json): at its start, at a resume, once model and data are opened, and at its end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from fpp_sweep.checks.versions import git_state, versions
from fpp_sweep.records.folder import SweepFolder, SweepRecord
from fpp_sweep.records.records import SweepInfo, TrialRecord, WorkTotals
from fpp_sweep.report.html import write_page
from fpp_sweep.search.question import asked_now, asked_space, drop_outdated_results
from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.space import Space
from fpp_sweep.spec.errors import InputError, MachineError
from fpp_sweep.spec.keys import ENGINE_NAME, TaskKeys
from fpp_sweep.spec.messages import note, stage
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, PluginFile, Validation
from fpp_sweep.sweep.api import InterruptedSweep, Options
from fpp_sweep.tracking.stores import absolute, check_address, uri_of_folder, uri_of_new_sweep
from fpp_sweep.trial.trial import Plan

if TYPE_CHECKING:
    from fpp_sweep.search.searcher import TrialChange
    from fpp_sweep.workers.session import SchedulerStatus

FIRST_RELOAD_SECONDS = 10
THEN = ", then "  # between the software of two drivers


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The space and the record that a driver starts with."""

    space: Space
    record: SweepRecord  # a resumed sweep writes it once the inputs are checked
    before: SweepInfo | None  # record of a resumed sweep, as it was
    plugins: tuple[PluginFile, ...] = ()

    @property
    def tracking_uri(self) -> str:
        return self.record.info.tracking_uri

    def accept(self, model: ModelInfo, plan: Plan, validation: Validation) -> TaskKeys:
        """Record the inputs that were checked, from where on the sweep answers the space; return the tasks' keys.

        Raise InputError if the sweep is resumed and an input has changed.
        """
        datasets = plan.datasets_by_key()
        recorded = self.record.info
        info = with_inputs(recorded, model, datasets.values(), validation)
        images = {split: plan.images(split) for split in (*plan.datasets, *plan.later)}
        info = replace(info, images_by_split=images)
        for line in (*validation.notes, *self.space.notes()):
            note(line)
        if self.before is not None:
            drop_outdated_results(self.record.folder, self.before.space, self.space)
        self.record.info = info
        self.record.update()
        return TaskKeys(model, datasets, validation.prompts)


def start_of(space: Space, options: Options, folder: SweepFolder, *, in_process: bool = False) -> Start:
    """Return the start of a sweep; raise InputError if the folder of a resumed one cannot answer the space."""
    if not options.resume:
        info = new_info(space, options, folder, _store_of(space, options, folder, None, in_process=in_process))
        return Start(space=space, record=SweepRecord(folder, info), before=None, plugins=options.plugins)
    stage("reading what is done")
    before = folder.info()
    space, answers = asked_space(folder, space, options.plugin_digests())
    uri = _store_of(space, options, folder, before, in_process=in_process)
    info = resumed_info(before, space, uri, options, answers)
    for line in software_changes(before, info):
        note(line)
    return Start(space=space, record=SweepRecord(folder, info), before=before, plugins=options.plugins)


def begin(start: Start) -> None:
    """Write the record of a new sweep, from which it can be resumed, and a page that stands until the first report.

    Then check the address of MLflow, if the sweep has one.
    """
    folder = start.record.folder
    if start.before is None:
        start.record.update()
    if start.tracking_uri:
        check_address(start.tracking_uri)
    page = folder.report / "sweep.html"
    if page.exists():
        return
    text = (
        f"Started at {datetime.now():%H:%M}. No report is written yet; this page loads itself again until one is. "
        f"If the sweep was killed, this command writes one: fpp-sweep show {folder.path.name} --page"
    )
    write_page(page, "waiting.html.j2", title=folder.path.name, text=text, reload_seconds=FIRST_RELOAD_SECONDS)


@contextmanager
def removing_refused(folder: SweepFolder, options: Options) -> Iterator[None]:
    """Remove what a new sweep has written if bad input ends it before its first trial."""
    try:
        yield
    except InputError:
        if not options.resume and not folder.trial_files():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _store_of(
    space: Space, options: Options, folder: SweepFolder, before: SweepInfo | None, *, in_process: bool
) -> str:
    """Return the MLflow store of a sweep; empty for one in this process that has and requests none."""
    requested = options.tracking_uri
    if before is None:  # a folder from elsewhere must not choose a store
        requested = requested or space.work.tracking_uri
    if in_process and requested:
        return absolute(requested)
    if in_process and (before is None or not before.tracking_uri):
        return ""
    if before is None:
        return uri_of_new_sweep(requested)
    return uri_of_folder(folder, requested, flag="--tracking-uri")


def new_info(space: Space, options: Options, folder: SweepFolder, tracking_uri: str) -> SweepInfo:
    """Return the record of a sweep that starts now."""
    info = SweepInfo(
        name=folder.path.name,
        created=time.time(),
        state="interrupted",  # until its inputs are checked
        space=space.plain(),
        objectives=space.objectives,
        search_split=space.search.split,
        tracking_uri=tracking_uri,
        command=options.command,
        address=options.address or "",
        group=options.group,
        plugins=options.plugin_digests(),
        plugin_files=options.plugin_files(),
        engine=ENGINE_NAME,
    )
    return _with_software(info)


def resumed_info(
    info: SweepInfo, space: Space, tracking_uri: str, options: Options, answers: Sequence[str]
) -> SweepInfo:
    """Return the record of a sweep that is resumed now, with the space that is asked."""
    return replace(
        _with_software(info),
        state="interrupted",
        finished=None,
        end_reason="",
        answers=answers,
        tracking_uri=tracking_uri,
        address=options.address or "",
        plugins={**info.plugins, **options.plugin_digests()},
        plugin_files={**info.plugin_files, **options.plugin_files()},
        **asked_now(info, space),
    )


def _with_software(info: SweepInfo) -> SweepInfo:
    """Return the record with the software of this driver, behind that of earlier drivers if it differs."""
    by_name = dict(info.versions)
    for name, version in versions().items():
        by_name[name] = _then(by_name.get(name, ""), version)
    commit, has_changes = git_state()
    git_commit = _then(info.git_commit, commit)
    return replace(info, versions=by_name, git_commit=git_commit, git_dirty=info.git_dirty or has_changes)


def _then(before: str, now: str) -> str:
    """Return what a text was before, and what it is now if that differs.

    >>> _then("", "2.9"), _then("2.9", "2.9"), _then("2.9", "2.10"), _then("2.9, then 2.10", "2.10")
    ('2.9', '2.9', '2.9, then 2.10', '2.9, then 2.10')
    """
    if not before:
        return now
    if not now or before.split(THEN)[-1] == now:
        return before
    return f"{before}{THEN}{now}"


def software_changes(before: SweepInfo, now: SweepInfo) -> list[str]:
    """Return a note if this driver has other software than the one before it."""
    changes = []
    for name, text in now.versions.items():
        if text != before.versions.get(name):
            changes.append(f"{name} {text}")
    if now.git_commit != before.git_commit:
        changes.append(f"commit {now.git_commit}")
    if not changes:
        return []
    return [f"software has changed since the sweep began: {'; '.join(changes)}; its results are of all these"]


def with_inputs(
    info: SweepInfo, model: ModelInfo, datasets: Iterable[DatasetInfo], validation: Validation
) -> SweepInfo:
    """Return the record with the digests of model, prompts, and datasets of all splits.

    Raise InputError if the sweep is resumed and one of them has changed.
    """
    digests = dict(info.digests)
    for dataset in datasets:
        digests[f"{dataset.name} {dataset.split}"] = dataset.digest
    opened = replace(
        info,
        state="running",
        model=model.name,
        model_digest=model.digest,
        embedding_scale=model.embedding_scale,
        device=model.device,
        digests=digests,
        prompts=dict(sorted({**info.prompts, **validation.prompts}.items())),
    )
    if info.model:  # an earlier driver has opened them
        _require_unchanged(info, opened)
    return opened


def _require_unchanged(before: SweepInfo, now: SweepInfo) -> None:
    """Raise InputError if the model, the data or the prompts differ from those that the sweep began with."""
    datasets = _changed_names(before.digests, now.digests)
    prompts = _changed_names(before.prompts, now.prompts)
    if before.model_digest != now.model_digest:
        problem = f"model {now.model} has other weights"
    elif datasets:
        problem = f"it has other images or class names ({', '.join(datasets)})"
    elif prompts:
        problem = f"a prompt file has other content ({', '.join(prompts)})"
    else:
        return
    raise InputError(f"{before.name} cannot be resumed: {problem} than when it began; begin a new sweep instead")


def _changed_names(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names with another digest than before; a resumed sweep may read further splits."""
    return [name for name, digest in now.items() if before.get(name, digest) != digest]


EndState = Literal["finished", "failed", "interrupted"]


class SweepRecorder:
    """Records the end of a sweep and its corner; time and work of earlier drivers are added."""

    def __init__(self, record: SweepRecord) -> None:
        """Take the record as it is before this driver has worked."""
        self.record = record
        self.spent_before = record.info.spent  # seconds that earlier drivers have worked
        self._work = record.info.work  # work of earlier drivers, and of runs of the workers that have ended
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Return how long this driver has worked."""
        return time.monotonic() - self._began

    def add_work(self, scheduler: SchedulerStatus) -> None:
        """Add what the workers have done in a run that has ended."""
        self._work += _work_of(scheduler)

    def record_end(self, state: EndState, scheduler: SchedulerStatus | None = None) -> None:
        """Record the state in which this driver leaves the sweep, with its time and the work of its workers."""
        if state == "interrupted":
            self._record_interrupted_trials()
        work = self._work
        if scheduler is not None:
            work += _work_of(scheduler)
        finished = None if state == "interrupted" else time.time()
        self.record.update(state=state, finished=finished, spent=self.spent_before + self.seconds(), work=work)

    def _record_interrupted_trials(self) -> None:
        """Mark trials that were running, as far as the disk allows; a resumed sweep starts them again."""
        folder = self.record.folder
        for file in folder.trial_files():
            with suppress(OSError, InputError):  # the resume names a damaged record
                record = folder.trial(file.stem)
                if record.state == "running":
                    reason = "the sweep was interrupted"
                    folder.write_trial(replace(record, state="interrupted", reason=reason, finished=time.time()))

    def on_change(self, change: TrialChange) -> None:
        if change.on_search_split and change.has_ended:
            self.record_reference(change.records)

    def record_reference(self, records: Sequence[TrialRecord]) -> None:
        """Record the corner of the hypervolume once all baselines have ended."""
        info = self.record.info
        if info.reference is not None:
            return
        baselines = [record for record in records if record.kind == "baseline" and not record.outside]
        reference = hypervolume_reference(info.objectives, baselines)
        if reference is not None:
            self.record.update(reference=reference)


def _work_of(scheduler: SchedulerStatus) -> WorkTotals:
    counts = scheduler.counts
    return WorkTotals(tasks=counts.done, cached=counts.cached, model_loads=counts.loads, workers_lost=counts.lost)


@contextmanager
def recording_end(recorder: SweepRecorder) -> Iterator[None]:
    """Record how the sweep ended and how long it took, whatever happens within."""
    state: EndState = "interrupted"
    try:
        yield
        state = end_state(recorder.record.folder.trials())
    finally:
        with suppress(OSError):  # the disk may be full, which may be the reason for the interruption
            recorder.record_end(state)


@contextmanager
def errors_for_command(folder: SweepFolder) -> Iterator[None]:
    """Raise InterruptedSweep for Ctrl-C and MachineError for a failure of the machine."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedSweep from None
    except OSError as error:
        if folder.has_sweep:
            raise MachineError.of(error) from error
        raise MachineError.of(error, "start again") from error  # there is nothing that could be resumed


def end_state(records: Sequence[TrialRecord]) -> EndState:
    """Return the state of a sweep that has come to its end: it has failed if no trial has succeeded.

    Baselines do not count: an imported one succeeds whatever the sweep does.
    """
    if any(record.kind == "trial" and record.state == "complete" for record in records):
        return "finished"
    return "failed"


def hypervolume_reference(objectives: Sequence[Objective], baselines: Sequence[TrialRecord]) -> list[float] | None:
    """Return the corner from which hypervolume is measured: each objective's reference, or else the worst baseline.

    Return None as long as a baseline has not ended, or if an objective has neither.
    """
    measured = []
    for record in baselines:
        if record.state in ("waiting", "running", "interrupted"):
            return None
        if record.values is not None:
            measured.append(record.values)
    corner = []
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            corner.append(objective.reference)
        elif measured:
            values = [point[index] for point in measured]
            corner.append(min(values) if objective.goal == "max" else max(values))
        else:
            return None
    return corner
