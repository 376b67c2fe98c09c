"""Adaptation to a shard of a dataset, and its predictions.

This is a pure function of the task, the model and the data. On a CPU the result is equal to the last bit however the
work is cut and whichever worker repeats it. A GPU with more than about 20 classes may add in another order when it
repeats the work (`index_add_`), which changes last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from fpp_sweep.core.compute import torch_generator, upcast
from fpp_sweep.core.datasets import Dataset
from fpp_sweep.core.images.features import Features
from fpp_sweep.core.methods import Method, TextModel, build_method
from fpp_sweep.core.methods.base import AdaptingMethod, StatefulMethod
from fpp_sweep.core.methods.tpt import measure_sharpness
from fpp_sweep.core.metrics import Predictions, concatenate
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import MethodRow
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.specs import adaptation_precision
from fpp_sweep.spec.tasks import BATCH, EvalTask
from fpp_sweep.trial.prompts import ensemble_model, prompt_model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """A method set up for a prompt and all of a dataset, with the method's state at a point of the stream."""

    row: MethodRow
    method: Method[Any]
    model: TextModel
    context: Tensor  # where every sample starts
    state: Any


def make_adapter(clip: Clip, config: TrialConfig, dataset: Dataset, prompt: Prompt | None) -> Adapter:
    """Set a config's method up for all of a dataset; without a prompt, for the ensemble of the config's templates."""
    if prompt is None:
        context = clip.text.token_embedding[:0]  # no tokens: the ensemble is used whatever the context is
        model = ensemble_model(clip, config.templates, dataset)
    else:
        context = prompt.context
        model = prompt_model(clip, prompt, dataset)
    row = catalogue.method(config.method)
    # a setting that the row forgets is not in the task's key: it must not change results
    adapt = config.adapt.with_defaults_except(row.reads).scaled(clip.embedding_scale)
    method = build_method(config.method, adapt, dataset.group, dataset.name)
    # the number of samples decides the form of the gradient, and forms differ in the last bits: every shard must use
    # the form of the whole dataset
    state = method.start(model, context, len(dataset))
    return Adapter(row=row, method=method, model=model, context=context, state=state)


def pack_state(adapter: Adapter) -> bytes | None:
    """Return the state of a stateful method's stream, for the next shard; None for other methods."""
    if not adapter.row.stateful:
        return None
    method = cast("StatefulMethod[Any]", adapter.method)
    on_cpu = {}
    for name, tensor in method.pack(adapter.state).items():
        on_cpu[name] = tensor.detach().cpu().contiguous()
    data: bytes = save(on_cpu)
    return data


def with_state(adapter: Adapter, data: bytes) -> Adapter:
    """Return the adapter in the state in which the previous shard left the stream."""
    method = cast("StatefulMethod[Any]", adapter.method)  # only stateful methods leave a state behind
    device = adapter.model.texts.tower.device
    tensors = {name: tensor.to(device) for name, tensor in load(data).items()}
    return replace(adapter, state=method.unpack(adapter.state, tensors))


def stream_of(task: EvalTask, dataset: Dataset) -> NDArray[np.int64]:
    """Return the indices of a task's samples in the dataset, in the order of the stream."""
    stream: NDArray[np.int64] = np.arange(len(dataset))
    if task.config.draws_order:
        generator = torch_generator(task.seed, "stream", task.dataset, task.split)
        stream = torch.randperm(len(dataset), generator=generator).numpy()
    return stream[task.start : task.stop]


def evaluate(
    clip: Clip,
    task: EvalTask,
    dataset: Dataset,
    features: Features,
    adapter: Adapter,
    on_samples: Callable[[int], None] | None = None,
) -> tuple[Predictions, Adapter]:
    """Compute an EvalTask from image features.

    Return the adapter in the state after the last sample as well. `on_samples` is called with the size of each batch.
    """
    predictions = []
    for batch in _batches(task, stream_of(task, dataset)):
        views = features.of(batch)[:, : adapter.row.views].to(clip.device)
        logits, columns, adapter = _adapt(clip, task, adapter, views)
        _require_logits(logits, task, (len(batch), len(dataset.classes)))
        probabilities = upcast(logits).softmax(-1)
        if adaptation_precision(task.config.precision) == "fp16":
            probabilities = probabilities.half()  # as the released code, which takes the softmax of such logits
        ids = [dataset.ids[index] for index in batch]
        predictions.append(Predictions.of(ids, dataset.labels[batch], _as_array(probabilities), columns))
        if on_samples:
            on_samples(len(batch))
    return concatenate(predictions), adapter


def _require_logits(logits: Tensor, task: EvalTask, shape: tuple[int, int]) -> None:
    """Raise an error unless a batch has a finite logit for each sample and class: a plugin's method may err."""
    if logits.shape != shape:
        given = f"logits of shape {tuple(logits.shape)}, must be {shape}"
        raise ValueError(f"{task.config.method}: {given}: a row for each sample, a column for each class")
    if not logits.isfinite().all():
        raise FloatingPointError(f"{task.config.method}: logits are not finite after adaptation")


def _batches(task: EvalTask, stream: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Cut a task's stream at multiples of BATCH of the whole stream.

    So a sample is in the same batch, and its result the same to the last bit, in every shard that starts at such a
    multiple.
    """
    first = task.start // BATCH * BATCH
    for start in range(first, task.stop, BATCH):
        start_in_task = max(start - task.start, 0)  # the first batch may begin before the task
        yield stream[start_in_task : start + BATCH - task.start]


def _adapt(
    clip: Clip, task: EvalTask, adapter: Adapter, views: Tensor
) -> tuple[Tensor, dict[str, NDArray[np.float32]], Adapter]:
    """Return a batch's logits, its optional columns, and the adapter in the state after the batch."""
    measured = [column for column in task.columns if column in catalogue.SETTINGS_OF_COLUMN]  # sharpness
    columns: dict[str, Tensor] = {}
    if measured:  # the adapter stays as it is: methods that can be measured keep no state
        logits, columns = _adapt_and_measure(clip, task, adapter, views, measured)
    else:
        logits, state = adapter.method.predict(adapter.model, adapter.state, views)
        adapter = replace(adapter, state=state)
    if "logits" in task.columns:
        columns["logits"] = logits
    arrays = {}
    for name, values in columns.items():
        arrays[name] = _as_array(values)
    return logits, arrays, adapter


def _adapt_and_measure(
    clip: Clip, task: EvalTask, adapter: Adapter, views: Tensor, quantities: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits, and the quantities of sharpness measured at the adapted prompts, by name."""
    method = cast("AdaptingMethod[Any]", adapter.method)  # catalogue.require_measurable refuses other methods
    contexts = method.adapt_contexts(adapter.model, adapter.state, views)
    values = measure_sharpness(
        adapter.model,
        adapter.context,
        contexts,
        views,
        task.config.adapt.view_fraction,
        task.config.measure.scaled(clip.embedding_scale),
        quantities,
    )
    return method.classify(adapter.model, contexts, views), values


def _as_array(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.float().cpu().numpy()
    return array
