"""Descriptions of a model, of datasets and of workers: plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

StagePrecision = Literal["float32", "tf32", "fp16"]  # precision of one stage's matrix products
Precision = Literal["float32", "tf32", "fp16", "released"]  # a trial's; released: each stage as in the released code
DatasetSeed = tuple[str, int]  # name of a dataset, and a seed


def pretraining_precision(precision: Precision) -> StagePrecision:
    """Return the precision in which a trial pretrains its prompt: float32 in the released code."""
    if precision == "released":
        return "float32"
    return precision


def adaptation_precision(precision: Precision) -> StagePrecision:
    """Return the precision in which a trial encodes images, adapts and predicts: fp16 in the released code.

    >>> adaptation_precision("released"), pretraining_precision("released")
    ('fp16', 'float32')
    """
    if precision == "released":
        return "fp16"
    return precision


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFile:
    """A plugin as it travels: workers on other machines get the text, not the path."""

    name: str  # the file's name without .py
    path: str  # full path of the file on the machine where the command ran
    text: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Model, datasets and cache that a worker opens when it starts."""

    model: str
    data_root: str | None = None
    dataset_file: str | None = None
    datasets: tuple[str, ...] = ()  # as requested: names, groups, and folders as NAME=PATH
    limit: int | None = None  # images per dataset; none: all, of the embedded datasets EMBEDDED_LIMIT
    cache: str | None = None  # folder of image features
    float32_cache: bool = False  # features in float32 rather than half precision
    loaders: int | None = None  # processes that read images and draw views; none: by device
    cuda_graphs: bool = False  # capture a step of pretraining as a CUDA graph
    device: str = "auto"
    threads: int = 1  # number of torch's threads
    device_share: float = 1.0  # share of the device's memory
    machine_share: float = 1.0  # share of the machine's cores beside a GPU
    precisions: tuple[StagePrecision, ...] = ()  # trials will need them; a worker that lacks one does not start
    plugins: tuple[PluginFile, ...] = ()
    folder: str | None = None  # the folder that relative paths start from


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that a worker holds, and where."""

    name: str
    digest: str  # digest of all weights
    embedding_scale: float
    device: str
    arithmetic: str  # further causes of last bits: precision of features, threads
    node: str
    pid: int
    device_kind: str = ""  # name of the device in tables of costs, such as that of a GPU
    software: tuple[str, ...] = ()  # code and versions of libraries, such as "torch 2.9.0"
    made_with: str = ""  # software, builds and hardware, which move last bits as well; one sweep may see several

    @property
    def where(self) -> str:
        return worker_at(self.node, self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """One split of a dataset without its images."""

    name: str
    split: str
    group: str
    classes: tuple[str, ...]
    size: int
    digest: str  # digest of the class names, the samples' names and labels, and the way to draw views
    images: str  # digest of the images' fingerprints


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """Digests of the data that a task's key is made from: a worker must find the same data on its machine."""

    dataset: str  # `DatasetInfo.digest`; of a pretraining, which sees no images, that of the class names
    files: Mapping[str, str] = field(default_factory=dict)  # digests of files of prompts and templates, by name


class TextSource(NamedTuple):
    """Where a trial's text features come from: a prompt, or templates."""

    prompt: str  # words or a file; empty: templates
    templates: str = ""  # the setting `adapt.templates`; empty: a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The outcome of checking methods, prompts and datasets of a run in a worker."""

    notes: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)  # digests of files of prompts and templates


def worker_at(node: str, pid: int) -> str:
    """Return the name of a worker in messages."""
    return f"worker {pid} on {node}"
