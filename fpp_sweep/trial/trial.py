"""One trial over a pool of workers: cut it into tasks, join what comes back, score it, write its files.

Light: nothing here loads torch, so that a trial's process starts fast and takes little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.config import TrialConfig
from fpp_sweep.errors import InputError
from fpp_sweep.records.folder import Found
from fpp_sweep.trial.results import DatasetFacts, Done, Task, shards
from fpp_sweep.trial.tasks import EvalTask

if TYPE_CHECKING:
    from fpp_sweep.core.metrics import Predictions

Execute = Callable[[Sequence[Task]], list[Done]]  # what becomes of tasks, in their order


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all trials of a sweep run on."""

    datasets: Mapping[str, tuple[DatasetFacts, ...]]  # by split
    seeds: tuple[int, ...]
    shards: int | None

    def known(self) -> dict[tuple[str, str], DatasetFacts]:
        """The datasets by name and split, as work is named by them."""
        return {(facts.name, part): facts for part, datasets in self.datasets.items() for facts in datasets}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A trial's result on one dataset with one seed."""

    facts: DatasetFacts
    seed: int
    predictions: Predictions
    prompt: bytes | None  # where one was pretrained


def tasks_of(plan: Plan, config: TrialConfig, part: str) -> dict[tuple[str, int], list[EvalTask]]:
    """The shards of every (dataset, seed)."""
    return {
        (facts.name, seed): shards(
            EvalTask(config=config, dataset=facts.name, split=part, seed=seed, start=0, stop=facts.size), plan.shards
        )
        for seed in plan.seeds
        for facts in plan.datasets[part]
    }


def run_trial(plan: Plan, config: TrialConfig, part: str, execute: Execute) -> tuple[Found, list[Piece]]:
    """Everything that a trial finds on one split."""
    cut = tasks_of(plan, config, part)
    evaluations = [task for tasks in cut.values() for task in tasks]
    pretrainings = [tasks[0].pretrain for tasks in cut.values() if config.prompt == "fpp"]
    done = dict(zip([*evaluations, *pretrainings], execute([*evaluations, *pretrainings]), strict=True))
    facts = {each.name: each for each in plan.datasets[part]}
    pieces = []
    for (dataset, seed), tasks in cut.items():
        predictions = joined([(task, done[task]) for task in tasks], facts[dataset].size)
        prompt = done[tasks[0].pretrain].prompt if config.prompt == "fpp" else None
        pieces.append(Piece(facts=facts[dataset], seed=seed, predictions=predictions, prompt=prompt))
    return summary(pieces, list(done.values())), pieces


def joined(parts: Sequence[tuple[EvalTask, Done]], size: int) -> Predictions:
    """The shards' predictions in order; each of a dataset's samples is there once, or was skipped."""
    from fpp_sweep.core.metrics import concatenate

    ordered = sorted(parts, key=lambda each: each[0].start)
    cuts = [(task.start, task.stop) for task, _ in ordered]
    if [0, *(stop for _, stop in cuts)] != [*(start for start, _ in cuts), size]:
        raise ValueError(f"{ordered[0][0].dataset}: shards {cuts} are not its {size} samples, each once")
    for task, done in ordered:
        found = done.skipped + (len(done.predictions) if done.predictions else 0)
        if found != task.stop - task.start:
            raise ValueError(f"{task.dataset}: samples {task.start}..{task.stop} came back as {found}")
    whole = [done.predictions for _, done in ordered if done.predictions]
    if not whole:
        raise InputError(f"{ordered[0][0].dataset}: none of its images can be read")
    return concatenate(whole)


def summary(pieces: Sequence[Piece], done: Sequence[Done]) -> Found:
    """Scores per dataset over seeds, their averages over datasets, and what it took."""
    from fpp_sweep.core.metrics import score

    scores: dict[int, dict[str, dict[str, float]]] = {}
    for piece in pieces:
        metrics = asdict(score(piece.predictions))
        del metrics["samples"]
        scores.setdefault(piece.seed, {})[piece.facts.name] = metrics
    first = next(iter(scores.values()))
    names = list(next(iter(first.values())))
    by_seed = [{name: _mean([of[name] for of in found.values()]) for name in names} for found in scores.values()]
    seconds: dict[str, float] = {}
    for each in done:
        for stage, value in each.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + value
    return Found(
        average={name: _mean([of[name] for of in by_seed]) for name in names},
        datasets={
            dataset: {name: _mean([found[dataset][name] for found in scores.values()]) for name in names}
            for dataset in first
        },
        deviation={name: statistics.stdev([of[name] for of in by_seed]) for name in names} if len(by_seed) > 1 else {},
        samples=sum(len(piece.predictions) for piece in pieces if piece.seed == pieces[0].seed),
        seconds=seconds,
        device_seconds=sum(each.held for each in done),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def measured(found: Found, metric: str) -> float:
    """A metric by name: an average, one dataset's (`ece/dtd`), or what the trial took."""
    name, slash, dataset = metric.partition("/")
    if name in ("seconds", "device_seconds"):
        return found.device_seconds if name == "device_seconds" else math.fsum(found.seconds.values())
    if slash and dataset not in found.datasets:
        raise InputError(
            f"objective {metric!r}: the sweep has no dataset {dataset!r}; it has {', '.join(found.datasets)}"
        )
    value = found.datasets[dataset][name] if slash else found.average[name]
    if not math.isfinite(value):
        raise FloatingPointError(f"{metric} is {value}")
    return value


def write_artifacts(folder: Path, pieces: Sequence[Piece], part: str, title: str) -> None:
    """Prompts and per-sample predictions of every (dataset, seed), and a picture of the calibration."""
    from fpp_sweep.files import written_whole
    from fpp_sweep.trial.diagram import reliability_panels
    from fpp_sweep.trial.tables import write_predictions

    for piece in pieces:
        name = f"{piece.facts.name}.seed{piece.seed}"
        write_predictions(piece.predictions, piece.facts.classes, folder / part / f"{name}.predictions.parquet")
        if piece.prompt is not None:
            with written_whole(folder / "prompts" / f"{name}.safetensors") as partial:
                partial.write_bytes(piece.prompt)
    shown = {
        f"{piece.facts.name}, seed {piece.seed}": piece.predictions for piece in pieces if piece.seed == pieces[0].seed
    }
    reliability_panels(shown, folder / part / "reliability.png", title=title)
