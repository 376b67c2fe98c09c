"""Delivers the sweep's folder to MLflow, and tries again until that has worked.

Every attempt compares what MLflow should show with what was delivered, and writes the difference. Nothing is queued, so
nothing is lost when the process or the server dies. `shipped.json` has digests of what was delivered, to save work:
without it everything is compared with MLflow again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import no_link, stamp_of, written_whole
from fpp_sweep.spec.messages import masked
from fpp_sweep.tracking.desired import DesiredRun, front_members, milliseconds, run_id, sweep_id, sweep_run, trial_run
from fpp_sweep.tracking.store import Store
from fpp_sweep.tracking.uri import EXPERIMENT, absolute, is_server, one_line, ui_command, view_url
from fpp_sweep.tracking.view import TAG, view, view_key

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while MLflow does not answer, doubling
REST = 1.0  # seconds between two deliveries that went well, so that a burst of changes is one
SAVE_EVERY = 1.0  # seconds; rewriting shipped.json for each of 2,000 records costs minutes
PARENT = "sweep"  # the parent's name in shipped.json; trials are called trial-..., baseline-...

_Stamp = tuple[int, int]  # a file's size and time
# of a record: its file's stamp, whether it is on the front, and its support for that
_Version = tuple[_Stamp, bool, str]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one delivery in the foreground did."""

    records: int  # brought up to date now
    created: int  # runs that MLflow did not have
    restored: tuple[str, ...]  # names of runs that were in MLflow's bin
    left_out: tuple[str, ...]  # artifacts that are links to what is not the sweep's


@dataclass(frozen=True, slots=True)
class ShipperStatus:
    """How the delivery in the background is doing."""

    pending: int  # records that MLflow does not show as they are
    delivered: int  # records brought up to date since the start
    error: str | None  # why it does not go on, one line


@dataclass(slots=True)
class _Shipped:
    """What was last delivered to a run."""

    run: str = ""
    digest: str = ""
    files: dict[str, Any] = field(default_factory=dict)  # artifact -> what tells that it changed

    def __post_init__(self) -> None:
        if not (isinstance(self.run, str) and isinstance(self.digest, str) and isinstance(self.files, dict)):
            raise TypeError("spoiled")


class Shipper:
    """Keeps MLflow up to date from a thread; whoever changes the folder calls `nudge`, which never waits."""

    def __init__(self, folder: SweepFolder, uri: str, *, experiment: str = EXPERIMENT) -> None:
        self._delivery = _Delivery(folder, uri, experiment, restore=False)
        self._status = ShipperStatus(0, 0, None)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-shipper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """Something in the folder changed."""
        self._wake.set()

    def status(self) -> ShipperStatus:
        return self._status

    def close(self, timeout: float) -> int:
        """Deliver what can be delivered in that many seconds; the number of records that were not."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._given_up.set()
        return len(self._delivery.pending(thorough=True))

    def _work(self) -> None:
        pause = FIRST_PAUSE
        thorough = True
        while not self._given_up.is_set():
            last = self._closing.is_set()
            self._wake.clear()
            if self._attempt(thorough=thorough or last):
                pause, thorough = FIRST_PAUSE, False
                if last:
                    break
                self._closing.wait(REST)
                self._wake.wait()
            else:
                thorough = True
                # closing ends a pause, for one more attempt at once
                (self._given_up if last else self._closing).wait(FIRST_PAUSE if last else pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        self._delivery.disconnect()

    def _attempt(self, *, thorough: bool) -> bool:
        """One delivery; whether MLflow answered."""
        error: str | None = None
        answered = True
        try:
            self._status = replace(self._status, pending=len(self._delivery.pending(thorough=thorough)))
            for problem in self._delivery.deliver(thorough=thorough, stop=self._given_up.is_set, done=self._count):
                error = problem
        except Exception as failure:  # of MLflow, its database or the disk
            self._delivery.disconnect()
            error, answered = one_line(failure), False
        self._status = replace(self._status, error=error)
        return answered

    def _count(self, pending: int) -> None:
        self._status = replace(self._status, pending=pending, delivered=self._status.delivered + 1)


def ship(folder: SweepFolder, uri: str, *, experiment: str = EXPERIMENT) -> Delivered:
    """Bring MLflow up to date now; deleted runs are restored, since the user asked for them."""
    delivery = _Delivery(folder, uri, experiment, restore=True)
    delivered: list[int] = []
    try:
        problems = list(delivery.deliver(thorough=True, stop=lambda: False, done=delivered.append))
        store = delivery.store
    except InputError:
        raise
    except Exception as error:
        problems, store = [one_line(error)], None
    finally:
        delivery.disconnect()
    if problems or store is None:
        left = "some"
        with suppress(Exception):  # of a record that cannot be delivered, which is the problem
            left = str(len(delivery.pending(thorough=True)))
        raise InputError(
            f"MLflow at {masked(uri)}: {problems[0]}; {len(delivered)} records delivered, {left} left for another sync"
        )
    return Delivered(len(delivered), store.created, tuple(store.restored), tuple(sorted(delivery.left_out)))


def ship_whole(folder: SweepFolder, uri: str, files: Sequence[Path], *, experiment: str = EXPERIMENT) -> None:
    """Files of all that a sweep belongs to, as artifacts of the run above its own."""
    info = folder.info()
    store = Store(absolute(uri), experiment, sweep_id(info), ())
    run = store.whole(info.group, milliseconds(info.created))
    for path in files:
        store.upload(run, path.name, path)
    store.client.set_terminated(run)


def to_look(folder: SweepFolder, uri: str) -> list[str]:
    """Where the sweep's runs are in MLflow: an address, below the command that makes it one if there is no server."""
    experiment, runs = _read_shipped(folder.path / "shipped.json")
    command = [] if is_server(uri) else [ui_command(uri)]
    if not runs.get(PARENT, _Shipped()).run:
        return command or [ui_command(uri)]
    return [*command, view_url(uri, experiment, view_key(folder.info()))]


