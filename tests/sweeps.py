"""Sweep folders as a driver would leave them, without running anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig
from tests.names import PLAIN, TPT

CREATED = 1_795_201_952.0  # 2026-11-20, so that numbers made from it can be recognised
DATASETS = ("tiny_shapes", "tiny_digits", "tiny_textures")
BASELINES = (PLAIN, TPT, "fpp_code")
OBJECTIVES = (
    Objective(metric="accuracy", goal="max", reference=0.0),
    Objective(metric="ece", goal="min", reference=100.0),
)


def build_sweep(
    path: Path,
    *,
    trials: int = 6,
    failed: Sequence[int] = (3,),
    running: Sequence[int] = (),
    baselines: Sequence[str] = BASELINES,
    datasets: Sequence[str] = DATASETS,
    state: str = "finished",
    report: bool = True,
) -> SweepFolder:
    """A sweep over two parameters for accuracy and ECE; the last complete trial is on the front and has a test result.

    Trial `n` starts n minutes after the sweep and takes 50 seconds.
    """
    folder = SweepFolder(path)
    folder.write_info(sweep_info(path.name, state=state))
    for position, name in enumerate(baselines):
        folder.write_trial(baseline(name, position, datasets))
    for number in range(trials):
        folder.write_trial(trial(number, datasets, failed=number in failed, running=number in running))
    complete = [number for number in range(trials) if number not in failed and number not in running]
    for number in complete:
        write_artifacts(folder, f"trial-{number:04d}", datasets)
    if report and complete:
        best = trial(complete[-1], datasets)
        folder.write_trial(replace(best, results={**best.results, "test": split_result(complete[-1] - 1, datasets)}))
        write_report(folder, complete)
    return folder


def sweep_info(name: str, *, state: str = "finished") -> SweepInfo:
    return SweepInfo(
        name=name,
        created=CREATED,
        state=state,  # type: ignore[arg-type]
        space={
            "question": "How much noise?",
            "params": {
                "fpp.gamma2": {"low": 0.1, "high": 15.0, "log": True},
                "fpp.class_var": {"low": 0.001, "high": 0.02},
            },
            "search": {"sampler": "tpe", "trials": 6},
            "work": {"seeds": [0, 1]},
        },
        objectives=OBJECTIVES,
        search_split="val",
        git_commit="9defbb8" * 5,
        model="tiny",
        versions={"torch": "2.15.0"},
        reference=(0.0, 100.0),
        finished=None if state == "running" else CREATED + 3600,
    )


def trial(
    number: int, datasets: Sequence[str] = DATASETS, *, failed: bool = False, running: bool = False
) -> TrialRecord:
    params = {"fpp.gamma2": 0.1 * 1.7**number, "fpp.class_var": 0.001 * (number + 1)}
    config = TrialConfig().replace(params)
    started = CREATED + 60 * number
    record = TrialRecord(
        name=f"trial-{number:04d}",
        kind="trial",
        state="running",
        number=number,
        origin="code" if number == 0 else "sampled",
        params=params,
        config=config.flat(),
        key=keys.of_config(config),
        started=started,
    )
    if running:
        return record
    if failed:
        details = "Traceback (most recent call last):\nFloatingPointError: non-finite objectives ['ece']\n"
        return replace(
            record,
            state="failed",
            finished=started + 5,
            reason="FloatingPointError: non-finite objectives ['ece']",
            details=details,
        )
    result = split_result(number, datasets)
    return replace(
        record,
        state="complete",
        finished=started + 50,
        results={"val": result},
        values=(result.average["accuracy"], result.average["ece"]),
        constraints={"accuracy": -0.3},
    )


def baseline(name: str, position: int, datasets: Sequence[str] = DATASETS) -> TrialRecord:
    result = split_result(position, datasets)
    config = TrialConfig(method=PLAIN if name == PLAIN else TPT)
    return TrialRecord(
        name=f"baseline-{name}",
        kind="baseline",
        state="complete",
        origin="baseline",
        config=config.flat(),
        key=keys.of_config(config),
        started=CREATED + position,
        finished=CREATED + position + 30,
        results={"val": result, "test": result},
        values=(result.average["accuracy"], result.average["ece"]),
    )


def split_result(number: int, datasets: Sequence[str] = DATASETS) -> SplitResult:
    """Numbers that differ between trials and datasets."""
    each = {
        dataset: {
            "accuracy": 50.0 + 3 * position + number,
            "ece": 12.0 - 0.5 * position - 0.7 * number,
            "sce": 2.0 + 0.1 * position + 0.01 * number,
            "brier": 0.4 + 0.01 * position,
        }
        for position, dataset in enumerate(datasets)
    }
    average = {
        metric: sum(values[metric] for values in each.values()) / len(each) for metric in next(iter(each.values()))
    }
    return SplitResult(
        average=average,
        datasets=each,
        deviation={"accuracy": 0.4, "ece": 0.2},
        samples=200 * len(datasets),
        seconds={"pretrain": 20.0, "evaluate": 25.0},
        device_seconds=45.0,
    )


def write_artifacts(folder: SweepFolder, name: str, datasets: Sequence[str]) -> None:
    for dataset in datasets:
        _write(folder.artifacts(name) / "prompts" / f"{dataset}-0.safetensors", f"prompt of {name} for {dataset}")


def write_report(folder: SweepFolder, numbers: Sequence[int]) -> None:
    """The last trial is the best at both objectives, and so alone on the front."""
    best = trial(numbers[-1])
    document = {
        "members": [{"name": best.name, "values": list(best.values or ())}],
        "hypervolume": [[trial(number).finished, 1000.0 + 10 * count] for count, number in enumerate(numbers, start=1)],
    }
    _write(folder.report / "front.json", json.dumps(document))
    _write(folder.report / "front.csv", f"name,accuracy,ece\n{best.name},60,8\n")
    page = (
        "<!doctype html><title>sweep</title><h1 id='front'></h1><script>front.textContent='Front of the sweep'</script>"
    )
    _write(folder.report / "sweep.html", page)
    _write(folder.report / "best" / f"{best.name}.yaml", f"method: {TPT}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
