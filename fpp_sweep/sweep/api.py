"""The public interface of a sweep: options to run it with, and reading it from its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.reading import space_of
from fpp_sweep.space.space import Space
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import PluginFile

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

    from fpp_sweep.report.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run a space: the sweep's folder, the cluster, MLflow, and how much is printed."""

    root: Path | str = "sweeps"
    name: str | None = None  # none: the space's name and the time
    resume: bool = False
    address: str | None = None  # of a Ray cluster; none: a session of our own
    tracking_uri: str | None = None
    verbose: bool = False
    command: str = ""
    plugins: tuple[PluginFile, ...] = ()
    finish: tuple[str, ...] = ()  # of a resumed sweep: trials that lost a race, to be run to their end
    group: str = ""  # id of the reproduction that the sweep belongs to

    @property
    def on_cluster(self) -> bool:
        return self.address not in (None, "local")


def sweep_folder(space: Space, options: Options) -> SweepFolder:
    """The folder of a new sweep, or of the one to be resumed."""
    root = Path(options.root)
    if options.resume:
        return SweepFolder.open(root / options.name if options.name else _newest(root, space.name))
    name = options.name or f"{space.name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(f"--name {name!r}: letters, digits, dots, dashes and underscores only; it names a folder")
    folder = SweepFolder(root / name)
    if any(path.exists() for path in (folder.info_file, folder.info_copy, folder.study_file)):
        raise InputError(f"sweep {root / name} exists; --resume goes on with it, another --name begins a new one")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {root}: {error.strerror}") from error
    return folder


def _newest(root: Path, name: str) -> Path:
    """The last sweep that was begun of this space."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{8}}-\d{{6}}")
    begun = sorted(path.parent for path in root.glob("*/sweep.json*") if pattern.fullmatch(path.parent.name))
    if not begun:
        raise InputError(f"nothing to resume: {root} has no sweep {name}-<time>; --name gives the name of another")
    return begun[-1]


def plugin_digests(options: Options) -> dict[str, str]:
    return {file.name: file.digest for file in options.plugins}


def require_same(info: SweepInfo, space: Space, options: Options, folder: SweepFolder) -> None:
    """What decides results must be what it was; budgets and machines may change."""
    before, now = info.plugins, plugin_digests(options)
    changes = [f"plugins: {_plugins_text(before)} -> {_plugins_text(now)}"] if before != now else []
    if changes := changes or space_of(info.space, str(folder.info_file)).difference(space):
        changed = "; ".join(changes)
        raise InputError(
            f"{folder.path.name} cannot be resumed, its space has changed: {changed}; begin another with --name"
        )


def _plugins_text(digests: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {digest}" for name, digest in sorted(digests.items())) or "none"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that has been run, or is being run: every call reads its folder anew."""

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
        return list(front_of(self.info, self.trials()).members)

    def evidence(self) -> Evidence:
        """Intervals, support for being on the front, and differences to the baselines."""
        from fpp_sweep.report.evidence import evidence_of  # loads numpy

        return evidence_of(self.folder.artifacts, self.info, front_of(self.info, self.trials()))

    def best(self, mark: str = "knee") -> TrialConfig:
        """A front member's config: `knee`, or `best <metric>` of an objective."""
        front = front_of(self.info, self.trials())
        marked = {name: member for member in front.members for name in front.marks[member.name]}
        if mark not in marked:
            raise InputError(f"{self.name} has no {mark!r}; it has {', '.join(sorted(marked)) or 'no finished trial'}")
        return TrialConfig().replace(marked[mark].config)

    def table(self) -> list[dict[str, Any]]:
        """A flat row for each record, as `pandas.DataFrame` takes them: name, state, marks, params, `ece`, `test/ece`.

        `ece/dtd` is of one dataset; `ece low` and `ece high` are the ends of an interval, where one is known.
        """
        from fpp_sweep.sweep.notebook import row_of

        info, records = self.info, self.trials()
        front, evidence = front_of(info, records), self.evidence()
        return [row_of(info, record, front, evidence) for record in records]

    def plot(self) -> dict[str, Figure]:
        """The page's figures by name (`front-0`, `parallel`, ...), as plotly's; those that have something to show."""
        from fpp_sweep.sweep.notebook import figures  # loads plotly and Optuna

        return figures(self.folder)

    def trial(self, name: str) -> Trial:
        """One of its trials or baselines: `trial-0007`, `baseline-tpt`."""
        return Trial(self.folder, self.folder.known_trial(name).name)

    def _repr_html_(self) -> str:
        """What a notebook shows: how it stands, and the front with the baselines beside it."""
        from fpp_sweep.sweep.notebook import as_html

        return as_html(self.folder)


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a sweep."""

    folder: SweepFolder
    name: str

    @property
    def record(self) -> TrialRecord:
        return self.folder.trial(self.name)

    @property
    def config(self) -> TrialConfig:
        return TrialConfig().replace(self.record.config)

    def predictions(self, split: str | None = None) -> DataFrame:
        """A row for each sample, seed and dataset of a split; none: the one that was searched."""
        from fpp_sweep.sweep.notebook import predictions

        return predictions(self.folder, self.name, split or self.folder.info().search_split)


def last_change(folder: SweepFolder) -> float:
    """When the driver, a trial or a worker last wrote, wherever it runs."""
    files = (path for part in ("*.json", "trials/*", "logs/*") for path in folder.path.glob(part))
    return max((path.stat().st_mtime for path in files), default=0.0)


class InterruptedSweep(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after everything has been put in order."""
