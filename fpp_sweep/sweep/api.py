"""The public interface of a sweep: options to run it with, its folder, and its results read from there."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.cli import SWEEPS, find_sweep, is_sweep, require_writable, sweeps_below
from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of, metrics_shown
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.answer_section import answer_sections
from fpp_sweep.report.document import Block, paragraphs
from fpp_sweep.report.front_table import front_table
from fpp_sweep.report.html import blocks_to_html
from fpp_sweep.space.space import Space
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import require_folder_name, user_path
from fpp_sweep.spec.plugins import loaded
from fpp_sweep.spec.specs import PluginFile
from fpp_sweep.sweep.summary import front_notes, state_line
from fpp_sweep.trial.artifacts import dataset_and_seed, prediction_files, read_columns

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

MAX_RESUMES = 3
RESUMES_LEFT = "FPP_SWEEP_RESUMES_LEFT"  # variable that a driver sets for the process in which it resumes its sweep


class InterruptedSweep(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after the sweep's folder has been put in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run: the sweep's folder, the cluster, MLflow, and how much is printed.

    >>> Options(root="sweeps", name="first").on_cluster
    False
    >>> Options(address="auto").on_cluster
    True
    """

    root: Path | str = SWEEPS
    name: str | None = None  # none: the space's name and the time
    resume: bool = False
    address: str | None = None  # address of a Ray cluster; none: a Ray session on this machine
    tracking_uri: str | None = None
    verbose: bool = False
    command: str = ""  # the command line, for the record
    plugins: tuple[PluginFile, ...] = field(default_factory=loaded)  # default: all that this process has loaded
    group: str = ""  # id of the reproduction that the sweep belongs to
    # how often the driver may resume its own sweep after its Ray session was lost
    resumes_left: int = field(default_factory=lambda: int(os.environ.get(RESUMES_LEFT, MAX_RESUMES)))

    @property
    def on_cluster(self) -> bool:
        return self.address not in (None, "local")

    def with_store_of(self, space: Space) -> Options:
        """Return the options with the MLflow store that the user's own space names, unless they name one."""
        return replace(self, tracking_uri=self.tracking_uri or space.work.tracking_uri)

    def plugin_digests(self) -> dict[str, str]:
        return {file.name: file.digest for file in self.plugins}

    def plugin_files(self) -> dict[str, str]:
        return {file.name: file.path for file in self.plugins}


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that runs or has ended; every call reads its folder again.

    >>> sweep = Sweep.open("sweeps/first")  # doctest: +SKIP
    >>> sweep.best("knee").fpp.gamma2  # doctest: +SKIP
    0.3502

    A folder without a sweep is refused in one line:

    >>> Sweep.open("sweeps/no-such-sweep")
    Traceback (most recent call last):
    fpp_sweep.spec.errors.InputError: sweeps/no-such-sweep: there is no such sweep; `show` lists the sweeps
    """

    folder: SweepFolder
    # lines that lead to the sweep's run in MLflow, if this process has written it
    mlflow_links: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def open(cls, path: Path | str) -> Sweep:
        """Return a sweep by its folder, such as `sweeps/perturb-20261120-185232`, or by its name in `sweeps`."""
        return cls(SweepFolder(find_sweep(str(path))))

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def info(self) -> SweepInfo:
        return self.folder.info()

    def trials(self) -> list[TrialRecord]:
        """Return the records of all baselines and trials, in any state."""
        return self.folder.trials()

    def front(self) -> list[TrialRecord]:
        """Return the members of the Pareto front, sorted by the first objective, best first."""
        return list(front_of(self.info, self.trials()).members)

    def statistics(self) -> SweepStatistics:
        """Return the answer, intervals, and the support for being on the front."""
        return statistics_of(self.folder, self.info, self.trials())

    def best(self, mark: str = "knee") -> TrialConfig:
        """Return the config of the front member with a mark: `knee`, or `best <metric>` of an objective."""
        front = front_of(self.info, self.trials())
        configs = {}
        for member in front.members:
            for name in front.marks[member.name]:
                configs[name] = member.config
        if mark not in configs:
            raise InputError(f"{self.name} has no {mark!r}; it has {', '.join(sorted(configs)) or 'no finished trial'}")
        return TrialConfig().replace(configs[mark])

    def table(self) -> list[dict[str, Any]]:
        """Return a flat row for each record, for `pandas.DataFrame`.

        Columns are name, state, marks, settings and metrics: `ece`, `ece/dtd` for one dataset, `test/ece` for another
        split. The ends of an interval are `ece low` and `ece high`.
        """
        records = self.trials()
        statistics = statistics_of(self.folder, self.info, records)
        return [_row(record, statistics) for record in records]

    def plot(self) -> dict[str, Figure]:
        """Return the figures of the sweep's page as Plotly figures, by name (`front-0` and others)."""
        from plotly.graph_objects import Figure  # takes seconds

        from fpp_sweep.report.plots import front_plots, settings_plots  # loads Plotly and Optuna

        statistics = self.statistics()
        info = statistics.front.info
        plots = front_plots(info, statistics)
        for strips in settings_plots(info, statistics.front).values():
            plots += strips
        return {plot.name: Figure(data=list(plot.traces), layout=plot.layout) for plot in plots}

    def trial(self, name: str) -> Trial:
        """Return a trial or baseline, such as `trial-0007` or `baseline-tpt`."""
        return Trial(self.folder, self.folder.known_trial(name).name)

    def _repr_html_(self) -> str:
        """Return the state, the front and the baselines as HTML, for a notebook."""
        info, records = self.info, self.trials()
        statistics = statistics_of(self.folder, info, records)
        state = [state_line(self.folder, info, records), *front_notes(statistics.front)]
        blocks: list[Block] = [*paragraphs(state), *paragraphs(statistics.notes, "warning")]
        for section in answer_sections(statistics):
            blocks += section.blocks
        if statistics.front.compared:
            blocks.append(front_table(info, statistics.front, statistics))
        return blocks_to_html(blocks)


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial or baseline of a sweep."""

    folder: SweepFolder
    name: str

    @property
    def record(self) -> TrialRecord:
        return self.folder.trial(self.name)

    @property
    def config(self) -> TrialConfig:
        record = self.record
        if record.is_imported:
            raise InputError(f"{self.name}: its predictions were imported, so that it has no configuration")
        return TrialConfig().replace(record.config)

    def predictions(self, split: str | None = None) -> DataFrame:
        """Return a row for each sample, seed and dataset of a split; the default is the split that was searched."""
        import pandas  # takes a second

        split = split or self.folder.info().search_split
        record = self.record
        files = prediction_files(self.folder.artifacts(self.name), split)
        if split not in record.results or not files:
            sweep, state = self.folder.path.name, record.state
            raise InputError(f"{self.name} of {sweep} has no predictions on {split}; it is {state}")
        parts = []
        for file in files:
            dataset, seed = dataset_and_seed(file)
            table = read_columns(file, lambda _: True, remedy="delete it")
            parts.append(table.to_pandas().assign(dataset=dataset, seed=seed))
        return pandas.concat(parts, ignore_index=True)


# ------------------------------------------------------------ rows of a table

COPIED = ("name", "kind", "state", "origin", "reason")  # fields of a record that a row has


def _row(record: TrialRecord, statistics: SweepStatistics) -> dict[str, Any]:
    """Return a record as a flat row."""
    row: dict[str, Any] = {name: getattr(record, name) for name in COPIED}
    row["marks"] = ", ".join(statistics.front.remarks(record))
    row["on_front"] = record in statistics.front.members
    row["duration"] = record.duration
    row |= record.params
    for split in record.results:
        prefix = "" if split == statistics.front.info.search_split else f"{split}/"
        for name, value in _numbers(record, split, statistics).items():
            row[f"{prefix}{name}"] = value
    return row


def _numbers(record: TrialRecord, split: str, statistics: SweepStatistics) -> dict[str, float]:
    """Return a record's averages and costs on a split, its numbers by dataset, and the ends of its intervals."""
    result = record.results[split]
    numbers = dict(result.average)
    if not record.is_imported:
        numbers["seconds"] = result.work_seconds
    for dataset, values in result.datasets.items():
        for metric, value in values.items():
            numbers[f"{metric}/{dataset}"] = value
    for metric in metrics_shown(statistics.front.info):
        interval = statistics.interval(record, split, metric)
        if interval is not None:
            numbers[f"{metric} low"] = interval.low
            numbers[f"{metric} high"] = interval.high
    return numbers


