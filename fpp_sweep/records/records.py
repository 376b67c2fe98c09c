"""What is on record of a sweep and of its trials: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fpp_sweep.space.objectives import Objective
from fpp_sweep.space.rules import Rule, as_mapping, text, word

Text = Annotated[str, text("")]
Settings = Annotated[Mapping[str, Any], Rule(as_mapping, dict)]
State = Literal["waiting", "running", "stopped", "complete", "failed", "interrupted"]
# waiting: on record, and nothing of it has begun
# running: a process works on it
# stopped: a driver ended it between two tasks, before all were done; it is not begun again
# complete: its objectives are measured
# failed: a task of it has no result
# interrupted: the sweep ended while it ran; --resume begins it again, with the tasks that are done at hand
ENDED: tuple[State, ...] = ("complete", "failed", "stopped")  # not begun again
Kind = Literal["trial", "baseline"]
FINAL = "final"  # among a trial's splits: the final stage, with more seeds and fresh images


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """A trial's numbers on one split, over all its datasets and seeds."""

    average: Mapping[str, float]  # metric -> mean over datasets and seeds; percent where the metric is
    datasets: Mapping[str, Mapping[str, float]]  # dataset -> metric -> mean over seeds
    deviation: Mapping[str, float]  # metric -> standard deviation over seeds of the average; empty for one seed
    samples: int  # images, over datasets; each once
    seconds: Mapping[str, float]  # by stage, summed over workers; what was at hand costs 0
    device_seconds: float  # seconds that workers were held for it
    # the datasets' numbers for each of several seeds, by its digits
    by_seed: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    # dataset -> stage -> seconds when it was computed, whoever asked for it; the mean over seeds
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # image features that were computed for it: `images`, how many, and seconds by step, summed over workers
    features: Mapping[str, float] = field(default_factory=dict)
    devices: Sequence[Text] = ()  # where that was


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial or a baseline, from its start on."""

    name: str  # trial-0007, baseline-zero_shot; a file's name
    kind: Kind
    state: State
    number: int | None = None  # Optuna's; baselines have none
    origin: Text = "sampled"  # sampled, grid, point, code, paper or baseline
    params: Settings = field(default_factory=dict)  # what was searched, by dotted key
    config: Settings = field(default_factory=dict)  # TrialConfig.flat()
    key: Text = ""  # keys.of_config(config)
    started: float = 0.0  # seconds since 1970
    finished: float | None = None
    reason: Text | None = None  # why it failed or was interrupted, one line
    details: Text | None = None  # its traceback
    results: Mapping[str, SplitResult] = field(default_factory=dict)  # by split: val, final, test
    values: Sequence[float] | None = None  # of the objectives, in their order, on the search split
    constraints: Mapping[str, float] = field(default_factory=dict)  # by name; holds where <= 0
    attempt: int = 1
    # of a trial that lost its race, also once it is finished: what the study was told in the place of its values,
    # the share of the images that this rests on, and the seconds that workers were held for it until then
    estimate: Sequence[float] | None = None
    fidelity: float = 1.0
    held: float = 0.0

    @property
    def label(self) -> str:
        """The name in tables and plots, where a baseline is recognised without the prefix."""
        return self.name.removeprefix("baseline-")

    @property
    def broken(self) -> list[str]:
        """The constraints that do not hold."""
        return [name for name, value in self.constraints.items() if value > 0]

    @property
    def feasible(self) -> bool:
        return not self.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What somebody asked of a sweep that is under way, or of the next driver of one that is not."""

    name: str  # a file's name; their order is that of time
    kind: Literal["add", "stop", "budget"]
    written: float  # seconds since 1970
    values: Settings  # of a point; trial=...; or what the budget is set to, by key of `search`
    applied: float | None = None
    number: int | None = None  # of the trial that an added point has become
    outcome: Text = ""

    @property
    def words(self) -> str:
        """`add fpp.gamma1=3: trial-0004`."""
        values = " ".join(f"{key}={word(value)}" for key, value in self.values.items())
        done = f": {self.outcome}" if self.outcome else ""
        return f"{self.kind} {values}{': waits for a driver' if self.applied is None else done}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """What a sweep is, and how it is doing."""

    name: str  # perturb-20261120-185232
    created: float
    state: Literal["running", "finished", "interrupted", "failed"]
    space: Settings  # as resolved, plain values: load_space understands it
    begun: Settings = field(default_factory=dict)  # the same as it began, where it has changed since
    objectives: tuple[Objective, ...]
    search_split: str
    tags: Mapping[str, Text]  # git commit, versions, model and digest, seeds, command, ...
    reference: Sequence[float] | None = None  # hypervolume's corner, in the order of the objectives
    tracking_uri: Text = ""
    spent: float = 0.0  # seconds that drivers have worked on it
    finished: float | None = None

    @property
    def goals(self) -> str:
        """The objectives in words: `accuracy (max) and ece (min)`."""
        return " and ".join(f"{objective.metric} ({objective.goal})" for objective in self.objectives)
