"""One sweep's runs in MLflow: read, created and updated.

MLflow is imported inside functions: it takes seconds, and `address.load` sets its environment first.
"""

from __future__ import annotations

import math
import posixpath
import shutil
import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.tracking.desired import ID_TAG, PARENT_TAG, SWEEP_TAG, DesiredRun, Point, safe_name, shortened
from fpp_sweep.tracking.uri import connect, experiment_id

if TYPE_CHECKING:
    from mlflow.entities import Run

PAGE = 100  # runs asked for at once: a page of a thousand took a busy server longer than the time-out below
STALE_TAGS = ("reason", "feasible")  # of an earlier attempt, when the record no longer has them


@dataclass(slots=True)
class ExistingRun:
    """A run that MLflow has."""

    run_id: str
    deleted: bool


class Store:
    """One sweep's runs in MLflow."""

    def __init__(self, uri: str, experiment: str, sweep: str, known_runs: Container[str]) -> None:
        self.client = connect(uri)
        self.experiment_id = experiment_id(self.client, uri, experiment)
        self.created = 0
        self.restored: list[str] = []
        self._sweep = sweep
        self._view = ""
        self._history: dict[tuple[str, str], dict[int, tuple[int, float]]] = {}  # (run, key) -> step -> time, value
        self.runs = self._existing_runs(known_runs)

    def alive(self) -> bool:
        """Does it answer at all?"""
        try:
            self.client.get_experiment(self.experiment_id)
        except Exception:
            return False
        return True

    def update(self, run: DesiredRun, parent: str | None, *, restore: bool) -> str | None:
        """Create the run or change what differs; its id, or nothing for a run that a user deleted."""
        known = self.runs.get(run.id)
        if known is not None and known.deleted:
            if not restore:
                return None
            self.client.restore_run(known.run_id)
            known.deleted = False
            self.restored.append(run.name)
        tags = {**run.tags, **({PARENT_TAG: parent} if parent else {})}
        if known is None:
            now = self.client.create_run(self.experiment_id, run.started, tags, run.name)
            self.runs[run.id] = ExistingRun(now.info.run_id, deleted=False)
            self.created += 1
        else:
            now = self.client.get_run(known.run_id)
        self._write(now, run, tags)
        return str(now.info.run_id)

    def whole(self, name: str, started: int) -> str:
        """The run above the sweep's own, of all that belongs together by that name."""
        from mlflow.entities import ViewType

        of_id = f"tags.`{ID_TAG}` = '{name}'"
        found = self.client.search_runs([self.experiment_id], of_id, ViewType.ACTIVE_ONLY, 1)
        tags = {ID_TAG: name, "kind": "reproduction"}
        run = found[0] if found else self.client.create_run(self.experiment_id, started, tags, name.partition("@")[0])
        return str(run.info.run_id)

    def end(self, run_id: str, run: DesiredRun) -> None:
        """Set the status, after all else has arrived."""
        info = self.client.get_run(run_id).info
        if run.status in ("RUNNING", "SCHEDULED"):  # to terminate one would give it an end
            if info.status != run.status:
                self.client.update_run(run_id, status=run.status)
        elif (info.status, info.end_time) != (run.status, run.finished):
            self.client.set_terminated(run_id, run.status, run.finished)

    def share(self, tag: str, view: str) -> None:
        """A view of the runs, for whoever looks at the experiment."""
        if view != self._view:
            self.client.set_experiment_tag(self.experiment_id, tag, view)
            self._view = view

    def upload(self, run_id: str, name: str, path: Path) -> None:
        """A file as the artifact `name`."""
        safe = safe_name(name)
        with tempfile.TemporaryDirectory() as scratch:
            source = path
            if posixpath.basename(safe) != path.name:  # MLflow takes the artifact's name from the file
                source = Path(scratch) / posixpath.basename(safe)
                shutil.copyfile(path, source)
            self.client.log_artifact(run_id, str(source), posixpath.dirname(safe) or None)

    def write_text(self, run_id: str, name: str, text: str) -> None:
        self.client.log_text(run_id, text, name)

    def _write(self, now: Run, run: DesiredRun, tags: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        have = now.data
        changed = {key: value for key, value in run.params.items() if have.params.get(key, value) != value}
        if changed:  # MLflow never changes a param
            changes = "; ".join(f"{key}: {have.params[key]} -> {value}" for key, value in changed.items())
            tags = {**tags, "changed_params": shortened(changes, 500)}
        new_tags = [RunTag(key, value) for key, value in tags.items() if have.tags.get(key) != value]
        params = [Param(key, value) for key, value in run.params.items() if key not in have.params]
        points = self._new_points(now.info.run_id, run.points, have.metrics)
        metrics = [Metric(point.key, point.value, point.time, point.step) for point in points]
        self.client.log_batch(now.info.run_id, metrics, params, new_tags)
        for point in points:
            self._history.get((now.info.run_id, point.key), {})[point.step] = (point.time, point.value)
        for key in STALE_TAGS:
            if key in have.tags and key not in tags:
                self.client.delete_tag(now.info.run_id, key)
        if now.info.run_name != run.name:
            self.client.update_run(now.info.run_id, name=run.name)

    def _new_points(self, run_id: str, points: Sequence[Point], latest: Mapping[str, float]) -> list[Point]:
        """Those that MLflow lacks; one whose value changed is later than what it replaces, at the same step."""
        new = []
        lengths = Counter(point.key for point in points)
        for point in points:
            if point.key not in latest:
                new.append(point)
            elif lengths[point.key] > 1 or not _equal(latest[point.key], point.value):
                time, value = self._points(run_id, point.key).get(point.step, (None, math.nan))
                if not _equal(value, point.value):
                    moved = point.time if time is None else max(point.time, time + 1)
                    new.append(Point(point.key, point.value, point.step, moved))
        return new

    def _points(self, run_id: str, key: str) -> dict[int, tuple[int, float]]:
        """A metric's last time and value at each step."""
        if (run_id, key) not in self._history:
            history = self.client.get_metric_history(run_id, key)
            ordered = sorted(history, key=lambda point: (point.step, point.timestamp))
            self._history[run_id, key] = {point.step: (point.timestamp, point.value) for point in ordered}
        return self._history[run_id, key]

    def _existing_runs(self, known_runs: Container[str]) -> dict[str, ExistingRun]:
        """All runs of the sweep by their id; of duplicates, which a slow server leaves, the one written to is kept."""

        def rank(run: Run) -> tuple[bool, bool, int]:
            return run.info.lifecycle_stage != "active", run.info.run_id not in known_runs, run.info.start_time

        runs: dict[str, ExistingRun] = {}
        for run in sorted(self._search(), key=rank):
            known = ExistingRun(run.info.run_id, deleted=run.info.lifecycle_stage != "active")
            if runs.setdefault(run.data.tags[ID_TAG], known) is not known and not known.deleted:
                self.client.delete_run(known.run_id)
        return runs

    def _search(self) -> Iterator[Run]:
        from mlflow.entities import ViewType

        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                f"tags.`{SWEEP_TAG}` = '{self._sweep}'",
                ViewType.ALL,
                PAGE,
                ["start_time ASC"],
                token,
            )
            yield from page
            token = page.token
            if not token:
                return


def _equal(one: float, other: float) -> bool:
    """Do two stored values agree? A database may round the last digits."""
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=0.0)