# ------------------------------------------------------------ folders


def sweep_folder(space: Space, options: Options) -> SweepFolder:
    """Return the folder of a new sweep, or of the sweep to be resumed."""
    if options.resume:
        return resumed_folder(options, space.name, evaluations=space.search.evaluate_only)
    root = user_path(options.root)
    if not options.name:
        return _new_folder(root, space.name)
    require_folder_name(options.name)
    folder = SweepFolder(root / options.name)
    if folder.has_sweep:
        raise InputError(f"sweep {root / options.name} exists; --resume continues it, another --name begins a new one")
    _require_unused(folder)
    require_writable(root)
    return folder


def _new_folder(root: Path, name: str) -> SweepFolder:
    """Create the empty folder `NAME-TIME`; if another command has taken this second, the folder of the next free one.

    A script may begin several sweeps at once.
    """
    second = datetime.now()
    require_folder_name(_name_at(name, second))
    require_writable(root)
    while True:
        path = root / _name_at(name, second)
        try:
            path.mkdir(parents=True)  # another command that is refused may remove an empty root at any time
        except FileExistsError:
            second += timedelta(seconds=1)
        except OSError as error:
            raise InputError(f"--out {root}: {error.strerror}; name a folder that can be written") from error
        else:
            return SweepFolder(path)


