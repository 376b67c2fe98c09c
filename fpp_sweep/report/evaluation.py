"""What `evaluate` prints and writes: tables, results.json, and each trial's files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from fpp_sweep.core.prompt import origin_of
from fpp_sweep.records.records import SplitResult
from fpp_sweep.report.tables import aligned
from fpp_sweep.report.words import as_data, bounds, verdict
from fpp_sweep.spec import catalogue, keys
from fpp_sweep.spec.config import TrialConfig, is_file_name
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.files import write_json
from fpp_sweep.spec.specs import ModelInfo
from fpp_sweep.spec.version import VERSION
from fpp_sweep.statistics.old_bootstrap import JUDGED_BY, Interval, averaged, drawn, needed, single
from fpp_sweep.trial.artifacts import write_artifacts
from fpp_sweep.trial.trial import DatasetResult, mean

EUROSAT = "eurosat"  # dominates the published averages, which are therefore given with and without it
LIBRARIES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """A trial with one seed."""

    config: TrialConfig
    seed: int
    result: SplitResult
    datasets: Mapping[str, DatasetResult]

    @property
    def title(self) -> str:
        prompt = self.config.prompt
        return f"{self.config.method} from {prompt if prompt == 'fpp' or is_file_name(prompt) else repr(prompt)}"

    @property
    def split(self) -> str:
        return next(iter(self.datasets.values())).facts.split

    def average(self, names: Sequence[str]) -> dict[str, float]:
        """The unweighted mean over these datasets, as the papers print it."""
        return mean([self.result.datasets[name] for name in names])

    def images(self, names: Sequence[str]) -> int:
        return sum(len(self.datasets[name].predictions) for name in names)

    def intervals(self, names: Sequence[str]) -> dict[str, Interval | str]:
        """Of every metric of the mean over these datasets, or why there is none."""
        metrics = list(self.result.average)
        sums = {name: self.datasets[name].sums for name in names}
        found = averaged([drawn(name, self.split, [[sums[name]]], needed(metrics)) for name in names])
        return {metric: single(found, metric, 0, min(one.total for one in sums.values())) for metric in metrics}

    def averages(self) -> dict[str, list[str]]:
        """The datasets of each average: all, and all without the one that dominates it."""
        names = list(self.datasets)
        averages = {"average": names} if len(names) > 1 else {}
        if EUROSAT in names and len(names) > 2:
            averages[f"average without {EUROSAT}"] = [name for name in names if name != EUROSAT]
        return averages


def heading(model: ModelInfo, split: str, config: TrialConfig) -> str:
    """Model and split, and what x1 of the embedding-scale settings means on this model."""
    fpp = config.fpp.scaled(model.embedding_scale)
    return (
        f"model {model.name}, split {split}; embeddings are {model.embedding_scale:.3g} times ViT-B/16's: noise std "
        f"{math.sqrt(fpp.context_var):.3g} on the context and {math.sqrt(fpp.class_var):.3g} elsewhere, "
        f"start std {fpp.start_std:.3g}, adaptation lr {config.adapt.scaled(model.embedding_scale).lr:.3g}"
    )


def trial_table(trial: Evaluation, *, with_intervals: bool) -> str:
    """One trial: a row for each dataset, and averages."""
    metrics = [row for row in catalogue.METRICS.values() if row.name in trial.result.average]
    without: dict[str, dict[str, None]] = {}  # why there is no interval -> headings
    rows = [["dataset", "images", *(metric.heading for metric in metrics), "seconds"]]
    for label, names in {**{name: [name] for name in trial.datasets}, **trial.averages()}.items():
        numbers, spread = trial.average(names), trial.intervals(names) if with_intervals else {}
        cells = [f"{numbers[metric.name]:.{metric.decimals}f}" for metric in metrics]
        for index, metric in enumerate(metrics):
            interval = spread.get(metric.name)
            if isinstance(interval, Interval):
                cells[index] += f" {bounds(metric.name, interval)}"
            elif interval:
                without.setdefault(interval, {})[metric.heading] = None
        seconds = f"{sum(trial.datasets[label].seconds.values()):.1f}" if label in trial.datasets else ""
        rows.append([label, str(trial.images(names)), *cells, seconds])
    skipped = [
        f"  skipped {name}: {len(result.skipped)} images, such as {result.skipped[0].reason}"
        for name, result in trial.datasets.items()
        if result.skipped
    ]
    notes = [f"  {', '.join(headings)}: {reason}" for reason, headings in without.items()]
    if with_intervals:
        notes.insert(0, "  in brackets: 95 % over images; that of ECE is around its debiased value")
    return "\n".join([f"\n{escaped(trial.title)}, seed {trial.seed}", *aligned(rows), *notes, *map(escaped, skipped)])


def comparison(trials: Sequence[Evaluation]) -> str:
    """All trials beside each other, accuracy / ECE; over several seeds the mean and the standard deviation."""
    if len(trials) == 1:
        return ""
    by_config: dict[TrialConfig, list[Evaluation]] = {}
    for trial in trials:
        by_config.setdefault(trial.config, []).append(trial)
    sides = list(by_config.values())
    groups = {name: [name] for name in trials[0].datasets}
    if len(groups) > 1:
        groups["average"] = list(trials[0].datasets)
    rows = [["accuracy / ECE", *groups]]
    rows += [
        [same[0].title, *(_over_seeds([trial.average(names) for trial in same]) for names in groups.values())]
        for same in by_config.values()
    ]
    seeds = len(next(iter(by_config.values())))
    spread = f", mean over {seeds} seeds with standard deviation" if seeds > 1 else ""
    told = "\n".join(escaped(line) for line in differences(sides))
    return "\n".join([f"\nall trials, accuracy / ECE in percent{spread}", *aligned(rows), "", told, ""])


def differences(sides: Sequence[Sequence[Evaluation]]) -> Iterator[str]:
    """What the same images say of the difference of every config to the first, the mean over datasets and seeds."""
    if len(sides) < 2:
        return
    metrics = (catalogue.ACCURACY, catalogue.ECE)
    first = sides[0][0]
    found = averaged([
        drawn(name, first.split, [[trial.datasets[name].sums for trial in side] for side in sides], needed(metrics))
        for name in first.datasets
    ])  # fmt: skip
    for index, side in enumerate(sides[1:], 1):
        gaps = {name: (catalogue.metric(name).goal, found[JUDGED_BY.get(name, name)].difference(index, 0))
                for name in metrics}  # fmt: skip
        yield f"{side[0].title}: {verdict(first.title, gaps)[0]}"


def _over_seeds(numbers: Sequence[Mapping[str, float]]) -> str:
    cells = []
    for name in (catalogue.ACCURACY, catalogue.ECE):
        values = [row[name] for row in numbers]
        spread = f"±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
        cells.append(f"{math.fsum(values) / len(values):.1f}{spread}")
    return " / ".join(cells)


def trial_folder(out: Path, trial: Evaluation) -> Path:
    """Where a trial's files go: named after method, prompt, seed and config."""
    prompt = trial.config.prompt
    words = Path(prompt).stem if is_file_name(prompt) else prompt
    safe = "".join(letter if letter.isalnum() else "-" for letter in words)[:40]
    return out / f"{trial.config.method}.{safe}.seed{trial.seed}.{keys.of_config(trial.config)}"


