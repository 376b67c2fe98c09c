"""Facts, tasks and results of the kinds that pass between the sweep's processes, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from fpp_sweep.trial.tasks import EvalTask

from fpp_sweep.config import TrialConfig
from fpp_sweep.core.metrics import Predictions
from fpp_sweep.trial.results import DatasetFacts, Names

CLASSES = ("striped", "dotted", "plain")


def facts(name: str = "dtd", split: str = "val", size: int = 640, **changes: Any) -> DatasetFacts:
    values: dict[str, Any] = {"group": "fine_grained", "classes": CLASSES, "digest": f"{name}, {split}, {size}"}
    return DatasetFacts(name=name, split=split, size=size, **(values | changes))


def names_of(*datasets: DatasetFacts, model: str = "weights") -> Names:
    return Names(model, {(each.name, each.split): each for each in datasets})


NAMES = names_of(facts("dtd"), facts("dtd", "test", 1280), facts("pets", classes=("pug", "boxer")))


def evaluation(
    *, dataset: str = "dtd", split: str = "val", seed: int = 0, start: int = 0, stop: int = 64, **config: Any
) -> EvalTask:
    """Words as the prompt unless told otherwise, so that it needs no pretraining."""
    settings = TrialConfig(prompt="a photo of a").replace(config)
    return EvalTask(config=settings, dataset=dataset, split=split, seed=seed, start=start, stop=stop)


def predictions(samples: int, *, classes: int = 3, seed: int = 0) -> Predictions:
    """Random ones; their ids tell the seed."""
    random = np.random.default_rng(seed)
    probabilities = random.dirichlet(np.ones(classes), samples).astype(np.float32)
    ids = [f"{seed}/{number:05d}" for number in range(samples)]
    return Predictions.of(ids, random.integers(0, classes, samples), probabilities)


def same_predictions(one: Predictions | None, other: Predictions | None) -> bool:
    """To the last bit, types included."""
    if one is None or other is None:
        return one is other
    columns = ("labels", "predicted", "confidence", "in_top5", "nll", "brier")
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    pairs += [
        (getattr(one.class_bins, name), getattr(other.class_bins, name)) for name in ("counts", "hits", "confidence")
    ]
    return one.ids == other.ids and all(_bits(a) == _bits(b) for a, b in pairs)


def _bits(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return str(values.dtype), values.shape, values.tobytes()
