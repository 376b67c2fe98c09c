"""Folders of sweeps that never ran, with records such as a sweep writes."""

import math
import random
from dataclasses import replace
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import keys
from fpp_sweep.spec.config import TrialConfig, preset
from tests.names import CTPT, OTPT, PLAIN, TPT

BEGAN = 1_795_000_000.0  # seconds since 1970
ACCURACY, ECE = Objective(metric="accuracy", goal="max"), Objective(metric="ece", goal="min")
NLL = Objective(metric="nll", goal="min")
DATASETS = ("shapes", "textures", "digits")
METHODS = (PLAIN, TPT, CTPT, OTPT, "fpp_paper", "fpp_code")
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp; $x^2$"


def split_result(accuracy, ece, *, seeds=2, shift=0.0):
    datasets = {
        name: {"accuracy": accuracy + place - 1 + shift, "ece": ece + 0.2 * (place - 1), "nll": 0.5 + ece / 50}
        for place, name in enumerate(DATASETS)
    }
    average = {"accuracy": accuracy + shift, "ece": ece, "nll": 0.5 + ece / 50}
    return SplitResult(
        average=average,
        datasets=datasets,
        deviation={"accuracy": 0.31, "ece": 0.12, "nll": 0.004} if seeds > 1 else {},
        samples=600,
        seconds={"evaluate": 9.5},
        device_seconds=12.0,
    )


def trial(number, accuracy=70.0, ece=5.0, *, objectives=(ACCURACY, ECE), params=None, test=False, **changes):
    measured = split_result(accuracy, ece)
    params = {"fpp.gamma2": 0.15} if params is None else params
    known = {key: value for key, value in params.items() if key in TrialConfig().flat()}
    config = preset("tiny").replace(known)
    values = {
        "name": f"trial-{number:04d}",
        "kind": "trial",
        "state": "complete",
        "number": number,
        "params": params,
        "config": {**config.flat(), **params},
        "key": keys.of_config(config),
        "started": BEGAN + 10 * number,
        "finished": BEGAN + 10 * number + 8.5,
        "results": {"val": measured, **({"test": split_result(accuracy, ece, shift=-0.7)} if test else {})},
        "values": [measured.average[objective.metric] for objective in objectives],
    }
    return TrialRecord(**{**values, **changes})


def failed(number, reason="FloatingPointError: ece is not finite", **changes):
    return trial(number, **{"state": "failed", "reason": reason, "values": None, "results": {}, **changes})


def baseline(name, accuracy, ece, objectives=(ACCURACY, ECE)):
    made = trial(0, accuracy, ece, objectives=objectives, test=True, params={})
    return replace(made, name=f"baseline-{name}", kind="baseline", number=None, origin="baseline")


def info(objectives=(ACCURACY, ECE), **changes):
    values = {
        "name": "perturb-20261120-185232",
        "created": BEGAN,
        "state": "finished",
        "space": {
            "question": "How much noise should a prompt be pretrained with?",
            "params": {"fpp.context_var": {"low": 1e-5, "high": 1e-2, "log": True}},
            "work": {"seeds": [0, 1]},
        },
        "objectives": objectives,
        "search_split": "val",
        "git_commit": "0123abc",
        "model": "tiny",
        "versions": {"torch": "2.15.0", "ray": "2.60.0"},
        "reference": [60.0, 20.0, 2.0][: len(objectives)],
        "finished": BEGAN + 1000,
    }
    return SweepInfo(**{**values, **changes})


def searched(count=40, seed=0, objectives=(ACCURACY, ECE)):
    """Trials over a conditional, a categorical, a constant and a logarithmic setting; some infeasible, some failed."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        var = 10 ** draw.uniform(-5, -2)
        method = draw.choice([TPT, CTPT, OTPT])
        params = {"fpp.context_var": var, "fpp.gamma2": draw.uniform(0, 20), "method": method, "fpp.draws": 4}
        if method != TPT:
            params["adapt.penalty_weight"] = draw.uniform(1, 50)
        noise = abs(math.log10(var) + 3.3)
        accuracy = 71 - 2.5 * noise + draw.gauss(0, 0.8) + (0.8 if method == TPT else 0)
        ece = 4 + 2 * noise + draw.gauss(0, 0.6) - (1.5 if method == OTPT else 0)
        if number % 13 == 12:
            made.append(failed(number, params=params))
            continue
        broken = {"accuracy": 0.4} if accuracy < 67.5 else {"accuracy": -1.0}
        made.append(trial(number, accuracy, ece, params=params, constraints=broken, objectives=objectives))
    return made


def driven(count=60, seed=0):
    """Trials and their sweep: `a` makes the best accuracies and `b` the worst, `c` the best ECEs and `d` the worst."""
    draw = random.Random(seed)
    made = []
    for number in range(count):
        params = {key: draw.random() for key in "abcd"}
        high = {key: value > 0.85 for key, value in params.items()}
        accuracy = 70 + 9 * high["a"] - 20 * high["b"] + draw.random()
        ece = 30 - 9 * high["c"] + 20 * high["d"] + draw.random()
        made.append(trial(number, accuracy, ece, params=params))
    return info(space={"params": {key: {"low": 0.0, "high": 1.0} for key in "abcd"}}), made


def baselines(objectives=(ACCURACY, ECE)):
    numbers = [(66.8, 3.4), (69.0, 9.8), (68.6, 6.1), (68.1, 4.9), (70.0, 5.5), (69.6, 6.0)]
    return [baseline(name, *pair, objectives=objectives) for name, pair in zip(METHODS, numbers, strict=True)]


def write(path: Path, information, records) -> SweepFolder:
    folder = SweepFolder(path / information.name)
    folder.write_info(information)
    for record in records:
        folder.write_trial(record)
    return folder