def write_trial(out: Path, trial: Evaluation, split: str) -> None:
    """Prompts, predictions and reliability diagrams."""
    write_artifacts(trial_folder(out, trial), list(trial.datasets.values()), split, f"{trial.title}, {split}")


def write_results(
    out: Path, model: ModelInfo, split: str, trials: Sequence[Evaluation], arguments: Mapping[str, object]
) -> None:
    """results.json: everything in the tables, and what it takes to run it again."""
    document = {
        "version": VERSION,
        "model": {"name": model.name, "digest": model.digest, "embedding_scale": model.embedding_scale},
        "split": split,
        "arguments": dict(arguments),
        "libraries": {name: version(name) for name in LIBRARIES},
        "trials": [_as_data(out, trial) for trial in trials],
    }
    write_json(out / "results.json", document)


def _as_data(out: Path, trial: Evaluation) -> dict[str, object]:
    return {
        "key": keys.of_config(trial.config),
        "seed": trial.seed,
        "config": trial.config.flat(),
        "files": trial_folder(out, trial).name,
        "datasets": {
            name: {
                **_numbers(trial, [name]),
                "skipped": [asdict(sample) for sample in result.skipped],
                "prompt": origin_of(result.prompt) if result.prompt else {"prompt": trial.config.prompt},
                "seconds": {stage: round(value, 3) for stage, value in result.seconds.items()},
            }
            for name, result in trial.datasets.items()
        },
        "averages": {label: _numbers(trial, names) for label, names in trial.averages().items()},
    }


def _numbers(trial: Evaluation, names: Sequence[str]) -> dict[str, object]:
    return {
        "samples": trial.images(names),
        "metrics": trial.average(names),
        "intervals": {name: as_data(interval) for name, interval in trial.intervals(names).items()},
    }
