"""Records and folders of sweeps, written without running anything."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord, trial_name
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.keys import ENGINE_NAME
from tests.kit.names import CTPT, OTPT, TPT, ZERO_SHOT

CREATED = 1_795_201_952.0  # seconds since 1970: 2026-11-20, the date in the default name of a sweep
ACCURACY = Objective(metric="accuracy", goal="max")
ECE = Objective(metric="ece", goal="min")
NLL = Objective(metric="nll", goal="min")
SECONDS = Objective(metric="seconds", goal="min")
REFERENCES = {"accuracy": 60.0, "ece": 20.0, "nll": 2.0}  # corner of the hypervolume
DATASETS = ("shapes", "textures", "digits")
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp; $x^2$"
BASELINES = {
    ZERO_SHOT: (66.8, 3.4), TPT: (69.0, 9.8), CTPT: (68.6, 6.1), OTPT: (68.1, 4.9),
    "fpp_paper": (70.0, 5.5), "fpp_code": (69.6, 6.0),
}  # fmt: skip
RANGES = {"fpp.gamma2": {"low": 0.1, "high": 15.0, "log": True}, "fpp.class_var": {"low": 0.001, "high": 0.02}}
SEARCHED_RANGES = {"fpp.context_var": {"low": 1e-5, "high": 1e-2, "log": True}}


# ------------------------------------------------------------ records


def split_result(accuracy=70.0, ece=5.0, *, datasets=DATASETS, seeds=2):
    """Return a result with these averages; a dataset's difference from the average depends on its position."""
    by_dataset = {}
    for position, dataset in enumerate(datasets):
        offset = position - (len(datasets) - 1) / 2
        by_dataset[dataset] = {
            "accuracy": accuracy + offset,
            "ece": ece + 0.2 * offset,
            "nll": 0.5 + ece / 50,
            "sce": ece / 4 + 0.01 * offset,
            "brier": 0.4 + 0.01 * offset,
        }
    return SplitResult(
        average={"accuracy": accuracy, "ece": ece, "nll": 0.5 + ece / 50, "sce": ece / 4, "brier": 0.4},
        datasets=by_dataset,
        deviation={"accuracy": 0.31, "ece": 0.12, "nll": 0.004} if seeds > 1 else {},
        samples=200 * len(datasets),
        seconds={"pretrain": 20.0, "evaluate": 25.0},
        worker_seconds=45.0,
        costs={dataset: {"pretrain": 5.0, "adapt": 10.0} for dataset in datasets},
    )


def numbered_values(number):
    """Return the default accuracy and ECE of a trial; both improve with its number."""
    return 53.0 + number, 11.5 - 0.7 * number


def trial(
    number,
    accuracy=None,
    ece=None,
    *,
    objectives=(ACCURACY, ECE),
    params=None,
    datasets=DATASETS,
    test=False,
    **changes,
):
    """Return the record of a complete trial, which starts `number` minutes after the sweep and takes 50 seconds.

    The test accuracy is 0.7 points lower; `changes` replace fields of the record.
    """
    default_accuracy, default_ece = numbered_values(number)
    accuracy = default_accuracy if accuracy is None else accuracy
    ece = default_ece if ece is None else ece
    results = {"val": split_result(accuracy, ece, datasets=datasets)}
    if test:
        results["test"] = split_result(accuracy - 0.7, ece, datasets=datasets)
    if params is None:
        params = {"fpp.gamma2": 0.1 * 1.7**number, "fpp.class_var": 0.001 * (number + 1)}
    settings = TrialConfig().flat()
    config = TrialConfig().replace({key: value for key, value in params.items() if key in settings})
    fields = {
        "name": trial_name(number),
        "kind": "trial",
        "state": "complete",
        "number": number,
        "origin": "code" if number == 0 else "sampled",
        "params": params,
        "config": {**config.flat(), **params},
        "key": keys.config_key(config),
        "started": CREATED + 60 * number,
        "finished": CREATED + 60 * number + 50,
        "results": results,
        "values": [results["val"].average[objective.metric] for objective in objectives],
    }
    return TrialRecord(**{**fields, **changes})


def below_floor(number, accuracy, ece, **changes):
    """Return the record of a complete trial that is below the floor of accuracy."""
    return trial(number, accuracy, ece, constraints={"floor": 10.0}, **changes)


def failed(number, reason="FloatingPointError: non-finite objectives ['ece']", **changes):
    """Return the record of a trial that failed after 5 seconds."""
    return trial(
        number,
        **{
            "state": "failed",
            "finished": CREATED + 60 * number + 5,
            "reason": reason,
            "details": f"Traceback (most recent call last):\n{reason}\n",
            "values": None,
            "results": {},
            **changes,
        },
    )


def running(number, **changes):
    """Return the record of a trial that is running."""
    return trial(number, **{"state": "running", "finished": None, "values": None, "results": {}, **changes})


def baseline(name, accuracy, ece, *, objectives=(ACCURACY, ECE), datasets=DATASETS):
    """Return the record of a baseline with a test result."""
    record = trial(0, accuracy, ece, objectives=objectives, params={}, datasets=datasets, test=True)
    prompt = "fpp" if name.startswith("fpp_") else "a photo of a"
    config = TrialConfig(method=ZERO_SHOT if name == ZERO_SHOT else TPT, prompt=prompt)
    return replace(
        record,
        name=f"baseline-{name}",
        kind="baseline",
        number=None,
        origin="baseline",
        config=config.flat(),
        key=keys.config_key(config),
    )


