"""Size and loading time of a large sweep's page: `python -m benchmarks.page`.

The benchmark writes the records, block statistics and workers' logs of a made-up sweep of 500 trials on ten datasets,
and its page with the package's own writer. It opens the page in Chromium (by the package playwright) and measures the
time until its text is shown, until the front is drawn, and for drawing every plot.
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fpp_sweep.cli.command import parser, run
from fpp_sweep.core.metrics import Confidences
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.measurements import BLOCK_STATS_FILE
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.records.reliability import write_reliability
from fpp_sweep.report.writing import write_report
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import preset
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.block_stats import BlockStats, metric_value, to_bytes

BEGAN = 1_795_000_000.0
RANGES = {
    "adapt.lr": (1e-4, 0.1),
    "fpp.context_var": (1e-5, 1e-2),
    "fpp.class_var": (1e-4, 1e-1),
    "fpp.gamma2": (0.1, 20.0),
    "adapt.penalty_weight": (1.0, 80.0),
    "adapt.view_fraction": (0.05, 0.5),
}
METHODS = ("tpt", "ctpt", "otpt")


def main(argv: Sequence[str] | None = None) -> None:
    options = parser("benchmarks.page", __doc__ or "")
    for name, count in (("trials", 500), ("datasets", 10), ("images", 1000)):
        options.add_argument(f"--{name}", type=int, default=count)
    options.add_argument("--keep", type=Path, help="folder in which the sweep is kept")
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_large_sweep(args.keep or Path(scratch), args.trials, args.datasets, args.images)
        began, busy = time.perf_counter(), time.process_time()
        write_report(folder, pages=True)
        took = f"{time.perf_counter() - began:.1f} s, {time.process_time() - busy:.1f} CPU s"
        page = folder.report / "sweep.html"
        print(f"page: {page.stat().st_size / 1e6:.2f} MB, made in {took}")
        time_in_browser(page)


def write_large_sweep(root: Path, trials: int, datasets: int, images: int) -> SweepFolder:
    """Write a sweep over six numbers and a method; one trial in 20 failed, and one in 30 has a low accuracy."""
    folder, draw = SweepFolder(root / "large"), random.Random(0)
    names = [f"dataset{number}" for number in range(datasets)]
    objectives = (Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min"))
    params = {key: {"low": low, "high": high, "log": True} for key, (low, high) in RANGES.items()}
    folder.write_info(
        SweepInfo(
            name="large",
            created=BEGAN,
            state="finished",
            space={
                "question": "How large does a page become?",
                "params": {**params, "method": {"choices": list(METHODS)}},
                "search": {"trials": trials},
            },
            objectives=objectives,
            search_split="val",
            command="python -m benchmarks.page",
            model="tiny",
            reference=[50.0, 20.0],
            finished=BEGAN + 60 * trials,
        )
    )
    baselines: list[tuple[str, Mapping[str, object], float]] = [
        (f"baseline-{name}", {"method": name}, value)
        for name, value in (("zero_shot", 65.0), ("tpt", 68.0), ("ctpt", 67.5), ("otpt", 67.0))
    ]
    drawn = [(f"trial-{number:04d}", _draw_settings(draw), 0.0) for number in range(trials)]
    for number, (name, settings, known) in enumerate([*baselines, *drawn]):
        record = _record(draw, name, number, settings, names, known)
        if record.state == "complete":
            table = _block_stats(record.results["val"], images, number)
            record = _with_measured_accuracy(record, table)
            files = folder.artifacts(name) / "val"
            files.mkdir(parents=True)
            (files / BLOCK_STATS_FILE).write_bytes(to_bytes(table))
            write_reliability(files, table)
        folder.write_trial(record)
    return folder


def _draw_settings(draw: random.Random) -> dict[str, object]:
    numbers = {key: 10 ** draw.uniform(math.log10(low), math.log10(high)) for key, (low, high) in RANGES.items()}
    return {**numbers, "method": draw.choice(METHODS)}


def _record(
    draw: random.Random, name: str, number: int, settings: Mapping[str, object], datasets: Sequence[str], known: float
) -> TrialRecord:
    """Return a trial or, if its accuracy is `known`, a baseline, which also has a result on test."""
    accuracy = known or _accuracy(draw, number, settings)
    ece = 4 + abs(draw.gauss(0, 1.5)) + abs(accuracy - 65) / 4
    on_validation = _result(draw, accuracy, ece, datasets)
    on_test = _result(draw, accuracy - 0.7, ece, datasets)
    config = preset("tiny").replace(settings)
    record = TrialRecord(
        name=name,
        kind="trial",
        state="complete",
        number=number,
        params=settings,
        config=config.flat(),
        key=keys.config_key(config),
        started=BEGAN + 60 * number,
        finished=BEGAN + 60 * number + 200,
        results={"val": on_validation},
        values=[accuracy, ece],
    )
    if known:
        results = {"val": on_validation, "test": on_test}
        return replace(record, kind="baseline", number=None, params={}, results=results)
    if number % 20 == 13:
        reason = "FloatingPointError: ece is not finite"
        return replace(record, state="failed", reason=reason, results={}, values=None)
    return record


def _accuracy(draw: random.Random, number: int, settings: Mapping[str, object]) -> float:
    """Return the accuracy of a trial: a parabola of the learning rate with noise, or far below it."""
    if number % 30 == 29:
        return 8.0
    lr = float(str(settings["adapt.lr"]))
    return 69 - 1.5 * (math.log10(lr) + 2.3) ** 2 + draw.gauss(0, 0.6)


def _result(draw: random.Random, accuracy: float, ece: float, datasets: Sequence[str]) -> SplitResult:
    shown = {"accuracy": accuracy, "ece": ece, "nll": 1.1 + ece / 50, "brier": 0.4 + ece / 100, "aurc": 0.1}
    by_dataset = {}
    for name in datasets:
        by_dataset[name] = {metric: value * draw.gauss(1, 0.05) for metric, value in shown.items()}
    return SplitResult(average=shown, datasets=by_dataset, deviation={}, samples=10000, seconds={}, worker_seconds=200)


def _block_stats(result: SplitResult, images: int, seed: int) -> dict[DatasetSeed, BlockStats]:
    """Return block statistics of random predictions with about the accuracies of a result."""
    generator = np.random.default_rng(seed)
    ids = [f"image {index}" for index in range(images)]
    table = {}
    for dataset, metrics in result.datasets.items():
        confidence = generator.beta(4, 2, images).astype(np.float32)
        correct = generator.random(images) < metrics["accuracy"] / 100
        table[dataset, 0] = BlockStats.of(
            dataset, ids, Confidences(confidence, correct), *generator.random((2, images))
        )
    return table


def _with_measured_accuracy(record: TrialRecord, table: Mapping[DatasetSeed, BlockStats]) -> TrialRecord:
    """Put the accuracies of the block statistics into a record: a report ignores statistics that contradict it."""
    result = record.results["val"]
    datasets = {}
    for (dataset, _), stats in table.items():
        datasets[dataset] = {**result.datasets[dataset], "accuracy": metric_value("accuracy", stats)}
    accuracy = float(np.mean([metrics["accuracy"] for metrics in datasets.values()]))
    measured = replace(result, average={**result.average, "accuracy": accuracy}, datasets=datasets)
    assert record.values is not None
    return replace(record, results={**record.results, "val": measured}, values=[accuracy, record.values[1]])


def installed_browser() -> str | None:
    """Return the path of a browser of this machine; None means that of playwright."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


def time_in_browser(page: Path) -> None:
    """Print the seconds that a reader waits."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        window = driver.chromium.launch(executable_path=installed_browser(), args=["--no-sandbox"]).new_page()
        began = time.perf_counter()
        window.goto(page.as_uri())
        print(f"text and tables: {time.perf_counter() - began:.2f} s")
        window.locator("#front-0").scroll_into_view_if_needed()
        window.locator("#front-0 svg.main-svg").first.wait_for()
        print(f"front drawn: {time.perf_counter() - began:.2f} s")
        began = time.perf_counter()
        window.evaluate("Object.keys(plots).forEach(name => { drawn.add(name); draw(name); })")
        plots = window.locator(".plot.js-plotly-plot").count()
        seconds = time.perf_counter() - began
        print(f"all {plots} plots at once: {seconds:.2f} s; elements {window.evaluate('document.all.length')}")


if __name__ == "__main__":
    run(main)
