"""What a worker computes for a task: pretrain a prompt, adapt to a shard of a dataset.

Each is a pure function of its task, the model and the data: run again, elsewhere or cut otherwise, it gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from fpp_sweep.core.compute.precision import full
from fpp_sweep.core.compute.random_streams import torch_generator
from fpp_sweep.core.datasets import Dataset, imagenet_classes
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.images.features import Features
from fpp_sweep.core.methods import Method, TextModel, build_method
from fpp_sweep.core.methods.base import AdaptingMethod
from fpp_sweep.core.methods.measures import measured
from fpp_sweep.core.metrics import Predictions, concatenate
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt, deepened, open_prompt
from fpp_sweep.core.text.classes import ClassTexts
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import MethodRow
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.tasks import BATCH, EvalTask, PretrainTask


def class_texts(clip: Clip, classes: Sequence[str], context_tokens: int, after: str = "") -> ClassTexts:
    """The texts of a dataset's classes, checked to fit the model with a context of that length.

    `after` are a prompt's words between context and class name.
    """
    texts = ClassTexts.of_names(clip.text, clip.tokenizer, classes, after=after)
    texts.require_room(context_tokens, classes)
    return texts


def fitted(clip: Clip, name: str, deep: str, datasets: Iterable[Sequence[str]]) -> Prompt:
    """Return a prompt after checking, with this value of `deep_prompts`, that it fits the model and all class names."""
    prompt = open_prompt(clip, name)
    deepened(clip, prompt, deep)
    for classes in datasets:
        class_texts(clip, classes, len(prompt.context), prompt.after)
    return prompt


def strange_note(clip: Clip, texts: Sequence[str]) -> str | None:
    """A line on the prompts and class names among these that the model never saw, if there are any."""
    untrained = [text for text in texts if clip.has_untrained_words(text)]
    if not untrained:
        return None
    subject = f"{len(untrained)} prompts or class names, such as {untrained[0]!r}"
    return f"{subject}, have words that model {clip.name} never saw"


def make_prompt(clip: Clip, task: PretrainTask, dataset: Dataset, on_step: Callable[[], None] = lambda: None) -> Prompt:
    """Run a PretrainTask."""
    config = task.config
    if config.prompt != "fpp":
        return open_prompt(clip, config.prompt)
    began = perf_counter()
    predefined = open_prompt(clip, config.anchor_prompt)
    fpp = config.fpp.scaled(clip.embedding_scale)
    texts = _pretraining_texts(clip, task, dataset, predefined)
    names = (task.seed, "fpp", task.dataset)
    learned = pretrain(
        texts,
        predefined.context,
        fpp,
        flatness_weight=flatness_weight(task.config, dataset, len(texts)),
        start=draw_start(predefined.context, fpp, torch_generator(*names, "start")),
        noise=draw_noise(texts, len(predefined.context), fpp, torch_generator(*names, "noise")),
        on_step=on_step,
    )
    losses = learned.losses[-1].tolist() if fpp.steps else [0.0, 0.0]
    origin = {
        "words": config.anchor_prompt,
        "deep_prompts": config.deep_prompts,
        "seed": str(task.seed),
        "dataset": task.dataset,
        "final_alignment_loss": f"{losses[0]:.6f}",
        "final_flatness_loss": f"{losses[1]:.6f}",
        "seconds": f"{perf_counter() - began:.2f}",
    }
    deep = None if config.deep_prompts == "none" else predefined.deep
    return Prompt(context=learned.context, origin=origin, after=predefined.after, deep=deep)


def _pretraining_texts(clip: Clip, task: PretrainTask, dataset: Dataset, predefined: Prompt) -> ClassTexts:
    source = task.config.fpp.class_source
    if source == "gaussian":
        generator = torch_generator(task.seed, "fpp", task.dataset, "classes")
        return ClassTexts.of_gaussians(clip.text, clip.tokenizer, len(dataset.classes), generator)
    if source == "imagenet":
        return class_texts(clip, list(imagenet_classes().values()), len(predefined.context), predefined.after)
    return class_texts(clip, dataset.classes, len(predefined.context), predefined.after)


def flatness_weight(config: TrialConfig, dataset: Dataset, source_classes: int) -> float:
    """lambda: fixed on ImageNet's shifts unless the config says otherwise, else gamma1 + gamma2 / K."""
    fpp = config.fpp
    if dataset.group == "shifts" and fpp.lambda_shifts is not None:
        return fpp.lambda_shifts
    return fpp.flatness_weight(len(dataset.classes) if fpp.lambda_classes == "dataset" else source_classes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adapter:
    """A method set up for a dataset: all that a prompt fixes, for any shard of it, and where its stream is."""

    row: MethodRow
    method: Method[Any]
    model: TextModel
    context: Tensor  # where every sample starts
    state: Any

    @property
    def size(self) -> int:
        """Bytes of the state's tensors, apart from the model's own."""
        own = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(self.model, set())}
        held = {tensor.data_ptr(): tensor.nbytes for tensor in _tensors(self.state, set())}
        return sum(size for address, size in held.items() if address not in own)


