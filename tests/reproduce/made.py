"""The sweep of an experiment as it would be left behind, with numbers of the test's choosing."""

from statistics import fmean

import numpy as np
import pyarrow
from pyarrow import parquet

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.reproduce.printed import PAPERS_MODEL, PAPERS_TAG
from fpp_sweep.reproduce.tables import table_of
from fpp_sweep.spec import keys
from fpp_sweep.statistics.block_stats import metric_value, to_bytes

CREATED = 1_795_201_952.0


def result(datasets, numbers, costs=None):
    """`numbers(dataset, seed)` are a dataset's metrics; of two seeds."""
    by_seed = {str(seed): {name: numbers(name, seed) for name in datasets} for seed in (0, 1)}
    metrics = list(numbers(datasets[0], 0))
    mean = {name: {m: fmean(one[name][m] for one in by_seed.values()) for m in metrics} for name in datasets}
    return SplitResult(
        average={m: fmean(mean[name][m] for name in datasets) for m in metrics},
        datasets=mean,
        deviation={},
        samples=10,
        seconds={},
        device_seconds=1.0,
        by_seed=by_seed,
        costs=costs or {},
    )


def result_of_stats(stats, **others):
    """The result that block statistics by dataset and seed give, with other metrics that are the same for all."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in stats))

    def numbers(dataset, seed):
        values = {metric: metric_value(metric, stats[dataset, seed]) for metric in ("accuracy", "ece")}
        return {**values, **others}

    return result(datasets, numbers)


def ran(path, experiment, datasets, results, *, model=f"{PAPERS_MODEL}/{PAPERS_TAG}", stats=None):
    """The experiment's table; `results` by row, a reason where a row failed; `stats` are block statistics by row."""
    words = [f"work.datasets=[{', '.join(datasets)}]", f"work.model={model}", "work.seeds=[0, 1]"]
    space = experiment.space(overrides=words, files={})
    folder = SweepFolder(path)
    folder.write_info(
        SweepInfo(
            name=experiment.name,
            created=CREATED,
            state="finished",
            space=space.plain(),
            objectives=space.objectives,
            search_split="test",
            model=model,
            datasets=dict.fromkeys(datasets, "digest"),
        )
    )
    for number, (name, found) in enumerate(results.items()):
        row = next(row for row in experiment.rows if row.name == name)
        config = space.resolve(experiment.settings(row, experiment.columns[0], {}))
        good = isinstance(found, SplitResult)
        record = TrialRecord(
            name=f"trial-{number:04d}",
            kind="trial",
            number=number,
            state="complete" if good else "failed",
            config=config.flat(),
            key=keys.of_config(config),
            results={"test": found} if good else {},
            reason=None if good else found,
        )
        folder.write_trial(record)
        if stats and name in stats:
            file = folder.artifacts(record.name) / "test" / BLOCK_STATS_FILE
            file.parent.mkdir(parents=True)
            file.write_bytes(to_bytes(stats[name]))
    return table_of(experiment, folder, {})


def write_samples(folder, trial, dataset, seed, **columns):
    """A trial's predictions as a file, of what figures read: all of the class 0, a sample `correct` or not."""
    correct = columns.pop("correct")
    size = len(correct)
    table = pyarrow.table({
        "id": [f"{dataset}/{index}" for index in range(size)],
        "label": np.zeros(size, np.int64),
        "predicted": 1 - np.array(correct, np.int64),
        "confidence": np.array(columns.pop("confidence"), np.float32),
        "nll": np.zeros(size),
        "brier": np.zeros(size),
        **{name: np.array(values, np.float32) for name, values in columns.items()},
    })  # fmt: skip
    path = folder.artifacts(trial) / "test" / f"{dataset}.seed{seed}.predictions.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
