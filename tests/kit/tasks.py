"""Specifications, tasks and predictions with invented numbers; no model is loaded."""

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
)


def dataset_info(name: str = "dtd", split: str = "val", size: int = 640, **changes: Any) -> DatasetInfo:
    digest = f"{name}, {split}, {size}"
    values: dict[str, Any] = {"group": "fine_grained", "classes": CLASSES, "digest": digest, "images": f"of {digest}"}
    return DatasetInfo(name=name, split=split, size=size, **(values | changes))


def keys_of(*datasets: DatasetInfo, model: ModelInfo = MODEL) -> TaskKeys:
    return TaskKeys(model, {(dataset.name, dataset.split): dataset for dataset in datasets})


KEYS = keys_of(dataset_info("dtd"), dataset_info("dtd", "test", 1280), dataset_info("pets", classes=("pug", "boxer")))


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
    """Return a task whose prompt is words unless the config says otherwise, so that it needs no pretraining."""
    settings = TrialConfig(prompt="a photo of a").replace(config)
    return EvalTask(
        config=settings, dataset=dataset, split=split, seed=seed, start=start, stop=stop, columns=columns
    )  # fmt: skip


def predictions(
    samples: int, *, classes: int = 3, seed: int = 0, columns: Mapping[str, tuple[int, ...]] | None = None
) -> Predictions:
    """Return random predictions, with optional columns of these shapes per sample; the ids contain the seed."""
    random = np.random.default_rng(seed)
    probabilities = random.dirichlet(np.ones(classes), samples).astype(np.float32)
    ids = [f"{seed}/{number:05d}" for number in range(samples)]
    extra = {name: random.random((samples, *shape)).astype(np.float32) for name, shape in (columns or {}).items()}
    return Predictions.of(ids, random.integers(0, classes, samples), probabilities, extra)


def same_predictions(first: Predictions | None, second: Predictions | None) -> bool:
    """Return whether predictions are equal to the last bit, types and columns included."""
    if first is None or second is None:
        return first is second
    return first.ids == second.ids and _arrays(first) == _arrays(second)


def _arrays(predictions: Predictions) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    values = {item.name: getattr(predictions, item.name) for item in fields(predictions)}
    bins = values.pop("class_bins")
    values |= {f"bins {item.name}": getattr(bins, item.name) for item in fields(bins)} | dict(values.pop("columns"))
    del values["ids"]
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in values.items()}
