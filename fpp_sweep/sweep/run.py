"""A sweep from its space to its front: opens what it needs, lets `dist` search, keeps records, report and MLflow."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fpp_sweep.cli import cores, sleep_when_idle
from fpp_sweep.config import TrialConfig
from fpp_sweep.errors import InputError, unknown
from fpp_sweep.records.folder import SweepFolder, SweepInfo, TrialRecord
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.sweep.display import Display, Status, trial_line
from fpp_sweep.version import VERSION

if TYPE_CHECKING:
    from fpp_sweep.search.conductor import Conductor
    from fpp_sweep.tracking import Shipper
    from fpp_sweep.trial.results import Checked, ModelFacts, WorkerSpec
    from fpp_sweep.trial.trial import Plan
    from fpp_sweep.trial.worker import Worker
    from fpp_sweep.workers.keeper import KeeperStatus
    from fpp_sweep.workers.pool import Pool

TICK = 0.5  # seconds between two looks at the workers
TABLES_EVERY, PAGES_EVERY = 2.0, 60.0  # seconds: reports cost CPU that trials want
DELIVERY = 60.0  # seconds that MLflow gets at the end
PARTING = 10.0  # after an interrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is not the space's: where the sweep lives, and how it talks."""

    root: Path = Path("sweeps")
    name: str | None = None  # none: the space's name and the time
    resume: bool = False
    address: str | None = None  # of a Ray cluster; none: a session of our own
    tracking_uri: str | None = None
    verbose: bool = False
    command: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that has been run, or is being run: read from its folder whenever it is asked."""

    folder: SweepFolder

    @classmethod
    def open(cls, path: Path | str) -> Sweep:
        """A sweep by its folder, such as `sweeps/perturb-20261120-185232`."""
        return cls(SweepFolder.open(Path(path)))

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def info(self) -> SweepInfo:
        return self.folder.info()

    def trials(self) -> list[TrialRecord]:
        """Baselines and trials, whatever became of them."""
        return self.folder.trials()

    def front(self) -> list[TrialRecord]:
        """The trials that no other beats, from the best at the first objective on."""
        from fpp_sweep.report import front_of

        return list(front_of(self.info, self.trials()).members)

    def best(self, mark: str = "knee") -> TrialConfig:
        """A front member's config: `knee`, or `best <metric>` of an objective."""
        from fpp_sweep.report import front_of

        front = front_of(self.info, self.trials())
        marked = {each: member for member in front.members for each in front.marks[member.name]}
        if mark not in marked:
            raise InputError(f"{self.name} has no {mark!r}; it has {', '.join(sorted(marked)) or 'no finished trial'}")
        return TrialConfig().replace(marked[mark].config)

    def table(self) -> list[dict[str, Any]]:
        """A flat row for each record, as `pandas.DataFrame` takes them: name, state, params, `ece`, `test/ece`, ..."""
        split = self.info.search_split
        rows = []
        for record in self.trials():
            row: dict[str, Any] = {"name": record.name, "kind": record.kind, "state": record.state, **record.params}
            for part, found in record.found.items():
                prefix = "" if part == split else f"{part}/"
                row |= {f"{prefix}{metric}": value for metric, value in found.average.items()}
            rows.append(row)
        return rows