def _name_at(name: str, second: datetime) -> str:
    return f"{name}-{second:%Y%m%d-%H%M%S}"


def _require_unused(folder: SweepFolder) -> None:
    """Raise InputError if a folder holds anything but the lock of a sweep that was killed before it had a record."""
    remedy = "begin the sweep with another --name"
    if not os.path.lexists(folder.path):
        return
    try:
        others = [path.name for path in folder.path.iterdir() if path != folder.lock_file]
    except OSError as error:
        raise InputError(f"{folder.path}: {error.strerror}; {remedy}") from None
    if others:
        raise InputError(f"{folder.path}: the folder is not empty ({min(others)}); {remedy}")


def resumed_folder(options: Options, space_name: str = "", *, evaluations: bool = False) -> SweepFolder:
    """Return the folder of the sweep to be resumed: the one of the name, or else the last one of the space."""
    root = user_path(options.root)
    if not options.name:
        return SweepFolder(_last_sweep(root, space_name, evaluations=evaluations))
    if is_sweep(root / options.name):
        return SweepFolder(root / options.name)
    return SweepFolder(find_sweep(options.name))


def _last_sweep(root: Path, space_name: str, *, evaluations: bool) -> Path:
    """Return the folder of the sweep, or the evaluation, that was begun last.

    With a space's name only folders that have their name from it count.
    """
    begun = {}
    for path in sweeps_below(root):
        if space_name and not re.fullmatch(rf"{re.escape(space_name)}-\d{{8}}-\d{{6}}", path.name):
            continue
        with suppress(InputError):  # a damaged record, or one of another format
            info = SweepFolder(path).info()
            if info.evaluate_only == evaluations:
                begun[info.created] = path
    if not begun:
        kind = "evaluation" if evaluations else "sweep"
        named = f" {space_name}-<time>" if space_name else ""
        raise InputError(f"nothing to resume: {root} has no {kind}{named}; name one, as in --resume NAME")
    return begun[max(begun)]