@dataclass(frozen=True, slots=True)
class _Item:
    """A run that is not as it should be."""

    name: str
    run: DesiredRun
    files: Mapping[str, Path]
    digest: str


class _Delivery:
    """The comparison of a folder with MLflow; used by one thread, but `pending` by any."""

    def __init__(self, folder: SweepFolder, uri: str, experiment: str, *, restore: bool) -> None:
        self._folder = folder
        self._uri = absolute(uri)
        self._experiment = experiment
        self._restore = restore
        self._file = folder.path / "shipped.json"
        self._shipped = _read_shipped(self._file)[1]
        self.left_out: set[str] = set()
        self._saved = 0.0
        self._delivered: dict[str, _Version] = {}  # by record
        self.store: Store | None = None
        self._lock: int | None = None

    def pending(self, *, thorough: bool) -> list[_Item]:
        """Runs that differ from what was delivered; artifacts of unchanged records are checked only when thorough."""
        return self._compare(thorough=thorough)[0]

    def _compare(self, *, thorough: bool) -> tuple[list[_Item], dict[str, _Version]]:
        """The runs that differ, and the versions of all records once they are delivered."""
        info = self._folder.info()
        front = _read_front(self._folder.report / "front.json")
        members = front_members(front)
        records = {file.stem: (_stamp(file), self._folder.trial(file.stem)) for file in self._folder.trial_files()}
        support = front.get("standing", {})
        versions = {name: (stamp, name in members, support.get(name, "")) for name, (stamp, _) in records.items()}
        items = []
        for name, (_, record) in records.items():
            if thorough or self._delivered.get(name) != versions[name]:
                run = trial_run(info, record, on_front=name in members, support=support.get(name, ""))
                items.append(_item(name, run, self._files(self._folder.artifacts(name), "")))
        run = sweep_run(info, [record for _, record in records.values()], front)
        items.append(_item(PARENT, run, self._files(self._folder.report, "report/")))
        changed = [item for item in items if self._shipped.get(item.name, _Shipped()).digest != item.digest]
        return changed, versions

    def _files(self, folder: Path, prefix: str) -> dict[str, Path]:
        """Artifacts: the files of a folder that lie inside the sweep's folder; links that lead out are left out."""
        artifacts = {}
        if not self._is_inside(folder):
            return {}
        for directory, _, names in os.walk(folder):
            for name in sorted(names):
                path = Path(directory, name)
                being_written = name.startswith(".")
                # os.walk does not follow links to folders, so only a file that is a link can lead out
                if being_written or not path.is_file() or (path.is_symlink() and not self._is_inside(path)):
                    continue
                artifacts[f"{prefix}{path.relative_to(folder).as_posix()}"] = path
        return dict(sorted(artifacts.items()))

    def _is_inside(self, path: Path) -> bool:
        """Return False, and remember the path as left out, if a link leads out of the sweep's folder."""
        try:
            self._folder.inside(path)
        except InputError:
            self.left_out.add(str(path.relative_to(self._folder.path)))
            return False
        return True

    def deliver(self, *, thorough: bool, stop: Callable[[], bool], done: Callable[[int], None]) -> Iterator[str]:
        """Bring MLflow up to date; yields what it refuses, raises when it does not answer."""
        store = self._connected()
        items, versions = self._compare(thorough=thorough)
        try:
            for position, item in enumerate(items):
                if stop():
                    return
                try:
                    self._deliver_run(store, item)
                except Exception as error:
                    if not store.alive():
                        raise
                    versions.pop(item.name, None)
                    yield f"{item.name}: {one_line(error)}"
                    continue
                done(len(items) - position - 1)
            self._delivered = versions
            if items:
                info = self._folder.info()
                store.share(f"{TAG}{view_key(info)}", view(info, self._folder.trials()))
        finally:
            self._save(store)

    def disconnect(self) -> None:
        """Let others deliver; the next delivery asks MLflow again what it has."""
        self.store = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _connected(self) -> Store:
        if self.store is None:
            if self._lock is None:
                self._lock = _only_shipper(self._folder)
            known_runs = {shipped.run for shipped in self._shipped.values()}
            store = Store(self._uri, self._experiment, sweep_id(self._folder.info()), known_runs)
            self._forget_what_is_gone(store)
            self.store = store
        return self.store

    def _forget_what_is_gone(self, store: Store) -> None:
        """After a change of store or database, or a run that was deleted for good: deliver it again."""
        existing = {known.run_id for known in store.runs.values() if not (known.deleted and self._restore)}
        self._shipped = {name: shipped for name, shipped in self._shipped.items() if shipped.run in existing}
        self._delivered = {}

    def _deliver_run(self, store: Store, item: _Item) -> None:
        parent = self._above(store) if item.name == PARENT else self._parent_of(store)
        run = store.update(item.run, parent, restore=self._restore)
        shipped = self._shipped.get(item.name, _Shipped())
        if run is None:  # deleted by a user, who will have had a reason
            self._shipped[item.name] = _Shipped(store.runs[item.run.id].run_id, item.digest)
            return
        files = dict(shipped.files) if shipped.run == run else {}
        for name, text in item.run.texts.items():
            stamp = hashlib.sha256(text.encode()).hexdigest()
            if files.get(name) != stamp:
                store.write_text(run, name, text)
                files[name] = stamp
        for name, path in item.files.items():
            with suppress(FileNotFoundError):  # replaced meanwhile; the next delivery compares it again
                stamp_of_file = list(_stamp(path))
                if files.get(name) != stamp_of_file:
                    store.upload(run, name, path)
                    files[name] = stamp_of_file
        store.end(run, item.run)
        self._shipped[item.name] = _Shipped(run, item.digest, files)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self._save(store)

    def _above(self, store: Store) -> str | None:
        """The run that the sweep's own stands under, if it is one of several that belong together."""
        info = self._folder.info()
        return store.whole(info.group, milliseconds(info.created)) if info.group else None

    def _parent_of(self, store: Store) -> str:
        """The sweep's run, which children need before it is complete."""
        info = self._folder.info()
        known = store.runs.get(run_id(info))
        if known is not None and not (known.deleted and self._restore):
            return known.run_id
        return str(store.update(sweep_run(info, [], {}), self._above(store), restore=self._restore))

    def _save(self, store: Store) -> None:
        self._saved = time.monotonic()
        runs = {name: asdict(shipped) for name, shipped in self._shipped.items()}
        with written_whole(self._file) as partial:
            partial.write_text(json.dumps({"experiment": store.experiment_id, "runs": runs}) + "\n")


