"""Recommendations of real sweeps, with fresh pretraining seeds: `python -m benchmarks.recommended --out FILE`.

A sweep of the embedded model is run by the command that a user types, with a sampler's seed of its number. Its
recommended config then runs on the test split with fresh seeds, and zero-shot beside it. All runs share a cache. The
table shows the mean difference to zero-shot in each objective, and whether it is a loss beyond the margin of a
recommendation. `--out` keeps a line for each sweep; a second run goes on where the first ended.
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
from fpp_sweep.statistics.verdicts import margin_of
from tests.kit.processes import run_command

FIRST_FRESH_SEED = 1000
ZERO_SHOT = "baseline-zero_shot"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    rows = {row["seed"]: row for row in read_lines(args.out)}
    with tempfile.TemporaryDirectory(prefix="recommended-") as folder:
        for seed in range(args.sweeps):
            if seed not in rows:
                rows[seed] = measured(args, Path(folder), seed)
                append_line(args.out, {"seed": seed, **rows[seed]})
    print_table([rows[seed] for seed in range(args.sweeps)])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser("benchmarks.recommended", __doc__ or "")
    add = options.add_argument
    add("--sweeps", type=int, default=10, metavar="N")
    add("--fresh", type=int, default=5, metavar="N", help="seeds that the recommended config runs with")
    add("--space", default="perturb", metavar="YAML")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the sweeps and of the fresh runs' work")
    add("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    return options.parse_args(argv)


def measured(args: argparse.Namespace, folder: Path, seed: int) -> dict[str, Any]:
    """Run a sweep and its recommended config with fresh seeds, and return what came out."""
    name = f"sweep-{seed}"
    settings = [f"search.seed={seed}", *args.set]
    run_command(folder, "tune", "--space", args.space, "--name", name, "--set", *settings)
    sweep = SweepFolder.open(folder / "sweeps" / name)
    info, records = sweep.info(), sweep.trials()
    answer = statistics_of(sweep, info, records).answer
    (zero_shot,) = (record for record in records if record.name == ZERO_SHOT)
    split = answer.split
    row: dict[str, Any] = {"recommended": answer.recommended, "kind": answer.recommended_kind, "reason": answer.reason}
    if answer.recommended is None or answer.recommended_kind == "baseline":
        return row
    config = sweep.path / "report" / "best" / "recommended.yaml"
    seeds = [str(FIRST_FRESH_SEED + number) for number in range(args.fresh)]
    work = [setting for setting in args.set if setting.startswith("work.")]
    words = ["--config", str(config), "--prompt", "fpp", "--name", f"fresh-{seed}", "--seed", *seeds]
    if work:
        words += ["--set", *work]
    run_command(folder, "evaluate", *words)
    (fresh,) = SweepFolder.open(folder / "sweeps" / f"fresh-{seed}").trials()
    for objective in info.objectives:
        metric = objective.metric
        plain = zero_shot.results[split].average[metric]
        by_seed = []
        for datasets in fresh.results[split].by_seed.values():
            by_seed.append(mean_over_datasets(datasets, metric) - plain)
        mean = fresh.results[split].average[metric] - plain
        loss = -mean if objective.goal == "max" else mean
        margin = margin_of(metric, info.space.get("search", {}).get("margin", {}))
        row[metric] = {"zero_shot": plain, "difference": mean, "by_seed": by_seed, "worse": loss > margin}
    return row


def mean_over_datasets(datasets: Mapping[str, Mapping[str, float]], metric: str) -> float:
    values = [by_metric[metric] for by_metric in datasets.values()]
    return sum(values) / len(values)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each sweep, and in how many the recommendation is not worse than zero-shot."""
    print("| sweep | recommended | difference to zero-shot with fresh seeds | worse |\n|---|---|---|---|")
    trials = 0
    worse = 0
    for number, row in enumerate(rows):
        measures = {name: value for name, value in row.items() if isinstance(value, dict)}
        texts = [f"{metric} {value['difference']:+.1f}" for metric, value in measures.items()]
        is_worse = any(value["worse"] for value in measures.values())
        trials += row["kind"] == "trial"
        worse += is_worse
        print(f"| {number} | {row['recommended']} | {', '.join(texts)} | {'yes' if is_worse else 'no'} |")
    print(
        f"\n{trials} of {len(rows)} sweeps recommend a trial; {worse} of these are worse than zero-shot by the margin"
    )


if __name__ == "__main__":
    run(main)
