"""Facts, tasks and results of the kinds that pass between processes, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from fpp_sweep.core.metrics import Predictions
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo
from fpp_sweep.spec.tasks import EvalTask

CLASSES = ("striped", "dotted", "plain")
MODEL = ModelInfo(
    name="m",
    digest="weights",
    embedding_scale=1.0,
    device="cpu",
    arithmetic="float16 features, 1 threads",
    node="here",
    pid=1,
    seconds=0.1,
)


def facts(name: str = "dtd", split: str = "val", size: int = 640, **changes: Any) -> DatasetInfo:
    told = f"{name}, {split}, {size}"
    values: dict[str, Any] = {"group": "fine_grained", "classes": CLASSES, "digest": told, "images": f"of {told}"}
    return DatasetInfo(name=name, split=split, size=size, **(values | changes))


def keys_of(*datasets: DatasetInfo, model: ModelInfo = MODEL) -> TaskKeys:
    return TaskKeys(model, {(each.name, each.split): each for each in datasets})


KEYS = keys_of(facts("dtd"), facts("dtd", "test", 1280), facts("pets", classes=("pug", "boxer")))


def evaluation(
    *,
    dataset: str = "dtd",
    split: str = "val",
    seed: int = 0,
    start: int = 0,
    stop: int = 64,
    columns: tuple[str, ...] = (),
    **config: Any,
) -> EvalTask:
    """Words as the prompt unless told otherwise, so that it needs no pretraining."""
    settings = TrialConfig(prompt="a photo of a").replace(config)
    return EvalTask(
        config=settings, dataset=dataset, split=split, seed=seed, start=start, stop=stop, columns=columns
    )  # fmt: skip


def predictions(
    samples: int, *, classes: int = 3, seed: int = 0, columns: Mapping[str, tuple[int, ...]] | None = None
) -> Predictions:
    """Random ones, with columns of these shapes a sample; their ids tell the seed."""
    random = np.random.default_rng(seed)
    probabilities = random.dirichlet(np.ones(classes), samples).astype(np.float32)
    ids = [f"{seed}/{number:05d}" for number in range(samples)]
    extra = {name: random.random((samples, *shape)).astype(np.float32) for name, shape in (columns or {}).items()}
    return Predictions.of(ids, random.integers(0, classes, samples), probabilities, extra)


def same_predictions(one: Predictions | None, other: Predictions | None) -> bool:
    """To the last bit, types and columns included."""
    if one is None or other is None:
        return one is other
    return one.ids == other.ids and _arrays(one) == _arrays(other)


def _arrays(made: Predictions) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    values = {item.name: getattr(made, item.name) for item in fields(made)}
    bins = values.pop("class_bins")
    values |= {f"bins {item.name}": getattr(bins, item.name) for item in fields(bins)} | dict(values.pop("columns"))
    del values["ids"]
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in values.items()}