def all_baselines(objectives=(ACCURACY, ECE)):
    """Return the records of six baselines."""
    return [baseline(name, *values, objectives=objectives) for name, values in BASELINES.items()]


def sweep_info(objectives=(ACCURACY, ECE), *, ranges=RANGES, **changes):
    """Return the record of a finished sweep over the ranges; `changes` replace its fields."""
    fields = {
        "name": "perturb-20261120-185232",
        "created": CREATED,
        "state": "finished",
        "space": {
            "question": "How much noise should a prompt be pretrained with?",
            "params": ranges,
            "search": {"sampler": "tpe", "trials": 6},
            "work": {"seeds": [0, 1]},
        },
        "objectives": objectives,
        "search_split": "val",
        "git_commit": "9defbb8" * 5,
        "engine": ENGINE_NAME,
        "model": "tiny",
        "versions": {"torch": "2.15.0", "ray": "2.60.0"},
        "reference": [REFERENCES.get(objective.metric) for objective in objectives],
        "finished": None if changes.get("state") == "running" else CREATED + 3600,
    }
    return SweepInfo(**{**fields, **changes})


# ------------------------------------------------------------ many trials


def searched_trials(count=40, seed=0, objectives=(ACCURACY, ECE)):
    """Return trials over a conditional, a categorical, a constant and a logarithmic setting.

    Some are infeasible, and some failed.
    """
    generator = random.Random(seed)
    records = []
    for number in range(count):
        var = 10 ** generator.uniform(-5, -2)
        method = generator.choice([TPT, CTPT, OTPT])
        params = {"fpp.context_var": var, "fpp.gamma2": generator.uniform(0, 20), "method": method, "fpp.draws": 4}
        if method != TPT:
            params["adapt.penalty_weight"] = generator.uniform(1, 50)
        noise = abs(math.log10(var) + 3.3)
        accuracy = 71 - 2.5 * noise + generator.gauss(0, 0.8) + (0.8 if method == TPT else 0)
        ece = 4 + 2 * noise + generator.gauss(0, 0.6) - (1.5 if method == OTPT else 0)
        if number % 13 == 12:
            records.append(failed(number, params=params))
            continue
        constraints = {"accuracy": 0.4} if accuracy < 67.5 else {"accuracy": -1.0}
        records.append(trial(number, accuracy, ece, params=params, constraints=constraints, objectives=objectives))
    return records


def sweep_with_effects(count=60, seed=0):
    """Return a sweep and its trials.

    High values of `a` make the best accuracies, of `b` the worst, of `c` the best ECEs, and of `d` the worst.
    """
    generator = random.Random(seed)
    records = []
    for number in range(count):
        params = {key: generator.random() for key in "abcd"}
        high = {key: value > 0.85 for key, value in params.items()}
        accuracy = 70 + 9 * high["a"] - 20 * high["b"] + generator.random()
        ece = 30 - 9 * high["c"] + 20 * high["d"] + generator.random()
        records.append(trial(number, accuracy, ece, params=params))
    return sweep_info(space={"params": {key: {"low": 0.0, "high": 1.0} for key in "abcd"}}), records


# ------------------------------------------------------------ folders


def write_sweep(path: Path, info: SweepInfo, records: Sequence[TrialRecord]) -> SweepFolder:
    """Write the records of a sweep into the folder `path / info.name`."""
    folder = SweepFolder(path / info.name)
    folder.write_info(info)
    for record in records:
        folder.write_trial(record)
    return folder


def build_sweep(
    path: Path,
    *,
    trials: int = 6,
    failed_trials: Sequence[int] = (3,),
    running_trials: Sequence[int] = (),
    baselines: Sequence[str] = (ZERO_SHOT, TPT, "fpp_code"),
    datasets: Sequence[str] = DATASETS,
    state: str = "finished",
    report: bool = True,
) -> SweepFolder:
    """Write a sweep with artifacts and a report; the last complete trial is the front and has a test result."""
    records = []
    for position, name in enumerate(baselines):
        records.append(baseline(name, *numbered_values(position), datasets=datasets))
    complete = []
    for number in range(trials):
        if number in failed_trials:
            records.append(failed(number))
        elif number in running_trials:
            records.append(running(number))
        else:
            complete.append(number)
            records.append(trial(number, datasets=datasets))
    folder = write_sweep(path.parent, sweep_info(name=path.name, state=state), records)
    for number in complete:
        for dataset in datasets:
            prompt = folder.artifacts(trial_name(number)) / "prompts" / f"{dataset}-0.safetensors"
            _write(prompt, f"prompt of {trial_name(number)} for {dataset}")
    if report and complete:
        folder.write_trial(trial(complete[-1], datasets=datasets, test=True))
        _write_report(folder, complete)
    return folder


def _write_report(folder: SweepFolder, numbers: Sequence[int]) -> None:
    """Write a report with the last trial alone on the front."""
    best = trial(numbers[-1])
    _write(folder.report / "front.csv", f"name,accuracy,ece\n{best.name},60,8\n")
    page = (
        "<!doctype html><title>sweep</title><h1 id='front'></h1><script>front.textContent='Front of the sweep'</script>"
    )
    _write(folder.report / "sweep.html", page)
    _write(folder.report / "best" / f"{best.name}.yaml", f"method: {TPT}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
