"""A worker: one model on one device, its datasets, and the tasks that it computes; also a runner in this process.

This module loads torch, and is imported only by processes that compute.
"""

from __future__ import annotations

import os
import platform
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import numpy as np
import PIL
import torch

from fpp_sweep.core.compute import (
    MemoryBudget,
    choose_device,
    computing,
    explain_out_of_memory,
    require_precision_support,
)
from fpp_sweep.core.datasets import Dataset, custom_datasets, expand, open_dataset
from fpp_sweep.core.images.features import FeatureCache, Features
from fpp_sweep.core.models.clip import Clip, load
from fpp_sweep.core.prompt import Prompt, from_bytes, open_prompt, prompt_bytes
from fpp_sweep.spec import keys, plugins
from fpp_sweep.spec.errors import ChangedDataError, InputError, MachineError
from fpp_sweep.spec.files import default_cache
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.process import readers
from fpp_sweep.spec.progress import Bar
from fpp_sweep.spec.specs import (
    DatasetInfo,
    ModelInfo,
    TaskData,
    TextSource,
    Validation,
    WorkerSpec,
    adaptation_precision,
    pretraining_precision,
    worker_at,
)
from fpp_sweep.spec.tasks import EvalTask, PretrainTask, Task, views_for
from fpp_sweep.trial.adapting import Adapter, evaluate, make_adapter, pack_state, stream_of, with_state
from fpp_sweep.trial.prompts import make_prompt, require_unchanged_files, validate
from fpp_sweep.trial.results import MemoryStore, Store, TaskFailed, TaskResult, find_cached, pack_predictions

FOLDERS = "core", "tiny", "trial"
FILES = "spec/catalogue.py", "spec/catalogue.toml", "spec/config.py", "spec/tasks.py"


def code_digest() -> str:
    package = Path(keys.__file__).parents[1]
    texts = [path.read_text() for path in code_files(package)]
    return keys.digest(*texts, length=8)


def code_files(package: Path) -> list[Path]:
    """Return the files of the package whose code can change the bits of a result."""
    files = [package / name for name in FILES]
    for folder in FOLDERS:
        files += sorted((package / folder).rglob("*.py"))
    return files


class WorkerModel:
    """A model on a device, loaded when it is first used."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec

    @cached_property
    def device(self) -> torch.device:
        return torch.device(choose_device(self._spec.device))

    @cached_property
    def clip(self) -> Clip:
        """The model on its device."""
        for precision in self._spec.precisions:
            require_precision_support(precision, self.device)
        try:
            clip = load(self._spec.model, str(self.device))
        except RuntimeError as error:
            raise explain_out_of_memory(error, self.device) from error
        memory = MemoryBudget.available(self.device, self._spec.device_share)
        return replace(clip, text=replace(clip.text, memory=memory))

    @cached_property
    def device_name(self) -> str:
        """The name of the device in tables of costs."""
        device = self.clip.device
        if device.type == "cuda":
            return torch.cuda.get_device_name(device)
        return f"{self._spec.threads} CPU threads"

    @cached_property
    def image_readers(self) -> int:
        """Number of processes that read images: as the spec says, else some beside a GPU and none beside a CPU."""
        if self._spec.loaders is not None:
            return self._spec.loaders
        if self.clip.device.type != "cuda":
            return 0
        if self.clip.name == "tiny":  # the images of its datasets are rendered, not read
            return 0
        return readers(self._spec.machine_share)

    def info(self) -> ModelInfo:
        features = "float32" if self._spec.float32_cache else "float16"
        arithmetic = f"{features} features, {self._spec.threads} threads"
        if self._spec.cuda_graphs:
            arithmetic += ", CUDA graphs"
        gpu = "no GPU"
        if self.clip.device.type == "cuda":
            gpu = self.device_name
        return ModelInfo(
            name=self.clip.name,
            digest=self.clip.digest,
            embedding_scale=self.clip.embedding_scale,
            device=str(self.clip.device),
            arithmetic=arithmetic,
            node=platform.node(),
            pid=os.getpid(),
            device_kind=self.device_name,
            software=software(),
            made_with=f"{made_with()}, {gpu}",
        )

    def explain(self, error: BaseException) -> BaseException:
        """Return a plain message for an error that means too little memory, else the error itself."""
        device = self.__dict__.get("device", torch.device("cpu"))  # not self.device, whose choice may have failed
        return explain_out_of_memory(error, device)


def software() -> tuple[str, ...]:
    """Return the code and the libraries' versions; builds of torch for different devices are one version."""
    return (
        f"code {code_digest()}",
        f"torch {torch.__version__.partition('+')[0]}",
        f"numpy {np.__version__}",
        f"pillow {PIL.__version__}",
        f"open_clip {version('open_clip_torch')}",
    )


def made_with() -> str:
    """Return a text with code, libraries, torch's build and processor, each of which can change last bits."""
    return ", ".join([*software(), f"build {torch.__version__}", _processor()])