def _item(name: str, run: DesiredRun, files: Mapping[str, Path]) -> _Item:
    stamps = {}
    for artifact, path in files.items():
        with suppress(FileNotFoundError):
            stamps[artifact] = _stamp(path)
    return _Item(name, run, files, hashlib.sha256(repr((run, stamps)).encode(errors="surrogatepass")).hexdigest())


def _stamp(path: Path) -> _Stamp:
    """As `stamp_of`, and the same in a copy of the sweep."""
    return stamp_of(path)[:2]


def _read_json(path: Path) -> dict[str, Any]:
    """A document, or nothing where there is none that can be read."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _read_front(path: Path) -> dict[str, Any]:
    """What is shown of the front; of a spoiled file, nothing."""
    front = _read_json(path)
    with suppress(TypeError, ValueError, KeyError, AttributeError, OverflowError):
        volume = [(float(finished), float(value)) for finished, value in front.get("hypervolume", ())]
        if not all(map(math.isfinite, chain.from_iterable(volume))):
            return {}
        members = [
            {"name": str(one["name"]), "intervals": one.get("intervals", {})} for one in front.get("members", ())
        ]
        standing = {str(name): str(told) for name, told in front.get("standing", {}).items()}
        said = {key: [str(line) for line in front.get(key, ())] for key in ("says", "remarks")}
        return {"members": members, "hypervolume": volume, "standing": standing, **said}
    return {}


def _read_shipped(path: Path) -> tuple[str, dict[str, _Shipped]]:
    """The experiment and what was delivered to its runs; a spoiled memory is none."""
    document = _read_json(path)
    with suppress(TypeError, AttributeError):
        runs = {name: _Shipped(**fields) for name, fields in document.get("runs", {}).items()}
        return str(document.get("experiment", "")), runs
    return "", {}


def _only_shipper(folder: SweepFolder) -> int:
    """A lock on delivering this sweep, which goes with the process: two at once would create runs twice."""
    descriptor = no_link(folder.path / "shipping.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"{folder.path.name} is being delivered to MLflow by another process; wait for it") from None
    return descriptor
