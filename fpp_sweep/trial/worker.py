"""A worker: one model on one device, and the tasks that it computes; `workers.pool` makes an actor of it.

The border to torch: this module is loaded in the processes that compute, and in no other.
"""

from __future__ import annotations

import os
import platform
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import numpy as np
import PIL
import torch

from fpp_sweep.core.compute.memory import Room, told
from fpp_sweep.core.compute.precision import computing, require_able
from fpp_sweep.core.datasets import Dataset, expand, open_dataset, read_custom
from fpp_sweep.core.images.cache import default_cache
from fpp_sweep.core.images.features import FeatureCache
from fpp_sweep.core.models.clip import Clip, choose_device
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import Prompt, deepened, from_bytes, open_prompt, prompt_bytes
from fpp_sweep.spec import catalogue, keys, plugins
from fpp_sweep.spec.config import TrialConfig, is_file_name
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.process import readers
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import DatasetInfo, ModelInfo, Validation, WorkerSpec, worker_at
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task, views_for
from fpp_sweep.trial.contract import check_method
from fpp_sweep.trial.results import TaskFailed, TaskResult
from fpp_sweep.trial.running import (
    Adapter,
    evaluate,
    fitted,
    make_adapter,
    make_prompt,
    positions,
    restored,
    stored,
    strange_note,
)

ROOMS, ALSO = ("core", "tiny", "trial"), ("catalogue", "config", "tasks")  # of the code that results are made with
ADAPTERS = 1 / 4  # of the room, for adapters that are kept beside the one in use

ShowProgress = Callable[[str, int, str], AbstractContextManager[Bar]]  # what is done, of how many, in what unit


def silent(label: str, total: int, unit: str) -> Bar:
    return Bar(label, total, unit, shown=False)


