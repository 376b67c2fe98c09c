"""What a confirmation buys: `python -m benchmarks.confirm [SWEEP ...]`.

SWEEPs are folders of finished sweeps; their images are the population, whose values are the truth (see
`benchmarks.racing`). Each time a search's images are drawn from it, the front and its rivals are found, and then run on
fresh draws, round by round, as `search.confirm` would; the product decides. Without a folder the trials are made up.
The trial that looks best at an objective is chosen: by the search alone, and by all images of the confirmation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.coverage import GOALS, OBJECTIVES, Pool, with_mixtures
from benchmarks.racing import pools, values
from fpp_sweep.cli.command import parser, run
from fpp_sweep.search.confirming import ENOUGH, ROUNDS, SHARE, Standing
from fpp_sweep.spec.catalogue import sign
from fpp_sweep.statistics.block_stats import Table, block_size, united
from fpp_sweep.statistics.bootstrap import UNLIKELY, averaged, resampled, signed, stacked

BASELINES = 3  # that run as well
SIGNS = np.array([sign(goal) for goal in GOALS])


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.confirm", __doc__ or "")
    options.add_argument("sweeps", type=Path, nargs="*")
    options.add_argument("--images", type=int, nargs="+", default=[200, 500, 1000], help="of a dataset, in a search")
    options.add_argument("--searches", type=int, default=20)
    options.add_argument("--trials", type=int, default=48, help="that are made up")
    options.add_argument("--mixed", type=int, default=24, help="mixtures of two trials")
    options.add_argument("--top", type=int, default=8)
    options.add_argument("--share", type=float, default=SHARE, help="of the search's work that is spent at most")
    args = options.parse_args(argv)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name, pool, _ in pools(args.sweeps, args.trials):
        pool = with_mixtures(pool, args.mixed)
        truth = values(pool)
        for images in args.images:
            found = [confirmed(pool, truth, images, args.top, args.share, seed) for seed in range(args.searches)]
            for place, metric in enumerate(OBJECTIVES):
                print(f"| {name} | {images} | {metric} | {row(found, place)} |")


COLUMNS = (
    "trials",
    "images",
    "objective",
    "evaluations more",
    "rounds",
    "true regret, searched",
    "confirmed",
    "expected regret, searched",
    "confirmed",
    "value less truth, searched",
    "on fresh images alone",
    "on all",
)


def row(found: Sequence[dict[str, np.ndarray]], place: int) -> str:
    mean = {name: np.mean([one[name] for one in found], axis=0) for name in found[0]}
    numbers = (mean[name][place] for name in ("regret", "regret_after", "expected", "expected_after"))
    biases = (mean[name][place] for name in ("curse", "curse_fresh", "curse_all"))
    cells = [f"{mean['cost']:.1f}", f"{mean['rounds']:.1f}", *(f"{one:.2f}" for one in numbers)]
    return " | ".join([*cells, *(f"{one:+.2f}" for one in biases)])


def confirmed(pool: Pool, truth: np.ndarray, images: int, top: int, share: float, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng([seed, images])
    searched = drawn(pool, range(len(truth)), images, generator)
    standing, points = standing_of(searched, "val")
    first = [int(name) for name in standing.best]
    budget = share * (len(truth) + BASELINES)
    names = standing.candidates(top)
    while len(names) > 2 and len(names) + BASELINES > budget:
        names.pop()
    before = Standing(names, standing.better[:, [standing.names.index(name) for name in names]])
    fresh: list[Tables] = []
    cost, now = 0.0, before
    while len(fresh) < ROUNDS and cost + len(names) + BASELINES <= budget:
        cost += len(names) + BASELINES
        fresh.append(drawn(pool, map(int, now.names), images, generator))
        joined = {name: table for name, table in searched.items() if name in now.names}
        for one in fresh:
            joined = {name: united(joined[name], one[name]) for name in now.names}
        now, points = standing_of(joined, "val")
        if max(now.regret) < ENOUGH:
            break
        support = now.support
        names = [name for name in now.names if support[name] >= UNLIKELY]
        now = Standing(names, now.better[:, [now.names.index(name) for name in names]])
    chosen = [int(name) for name in now.best]
    alone = {name: table for name, table in fresh[0].items() if name in now.names} if fresh else searched
    for one in fresh[1:]:
        alone = {name: united(table, one[name]) for name, table in alone.items()}
    _, fresh_points = standing_of(alone, "fresh")
    better, curses = truth * SIGNS, []
    for found, names_of in ((standing_of(searched, "val")[1], first), (fresh_points, chosen), (points, chosen)):
        gaps = [found[str(name)][place] - truth[name, place] for place, name in enumerate(names_of)]
        curses.append(np.array(gaps))
    return {
        "cost": np.array(cost),
        "rounds": np.array(len(fresh)),
        "regret": np.array([better[:, place].max() - better[name, place] for place, name in enumerate(first)]),
        "regret_after": np.array([better[:, place].max() - better[name, place] for place, name in enumerate(chosen)]),
        "expected": np.array(before.regret),
        "expected_after": np.array(now.regret),
        "curse": curses[0],
        "curse_fresh": curses[1],
        "curse_all": curses[2],
    }


Tables = dict[str, Table]  # by trial


def drawn(pool: Pool, trials: Iterable[int], images: int, generator: np.random.Generator) -> Tables:
    """The same images for all of these trials, with replacement."""
    taken = {name: generator.integers(0, len(rows[0]), images) for name, rows in pool.items()}
    return {
        str(trial): {(name, 0): rows[trial].take(taken[name]).by(block_size(images)) for name, rows in pool.items()}
        for trial in trials
    }


def standing_of(tables: Tables, split: str) -> tuple[Standing, dict[str, np.ndarray]]:
    """And the values of each, by objective."""
    datasets = []
    for dataset in next(iter(tables.values())):
        parts = [table[dataset] for table in tables.values()]
        rows = [resampled(dataset[0], split, [one], OBJECTIVES) for one in parts]
        datasets.append(stacked(rows, parts[0].total))
    found = averaged(datasets)
    points = {
        name: np.array([found[metric].values[place] for metric in OBJECTIVES]) for place, name in enumerate(tables)
    }
    return Standing([*tables], signed(found, OBJECTIVES, GOALS)), points


if __name__ == "__main__":
    run(main)
