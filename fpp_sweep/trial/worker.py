"""A worker: one model on one device, and the tasks that it runs. A plain class; `pool` makes an actor of it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fpp_sweep.errors import InputError
from fpp_sweep.trial.results import Checked, DatasetFacts, Done, ModelFacts, Task, WorkerSpec
from fpp_sweep.trial.tasks import EvalTask, PretrainTask

if TYPE_CHECKING:
    from fpp_sweep.core.datasets import Dataset
    from fpp_sweep.core.prompt import Prompt
    from fpp_sweep.trial.running import Adapter


class Worker:
    """Loads its model once; every `run` is a pure function of the task, the model and the data."""

    def __init__(self, spec: WorkerSpec) -> None:
        began = perf_counter()
        import torch

        from fpp_sweep.core.datasets import read_custom
        from fpp_sweep.core.images.cache import default_cache
        from fpp_sweep.core.images.features import FeatureCache
        from fpp_sweep.core.models.clip import choose_device
        from fpp_sweep.core.models.loading import load

        torch.set_num_threads(spec.threads)
        self.spec = spec
        clip = load(spec.model, choose_device(spec.device))
        self.clip = clip.compiled() if spec.compile else clip
        self.cache = FeatureCache(Path(spec.cache) if spec.cache else default_cache())
        self._root = Path(spec.data_root) if spec.data_root else None
        self._custom = read_custom(Path(spec.dataset_file)) if spec.dataset_file else {}
        self._datasets: dict[tuple[str, str], Dataset] = {}
        self._adapter: tuple[object, Adapter] | None = None  # of the last task: shards of a dataset share it
        self._seconds = perf_counter() - began

    def facts(self) -> ModelFacts:
        return ModelFacts(
            name=self.clip.name,
            digest=self.clip.digest,
            embedding_scale=self.clip.embedding_scale,
            device=str(self.clip.device),
            node=platform.node(),
            pid=os.getpid(),
            seconds=self._seconds,
        )

    def describe(self, names: Iterable[str], part: str) -> list[DatasetFacts]:
        """Datasets and groups by name; an InputError for one that is not there."""
        from fpp_sweep.core.datasets import expand

        return [self._describe(name, part) for name in expand(names, self._custom)]

    def _describe(self, name: str, part: str) -> DatasetFacts:
        dataset = self._dataset(name, part)
        listing = json.dumps([dataset.ids, dataset.labels.tolist()])
        return DatasetFacts(
            name=name,
            split=part,
            group=dataset.group,
            classes=dataset.classes,
            size=len(dataset),
            digest=hashlib.sha256(listing.encode()).hexdigest()[:16],
        )

    def check(self, methods: Iterable[str], prompts: Iterable[str], datasets: Sequence[DatasetFacts]) -> Checked:
        """Fit every method and prompt to the model and to all class names before any work."""
        from fpp_sweep.core.methods import require_method
        from fpp_sweep.core.prompt import is_file_name
        from fpp_sweep.trial.running import fitted, strange_note

        for method in methods:
            require_method(method)
        texts = {name for facts in datasets for name in facts.classes}
        files = {}
        for prompt in prompts:
            context = fitted(self.clip, prompt, [facts.classes for facts in datasets])
            if is_file_name(prompt):
                files[prompt] = hashlib.sha256(context.cpu().numpy().tobytes()).hexdigest()[:16]
            else:
                texts.add(prompt)
        note = strange_note(self.clip, sorted(texts))
        return Checked(notes=(note,) if note else (), prompts=files)

    def run(self, task: Task, prompt: bytes | None = None) -> Done:
        """Run a task; an EvalTask whose prompt is pretrained gets it as the bytes that the PretrainTask gave."""
        began = perf_counter()
        done = self._pretrain(task) if isinstance(task, PretrainTask) else self._evaluate(task, prompt)
        return replace(done, held=perf_counter() - began)

    def time_adaptation(self, task: EvalTask, images: int) -> tuple[float, float]:
        """Seconds for an image, and to set the method up, with random features: for estimates."""
        from types import SimpleNamespace

        import numpy as np
        import torch

        from fpp_sweep.trial.running import evaluate

        dataset = self._dataset(task.dataset, task.split)
        images = min(images, len(dataset))
        size = len(self.clip.text.projection[0])
        features = torch.nn.functional.normalize(torch.randn(images, task.config.views.count, size), dim=-1)
        stand_in: Any = SimpleNamespace(kept=np.arange(images), batch=lambda start, stop: features[start:stop])
        whole = EvalTask(config=task.config, dataset=task.dataset, split=task.split, seed=0, start=0, stop=images)
        clock = [perf_counter()]
        adapter = self._adapter_of(whole, dataset, None)
        clock.append(perf_counter())
        evaluate(self.clip, whole, dataset, stand_in, adapter)
        clock.append(perf_counter())
        return (clock[2] - clock[1]) / images, clock[1] - clock[0]

    def time_features(self, task: EvalTask, images: int) -> tuple[float, float]:
        """Seconds to draw the views of an image, and of a view in the image tower: for estimates."""
        import torch

        from fpp_sweep.core.images.filling import BATCH, Reader

        dataset = self._dataset(task.dataset, task.split)
        config = task.config.views
        reader = Reader.of(dataset, config, self.clip.preprocess, task.seed)
        images = min(images, len(dataset) - 1) or 1
        reader[0]  # whatever is read once
        clock = [perf_counter()]
        for position in range(len(dataset) - images, len(dataset)):
            reader[position]
        clock.append(perf_counter())
        size = self.clip.preprocess.size
        pixels = torch.randn(max(1, BATCH // config.count) * config.count, 3, size, size)
        self.clip.image_features(pixels[:1], half=True)
        clock.append(perf_counter())
        self.clip.image_features(pixels, half=True)
        clock.append(perf_counter())
        return (clock[1] - clock[0]) / images, (clock[3] - clock[2]) / len(pixels)

    def _pretrain(self, task: PretrainTask) -> Done:
        from fpp_sweep.core.prompt import prompt_bytes
        from fpp_sweep.trial.running import make_prompt

        began = perf_counter()
        prompt = make_prompt(self.clip, task, self._any_split(task.dataset))
        data = prompt_bytes(prompt, self.clip, {"fpp": asdict(task.config.fpp)})
        return Done(prompt=data, seconds={"pretrain": perf_counter() - began})

    def _evaluate(self, task: EvalTask, data: bytes | None) -> Done:
        from fpp_sweep.trial.running import evaluate, views_for

        clock = [perf_counter()]
        dataset = self._dataset(task.dataset, task.split)
        views = views_for(task.config, dataset.group)
        samples = range(task.start, task.stop)
        features = self.cache.features(self.clip, dataset, views, task.seed, samples=samples, on_bad_image="fail")
        clock.append(perf_counter())
        adapter = self._adapter_of(task, dataset, data)
        predictions = evaluate(self.clip, task, dataset, features, adapter) if len(features) else None
        clock.append(perf_counter())
        seconds = {"features": clock[1] - clock[0], "adapt": clock[2] - clock[1]}
        return Done(predictions=predictions, skipped=len(features.skipped), seconds=seconds)

    def _adapter_of(self, task: EvalTask, dataset: Dataset, data: bytes | None) -> Adapter:
        """What all shards of a (trial, dataset, seed) share; the last one is kept."""
        from fpp_sweep.trial.running import make_adapter

        whole = EvalTask(
            config=task.config, dataset=task.dataset, split=task.split, seed=task.seed, start=0, stop=len(dataset)
        ).key()
        if self._adapter is None or self._adapter[0] != whole:
            self._adapter = None  # its memory is wanted for the next
            self._adapter = whole, make_adapter(self.clip, task.config, dataset, self._prompt(task, data))
        return self._adapter[1]

    def _prompt(self, task: EvalTask, data: bytes | None) -> Prompt:
        from fpp_sweep.core.prompt import from_bytes, open_prompt

        if task.config.prompt != "fpp":
            return open_prompt(self.clip, task.config.prompt)
        if data is None:
            raise ValueError(f"{task.dataset}: a pretrained prompt is needed, and none was given")
        return from_bytes(self.clip, data)

    def _any_split(self, name: str) -> Dataset:
        """A dataset of that name, of whatever split is open: only its classes matter."""
        known = [dataset for (other, _), dataset in self._datasets.items() if other == name]
        return known[0] if known else self._dataset(name, "test")

    def _dataset(self, name: str, part: str) -> Dataset:
        from fpp_sweep.core.datasets import open_dataset

        if (name, part) not in self._datasets:
            dataset = open_dataset(name, part, self._root, self._custom)
            dataset = dataset.limited(self.spec.limit)
            if not len(dataset):
                raise InputError(f"{name}: its {part} split has no images")
            self._datasets[name, part] = dataset
        return self._datasets[name, part]