def made_with() -> str:
    """What moves last bits here, and may differ on another machine or after an update."""
    package = Path(plugins.__file__).parent
    files = [
        *(package / f"{name}.py" for name in ALSO),
        *(path for room in ROOMS for path in sorted((package / room).rglob("*.py"))),
    ]
    code = keys.digest(*(path.read_text() for path in files), length=8)
    libraries = f"torch {torch.__version__}, numpy {np.__version__}, pillow {PIL.__version__}"
    libraries += f", open_clip {version('open_clip_torch')}"
    with suppress(OSError):
        cpus = re.findall(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
        return f"code {code}, {libraries}, {torch.backends.cpu.get_cpu_capability()}, {', '.join(sorted(set(cpus)))}"
    return f"code {code}, {libraries}, {platform.machine()}, {platform.processor()}"


class Worker:
    """Loads its model once, when that is first needed; what a task gives depends on nothing that ran before."""

    def __init__(self, spec: WorkerSpec, show: ShowProgress = silent) -> None:
        plugins.load(spec.plugins)
        torch.set_num_threads(spec.threads)
        self.spec = spec
        self.cache = FeatureCache(Path(spec.cache) if spec.cache else default_cache(), exact=spec.exact_cache)
        self._show = show
        self._root = Path(spec.data_root) if spec.data_root else None
        self._custom = read_custom(Path(spec.dataset_file)) if spec.dataset_file else {}
        self._clips: dict[tuple[str, str], Clip] = {}  # by the file of deeper prompts, and how they are used
        self._datasets: dict[tuple[str, str], Dataset] = {}
        self._adapters: OrderedDict[str, Adapter] = OrderedDict()  # the last used last
        self._seconds = 0.0

    @cached_property
    def _place(self) -> torch.device:
        return torch.device(choose_device(self.spec.device))

    @cached_property
    def clip(self) -> Clip:
        began = perf_counter()
        for precision in self.spec.precisions:
            require_able(precision, self._place)
        try:
            clip = load(self.spec.model, str(self._place))
        except RuntimeError as error:
            raise told(error, self._place) from error
        clip = replace(clip, text=replace(clip.text, room=Room.of(self._place, self.spec.share)))
        clip = clip.compiled() if self.spec.compile else clip
        self._seconds = perf_counter() - began
        return clip

    @cached_property
    def _device(self) -> str:
        """What computes here, as tables of costs name it."""
        device = self.clip.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{self.spec.threads} CPU threads"

    @cached_property
    def _loaders(self) -> int:
        """Processes that read images: where nothing is asked for, a GPU has them."""
        if self.spec.loaders is not None:
            return self.spec.loaders
        on_gpu = self.clip.device.type == "cuda" and self.clip.name != "tiny"  # whose images are drawn at once
        return readers(self.spec.share) if on_gpu else 0

    def facts(self) -> ModelInfo:
        features = "float32" if self.spec.exact_cache else "float16"
        return ModelInfo(
            name=self.clip.name,
            digest=self.clip.digest,
            embedding_scale=self.clip.embedding_scale,
            device=str(self.clip.device),
            arithmetic=f"{features} features, {self.spec.threads} threads{self.clip.bits}",
            node=platform.node(),
            pid=os.getpid(),
            seconds=self._seconds,
            made_with=f"{made_with()}, {self._device if self.clip.device.type == 'cuda' else 'no GPU'}",
        )

    def describe(self, names: Iterable[str], split: str) -> list[DatasetInfo]:
        """Datasets and groups by name, or all of one's own; an InputError for one that is not there."""
        return [self._describe(name, split) for name in expand(list(names) or list(self._custom), self._custom)]

    def _describe(self, name: str, split: str) -> DatasetInfo:
        dataset = self.dataset(name, split)
        file_positions = dataset.file_positions
        return DatasetInfo(
            name=name,
            split=split,
            group=dataset.group,
            classes=dataset.classes,
            size=len(dataset),
            digest=keys.digest(dataset.ids, dataset.labels.tolist(), dataset.augmix, dataset.flip, length=16),
            images=dataset.digest()[:16],
            places="" if file_positions is None else keys.digest(file_positions.argsort().tolist(), length=16),
        )

    def clip_for(self, config: TrialConfig) -> Clip:
        """The model, with a MaPLe checkpoint's prompts of deeper layers where a config asks for them."""
        if config.deep_prompts == "none":
            return self.clip
        key = config.source, config.deep_prompts
        if key not in self._clips:
            self._clips[key] = deepened(self.clip, open_prompt(self.clip, config.source), config.deep_prompts)
        return self._clips[key]

    def computing(self, config: TrialConfig) -> AbstractContextManager[None]:
        """The precision of a config, for as long as it is computed in."""
        return computing(config.precision, self.clip.device)

    def check(
        self, methods: Iterable[str], prompts: Iterable[tuple[str, str]], datasets: Sequence[DatasetInfo]
    ) -> Validation:
        """Fit every method and prompt, each with its setting of `deep_prompts`, to the model and to all class names."""
        for name in methods:
            check_method(self.clip, catalogue.method(name))
        texts = {name for facts in datasets for name in facts.classes}
        files = {}
        for name, deep in prompts:
            prompt = fitted(self.clip, name, deep, [facts.classes for facts in datasets])
            if is_file_name(name):
                files[name] = prompt.digest
            else:
                texts.add(name)
        note = strange_note(self.clip, sorted(texts))
        return Validation(notes=(note,) if note else (), prompts=files)

    def run(self, task: Task, needs: Sequence[TaskResult], adapter_key: str = "") -> TaskResult:
        """Compute a task from the results that it needs, in the order of `task.needs`.

        Adapters are kept by `adapter_key`. What goes wrong is told with dataset, samples, machine and worker.
        """
        began, here = perf_counter(), worker_at(platform.node(), os.getpid())
        try:
            if isinstance(task, PretrainTask):
                result = self._pretrain(task)
            else:
                result = self._evaluate(task, dict(zip(task.needs, needs, strict=True)), adapter_key)
        except Exception as error:
            place = self.__dict__.get("_place", torch.device("cpu"))  # there may have been none
            raise TaskFailed.of(told(error, place), f"{task.title}, {here}") from error
        held = perf_counter() - began
        adapters = tuple(self._adapters)
        return replace(result, spent=result.seconds, device=self._device, held=held, worker=here, adapters=adapters)

    def dataset(self, name: str, split: str) -> Dataset:
        """A split of a dataset, as many of its samples as are asked for; of `val:600` those, whatever the limit."""
        if (name, split) not in self._datasets:
            part, _, count = split.partition(":")
            limit = int(count) if count else self.spec.limit
            dataset = open_dataset(name, part, self._root, self._custom).limited(limit)
            if not len(dataset):
                raise InputError(f"{name}: its {split} split has no images")
            self._datasets[name, split] = dataset
        return self._datasets[name, split]

    def adapter(self, task: EvalTask, prompt: Prompt, key: str = "") -> Adapter:
        """The task's method, set up for its prompt and dataset; those used before are kept while memory suffices."""
        if key in self._adapters:
            self._adapters.move_to_end(key)
            return self._adapters[key]
        room = ADAPTERS * self.clip.text.room.device
        while self._adapters and sum(adapter.size for adapter in self._adapters.values()) > room:
            self._adapters.popitem(last=False)  # before the next is built, which may need the room
        dataset = self.dataset(task.dataset, task.split)
        with self.computing(task.config):
            adapter = make_adapter(self.clip_for(task.config), task.config, dataset, prompt)
        if key:
            self._adapters[key] = adapter
        return adapter

    def _pretrain(self, task: PretrainTask) -> TaskResult:
        began = perf_counter()
        shown = self._show(f"{task.dataset}: pretraining", task.config.fpp.steps, "steps")
        with self.computing(task.config), shown as bar:
            prompt = make_prompt(self.clip_for(task.config), task, self._any_split(task.dataset), bar.advance)
        data = prompt_bytes(prompt, self.clip, {"fpp": asdict(task.config.fpp)})
        return TaskResult(prompt=data, seconds={"pretrain": perf_counter() - began})

    def _evaluate(self, task: EvalTask, needs: dict[Task, TaskResult], adapter_key: str) -> TaskResult:
        clock = [perf_counter()]
        dataset = self.dataset(task.dataset, task.split)
        stream = positions(task, dataset)
        with self._show(f"{task.dataset}: features", int(np.ptp(stream)) + 1, "images") as bar:
            features = self.cache.features(
                self.clip_for(task.config),
                dataset,
                views_for(task.config),
                task.seed,
                precision=task.config.precision,
                samples=stream.tolist(),
                on_bad_image=self.spec.on_bad_image,
                workers=self._loaders,
                progress=bar,
            )
        clock.append(perf_counter())
        predictions, state = None, needs[task.previous].state if task.previous else None
        readable = int(np.isin(stream, features.kept).sum())
        if readable:
            adapter = self.adapter(task, self._prompt(task, needs), adapter_key)
            if state is not None:  # None: no image of the stream could be read so far
                adapter = restored(adapter, state)
            shown = self._show(f"{task.dataset}: {task.config.method}", readable, "images")
            with self.computing(task.config), shown as bar:
                predictions, adapter = evaluate(self.clip, task, dataset, features, adapter, bar.advance)
            state = stored(adapter)
        clock.append(perf_counter())
        seconds = {"features": clock[1] - clock[0], "adapt": clock[2] - clock[1]}
        own = {dataset.ids[position] for position in stream}
        skipped = tuple(sample for sample in features.skipped if sample.sample_id in own)
        cost = features.cost
        return TaskResult(predictions=predictions, state=state, skipped=skipped, seconds=seconds, features=cost)

    def _prompt(self, task: EvalTask, needs: dict[Task, TaskResult]) -> Prompt:
        if task.pretrain is None:
            return open_prompt(self.clip, task.config.prompt)
        data = needs[task.pretrain].prompt
        assert data is not None, "a pretraining gives a prompt"
        return from_bytes(self.clip, data)

    def _any_split(self, name: str) -> Dataset:
        """A dataset of that name, of whatever split is open: only its classes matter."""
        known = [dataset for (other, _), dataset in self._datasets.items() if other == name]
        return known[0] if known else self.dataset(name, "test")
