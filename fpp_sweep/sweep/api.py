"""The public interface of a sweep: options to run it with, and its results read from its folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fpp_sweep.cli import SWEEPS, is_sweep
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import user_path
from fpp_sweep.spec.plugins import loaded
from fpp_sweep.spec.specs import PluginFile

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

    from fpp_sweep.records.answer import SweepStatistics


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

    A name that no sweep has is refused in one line:

    >>> Sweep.open("no-such-sweep")
    Traceback (most recent call last):
    fpp_sweep.spec.errors.InputError: no-such-sweep: there is no such sweep; `show` lists the sweeps
    """

    folder: SweepFolder
    # lines that lead to the sweep's run in MLflow, if this process has written it
    mlflow_links: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def open(cls, path: Path | str) -> Sweep:
        """Return a sweep by its folder, such as `sweeps/perturb-20261120-185232`, or by its name in `sweeps`."""
        if is_sweep(SWEEPS / path) and not is_sweep(user_path(path)):
            path = SWEEPS / path
        return cls(SweepFolder.open(user_path(path)))

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
        statistics: SweepStatistics = _notebook().sweep_statistics(self.folder)
        return statistics

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
        rows: list[dict[str, Any]] = _notebook().rows(self.folder)
        return rows

    def plot(self) -> dict[str, Figure]:
        """Return the figures of the sweep's page as Plotly figures, by name (`front-0`, `parallel`, ...)."""
        figures: dict[str, Figure] = _notebook().figures(self.folder)
        return figures

    def trial(self, name: str) -> Trial:
        """Return a trial or baseline, such as `trial-0007` or `baseline-tpt`."""
        return Trial(self.folder, self.folder.known_trial(name).name)

    def _repr_html_(self) -> str:
        """Return the state, the front and the baselines as HTML, for a notebook."""
        return str(_notebook().as_html(self.folder))


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
        return _notebook().predictions(self.folder, self.name, split or self.folder.info().search_split)


def _notebook() -> ModuleType:
    from fpp_sweep.sweep import notebook  # loads numpy, which `import fpp_sweep` must not

    return notebook