def _processor() -> str:
    """Return the instruction set that torch uses, and the models of the processors."""
    with suppress(OSError):
        models = re.findall(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
        return ", ".join([torch.backends.cpu.get_cpu_capability(), *sorted(set(models))])
    return f"{platform.machine()}, {platform.processor()}"


class WorkerDatasets:
    """Datasets by name and split."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._limit = spec.limit
        self._root = None
        if spec.data_root:
            self._root = Path(spec.data_root)
        self._custom = custom_datasets(spec.datasets, spec.dataset_file)
        self._opened: dict[tuple[str, str], Dataset] = {}
        self._digests: dict[tuple[str, str], str] = {}  # see `samples_digest`

    def open(self, name: str, split: str) -> Dataset:
        """Return a split, with as many samples as the limit allows; `val:600` means the first 600 samples of val."""
        if (name, split) not in self._opened:
            split_name, _, count = split.partition(":")
            limit = int(count) if count else self._limit
            self._opened[name, split] = open_dataset(name, split_name, self._root, self._custom).limited(limit)
        return self._opened[name, split]

    def open_any_split(self, name: str) -> Dataset:
        """Return a dataset of which only the classes matter: a split that is open, or else one that it has."""
        for (opened_name, _), dataset in self._opened.items():
            if opened_name == name:
                return dataset
        for split in ("test", "val"):
            with suppress(InputError):  # it has no such split
                return self.open(name, split)
        return self.open(name, "train")

    def samples_digest(self, name: str, split: str) -> str:
        """Return the digest of a split's class names, samples and labels, and of the way to draw views."""
        if (name, split) not in self._digests:
            dataset = self.open(name, split)
            parts = [dataset.classes, dataset.ids, dataset.labels.tolist(), dataset.augmix, dataset.flip]
            self._digests[name, split] = keys.digest(*parts, length=16)
        return self._digests[name, split]

    def require_unchanged(self, task: Task, data: TaskData) -> None:
        """Raise ChangedDataError unless a task's class names, and samples if it has any, are those of its key."""
        if isinstance(task, EvalTask):
            subject = "class names, images or labels"
            found = self.samples_digest(task.dataset, task.split)
        else:
            subject = "class names"
            found = keys.digest(self.open_any_split(task.dataset).classes)
        if found != data.dataset:
            problem = f"its {subject} here are not those that the run began with"
            raise ChangedDataError(f"{task.dataset}: {problem}; restore them, or begin another run")

    def describe(self, names: Iterable[str], split: str) -> list[DatasetInfo]:
        """Describe datasets and groups, or all datasets of the dataset file if no name is given."""
        descriptions = []
        for name in expand(list(names) or list(self._custom), self._custom):
            descriptions.append(self._describe(name, split))
        return descriptions

    def _describe(self, name: str, split: str) -> DatasetInfo:
        dataset = self.open(name, split)
        return DatasetInfo(
            name=name,
            split=split,
            group=dataset.group,
            classes=dataset.classes,
            size=len(dataset),
            digest=self.samples_digest(name, split),
            images=dataset.digest()[:16],
        )


ADAPTERS = 2  # in memory, each with a Jacobian of up to a quarter of it: the one in use and the one before

ShowProgress = Callable[[str, int, str], AbstractContextManager[Bar]]  # arguments: label, total, unit


def show_nothing(label: str, total: int, unit: str) -> Bar:
    return Bar(label, total, unit, shown=False)


class Worker:
    """Computes tasks. The result of a task does not depend on the tasks before."""

    def __init__(self, spec: WorkerSpec, show: ShowProgress = show_nothing) -> None:
        plugins.load(spec.plugins)
        torch.set_num_threads(spec.threads)
        self.spec = spec
        self.model = WorkerModel(spec)
        self.datasets = WorkerDatasets(spec)
        self.cache = FeatureCache(Path(spec.cache) if spec.cache else default_cache(), exact=spec.float32_cache)
        self._show = show
        self._adapters: OrderedDict[str, Adapter] = OrderedDict()  # the most recently used last

    @property
    def clip(self) -> Clip:
        return self.model.clip

    def model_info(self) -> ModelInfo:
        return self.model.info()

    def describe(self, names: Iterable[str], split: str) -> list[DatasetInfo]:
        """See WorkerDatasets.describe."""
        return self.datasets.describe(names, split)

    def check(self, prompts: Iterable[TextSource], datasets: Sequence[DatasetInfo]) -> Validation:
        """See validation.validate."""
        return validate(self.clip, prompts, datasets)

    def run(
        self, task: Task, inputs: Sequence[TaskResult], adapter_key: str = "", data: TaskData | None = None
    ) -> TaskResult:
        """Compute a task; `inputs` are the results of `task.needs`. The adapter is kept under its key.

        With `data`, the task fails if the dataset or a file of texts is not the one that the task's key is made from.
        Raise TaskFailed with dataset, samples, machine and worker, then the cause.
        """
        began = perf_counter()
        worker = worker_at(platform.node(), os.getpid())
        try:
            if data is not None:
                self.datasets.require_unchanged(task, data)
                require_unchanged_files(self.clip, data.files)
            if isinstance(task, PretrainTask):
                result = self._pretrain(task)
            else:
                result = self._evaluate(task, dict(zip(task.needs, inputs, strict=True)), adapter_key)
        except (Exception, SystemExit) as error:
            where = f"{task.title}, {worker}"
            if line := plugins.line_of(error):
                where = f"{where}, method {task.config.method} ({line})"
            raise TaskFailed.of(self.model.explain(error), where) from error
        return replace(
            result,
            spent=result.seconds,
            worker_seconds=perf_counter() - began,
            worker=worker,
            adapters=tuple(self._adapters),
        )

    def _pretrain(self, task: PretrainTask) -> TaskResult:
        began = perf_counter()
        clip = self.clip
        dataset = self.datasets.open_any_split(task.dataset)
        progress = self._show(f"{task.dataset}: pretraining", task.config.fpp.steps, "steps")
        precision = pretraining_precision(task.config.precision)
        with computing(precision, clip.device), progress as bar:
            prompt = make_prompt(clip, task, dataset, bar.advance, self.spec.cuda_graphs)
        data = prompt_bytes(prompt, clip, {"fpp": asdict(task.config.fpp)})
        return TaskResult(prompt=data, seconds={"pretrain": perf_counter() - began})

    def _evaluate(self, task: EvalTask, inputs: dict[Task, TaskResult], adapter_key: str) -> TaskResult:
        began = perf_counter()
        dataset = self.datasets.open(task.dataset, task.split)
        features = self._features(task)
        features_done = perf_counter()
        with self._show(f"{task.dataset}: {task.config.method}", task.stop - task.start, "images") as bar:
            adapter = self.adapter(task, self._prompt(task, inputs), adapter_key)
            state = None if task.previous is None else inputs[task.previous].state
            if state is not None:
                adapter = with_state(adapter, state)
            with computing(adaptation_precision(task.config.precision), self.clip.device):
                predictions, adapter = evaluate(self.clip, task, dataset, features, adapter, bar.advance)
        return TaskResult(
            predictions=pack_predictions(predictions),
            state=pack_state(adapter),
            seconds={"features": features_done - began, "adapt": perf_counter() - features_done},
            features=features.cost,
        )

    def _features(self, task: EvalTask) -> Features:
        """Return the image features of a task's samples."""
        dataset = self.datasets.open(task.dataset, task.split)
        stream = stream_of(task, dataset)
        with self._show(f"{task.dataset}: features", int(np.ptp(stream)) + 1, "images") as bar:
            return self.cache.features(
                self.clip,
                dataset,
                views_for(task.config, dataset.group),
                task.seed,
                precision=adaptation_precision(task.config.precision),
                samples=stream.tolist(),
                workers=self.model.image_readers,
                progress=bar,
            )

    def _prompt(self, task: EvalTask, inputs: dict[Task, TaskResult]) -> Prompt | None:
        """Return the prompt that a task starts from; None if templates replace it."""
        if task.config.templates:
            return None
        if task.pretrain is None:
            return open_prompt(self.clip, task.config.prompt)
        data = inputs[task.pretrain].prompt
        assert data is not None, "a pretraining gives a prompt"
        return from_bytes(self.clip, data)

    def adapter(self, task: EvalTask, prompt: Prompt | None, key: str = "") -> Adapter:
        """Return the task's method, set up for its prompt and dataset; the last ones are kept."""
        if key in self._adapters:
            self._adapters.move_to_end(key)
            return self._adapters[key]
        while len(self._adapters) >= ADAPTERS:
            self._adapters.popitem(last=False)  # before the next one is built, which may need the memory
        dataset = self.datasets.open(task.dataset, task.split)
        with computing(adaptation_precision(task.config.precision), self.clip.device):
            adapter = make_adapter(self.clip, task.config, dataset, prompt)
        if key:
            self._adapters[key] = adapter
        return adapter


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """One worker and a store of results; see trial.Executor."""

    worker: Worker
    keys: TaskKeys
    store: Store = field(default_factory=MemoryStore)

    def results(self, tasks: Sequence[Task], order: int = 0) -> Generator[tuple[Task, TaskResult]]:
        """Yield tasks with their results in the given order; raise at the first failure."""
        unreported: dict[str, TaskResult] = {}  # results by key that were computed here and not yet yielded
        for task in tasks:
            result = self._result(task, unreported)
            # the task may have been computed before, as an input of another one; yield that result with its cost
            yield task, unreported.pop(self.keys.of(task), result)

    def _result(self, task: Task, unreported: dict[str, TaskResult]) -> TaskResult:
        """Return a task's result from the store, or compute it and the tasks that it needs."""
        cached = find_cached(self.store, self.keys, task)
        if cached is not None:
            return cached
        inputs = [self._result(needed, unreported) for needed in task.needs]
        adapter_key = ""
        if isinstance(task, EvalTask):
            adapter_key = self.keys.of_adapter(task)
        result = self.worker.run(task, inputs, adapter_key, self.keys.data_of(task))
        key = self.keys.of(task)
        unreported[key] = result
        try:
            self.store.put(key, result)
        except OSError as error:  # a full disk says nothing about the trial
            raise MachineError.of(error) from error
        return result
