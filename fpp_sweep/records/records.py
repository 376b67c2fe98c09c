"""The records of a sweep, its trials and its commands: plain values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.work import DEFAULT_FLOOR, Split
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig, dotted
from fpp_sweep.spec.validation import MAX_WHOLE, Number, as_list, as_mapping, known_name, value_text

MAX_TIME = 253_370_764_800  # the start of the year 9999: in every time zone a date that Python can represent


@dataclass(frozen=True)
class _NameRule:
    """The rule in an `Annotated` type for names that become parts of paths and of file names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        # a pattern, since a function of Python would take most of the time of reading a record; its second half is for
        # names that begin with three dots
        schema: Any = handler(source)
        schema["pattern"] = r"^(\.?\.?[^./\x00][^/\x00]*|\.\.\.[^/\x00]*)$"
        problem = "must be a name without '/' and zero bytes, other than '.' and '..'"
        return {"type": "custom-error", "schema": schema, "custom_error_type": "name", "custom_error_message": problem}


def _check_split(value: Any) -> Any:
    return known_name("split", value, get_args(Split))


Name = Annotated[str, _NameRule()]  # a dataset, a split or a metric
Whole = Annotated[int, Field(ge=-MAX_WHOLE, le=MAX_WHOLE)]
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]  # seconds since 1970
Values = Mapping[Name, Number]  # by metric
Seconds = Mapping[str, Number]  # by stage or step
Texts = Mapping[str, str]
Settings = Mapping[str, Any]
State = Literal["waiting", "running", "stopped", "collapsed", "complete", "failed", "interrupted"]
# waiting: the trial has not begun
# running: a process works on the trial
# stopped: a driver ended the trial between two tasks, and it is not begun again
# collapsed: a pretraining has a drift above `search.gate`, so that no image was adapted to
# complete: the objectives are measured
# failed: a task has no result
# interrupted: the sweep ended while the trial ran; --resume begins the trial again, with cached results
ENDED: tuple[State, ...] = ("complete", "failed", "stopped", "collapsed")  # not begun again
Kind = Literal["trial", "baseline"]
IMPORTED = "imported"
REQUESTED_ORIGINS = ("point", "code", "paper")  # origins of trials whose settings the user or the paper gave
STOPPED_BY_STEER = "stopped by `steer`"  # the reason of a trial that the user has stopped
IMPOSSIBLE = "no trial can have these settings"  # the reason of such a trial begins so
REFERENCES = 2  # baselines that a finalist must beat
FINAL = "final"  # among a trial's splits: the final stage, with more seeds and fresh images
GATE = "gate"  # name of the constraint on the drift
SEARCHED_ON_TEST = "hyperparameters were searched on the test split, as the paper's were"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """The numbers of a trial on one split, over all its datasets and seeds."""

    average: Values  # metric -> mean over datasets and seeds; percent where the metric is
    datasets: Mapping[Name, Values]  # dataset -> metric -> mean over seeds
    deviation: Values  # metric -> standard deviation over seeds of the average; empty for one seed
    samples: Count  # images, over datasets; each once
    seconds: Seconds  # by stage, summed over workers; cached results cost 0
    worker_seconds: Number  # seconds that workers spent on the trial
    # the datasets' numbers for each of several seeds, by its digits
    by_seed: Mapping[str, Mapping[Name, Values]] = field(default_factory=dict)
    # dataset -> stage -> seconds when the result was computed, for this or another trial; the mean over seeds
    costs: Mapping[Name, Seconds] = field(default_factory=dict)
    # image features that were computed for the trial: number of `images`, and seconds by step, summed over workers
    features: Seconds = field(default_factory=dict)
    notes: Sequence[str] = ()  # post-hoc maps without a temperature, and why

    @property
    def work_seconds(self) -> float:
        """Seconds that pretraining and adaptation took when they were computed: the metric `seconds`.

        A cached result costs what it cost then, or a trial that repeats the settings of another one, or shares its
        prompt, would be the cheaper one. Image features, which all trials share, cost nothing.
        """
        seconds_of_one_seed = 0.0
        for stages in self.costs.values():
            seconds_of_one_seed += math.fsum(stages.values()) - stages.get("features", 0.0)
        return seconds_of_one_seed * max(1, len(self.by_seed))

    def cost(self, name: str) -> float | None:
        """Return a cost, such as the objective `seconds`; None for another metric, or where nothing was computed."""
        if name == "seconds" and self.costs:
            return self.work_seconds
        return None


