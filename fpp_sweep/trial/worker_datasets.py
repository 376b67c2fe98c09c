"""The datasets of a worker: opened once each, with as many images as the sweep uses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fpp_sweep.core.datasets import Dataset, custom_datasets, expand, open_dataset
from fpp_sweep.spec import keys
from fpp_sweep.spec.errors import ChangedDataError, InputError
from fpp_sweep.spec.specs import DatasetInfo, TaskData, WorkerSpec
from fpp_sweep.spec.tasks import EvalTask, Task


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
            self._opened[name, split] = self._open(name, split)
        return self._opened[name, split]

    def _open(self, name: str, split: str) -> Dataset:
        count = split.partition(":")[2]
        limit = self._limit
        if count:
            limit = int(count)
        dataset = self.whole(name, split).limited(limit)
        if not len(dataset):
            raise InputError(f"{name}: its {split} split has no images")
        return dataset

    def whole(self, name: str, split: str) -> Dataset:
        """Return a split with all of its samples."""
        return open_dataset(name, split.partition(":")[0], self._root, self._custom)

    def open_any_split(self, name: str) -> Dataset:
        """Return a dataset of which only the classes matter: a split that is open, or else the test split."""
        for (opened_name, _), dataset in self._opened.items():
            if opened_name == name:
                return dataset
        return self.open(name, "test")

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
        file_order = ""
        if dataset.file_positions is not None:
            file_order = keys.digest(dataset.file_positions.argsort().tolist(), length=16)
        return DatasetInfo(
            name=name,
            split=split,
            group=dataset.group,
            classes=dataset.classes,
            size=len(dataset),
            digest=self.samples_digest(name, split),
            images=dataset.digest()[:16],
            file_order_digest=file_order,
        )
