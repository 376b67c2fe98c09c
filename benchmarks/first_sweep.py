"""What the README's sweep can say, by images, trials and objective: `python -m benchmarks.first_sweep SWEEP`.

SWEEP is a folder of the same space on many images, searched on the split whose predictions are read:

    python -m fpp_sweep.tune --space search_spaces/perturb.yaml --set work.limit=1000 --name population

Those images are the population, whose values are the truth. Many sweeps are drawn from it: the front by the objectives
on some images, and the sentences about its members on as many others, as the product makes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.coverage import Pool, by_image
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.pareto import front
from fpp_sweep.spec.catalogue import Goal, metric, sign
from fpp_sweep.statistics.block_stats import block_size, metric_value
from fpp_sweep.statistics.old_bootstrap import BootstrapSamples, averaged, difference, drawn

METRICS = ("accuracy", "ece", "debiased_ece", "smooth_ece", "nll", "brier")
SECOND = ("ece", "smooth_ece", "nll")  # objectives beside accuracy


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.first_sweep", __doc__ or "")
    options.add_argument("sweep", type=Path)
    options.add_argument("--images", type=int, nargs="+", default=[200, 400, 1000])
    options.add_argument("--trials", type=int, nargs="+", default=[8, 16])
    options.add_argument("--splits", type=int, default=60)
    args = options.parse_args(argv)
    pool, baselines, trials = read(SweepFolder.open(args.sweep))
    truth = {
        name: np.mean([[metric_value(name, one) for one in each] for each in pool.values()], 0) for name in METRICS
    }
    print("| images | trials | beside accuracy | members | false | say something | better | in it | worse | wrong |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for images in args.images:
        found = [
            (split(pool, images, 2 * number, "val"), split(pool, images, 2 * number + 1, "test"))
            for number in range(args.splits)
        ]
        for count, second in product(args.trials, SECOND):
            chosen = list(range(baselines, baselines + min(count, trials)))
            print(line([said(*each, chosen, baselines, second, truth) for each in found], images, count, second))


def read(folder: SweepFolder) -> tuple[Pool, int, int]:
    """By dataset the predictions of all baselines and then of all trials, and how many there are of each."""
    done = [record for record in folder.trials() if record.state == "complete"]
    records = sorted(done, key=lambda record: (record.kind != "baseline", record.name))
    pool: Pool = {}
    for record in records:
        for file in sorted((folder.artifacts(record.name) / folder.info().search_split).glob("*.predictions.parquet")):
            name = file.name.partition(".")[0]
            pool.setdefault(name, []).append(by_image(name, file, False))
    baselines = sum(record.kind == "baseline" for record in records)
    return pool, baselines, len(records) - baselines


def split(pool: Pool, images: int, number: int, name: str) -> dict[str, BootstrapSamples]:
    generator = np.random.default_rng([images, number])
    of_dataset = []
    for dataset, rows in pool.items():
        taken = generator.integers(0, len(rows[0]), images)
        chosen = [[one.take(taken).with_block_size(block_size(images))] for one in rows]
        of_dataset.append(drawn(dataset, f"{name} {number}", chosen, METRICS))
    return averaged(of_dataset)


def said(
    val: dict[str, BootstrapSamples],
    test: dict[str, BootstrapSamples],
    trials: Sequence[int],
    baselines: int,
    second: str,
    truth: dict[str, np.ndarray],
) -> Counter[str]:
    """What a sweep says of its members beside the baselines, and how much of it is wrong."""
    names = ("accuracy", second)
    goals: list[Goal] = [metric(name).goal for name in names]  # type: ignore[misc]

    def members(values: dict[str, np.ndarray]) -> set[int]:
        return {trials[place] for place in front([[values[name][each] for name in names] for each in trials], goals)}

    chosen = members({name: val[name].values for name in names})
    counts = Counter(members=len(chosen), false=len(chosen - members(truth)))
    for member, baseline, (name, goal) in product(chosen, range(baselines), zip(names, goals, strict=True)):
        gap = difference(test, name, member, baseline)
        assert gap is not None
        if told := gap.sign * sign(goal):
            counts["better" if told > 0 else "worse"] += 1
            counts["better in it"] += told > 0 and name == second
            counts["wrong"] += gap.sign * (truth[name][member] - truth[name][baseline]) <= 0
    counts["says"] = counts["better"] + counts["worse"] > 0
    return counts


def line(found: Sequence[Counter[str]], images: int, count: int, second: str) -> str:
    mean = {name: np.mean([one[name] for one in found]) for name in ("members", "false", "better", "better in it")}
    worse, says = (np.mean([one[name] for one in found]) for name in ("worse", "says"))
    every = sum(one["better"] + one["worse"] for one in found)
    wrong = sum(one["wrong"] for one in found) / max(1, every)
    return (
        f"| {images} | {count} | {second} | {mean['members']:.1f} | {mean['false']:.1f} | {says:.0%} | "
        f"{mean['better']:.1f} | {mean['better in it']:.1f} | {worse:.1f} | {wrong:.1%} |"
    )


if __name__ == "__main__":
    run(main)
