"""What `evaluate` prints and writes: tables, results.json, prompts, predictions and reliability diagrams."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fpp_sweep.config import TrialConfig
from fpp_sweep.core.metrics import Interval, Metrics, intervals
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import is_file_name, save_prompt
from fpp_sweep.files import written_whole
from fpp_sweep.trial.bench import TrialResult, mean_metrics
from fpp_sweep.trial.diagram import reliability_diagram
from fpp_sweep.trial.tables import write_predictions
from fpp_sweep.version import VERSION

# name in Metrics, heading, decimals as the papers print them
COLUMNS = (
    ("accuracy", "acc", 2),
    ("accuracy_top5", "top-5", 2),
    ("ece", "ECE", 2),
    ("sce", "SCE", 4),
    ("aece", "AECE", 2),
    ("mce", "MCE", 2),
    ("aurc", "AURC", 4),
    ("nll", "NLL", 4),
    ("brier", "Brier", 4),
)

EUROSAT = "eurosat"  # dominates the published averages, which are therefore given with and without it


def heading(clip: Clip, split: str, config: TrialConfig) -> str:
    """Model and split, and what x1 of the embedding-scale settings means on this model."""
    fpp = config.fpp.scaled(clip.embedding_scale)
    return (
        f"model {clip.name}, split {split}; embeddings are {clip.embedding_scale:.3g} times ViT-B/16's: noise std "
        f"{math.sqrt(fpp.context_var):.3g} on the context and {math.sqrt(fpp.class_var):.3g} elsewhere, "
        f"start std {fpp.start_std:.3g}, adaptation lr {config.adapt.scaled(clip.embedding_scale).lr:.3g}"
    )


def trial_title(result: TrialResult) -> str:
    config = result.config
    prompt = config.prompt if config.prompt == "fpp" or is_file_name(config.prompt) else f"'{config.prompt}'"
    return f"{config.method} from {prompt}"


def trial_table(result: TrialResult, *, with_intervals: bool) -> str:
    """One trial: a row for each dataset, and averages."""
    heads = ["dataset", "images", *(head for _, head, _ in COLUMNS), "seconds"]
    rows = [
        [
            name,
            str(found.metrics.samples),
            *_cells(found.metrics, intervals([found.predictions]) if with_intervals else {}),
            f"{sum(found.seconds.values()):.1f}",
        ]
        for name, found in result.datasets.items()
    ]
    for label, names in averaged(result).items():
        mean = result.average(names)
        rows.append([label, str(mean.samples), *_cells(mean, _spread(result, names) if with_intervals else {}), ""])
    skipped = [
        f"  skipped {name}: {len(found.skipped)} images, such as {found.skipped[0].reason}"
        for name, found in result.datasets.items()
        if found.skipped
    ]
    return "\n".join([f"\n{trial_title(result)}, seed {result.seed}", table(heads, rows), *skipped])


def averaged(result: TrialResult) -> dict[str, list[str]]:
    """The datasets of each average: all, and all without the one that dominates it."""
    names = list(result.datasets)
    found = {"average": names} if len(names) > 1 else {}
    if EUROSAT in names and len(names) > 2:
        found[f"average without {EUROSAT}"] = [name for name in names if name != EUROSAT]
    return found


def _spread(result: TrialResult, names: Sequence[str]) -> dict[str, Interval]:
    return intervals([result.datasets[name].predictions for name in names])


def comparison(results: Sequence[TrialResult]) -> str:
    """All trials beside each other, accuracy / ECE; over several seeds the mean and the standard deviation."""
    by_trial: dict[str, list[TrialResult]] = {}
    for result in results:
        by_trial.setdefault(result.config.key(), []).append(result)
    if len(by_trial) == 1 and len(results) == 1:
        return ""
    names = list(results[0].datasets)
    several = len(names) > 1
    rows = []
    for same in by_trial.values():
        cells = [_over_seeds([result.datasets[name].metrics for result in same]) for name in names]
        if several:
            cells.append(_over_seeds([result.average(names) for result in same]))
        rows.append([trial_title(same[0]), *cells])
    seeds = len(next(iter(by_trial.values())))
    spread = f", mean over {seeds} seeds with standard deviation" if seeds > 1 else ""
    heads = ["accuracy / ECE", *names, *(["average"] if several else [])]
    return f"\nall trials, accuracy / ECE in percent{spread}\n{table(heads, rows)}\n"


def _over_seeds(metrics: Sequence[Metrics]) -> str:
    mean = mean_metrics(metrics)
    if len(metrics) == 1:
        return f"{mean.accuracy:.1f} / {mean.ece:.1f}"
    spread = [statistics.stdev(getattr(each, name) for each in metrics) for name in ("accuracy", "ece")]
    return f"{mean.accuracy:.1f}±{spread[0]:.1f} / {mean.ece:.1f}±{spread[1]:.1f}"


def _cells(metrics: Metrics, spread: Mapping[str, Interval]) -> list[str]:
    cells = []
    for name, _, decimals in COLUMNS:
        cell = f"{getattr(metrics, name):.{decimals}f}"
        if name in spread:
            cell += f" [{spread[name].low:.1f}, {spread[name].high:.1f}]"
        cells.append(cell)
    return cells


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns lined up: the first to the left, the others to the right.

    >>> print(table(["dataset", "acc"], [["dtd", "44.50"]]))
    dataset    acc
    dtd      44.50
    """
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def trial_folder(out: Path, result: TrialResult) -> Path:
    """Where a trial's files go: named after method, prompt, seed and config."""
    prompt = result.config.prompt
    words = Path(prompt).stem if is_file_name(prompt) else prompt
    safe = "".join(letter if letter.isalnum() else "-" for letter in words)[:40]
    return out / f"{result.config.method}.{safe}.seed{result.seed}.{result.config.key()}"


