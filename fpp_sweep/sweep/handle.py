"""The public interface of a sweep: options to run it with, and reading it from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpp_sweep.config import TrialConfig
from fpp_sweep.errors import InputError
from fpp_sweep.facts import PluginFile
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import front_of
from fpp_sweep.records.records import SweepInfo, TrialRecord

if TYPE_CHECKING:
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
    tags: Mapping[str, str] = field(default_factory=dict)  # more of them, for the record

    @property
    def on_cluster(self) -> bool:
        return self.address not in (None, "local")


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

        return evidence_of(self.folder, self.info, front_of(self.info, self.trials()))

    def best(self, mark: str = "knee") -> TrialConfig:
        """A front member's config: `knee`, or `best <metric>` of an objective."""
        front = front_of(self.info, self.trials())
        marked = {name: member for member in front.members for name in front.marks[member.name]}
        if mark not in marked:
            raise InputError(f"{self.name} has no {mark!r}; it has {', '.join(sorted(marked)) or 'no finished trial'}")
        return TrialConfig().replace(marked[mark].config)

    def table(self) -> list[dict[str, Any]]:
        """A flat row for each record, as `pandas.DataFrame` takes them: name, state, params, `ece`, `test/ece`, ..."""
        searched = self.info.search_split
        rows = []
        for record in self.trials():
            row: dict[str, Any] = {"name": record.name, "kind": record.kind, "state": record.state, **record.params}
            for split, result in record.results.items():
                prefix = "" if split == searched else f"{split}/"
                row |= {f"{prefix}{metric}": value for metric, value in result.average.items()}
            rows.append(row)
        return rows


class InterruptedSweep(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after everything has been put in order."""
