"""A sweep from its space to its front: search, records, report and MLflow, kept in order whatever happens."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import format_metric
from fpp_sweep.records.pareto import hypervolume
from fpp_sweep.records.records import SweepInfo, TrialRecord, WorkTotals
from fpp_sweep.records.steering import Queue
from fpp_sweep.space.space import Space
from fpp_sweep.space.work import require_plugins
from fpp_sweep.spec import plugins
from fpp_sweep.spec.errors import MachineError
from fpp_sweep.spec.messages import command_line, runnable, stage
from fpp_sweep.spec.process import set_thread_defaults, terminable
from fpp_sweep.sweep.api import InterruptedSweep, Options, Sweep, sweep_folder
from fpp_sweep.sweep.display import Display, Status, trial_line
from fpp_sweep.sweep.notify import Notifier
from fpp_sweep.sweep.preflight import (
    Opened,
    Workers,
    going_on,
    info_at_start,
    known_info,
    open_sweep,
    open_workers,
    removed_if_refused,
    require_named,
)
from fpp_sweep.sweep.reporter import Reporter
from fpp_sweep.tracking import DEFAULT_URI, Shipper, absolute, check_store, recorded
from fpp_sweep.workers.scheduler import SchedulerStatus
from fpp_sweep.workers.session import remove_own
from fpp_sweep.workers.status import StatusPoller

if TYPE_CHECKING:
    from fpp_sweep.search.searcher import SweepSearcher

DELIVERY = 60.0  # seconds that MLflow gets at the end
PARTING = 10.0  # after an interrupt


def run_sweep(space: Space, options: Options | None = None, workers: Workers | None = None) -> Sweep:
    """Run a space to its end, or resume it, on workers of its own or on those given; what a first Ctrl-C interrupts can
    be resumed."""
    options = options or Options()
    plugins.load(options.plugins)
    require_plugins(space.work.plugins, (file.name for file in options.plugins))
    if workers is None:
        require_named(space, options)
    folder = sweep_folder(space, options)
    set_thread_defaults()
    if options.verbose:
        os.environ["MLFLOW_LOGGING_LEVEL"] = "INFO"
    uri = absolute(options.tracking_uri or space.work.tracking_uri or DEFAULT_URI)
    with folder.locked(), terminable():
        known = known_info(space, options, folder) if options.resume else None
        if known is not None:
            space = going_on(space, known, folder)
            uri = absolute(options.tracking_uri) if options.tracking_uri else recorded(known.tracking_uri)
        with removed_if_refused(folder, known):
            # from here on there is something to resume, whatever happens while all is opened
            folder.write_info(info_at_start(known, space, options, folder, uri))
            try:
                # importing MLflow takes seconds: its store is looked at while Ray starts
                with ThreadPoolExecutor(1) as threads, ExitStack() as own:
                    checked = threads.submit(check_store, uri).result

                    def opened() -> None:
                        stage("opening MLflow's store")
                        checked()

                    try:
                        if workers is None:
                            workers = own.enter_context(open_workers(space, options, folder.tasks, opened))
                        checked()
                        run = Run(space, folder, open_sweep(space, folder, workers), options, uri)
                    except KeyboardInterrupt:
                        stage("interrupted; ending what was begun")  # which waits for MLflow's import
                        raise
                    _go(run)
            except (KeyboardInterrupt, MachineError) as error:
                if (info := folder.info()).state == "running":  # it came while all was opened
                    with suppress(OSError):
                        folder.write_info(replace(info, state="interrupted"))
                raise error if isinstance(error, MachineError) else InterruptedSweep from None
    return Sweep(folder)


def _go(run: Run) -> None:
    try:
        run.go()
    except (KeyboardInterrupt, OSError) as error:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends at once; the folder stays readable
        run.interrupted()
        if run.watch.lost:
            raise run.watch.lost from None
        raise MachineError.of(error) if isinstance(error, OSError) else InterruptedSweep from None
    finally:
        run.close()


class Run:
    """A sweep that is under way."""

    def __init__(self, space: Space, folder: SweepFolder, opened: Opened, options: Options, uri: str) -> None:
        stage("loading Ray Tune and Optuna")
        # which take seconds, and Ray must not be loaded before `session` has set its environment
        from fpp_sweep.search.searcher import SweepSearcher
        from fpp_sweep.search.study import SweepStudy

        self.space, self.folder, self.opened, self.options = space, folder, opened, options
        self.shipper = Shipper(folder, uri)
        self.began = time.monotonic()
        self.spent = folder.info().spent
        self.delivery = DELIVERY
        self.display = Display(sys.stderr, objectives=space.objectives)
        self.reporter = Reporter(folder, self.shipper)
        self.notifier = Notifier(space.search.notify, folder.path)
        self.storage = ""  # where Tune puts records of its own, which nothing reads again
        self.watch = StatusPoller(opened.pool, self._show, self._keeper_restarted, self._leave)
        self.conductor: SweepSearcher = SweepSearcher(
            space,
            folder,
            SweepStudy(folder.study_file, folder.info().name, space, Queue.of(folder, folder.info())),
            plan=opened.plan,
            final_plan=opened.final_plan,
            watch=self.watch,
            gpus_per_worker=opened.gpus_per_worker,
            on_change=self._changed,
            finish=options.finish,
        )

    def go(self) -> None:
        """To the end."""
        from fpp_sweep.search.job import TrialContext
        from fpp_sweep.search.racing import savings
        from fpp_sweep.search.searcher import conduct

        self.conductor.begin()
        self.shipper.start()
        self.reporter.start()
        self.watch.start()
        brief = TrialContext(
            folder=self.folder,
            executor=self.opened.pool,
            plan=self.opened.plan,
            final_plan=self.opened.final_plan,
            objectives=self.space.objectives,
            constraints=self.space.constraints,
            search_split=self.space.search.split,
            plugins=self.options.plugins,
            race=self.space.search.race,
        )
        self.storage = tempfile.mkdtemp(prefix="fpp_sweep-")
        conduct(self.conductor, brief, self.storage)
        info = replace(self.folder.info(), end_reason=self.conductor.why_stopped or "")
        if self.space.search.race:
            info = replace(info, race=savings(self.conductor.records(), self.space.search.split))
        self.folder.write_info(info)
        complete = any(record.state == "complete" and record.kind == "trial" for record in self.folder.trials())
        self._end("finished" if complete else "failed")

    def interrupted(self) -> None:
        """Mark what was running, as far as the disk allows; a resumed sweep starts it again."""
        self.delivery = PARTING
        with suppress(KeyboardInterrupt):  # of a watch that has just found the same
            self.watch.close()
        with suppress(OSError):
            for record in self.folder.trials():
                if record.state == "running":
                    reason = "the sweep was interrupted"
                    ended = replace(record, state="interrupted", reason=reason, finished=time.time())
                    self.folder.write_trial(ended)
            self._end("interrupted")

    def close(self) -> None:
        """Report, deliver, and let go; in whatever state things are."""
        self.watch.close()
        self.display.close()
        stage("writing the report, bringing MLflow up to date")
        self.reporter.close()
        self.notifier.close()
        shutil.rmtree(self.storage, ignore_errors=True)
        left = self.shipper.close(self.delivery)
        if left:
            error = self.shipper.status().error or "it was too slow"
            print(f"MLflow lacks {left} records ({error}); deliver them later with:", file=sys.stderr)
            print(f"    {runnable(command_line('sync', [str(self.folder.path)]))}", file=sys.stderr)

    def _end(self, state: Literal["finished", "failed", "interrupted"]) -> None:
        info = self.folder.info()
        now = time.time() if state != "interrupted" else None
        spent = self.spent + time.monotonic() - self.began
        self.folder.write_info(replace(info, state=state, finished=now, spent=spent, work=self._work(info)))
        self.notifier.tell(state, front=self._front())

    def _front(self) -> dict[str, dict[str, float]]:
        metrics = [objective.metric for objective in self.space.objectives]
        return {one.name: dict(zip(metrics, one.values or (), strict=True)) for one in self.conductor.front()}

    def _work(self, info: SweepInfo) -> WorkTotals:
        """Return the work of this driver added to that of the drivers before it."""
        self.watch.look()
        status = self.watch.status
        if status is None:
            return info.work
        return info.work + WorkTotals(
            tasks=status.done, cached=status.at_hand, model_loads=status.loads, workers_lost=status.lost
        )

    def _changed(self, record: TrialRecord, split: str) -> None:
        """The conductor started or ended something."""
        self.reporter.nudge()
        if record.name in self.conductor.progress.running:
            return
        if split == self.space.search.split:
            self._set_reference()
            joined = record.kind == "trial" and record.name in {member.name for member in self.conductor.front()}
            style = "red" if record.state == "failed" else "green" if joined else ""
            if record.state == "failed":
                self.notifier.tell("trial failed", trial=record.name, reason=record.reason)
            elif joined:
                self.notifier.tell("new front", trial=record.name, front=self._front())
            self.display.event(trial_line(record, self.space.objectives, on_front=joined), style)
        elif split in record.results:
            average = record.results[split].average
            averages = (
                f"{objective.metric} {format_metric(objective.metric, average[objective.metric])}"
                for objective in self.space.objectives
                if objective.metric in average
            )
            self.display.event(f"{record.name}  on {split}: {', '.join(averages)}")
        else:
            self.display.event(f"{record.name}  {record.reason}")

    def _set_reference(self) -> None:
        """The hypervolume's corner: what the space says, else the worst of the baselines, fixed once they ended."""
        info = self.folder.info()
        baselines = [record for record in self.conductor.records() if record.kind == "baseline"]
        unfinished = any(record.state in ("waiting", "running", "interrupted") for record in baselines)
        if info.reference is not None or unfinished:
            return
        values = [record.values for record in baselines if record.values is not None]
        corner = []
        for index, objective in enumerate(info.objectives):
            worst = min if objective.goal == "max" else max
            if objective.reference is None and not values:
                return
            known = objective.reference
            corner.append(worst(point[index] for point in values) if known is None else known)
        self.folder.write_info(replace(info, reference=corner))

    def _keeper_restarted(self) -> None:
        self.display.event("note: the keeper of the tasks died; another goes on from the results on disk")

    def _leave(self) -> None:
        """End in the place of the main thread: Ray, whose head is gone, holds it for a minute and then ends us all."""
        self.interrupted()
        self.close()
        print(f"error: {self.watch.lost}", file=sys.stderr, flush=True)
        remove_own()
        os._exit(1)

    def _show(self, workers: SchedulerStatus) -> None:
        """Keep the terminal up to date."""
        progress = self.conductor.progress
        info = self.folder.info()
        points = [list(record.values or ()) for record in self.conductor.front()]
        goals = [objective.goal for objective in info.objectives]
        volume = hypervolume(points, goals, info.reference) if info.reference is not None and points else None
        seconds = time.monotonic() - self.began
        shipping = self.shipper.status()
        status = Status(
            phase=progress.phase,
            finished=progress.finished,
            failed=progress.failed,
            running=len(progress.running),
            total=progress.total,
            images_per_second=workers.images / seconds if workers.images else None,
            front=points,
            hypervolume=volume,
            seconds_left=self._seconds_left(seconds),
            workers=workers.workers,
            note="; ".join([f"MLflow is behind: {shipping.error}"] * bool(shipping.error) + [*workers.notes]) or None,
            stopped=progress.stopped,
            baselines={
                one.label: one.values for one in self.conductor.records() if one.kind == "baseline" and one.values
            },
            doing=workers.doing,
        )
        self.display.update(status)

    def _seconds_left(self, seconds: float) -> float | None:
        progress, search = self.conductor.progress, self.conductor.search
        left = [] if search.wall_clock is None else [search.wall_clock - self.spent - seconds]
        if progress.total is not None and progress.seconds:
            mean = math.fsum(progress.seconds) / len(progress.seconds)
            remaining = progress.total - progress.finished - progress.failed - progress.stopped
            left.append(mean * remaining / max(1, min(len(progress.running) or 1, remaining or 1)))
        return max(0.0, min(left)) if left else None