def mean_of_shared(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of the numbers that all rows have."""
    shared = {}
    for name in rows[0]:
        if all(name in row for row in rows):
            shared[name] = math.fsum([row[name] for row in rows]) / len(rows)
    return shared


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """The record of a trial or a baseline, from its start on."""

    name: str  # trial-0007, baseline-zero_shot; a file's name
    kind: Kind
    state: State
    number: Whole | None = None  # Optuna's; baselines have none
    origin: str = "sampled"  # sampled, grid, point, code, paper, baseline or imported
    params: Settings = field(default_factory=dict)  # the searched settings, by dotted key
    config: Settings = field(default_factory=dict)  # TrialConfig.flat(); of an import, its file
    key: str = ""  # keys.config_key(config)
    started: Time = 0.0
    finished: Time | None = None
    reason: str | None = None  # why it failed or was interrupted, one line
    details: str | None = None  # its traceback
    reason_split: str = ""  # the split that the reason is about
    results: Mapping[Name, SplitResult] = field(default_factory=dict)  # by split: val, final, test
    values: Sequence[Number] | None = None  # values of the objectives, in their order, on the search split
    constraints: Mapping[str, Number] = field(default_factory=dict)  # by name; holds where <= 0
    drift: Number | None = None  # of a pretraining, the largest on the search split; see core.fpp
    attempt: Whole = 1
    seconds_without_result: Number = 0.0  # seconds that workers spent on attempts that gave no result
    outside: bool = False  # True if the space that is asked now does not hold the trial, or lists no such baseline

    @property
    def label(self) -> str:
        """The name in tables and plots, where a baseline is recognised without the prefix."""
        return label_of(self.name)

    @property
    def is_imported(self) -> bool:
        """True if the predictions were read from a file (`import`), so that the record has no settings."""
        return self.origin == IMPORTED

    @property
    def has_failed(self) -> bool:
        """True if the trial failed on a split, also on one after the search, where its state stays complete."""
        if self.state != "complete":
            return self.state == "failed"
        return self.reason is not None and not self.reason.endswith(STOPPED_BY_STEER)

    @property
    def can_run_again(self) -> bool:
        """True for a failed trial; False if it failed before its start, because its settings exclude each other."""
        if self.kind == "baseline" or self.state != "failed":
            return False
        return self.reason is None or not self.reason.startswith(IMPOSSIBLE)

    @property
    def has_fpp_prompt(self) -> bool:
        """True if the prompt is pretrained, so that seeds draw other prompts."""
        return self.config.get("prompt") == "fpp"

    @property
    def duration(self) -> float | None:
        """Seconds from the start to the end; None before the end, and of an import, which has no start."""
        if self.finished is None or not self.started:
            return None
        return self.finished - self.started

    @property
    def worker_seconds(self) -> float:
        """Seconds that workers spent on the trial, on all splits, also where it got no result."""
        return self.seconds_without_result + math.fsum(result.worker_seconds for result in self.results.values())

    def has_values(self, values: Settings) -> bool:
        """Return True if the trial has these values of searched settings."""
        return all(self.params.get(key) == value for key, value in values.items())

    @property
    def broken(self) -> list[str]:
        """The constraints that are broken."""
        return [name for name, value in self.constraints.items() if value > 0]

    @property
    def feasible(self) -> bool:
        return not self.broken


BASELINE_PREFIX = "baseline-"


def label_of(name: str) -> str:
    """Return a record's name as tables show it.

    >>> label_of("baseline-tpt"), label_of("trial-0002")
    ('tpt', 'trial-0002')
    """
    return name.removeprefix(BASELINE_PREFIX)


def trial_name(number: int) -> str:
    return f"trial-{number:04d}"


def baseline_name(label: str) -> str:
    return f"{BASELINE_PREFIX}{label}"


def waiting_record(name: str, kind: Kind, config: TrialConfig, **fields: Any) -> TrialRecord:
    """Return the first record of a trial or baseline, which waits for its start."""
    return TrialRecord(
        name=name, kind=kind, state="waiting", config=config.flat(), key=keys.config_key(config), **fields
    )


def impossible_record(name: str, problem: str, *, config: Settings, **fields: Any) -> TrialRecord:
    """Return the record of a trial that failed before its start, because its settings exclude each other.

    `problem` names the setting that is wrong.
    """
    now = time.time()
    return TrialRecord(
        name=name,
        kind="trial",
        state="failed",
        config=config,
        key=keys.digest(dict(config), length=keys.CONFIG_LENGTH),
        started=now,
        finished=now,
        reason=f"{IMPOSSIBLE}: {problem}",
        **fields,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of `steer`: a line of commands.jsonl, which the driver answers in the sweep's record."""

    kind: Literal["add", "stop", "set"]
    words: Sequence[str]  # KEY=VALUE, or the name of a trial
    written: Time

    @property
    def text(self) -> str:
        """The command as it was typed: `add fpp.gamma1=3`."""
        return " ".join([self.kind, *self.words])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A space that was asked of a sweep's folder before the present one."""

    asked: Time
    space: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTotals:
    """Work of the workers of a sweep, over all its drivers."""

    tasks: Count = 0  # tasks that ran to their end
    cached: Count = 0  # results that needed no computation
    model_loads: Count = 0
    workers_lost: Count = 0

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
    created: Time
    state: Literal["running", "finished", "interrupted", "failed"]
    space: Settings  # that is asked now, as resolved, plain values: load_space understands it
    asked: Time | None = None  # when it was asked; none: when the sweep was created
    earlier: Sequence[Question] = ()  # spaces that were asked before, the first one first
    objectives: tuple[Objective, ...]
    search_split: Annotated[str, BeforeValidator(_check_split)]
    reference: Sequence[Number] | None = None  # hypervolume's corner, in the order of the objectives
    tracking_uri: str = ""
    spent: Number = 0.0  # seconds that drivers have worked on it; a running driver records them when a trial ends
    finished: Time | None = None

    # its start, and the code that started it
    command: str = ""  # the command line that began it, without secrets
    address: str = ""  # address of the last driver's Ray cluster; empty: on one machine
    group: str = ""  # id of the reproduction that the sweep belongs to; empty for a sweep that stands alone
    plugins: Texts = field(default_factory=dict)  # name of a plugin -> digest of its file
    plugin_files: Texts = field(default_factory=dict)  # name of a plugin -> full path of its file
    # software by name; if it was changed between two drivers, the texts are such as `2.9.0, then 2.10.0`
    versions: Texts = field(default_factory=dict)  # versions of Python, this package and the libraries
    git_commit: str = ""  # commit of this package; empty where it is not a checkout
    git_dirty: bool = False  # the checkout had uncommitted changes
    engine: str = ""  # version of what is computed; a resume needs the same one

    # model, device and data, as the first worker reported them
    model: str = ""
    model_digest: str = ""  # digest of all weights
    embedding_scale: Number | None = None
    device: str = ""
    digests: Texts = field(default_factory=dict)  # `dtd val` -> digest of its classes, samples and views
    prompts: Texts = field(default_factory=dict)  # prompt file -> digest
    images_by_split: Mapping[Name, Count] = field(default_factory=dict)  # of a trial, times its seeds

    # its course and its end
    end_reason: str = ""  # why no further trial was started
    work: WorkTotals = WorkTotals()
    answers: Sequence[str] = ()  # to the commands of `steer`, in their order; empty for one that waits

    @property
    def goals(self) -> str:
        """The objectives as text: `accuracy (max) and ece (min)`."""
        return " and ".join(f"{objective.metric} ({objective.goal})" for objective in self.objectives)

    @property
    def search_settings(self) -> Settings:
        """The key `search` of the space."""
        return as_mapping(self.space.get("search", {}))

    @property
    def work_settings(self) -> Settings:
        """The key `work` of the space."""
        return as_mapping(self.space.get("work", {}))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.work_settings.get("seeds", (0,)))

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets on the split that is searched."""
        ending = f" {self.search_split}"
        return [name.removesuffix(ending) for name in self.digests if name.endswith(ending)]

    @property
    def evaluate_only(self) -> bool:
        """True if the sweep evaluates given settings: no trial is to be chosen."""
        return bool(self.search_settings.get("evaluate_only", False))

    @property
    def floor(self) -> float:
        """Points of accuracy below zero-shot, beyond which a trial is infeasible."""
        return float(self.search_settings.get("floor", DEFAULT_FLOOR))

    @property
    def margins(self) -> Mapping[str, float]:
        """The largest losses to the main reference that the space sets, by metric; other metrics have the defaults."""
        return as_mapping(self.search_settings.get("margin", {}))

    @property
    def requested_baselines(self) -> Sequence[str]:
        """The names of the baselines that the space lists, plugins' methods included."""
        return as_list(self.work_settings.get("baselines", []))

    @property
    def plugin_words(self) -> list[str]:
        """The words of a command that name the plugins, since no folder may load them by itself."""
        if not self.plugin_files:
            return []
        return ["--plugin", *self.plugin_files.values()]

    def provenance(self) -> dict[str, str]:
        """Return the origin of the sweep's numbers and its course, as text by name: for tables and MLflow's tags."""
        provenance = dict(self.versions)
        for name, text in self._provenance_fields().items():
            if text:
                provenance[name] = text
        return provenance

    def _provenance_fields(self) -> dict[str, str]:
        search = self.search_settings
        git_dirty = ""
        if self.git_commit:
            git_dirty = str(self.git_dirty)
        embedding_scale = ""
        if self.embedding_scale is not None:
            embedding_scale = f"{self.embedding_scale:g}"
        warning = ""
        if self.search_split == "test" and not self.evaluate_only:
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
            "datasets_digest": _joined(self.digests.values()),
            "prompts_digest": _joined_digests(self.prompts),
            "end_reason": self.end_reason,
            **{f"work_{name}": str(count) for name, count in asdict(self.work).items()},
            "warning": warning,
        }


def space_changes(before: Settings, after: Settings) -> list[str]:
    """Return a text for each key in which two recorded spaces differ: `search.trials: 4 -> 9`."""
    old, new = dict(dotted(before)), dict(dotted(after))
    changes = []
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            changes.append(f"{key}: {value_text(old.get(key))} -> {value_text(new.get(key))}")
    return changes


def _joined_digests(digests: Texts) -> str:
    return ", ".join(f"{name} {digest}" for name, digest in digests.items())


def _joined(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