def write_trial(out: Path, clip: Clip, result: TrialResult) -> None:
    """Prompt, predictions and reliability diagram of each dataset."""
    folder = trial_folder(out, result)
    details = {"config": result.config.flat(), "config_key": result.config.key(), "seed": result.seed}
    for name, found in result.datasets.items():
        save_prompt(found.prompt, clip, folder / f"{name}.prompt.safetensors", {**details, "dataset": name})
        write_predictions(found.predictions, found.classes, folder / f"{name}.predictions.parquet")
        title = f"{name}: {trial_title(result)}"
        reliability_diagram(found.predictions, folder / f"{name}.reliability.png", title=title)


def write_results(
    out: Path, clip: Clip, split: str, results: Sequence[TrialResult], arguments: Mapping[str, object]
) -> None:
    """results.json: everything in the tables, and what it takes to run it again."""
    document = {
        "version": VERSION,
        "model": {"name": clip.name, "digest": clip.digest, "embedding_scale": clip.embedding_scale},
        "split": split,
        "arguments": dict(arguments),
        "libraries": _libraries(),
        "trials": [_as_data(out, result) for result in results],
    }
    with written_whole(out / "results.json") as partial:
        partial.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")


def _as_data(out: Path, result: TrialResult) -> dict[str, object]:
    return {
        "key": result.config.key(),
        "seed": result.seed,
        "config": result.config.flat(),
        "files": trial_folder(out, result).name,
        "datasets": {
            name: {
                "metrics": asdict(found.metrics),
                "intervals": _as_plain(intervals([found.predictions])),
                "skipped": [asdict(each) for each in found.skipped],
                "prompt": dict(found.prompt.origin),
                "seconds": {stage: round(value, 3) for stage, value in found.seconds.items()},
            }
            for name, found in result.datasets.items()
        },
        "averages": {
            label: {**asdict(result.average(names)), "intervals": _as_plain(_spread(result, names))}
            for label, names in averaged(result).items()
        },
    }


def _as_plain(spread: Mapping[str, Interval]) -> dict[str, object]:
    return {name: asdict(interval) for name, interval in spread.items()}


def _libraries() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "torchvision", "open_clip_torch", "numpy", "pillow")}
