"""Real sweeps that race against real sweeps that do not, for the same device time: `python -m benchmarks.real_races`.

The embedded model, one worker, one trial at a time; two sweeps for each seed, whose order changes from pair to pair.
Image features are made beforehand. Fronts are measured on the images they were chosen by, and on the test split.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.coverage import GOALS, OBJECTIVES
from benchmarks.resume import start
from fpp_sweep.cli.command import parser, run
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.pareto import front, hypervolume
from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.errors import InputError

SPACE = Path(__file__).parent / "cloud.yaml"
SPLITS = ("val", "test")
BEYOND = 2.0  # points


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.real_races", __doc__ or "")
    options.add_argument("--pairs", type=int, default=3, metavar="N")
    options.add_argument("--seconds", type=float, default=120, help="of the worker, for the search of each sweep")
    options.add_argument("--images", type=int, default=512, metavar="N", help="of a dataset, in either split")
    options.add_argument("--steps", type=int, default=20, metavar="N", help="of pretraining")
    options.add_argument("--sampler", default="tpe")
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "space.yaml").write_text(SPACE.read_text())
        common = [f"search.sampler={args.sampler}", f"work.limit={args.images}", "work.reuse_results=false"]
        common += [f"base={{views.count: 16, fpp.steps: {args.steps}}}"]
        swept(root, "features", [*common, "search.trials=1"])
        found: dict[str, list[Found]] = {"true": [], "false": []}
        for seed in range(1, args.pairs + 1):
            paid = f"search.gpu_hours={args.seconds / 3600:.6g}"
            for race in sorted(found, reverse=seed % 2 == 0):
                own = [f"search.seed={seed}", f"search.race={race}", "search.trials=null", paid]
                found[race].append(Found.of(swept(root, f"race-{race}-{seed}", [*common, *own])))
                print(f"seed {seed}, race {race}: {found[race][-1]}", flush=True)
        told(found)


def swept(root: Path, name: str, settings: Sequence[str]) -> SweepFolder:
    if start(root, name, resume=False, settings=settings).wait():
        raise InputError((root / f"{name}.log").read_text()[-2000:])
    return SweepFolder.open(root / "sweeps" / name)


@dataclass(frozen=True, slots=True)
class Found:
    """What a sweep has come to."""

    finished: int
    stopped: int
    seconds: float  # of the worker
    points: dict[str, list[list[float]]]  # of the front, by split

    @classmethod
    def of(cls, folder: SweepFolder) -> Found:
        trials = [record for record in folder.trials() if record.kind == "trial"]
        finished = [record for record in trials if record.state == "complete"]
        values = [measured(record, "val") for record in finished]
        members = [finished[index] for index in front(values, GOALS)]
        searched = [record.results["val"].device_seconds for record in finished]
        return cls(
            len(finished),
            len(trials) - len(finished),
            sum(searched) + sum(record.held for record in trials),
            {split: [measured(record, split) for record in members] for split in SPLITS},
        )

    def __str__(self) -> str:
        told = f"{self.finished} finished, {self.stopped} stopped, {self.seconds:.0f} s of the worker"
        return f"{told}, {len(self.points['val'])} on the front"


def measured(record: TrialRecord, split: str) -> list[float]:
    return [record.results[split].average[metric] for metric in OBJECTIVES]


def told(found: dict[str, list[Found]]) -> None:
    """Hypervolumes from a corner that is a little worse than all fronts together."""
    for split in SPLITS:
        every = np.array([point for each in found.values() for one in each for point in one.points[split]])
        corner = [every[:, 0].min() - BEYOND, every[:, 1].max() + BEYOND]
        raced, alone = (
            np.array([hypervolume(one.points[split], GOALS, corner) for one in found[race]]) for race in found
        )
        more = 100 * (raced / alone - 1)
        pairs = ", ".join(f"{one:.2f} against {other:.2f}" for one, other in zip(raced, alone, strict=True))
        gain = f"{more.mean():+.1f} ± {more.std(ddof=1) / np.sqrt(len(more)):.1f} %"
        print(f"hypervolume on {split}: {pairs}; with a race {gain}")


if __name__ == "__main__":
    run(main)