def make_adapter(clip: Clip, config: TrialConfig, dataset: Dataset, prompt: Prompt) -> Adapter:
    """Set a config's method up for all of a dataset, whatever shards of it follow."""
    texts = class_texts(clip, dataset.classes, len(prompt.context), prompt.after)
    model = TextModel(texts=texts, logit_scale=clip.logit_scale)
    method = build_method(config.method, config.adapt.scaled(clip.embedding_scale), dataset.group)
    # the form of the gradient is that of the whole dataset, whatever the shard: forms differ in the last bits
    state = method.start(model, prompt.context, len(dataset))
    return Adapter(row=catalogue.method(config.method), method=method, model=model, context=prompt.context, state=state)


def stored(adapter: Adapter) -> bytes | None:
    """Where a stateful method's stream is, for the shard that follows."""
    if not adapter.row.stateful:
        return None
    tensors = adapter.method.pack(adapter.state)  # type: ignore[attr-defined]
    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def restored(adapter: Adapter, data: bytes) -> Adapter:
    """The adapter where the shard before has left the stream."""
    device = adapter.model.texts.sos.device
    tensors = {name: tensor.to(device) for name, tensor in load(data).items()}
    return replace(adapter, state=adapter.method.unpack(adapter.state, tensors))  # type: ignore[attr-defined]


def positions(task: EvalTask, dataset: Dataset) -> NDArray[np.int64]:
    """A task's samples, by where they stand in the dataset, in the order of the stream."""
    order = task.config.adapt.order if catalogue.method(task.config.method).ordered else "fair"
    stream: NDArray[np.int64] = np.arange(len(dataset))
    if order == "file" and dataset.file_positions is not None:
        stream = dataset.file_positions.argsort()
    if order == "shuffled":
        generator = torch_generator(task.seed, "stream", task.dataset, task.split)
        stream = torch.randperm(len(dataset), generator=generator).numpy()
    return stream[task.start : task.stop]


def evaluate(
    clip: Clip,
    task: EvalTask,
    dataset: Dataset,
    features: Features,
    adapter: Adapter,
    on_samples: Callable[[int], None] = lambda count: None,
) -> tuple[Predictions, Adapter]:
    """Run an EvalTask on the features of its dataset; samples whose image could not be read are not there."""
    state, parts = adapter.state, []
    stream = positions(task, dataset)
    measure = [column for column in task.columns if column in catalogue.READ_FOR]
    # batches begin at multiples of BATCH, so that a sample is in the same batch, and its result the same to the last
    # bit, in every shard that begins at such a multiple
    for edge in range(task.start // BATCH * BATCH, task.stop, BATCH):
        inside = stream[max(edge - task.start, 0) : edge + BATCH - task.start]
        inside = inside[np.isin(inside, features.kept)]
        if not len(inside):
            continue
        views = features.of(inside)[:, : adapter.row.views].to(clip.device)
        columns: dict[str, Tensor] = {}
        if measure:
            logits, columns = _measured(clip, task, adapter, views, measure)
        else:
            logits, state = adapter.method.predict(adapter.model, state, views)
        if not logits.isfinite().all():
            raise FloatingPointError(f"{task.config.method}: logits are not finite after adaptation")
        if "logits" in task.columns:
            columns["logits"] = logits
        probabilities = full(logits).softmax(-1)
        if task.config.precision == "fp16":
            probabilities = probabilities.half()  # as the released code, which takes the softmax of such logits
        ids = [dataset.ids[position] for position in inside]
        kept = {name: values.float().cpu().numpy() for name, values in columns.items()}
        found = probabilities.float().cpu().numpy()
        parts.append(Predictions.of(ids, dataset.labels[inside], found, kept))
        on_samples(len(inside))
    return concatenate(parts), replace(adapter, state=state)


def _measured(
    clip: Clip, task: EvalTask, adapter: Adapter, views: Tensor, columns: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and what is measured at the prompts that they come from."""
    method = cast("AdaptingMethod[Any]", adapter.method)  # others are refused: catalogue.require_measurable
    contexts = method.adapted(adapter.model, adapter.state, views)
    config = task.config.measure.scaled(clip.embedding_scale)
    found = measured(adapter.model, adapter.context, contexts, views, task.config.adapt.view_fraction, config, columns)
    return method.classified(adapter.model, contexts, views), found


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """All tensors that can be reached from a value through containers and attributes."""
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, list | tuple):
        inside = list(value)
    else:
        names = [*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())]
        inside = [getattr(value, name, None) for name in names]
    for item in inside:
        yield from _tensors(item, seen)
