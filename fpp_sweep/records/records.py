"""The records of a sweep, its trials and its commands: plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.validation import as_mapping, word
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig

Texts = Mapping[str, str]
Settings = Mapping[str, Any]
State = Literal["waiting", "running", "stopped", "complete", "failed", "interrupted"]
# waiting: the trial has not begun
# running: a process works on the trial
# stopped: a driver ended the trial between two tasks, and it is not begun again
# complete: the objectives are measured
# failed: a task has no result
# interrupted: the sweep ended while the trial ran; --resume begins the trial again, with cached results
ENDED: tuple[State, ...] = ("complete", "failed", "stopped")  # not begun again
Kind = Literal["trial", "baseline"]
IMPORTED = "imported"
ADDED = "added"  # origin of trials that `steer` adds
REQUESTED_ORIGINS = ("point", ADDED, "code", "paper")  # origins of trials whose settings the user or the paper gave
FINAL = "final"  # among a trial's splits: the final stage, with more seeds and fresh images
SEARCHED_ON_TEST = "hyperparameters were searched on the test split, as the paper's were"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """The numbers of a trial on one split, over all its datasets and seeds."""

    average: Mapping[str, float]  # metric -> mean over datasets and seeds; percent where the metric is
    datasets: Mapping[str, Mapping[str, float]]  # dataset -> metric -> mean over seeds
    deviation: Mapping[str, float]  # metric -> standard deviation over seeds of the average; empty for one seed
    samples: int  # images, over datasets; each once
    seconds: Mapping[str, float]  # by stage, summed over workers; cached results cost 0
    device_seconds: float  # seconds that workers were held for the trial
    # the datasets' numbers for each of several seeds, by its digits
    by_seed: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    # dataset -> stage -> seconds when the result was computed, for this or another trial; the mean over seeds
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # image features that were computed for the trial: number of `images`, and seconds by step, summed over workers
    features: Mapping[str, float] = field(default_factory=dict)
    devices: Sequence[str] = ()  # devices that computed the results
    notes: Sequence[str] = ()  # post-hoc maps without a temperature, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """The record of a trial or a baseline, from its start on."""

    name: str  # trial-0007, baseline-zero_shot; a file's name
    kind: Kind
    state: State
    number: int | None = None  # Optuna's; baselines have none
    origin: str = "sampled"  # sampled, grid, point, added (by `steer`), code, paper, baseline or imported
    params: Settings = field(default_factory=dict)  # the searched settings, by dotted key
    config: Settings = field(default_factory=dict)  # TrialConfig.flat(); of an import, its file
    key: str = ""  # keys.of_config(config)
    started: float = 0.0  # seconds since 1970
    finished: float | None = None
    reason: str | None = None  # why it failed or was interrupted, one line
    details: str | None = None  # its traceback
    results: Mapping[str, SplitResult] = field(default_factory=dict)  # by split: val, final, test
    values: Sequence[float] | None = None  # values of the objectives, in their order, on the search split
    constraints: Mapping[str, float] = field(default_factory=dict)  # by name; holds where <= 0
    attempt: int = 1
    # the next three describe a trial that was stopped early, also after it is run to its end: the values that the study
    # has of it, the share of the images that they rest on, and the seconds that workers were held for it until then
    estimate: Sequence[float] | None = None
    fidelity: float = 1.0
    held: float = 0.0
    generation: int | None = None  # generation of NSGA-II

    @property
    def label(self) -> str:
        """The name in tables and plots, where a baseline is recognised without the prefix."""
        return self.name.removeprefix("baseline-")

    @property
    def name_and_origin(self) -> str:
        """The name, marked if `steer` added the trial: `trial-0007 (added)`."""
        if self.origin == ADDED:
            return f"{self.name} ({ADDED})"
        return self.name

    @property
    def is_imported(self) -> bool:
        """True if the predictions were read from a file (`import`), so that the record has no settings."""
        return self.origin == IMPORTED

    @property
    def broken(self) -> list[str]:
        """The constraints that are broken."""
        return [name for name, value in self.constraints.items() if value > 0]

    @property
    def feasible(self) -> bool:
        return not self.broken


def trial_name(number: int) -> str:
    return f"trial-{number:04d}"


def waiting_record(name: str, kind: Kind, config: TrialConfig, **fields: Any) -> TrialRecord:
    """Return the first record of a trial or baseline, which waits for its start."""
    return TrialRecord(
        name=name, kind=kind, state="waiting", config=config.flat(), key=keys.of_config(config), **fields
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of `steer` to the driver of a sweep, or to the next driver."""

    name: str  # name of the command's file; names sort by time
    kind: Literal["add", "stop", "budget"]
    written: float  # seconds since 1970
    values: Settings  # settings of a point; trial=...; or the new budget, by key of `search`
    applied: float | None = None
    number: int | None = None  # number of the trial that tries an added point
    outcome: str = ""

    @property
    def words(self) -> str:
        """The command as text: `add fpp.gamma1=3: trial-0004`."""
        text = self.kind + " " + " ".join(f"{key}={word(value)}" for key, value in self.values.items())
        if self.applied is None:
            return f"{text}: waits for a driver"
        if self.outcome:
            return f"{text}: {self.outcome}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTotals:
    """Work of the workers of a sweep, over all its drivers."""

    tasks: int = 0  # tasks that ran to their end
    cached: int = 0  # results that needed no computation
    model_loads: int = 0
    workers_lost: int = 0

    def __add__(self, later: WorkTotals) -> WorkTotals:
        return WorkTotals(
            tasks=self.tasks + later.tasks,
            cached=self.cached + later.cached,
            model_loads=self.model_loads + later.model_loads,
            workers_lost=self.workers_lost + later.workers_lost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """A sweep's own record: its space, what its numbers come from, and its state."""

    name: str  # perturb-20261120-185232
    created: float
    state: Literal["running", "finished", "interrupted", "failed"]
    space: Settings  # as resolved, plain values: load_space understands it
    begun: Settings = field(default_factory=dict)  # the space at the start of the sweep, if it has changed since
    objectives: tuple[Objective, ...]
    search_split: str
    reference: Sequence[float] | None = None  # hypervolume's corner, in the order of the objectives
    tracking_uri: str = ""
    spent: float = 0.0  # seconds that drivers have worked on it
    finished: float | None = None

    # its start, and the code that started it
    command: str = ""  # the first driver's command line, without secrets
    group: str = ""  # id of the reproduction that the sweep belongs to; empty for a sweep that stands alone
    plugins: Texts = field(default_factory=dict)  # name of a plugin -> digest of its file
    plugin_files: Texts = field(default_factory=dict)  # name of a plugin -> full path of its file
    versions: Texts = field(default_factory=dict)  # versions of Python, this package and the libraries, by name
    git_commit: str = ""  # commit of this package; empty where it is not a checkout
    git_dirty: bool = False  # the checkout had uncommitted changes

    # model, device and data, as the first worker reported them
    model: str = ""
    model_digest: str = ""  # digest of all weights
    embedding_scale: float | None = None
    device: str = ""
    datasets: Texts = field(default_factory=dict)  # dataset -> digest of its samples, labels and views
    images: Texts = field(default_factory=dict)  # dataset -> digest of its image files' sizes and times
    prompts: Texts = field(default_factory=dict)  # prompt file -> digest

    # its course and its end
    end_reason: str = ""  # why no further trial was started
    work: WorkTotals = WorkTotals()
    race: str = ""  # number of trials that were stopped early, and what that saved
    steered: Sequence[str] = ()  # commands to the sweep

    @property
    def goals(self) -> str:
        """The objectives as text: `accuracy (max) and ece (min)`."""
        return " and ".join(f"{objective.metric} ({objective.goal})" for objective in self.objectives)

    @property
    def space_at_start(self) -> Settings:
        """The space with which the sweep began, before a command or a resume changed it."""
        return self.begun or self.space

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(as_mapping(self.space.get("work", {})).get("seeds", (0,)))

    def provenance(self) -> dict[str, str]:
        """Return the origin of the sweep's numbers and its course, as text by name: for tables and MLflow's tags."""
        provenance = dict(self.versions)
        for name, text in self._provenance_fields().items():
            if text:
                provenance[name] = text
        return provenance

    def _provenance_fields(self) -> dict[str, str]:
        search = as_mapping(self.space.get("search", {}))
        git_dirty = ""
        if self.git_commit:
            git_dirty = str(self.git_dirty)
        embedding_scale = ""
        if self.embedding_scale is not None:
            embedding_scale = f"{self.embedding_scale:g}"
        warning = ""
        if self.search_split == "test" and not search.get("evaluate_only"):
            warning = SEARCHED_ON_TEST
        return {
            "search_split": self.search_split,
            "seeds": _joined(self.seeds),
            "sampler": str(search.get("sampler", "")),
            "sampler_seed": str(search.get("seed", "")),
            "command": self.command,
            "reproduction": self.group,
            "plugins": _joined_digests(self.plugins),
            "git_commit": self.git_commit,
            "git_dirty": git_dirty,
            "model": self.model,
            "model_digest": self.model_digest,
            "embedding_scale": embedding_scale,
            "device": self.device,
            "datasets": _joined(self.datasets),
            "datasets_digest": _joined(self.datasets.values()),
            "images_digest": _joined(self.images.values()),
            "prompts_digest": _joined_digests(self.prompts),
            "end_reason": self.end_reason,
            "work_tasks": str(self.work.tasks),
            "work_cached": str(self.work.cached),
            "work_model_loads": str(self.work.model_loads),
            "work_workers_lost": str(self.work.workers_lost),
            "race": self.race,
            "steered": "; ".join(self.steered),
            "warning": warning,
        }


def _joined_digests(digests: Texts) -> str:
    return ", ".join(f"{name} {digest}" for name, digest in digests.items())


def _joined(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
