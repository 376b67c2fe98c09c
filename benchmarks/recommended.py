"""Recommendations of real sweeps, with fresh pretraining seeds: `python -m benchmarks.recommended --out FILE`.

The command that a user types runs sweeps of the embedded model, each with its number as seed of the sampler. The
recommended trial then runs on the test split with fresh seeds. If the sweep recommends no trial, the finalist with
the best trade-off runs instead, which shows if the sweep was right not to recommend it. The table has the mean
difference to zero-shot in each objective, and marks losses beyond the margin of a recommendation.

The default is twelve trials on three datasets with 400 images each, on one worker: small enough for ten sweeps an hour.
All runs share a cache. `--out` stores a line for each sweep; a second run continues where the first ended.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import append_line, read_lines
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.answer import statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.names import label_of
from fpp_sweep.statistics.verdicts import margin_of
from tests.kit.processes import run_command

FIRST_FRESH_SEED = 1000
ZERO_SHOT = "baseline-zero_shot"
SMALL = (
    "search.trials=12",
    "search.finalists.count=4",
    "work.datasets=[scenes,colours,textures]",
    "work.limit=400",
    "work.workers=1",
)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    rows = {row["seed"]: row for row in read_lines(args.out)}
    with tempfile.TemporaryDirectory(prefix="recommended-") as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(args.sweeps):
            if seed not in rows:
                rows[seed] = {"seed": seed, **run_and_check(args, folder, seed)}
                append_line(args.out, rows[seed])
    print_table([rows[seed] for seed in range(args.sweeps)])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.recommended", __doc__ or "")
    add = options.add_argument
    add("--sweeps", type=int, default=10, metavar="N")
    add("--fresh", type=int, default=5, metavar="N", help="number of fresh seeds of the recommended trial")
    add("--space", default="perturb", metavar="YAML")
    add(
        "--set",
        nargs="+",
        default=list(SMALL),
        metavar="KEY=VALUE",
        help="settings of the sweeps, instead of the default",
    )
    add("--folder", type=Path, metavar="DIR", help="keeps sweeps and cache; default: deleted at the end")
    add("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    return options.parse_args(argv)


def run_and_check(args: argparse.Namespace, folder: Path, seed: int) -> dict[str, Any]:
    """Run a sweep and one of its finalists with fresh seeds; return the results."""
    sweep = sweep_of(args, folder, seed)
    info, records = sweep.info(), sweep.trials()
    answer = statistics_of(sweep, info, records).answer
    chosen = answer.recommended
    if chosen is None:
        chosen = next(iter(answer.finalists), None)
    row: dict[str, Any] = {
        "recommended": answer.recommended,
        "best_baseline": answer.best_baseline,
        "reason": answer.reason,
        "fresh": chosen,
    }
    if answer.best_baseline is not None:
        row["baseline"] = differences(info, records, answer.split, record_of(records, answer.best_baseline))
    if chosen is not None:
        row["sweep"] = differences(info, records, answer.split, record_of(records, chosen))
        fresh = with_fresh_seeds(args, folder, sweep, chosen)
        row["differences"] = differences(info, records, answer.split, fresh)
    return row


def sweep_of(args: argparse.Namespace, folder: Path, seed: int) -> SweepFolder:
    """Run a sweep, or continue one of an earlier run of this benchmark."""
    name = f"sweep-{seed}"
    path = folder / "sweeps" / name
    words = ["--space", args.space, "--name", name, "--set", f"search.seed={seed}", *args.set]
    if (path / "sweep.json").exists():
        words.append("--resume")
    run_command(folder, "tune", *words)
    return SweepFolder.open(path)


def with_fresh_seeds(args: argparse.Namespace, folder: Path, sweep: SweepFolder, trial: str) -> TrialRecord:
    """Run a trial's config on the test split with seeds that no sweep has used."""
    config = sweep.path / "report" / "best" / f"{trial}.yaml"
    name = f"fresh-{sweep.path.name}"
    seeds = [str(FIRST_FRESH_SEED + number) for number in range(args.fresh)]
    work = [setting for setting in args.set if setting.startswith("work.") and "workers" not in setting]
    words = ["--config", str(config), "--prompt", "fpp", "--name", name, "--seed", *seeds]
    if work:
        words += ["--set", *work]
    if (folder / "sweeps" / name / "sweep.json").exists():
        words.append("--resume")
    run_command(folder, "evaluate", *words)
    (record,) = SweepFolder.open(folder / "sweeps" / name).trials()
    return record


def record_of(records: Sequence[TrialRecord], name: str) -> TrialRecord:
    (record,) = (record for record in records if record.name == name)
    return record


def differences(info: SweepInfo, records: Sequence[TrialRecord], split: str, record: TrialRecord) -> dict[str, Any]:
    """Return a record's differences to zero-shot, as a mean over seeds and by seed; and whether a mean is too bad."""
    plain = record_of(records, ZERO_SHOT).results[split]
    result = record.results[split]
    rows = {}
    for objective in info.objectives:
        metric = objective.metric
        reference = plain.average[metric]
        by_seed = []
        for datasets in result.by_seed.values():
            by_seed.append(mean_over_datasets(datasets, metric) - reference)
        mean = result.average[metric] - reference
        loss = -mean * catalogue.sign(objective.goal)
        margin = margin_of(metric, info.space.get("search", {}).get("margin", {}))
        rows[metric] = {"zero_shot": reference, "difference": mean, "by_seed": by_seed, "worse": loss > margin}
    return rows


def mean_over_datasets(datasets: Mapping[str, Mapping[str, float]], metric: str) -> float:
    values = [by_metric[metric] for by_metric in datasets.values()]
    return sum(values) / len(values)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each sweep; and how often the recommended trial, or the one that was not, is worse."""
    print("| sweep | recommended | ran with fresh seeds | difference to zero-shot: in the sweep | fresh | worse |")
    print("|---|---|---|---|---|---|")
    cases: dict[bool, list[bool]] = {True: [], False: []}  # by whether the sweep recommends the trial: is it worse
    for number, row in enumerate(rows):
        is_worse = any(value["worse"] for value in row.get("differences", {}).values())
        if row["fresh"] is not None:
            cases[row["recommended"] is not None].append(is_worse)
        name = row["recommended"] or "none"
        if row["best_baseline"] is not None:
            name = f"{label_of(row['best_baseline'])} ({text_of(row['baseline'])})"
        cells = [name, row["fresh"] or "none", text_of(row.get("sweep", {})), text_of(row.get("differences", {}))]
        print(f"| {number} | {' | '.join(cells)} | {'yes' if is_worse else 'no'} |")
    print(f"\nrecommended trials that are worse than zero-shot beyond the margin: {share_text(cases[True])}")
    print(f"best finalists that were not recommended, and are worse: {share_text(cases[False])}")


def share_text(cases: Sequence[bool]) -> str:
    return f"{sum(cases)} of {len(cases)}"


def text_of(rows: Mapping[str, Any]) -> str:
    return ", ".join(f"{metric} {value['difference']:+.1f}" for metric, value in rows.items())


if __name__ == "__main__":
    run(main)
