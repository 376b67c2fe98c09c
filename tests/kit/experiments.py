"""Sweep folders of experiments, written without running anything, with numbers that the test chooses."""

from statistics import fmean

import numpy as np
import pyarrow
from pyarrow import parquet

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult
from fpp_sweep.reproduce.experiments import PAPERS_MODEL, PAPERS_TAG
from fpp_sweep.reproduce.tables import table_of
from fpp_sweep.spec import keys
from fpp_sweep.statistics.block_stats import metric_value
from tests.kit.measured import write_block_stats
from tests.kit.records import failed, sweep_info, trial


def two_seed_result(datasets, numbers, costs=None):
    """Return the result of two seeds; `numbers(dataset, seed)` returns a dataset's metrics."""
    by_seed = {}
    for seed in (0, 1):
        by_seed[str(seed)] = {dataset: numbers(dataset, seed) for dataset in datasets}
    means = {}  # over seeds, by dataset
    for dataset in datasets:
        means[dataset] = _means([values_of_seed[dataset] for values_of_seed in by_seed.values()])
    return SplitResult(
        average=_means(list(means.values())),
        datasets=means,
        deviation={},
        samples=10,
        seconds={},
        worker_seconds=1.0,
        by_seed=by_seed,
        costs=costs or {},
    )


def _means(rows):
    """Return the mean of each metric over rows that all have the same metrics."""
    return {metric: fmean(row[metric] for row in rows) for metric in rows[0]}


def result_from_stats(stats, **others):
    """Return the result that follows from block statistics by dataset and seed; all share the `others` metrics."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in stats))

    def numbers(dataset, seed):
        values = {metric: metric_value(metric, stats[dataset, seed]) for metric in ("accuracy", "ece")}
        return {**values, **others}

    return two_seed_result(datasets, numbers)


def write_experiment(
    path, experiment, datasets, results, *, model=f"{PAPERS_MODEL}/{PAPERS_TAG}", stats=None, limit=None
):
    """Write an experiment's sweep and return its table.

    `results` has a result for each row, or for each row and precision, or the reason of a failure; `stats` has block
    statistics by row.
    """
    overrides = [f"work.datasets=[{', '.join(datasets)}]", f"work.model={model}", "work.seeds=[0, 1]"]
    if limit is not None:
        overrides.append(f"work.limit={limit}")
    space = experiment.space(overrides=overrides, checkpoints={})
    folder = SweepFolder(path)
    folder.write_info(
        sweep_info(
            space.objectives,
            name=experiment.name,
            space=space.plain(),
            search_split="test",
            model=model,
            digests={f"{name} test": "digest" for name in datasets},
        )
    )
    for number, (name, result) in enumerate(results.items()):
        key = name if isinstance(name, tuple) else (name, "")
        line = next(line for line in experiment.lines if line.key == key)
        config = space.resolve(experiment.settings(line.row, experiment.columns[0], {}, line.precision))
        fields = {"params": {}, "config": config.flat(), "key": keys.config_key(config), "values": None}
        if isinstance(result, SplitResult):
            record = trial(number, **fields, results={"test": result})
        else:
            record = failed(number, result, **fields)
        folder.write_trial(record)
        if stats and name in stats:
            write_block_stats(folder, record.name, "test", stats[name])
    return table_of(experiment, folder, {})


def write_predictions(folder, name, dataset, seed, **columns):
    """Write a trial's predictions with the columns that figures read; all samples have class 0."""
    correct = columns.pop("correct")
    size = len(correct)
    table = pyarrow.table({
        "id": [f"{dataset}/{index}" for index in range(size)],
        "label": np.zeros(size, np.int64),
        "predicted": 1 - np.array(correct, np.int64),
        "confidence": np.array(columns.pop("confidence"), np.float32),
        "nll": np.zeros(size),
        "brier": np.zeros(size),
        **{column: np.array(values, np.float32) for column, values in columns.items()},
    })  # fmt: skip
    path = folder.artifacts(name) / "test" / f"{dataset}.seed{seed}.predictions.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