class InterruptedSweep(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after everything has been put in order."""


def run_sweep(space: Space, options: Options | None = None) -> Sweep:
    """Run a space to its end, or resume it; what a first Ctrl-C interrupts can be resumed."""
    options = options or Options()
    folder = _place(space, options)
    from fpp_sweep.tracking import DEFAULT_URI, absolute, check_store

    sleep_when_idle()
    if options.verbose:
        os.environ["MLFLOW_LOGGING_LEVEL"] = "INFO"
    uri = absolute(options.tracking_uri or space.work.tracking_uri or DEFAULT_URI)
    with folder.locked(), _terminable():
        known = folder.info() if folder.info_file.is_file() else None
        if known is not None:
            _require_same(known, space, folder)
            uri = absolute(options.tracking_uri) if options.tracking_uri else known.tracking_uri
        with _undone_if_refused(folder, known):
            # from here on there is something to resume, whatever happens while all is opened
            folder.write_info(_begun(known, space, options, folder, uri))
            with _meanwhile(check_store, uri) as checked, _ready(space, options, folder, checked) as (pool, plan, gpus):
                _run(_Run(space, folder, pool, plan, options, gpus, uri))
    return Sweep(folder)


def _run(run: _Run) -> None:
    try:
        run.go()
    except KeyboardInterrupt:
        run.interrupted()
        raise InterruptedSweep from None
    finally:
        run.close()


class _Run:
    """The parts of a sweep that is under way."""

    def __init__(
        self, space: Space, folder: SweepFolder, pool: Pool, plan: Plan, options: Options, gpus: float, uri: str
    ) -> None:
        from fpp_sweep.search.conductor import Conductor
        from fpp_sweep.search.study import SweepStudy
        from fpp_sweep.tracking import Shipper

        self.space, self.folder, self.pool, self.plan = space, folder, pool, plan
        self.shipper = Shipper(folder, uri)
        self.options = options
        self.began = time.monotonic()
        self.spent = folder.info().spent
        self.display = Display(sys.stderr, objectives=space.objectives)
        self.status: KeeperStatus | None = None
        self.reporter = _Reporter(folder, self.shipper)
        self.conductor: Conductor = Conductor(
            space,
            folder,
            SweepStudy(folder.study_file, folder.info().name, space),
            concurrency=lambda: _concurrency(space, plan, self.status.workers if self.status else 1),
            spent=self.spent,
            gpus_per_actor=gpus,
            on_change=self._changed,
            stopped=lambda: self.status.fatal if self.status else None,
        )
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def go(self) -> None:
        """To the end."""
        import ray

        from fpp_sweep.search.conductor import Brief, conduct

        self.conductor.begin()
        self.shipper.start()
        self.reporter.start()
        self._watcher.start()
        brief = Brief(
            folder=self.folder,
            pool=self.pool,
            plan=self.plan,
            objectives=self.space.objectives,
            constraints=self.space.constraints,
            search_split=self.space.search.split,
        )
        with _scratch() as storage:
            conduct(self.conductor, brief, storage, ray.util.get_node_ip_address())
        self.folder.write_info(_tagged(self.folder.info(), {"ended": self.conductor.why_stopped or ""}))
        complete = any(record.state == "complete" and record.kind == "trial" for record in self.folder.trials())
        self._end("finished" if complete else "failed")

    def interrupted(self) -> None:
        """Mark what was running; a resumed sweep starts it again."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends at once; the folder bears that
        for record in self.folder.trials():
            if record.state == "running":
                told = replace(record, state="interrupted", reason="the sweep was interrupted", finished=time.time())
                self.folder.write_trial(told)
        self._end("interrupted")

    def close(self) -> None:
        """Report, deliver, and let go; in whatever state things are."""
        self._over.set()
        if self._watcher.is_alive():
            self._watcher.join(5)
        self.display.close()
        self.reporter.close()
        waiting = PARTING if self.folder.info().state == "interrupted" else DELIVERY
        left = self.shipper.close(waiting)
        if left:
            error = self.shipper.status().error or "it was too slow"
            print(f"MLflow lacks {left} records ({error}); deliver them later with:", file=sys.stderr)
            print(f"    python -m fpp_sweep.sync {self.folder.path}", file=sys.stderr)

    def _end(self, state: Literal["finished", "failed", "interrupted"]) -> None:
        info = self.folder.info()
        now = time.time() if state != "interrupted" else None
        spent = self.spent + time.monotonic() - self.began
        info = _tagged(replace(info, state=state, finished=now, spent=spent), self._work(info))
        self.folder.write_info(info)

    def _work(self, info: SweepInfo) -> dict[str, str]:
        """What it took, over all drivers."""
        with suppress(Exception):  # Ray may have gone down with a Ctrl-C
            self.status = self.pool.status()
        if self.status is None:
            return {}
        counts = {
            "work_tasks": self.status.done,
            "work_at_hand": self.status.at_hand,
            "work_model_loads": self.status.loads,
            "work_workers_lost": self.status.lost,
        }
        return {key: str(int(info.tags.get(key, 0)) + count) for key, count in counts.items()}

    def _changed(self, record: TrialRecord, part: str) -> None:
        """The conductor started or ended something."""
        self.reporter.nudge()
        if record.name in self.conductor.progress.running:
            return
        if part == self.space.search.split:
            self._set_reference()
            joined = record.kind == "trial" and record.name in {each.name for each in self.conductor.front()}
            self.display.event(trial_line(record, self.space.objectives, on_front=joined))
        elif part in record.found:
            average = record.found[part].average
            told = (
                f"{each.metric} {average[each.metric]:.2f}" for each in self.space.objectives if each.metric in average
            )
            self.display.event(f"{record.name}  on {part}: {', '.join(told)}")
        else:
            self.display.event(f"{record.name}  {record.reason}")

    def _set_reference(self) -> None:
        """The hypervolume's corner: what the space says, else the worst of the baselines, fixed once they ended."""
        info = self.folder.info()
        if info.reference is not None:
            return
        baselines = [record for record in self.conductor.records() if record.kind == "baseline"]
        if any(record.state in ("running", "interrupted") for record in baselines):
            return
        values = [record.values for record in baselines if record.values is not None]
        corner = []
        for place, objective in enumerate(info.objectives):
            worst = min if objective.goal == "max" else max
            if objective.reference is None and not values:
                return
            known = objective.reference
            corner.append(worst(each[place] for each in values) if known is None else known)
        self.folder.write_info(replace(info, reference=corner))

    def _watch(self) -> None:
        """Keep the terminal up to date."""
        while not self._over.wait(TICK):
            with suppress(Exception):  # Ray may be going down; what matters is told elsewhere
                self.status = self.pool.status()
                self.display.update(self._status(self.status))

    def _status(self, workers: KeeperStatus) -> Status:
        from fpp_sweep.records.pareto import hypervolume

        progress = self.conductor.progress
        info = self.folder.info()
        points = [list(record.values or ()) for record in self.conductor.front()]
        goals = [objective.goal for objective in info.objectives]
        volume = hypervolume(points, goals, info.reference) if info.reference is not None and points else None
        seconds = time.monotonic() - self.began
        shipping = self.shipper.status()
        return Status(
            phase=progress.phase,
            finished=progress.finished,
            failed=progress.failed,
            running=len(progress.running),
            total=progress.total,
            images_per_second=workers.images / seconds if workers.images else None,
            front=points,
            hypervolume=volume,
            seconds_left=self._seconds_left(seconds),
            actors=workers.workers,
            note=f"MLflow is behind: {shipping.error}" if shipping.error else None,
        )

    def _seconds_left(self, seconds: float) -> float | None:
        progress, search = self.conductor.progress, self.space.search
        left = [] if search.wall_clock is None else [search.wall_clock - self.spent - seconds]
        if progress.total is not None and progress.seconds:
            each = math.fsum(progress.seconds) / len(progress.seconds)
            remaining = progress.total - progress.finished - progress.failed
            left.append(each * remaining / max(1, min(len(progress.running) or 1, remaining or 1)))
        return max(0.0, min(left)) if left else None


class _Reporter:
    """Keeps `report/` and MLflow up to date from a thread, without haste."""

    def __init__(self, folder: SweepFolder, shipper: Shipper) -> None:
        self._folder, self._shipper = folder, shipper
        self._dirty = threading.Event()
        self._over = threading.Event()
        self._pages_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        self._dirty.set()

    def close(self) -> None:
        """The last report, with everything."""
        self._over.set()
        self._dirty.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write(pages=True)

    def _work(self) -> None:
        while not self._over.is_set():
            self._dirty.wait()
            self._dirty.clear()
            if self._over.is_set():
                return
            pages = time.monotonic() - self._pages_at >= PAGES_EVERY
            self._write(pages=pages)
            if pages:
                self._pages_at = time.monotonic()
            self._over.wait(TABLES_EVERY)

    def _write(self, *, pages: bool) -> None:
        from fpp_sweep.report import write_report

        try:
            write_report(self._folder, pages=pages)
        except Exception as error:  # a report can be made again; a sweep goes on
            print(f"the report could not be written: {type(error).__name__}: {error}", file=sys.stderr)
        self._shipper.nudge()


# ---------------------------------------------------------------- before the search


def _place(space: Space, options: Options) -> SweepFolder:
    """The folder of a new sweep, or of the one to be resumed."""
    root = options.root
    if options.resume:
        return SweepFolder.open(root / options.name if options.name else _newest(root, space.name))
    name = options.name or f"{space.name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(f"--name {name!r}: letters, digits, dots, dashes and underscores only; it names a folder")
    if (root / name / "sweep.json").exists():
        raise InputError(f"sweep {root / name} exists; --resume goes on with it, another --name begins a new one")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {root}: {error.strerror}") from error
    return SweepFolder(root / name)


def _newest(root: Path, name: str) -> Path:
    """The last sweep that was begun of this space."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}")
    begun = sorted(path.parent for path in root.glob("*/sweep.json") if pattern.fullmatch(path.parent.name))
    if not begun:
        raise InputError(f"nothing to resume: {root} has no sweep {name}-<time>; --name gives the name of another")
    return begun[-1]


def _require_same(info: SweepInfo, space: Space, folder: SweepFolder) -> None:
    """What decides results must be what it was; budgets and machines may change."""
    changes = space_of(info.space, str(folder.info_file)).difference(space)
    if changes:
        told = "; ".join(changes)
        raise InputError(
            f"{folder.path.name} cannot be resumed, its space has changed: {told}; begin a new sweep instead"
        )


_SHARED = ("OMP_WAIT_POLICY", "FPP_SWEEP_CACHE")  # environment that workers on other machines need too


@contextmanager
def _ready(
    space: Space, options: Options, folder: SweepFolder, checked: Callable[[], None]
) -> Iterator[tuple[Pool, Plan, float]]:
    """Ray, the first worker, and everything that the space names found to be there, and what it was."""
    from fpp_sweep.trial.results import Names, TaskFailedError
    from fpp_sweep.workers.pool import ActorSpec, gpus_here, require_room, session, start_pool

    work = space.work
    cpus = max(cores(), math.ceil((work.workers or 1) * work.cpus_per_worker))
    with (
        session(options.address, cpus=cpus, gpus=None, verbose=options.verbose),
        _terminable(),
    ):  # Ray has taken SIGTERM
        gpus = work.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if gpus_here() else 0.0
        env = (
            {} if options.address in (None, "local") else {key: os.environ[key] for key in _SHARED if key in os.environ}
        )
        needs = ActorSpec(actors=work.workers, cpus=work.cpus_per_worker, gpus=gpus, env=env)
        # who gives both numbers on a cluster may mean machines that are started for them
        may_grow = options.address not in (None, "local") and None not in (work.workers, work.gpus_per_worker)
        if note := require_room(needs, may_grow=may_grow):
            print(f"note: {note}", file=sys.stderr)
        checked()
        pool = start_pool(
            worker_spec(space, gpus), needs, folder.units, attempts=work.attempts, timeout=work.task_timeout
        )
        try:
            model = pool.open()
            plan = make_plan(space, pool)
            found = check(space, pool, plan)
            for note in (*found.notes, *space.left_out()):
                print(f"note: {note}", file=sys.stderr)
        except TaskFailedError as error:
            raise InputError(error.failure.reason) from error
        pool.begin(Names(model.digest, plan.known()))
        folder.write_info(with_facts(folder.info(), space, model, plan, found))
        yield pool, plan, gpus


def worker_spec(space: Space, gpus: float) -> WorkerSpec:
    """What a worker opens for a space."""
    from fpp_sweep.trial.results import WorkerSpec

    work = space.work
    return WorkerSpec(
        model=work.model,
        data_root=work.data_root,
        dataset_file=work.dataset_file,
        limit=work.limit,
        cache=work.cache,
        device="cuda" if gpus else "cpu",
        threads=work.threads or max(1, int(work.cpus_per_worker)),
        compile=work.compile,
        folder=os.getcwd(),
    )


def make_plan(space: Space, host: Pool | Worker) -> Plan:
    """The datasets of the space as they are where workers run; one that is missing ends it here."""
    from fpp_sweep.trial.trial import Plan

    split = space.search.split
    parts = [split] if split == "test" else [split, "test"]
    datasets = {part: tuple(host.describe(space.work.datasets, part)) for part in parts}
    metrics = [each.metric for each in space.objectives] + [each.metric for each in space.constraints]
    for metric in metrics:
        name = metric.partition("/")[2]
        if name and name not in {facts.name for facts in datasets[split]}:
            raise unknown(f"dataset in metric {metric}:", name, [facts.name for facts in datasets[split]])
    return Plan(datasets=datasets, seeds=space.work.seeds, shards=space.work.shards)


def check(space: Space, host: Pool | Worker, plan: Plan) -> Checked:
    """Fit every method and prompt that may be asked for to the model and the classes."""
    start = space.start()
    configs = [*space.baselines().values(), start]
    asked = {key: {getattr(config, key) for config in configs} for key in ("method", "prompt", "init")}
    for param in space.searched():
        if param.key in asked:
            asked[param.key] |= set(param.choices)
    if "fpp" in asked["init"]:
        raise InputError("init: fpp: FPP needs words or a prompt file to stay aligned with, such as 'a photo of a'")
    prompts = sorted((asked["prompt"] | asked["init"]) - {"fpp"})
    facts = [each for datasets in plan.datasets.values() for each in datasets]
    return host.check(sorted(asked["method"]), prompts, facts)


def _begun(known: SweepInfo | None, space: Space, options: Options, folder: SweepFolder, uri: str) -> SweepInfo:
    """The sweep's record, as it begins or goes on."""
    if known is not None:
        return replace(known, state="running", finished=None, tracking_uri=uri, space=space.plain())
    tags = {
        "seeds": ", ".join(map(str, space.work.seeds)),
        "sampler": space.search.sampler,
        "sampler_seed": str(space.search.seed),
        "search_split": space.search.split,
        "command": options.command,
        **_versions(),
        **_commit(),
    }
    if space.search.split == "test":
        tags["warning"] = "hyperparameters were searched on the test split, as the paper's were"
    return SweepInfo(
        name=folder.path.name,
        created=time.time(),
        state="running",
        space=space.plain(),
        objectives=space.objectives,
        search_split=space.search.split,
        tags=tags,
        tracking_uri=uri,
    )


def with_facts(info: SweepInfo, space: Space, model: ModelFacts, plan: Plan, found: Checked) -> SweepInfo:
    """What is known once a worker has opened model, datasets and prompts; it must be what it was."""
    datasets = plan.datasets[space.search.split]
    facts = {
        "model": model.name,
        "model_digest": model.digest,
        "embedding_scale": f"{model.embedding_scale:g}",
        "datasets": ", ".join(each.name for each in datasets),
        "datasets_digest": ", ".join(each.digest for each in datasets),
    }
    if found.prompts:
        facts["prompts_digest"] = ", ".join(f"{name} {digest}" for name, digest in sorted(found.prompts.items()))
    for key, what in (
        ("model_digest", f"model {model.name} has other weights"),
        ("datasets_digest", "its data differ"),
        ("prompts_digest", "a prompt file differs"),
    ):
        if info.tags.get(key, facts.get(key)) != facts.get(key):
            raise InputError(f"{info.name} cannot be resumed: {what} than when it began; begin a new sweep instead")
    return _tagged(info, {**facts, "device": model.device})


def _tagged(info: SweepInfo, tags: Mapping[str, str]) -> SweepInfo:
    return replace(info, tags={**info.tags, **tags})


@contextmanager
def _undone_if_refused(folder: SweepFolder, known: SweepInfo | None) -> Iterator[None]:
    """A new sweep that bad input ended before its first trial leaves no folder."""
    try:
        yield
    except InputError:
        if known is None and not folder.trials():
            shutil.rmtree(folder.path, ignore_errors=True)
        elif known is not None:
            folder.write_info(known)
        raise


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("torch", "open_clip_torch", "ray", "optuna", "mlflow", "numpy")
    return {"fpp_sweep": VERSION, "python": sys.version.split()[0], **{name: version(name) for name in names}}


def _commit() -> dict[str, str]:
    """The commit of the code that runs, where it is a checkout."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", "sweep.py")
        return (
            {"git_commit": git("rev-parse", "HEAD"), "git_dirty": str(bool(git("status", "--porcelain", "--", ".")))}
            if tracked
            else {}
        )
    except (OSError, subprocess.CalledProcessError):
        return {}


def _concurrency(space: Space, plan: Plan, workers: int) -> int:
    """Trials at a time: two, so that the end of one does not leave workers idle, or as many as feed them all."""
    if space.search.concurrency is not None:
        return space.search.concurrency
    units = len(plan.datasets[space.search.split]) * len(plan.seeds) * (space.work.shards or 1)
    return max(2, math.ceil(2 * workers / units))


@contextmanager
def _meanwhile(work: Callable[[str], None], word: str) -> Iterator[Callable[[], None]]:
    """Work in a thread, as importing MLflow alone takes seconds; what is yielded waits, and raises what went wrong."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(work, word).result


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM, which a machine that shuts down or a job system sends, interrupts as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _scratch() -> Iterator[str]:
    """Where Tune keeps its own records, which nothing reads again."""
    with tempfile.TemporaryDirectory(prefix="fpp_sweep-", ignore_cleanup_errors=True) as folder:
        yield folder
