"""The model of a worker: loaded once on its device, and described for keys and records."""

from __future__ import annotations

import os
import platform
import re
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
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
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.models.load import load
from fpp_sweep.spec.process import readers
from fpp_sweep.spec.specs import ModelInfo, StagePrecision, WorkerSpec
from fpp_sweep.trial.code import code_digest


class WorkerModel:
    """A model on a device, loaded when it is first used."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._load_seconds = 0.0

    @cached_property
    def device(self) -> torch.device:
        return torch.device(choose_device(self._spec.device))

    @cached_property
    def clip(self) -> Clip:
        """The model on its device."""
        began = perf_counter()
        for precision in self._spec.precisions:
            require_precision_support(precision, self.device)
        try:
            clip = load(self._spec.model, str(self.device))
        except RuntimeError as error:
            raise explain_out_of_memory(error, self.device) from error
        memory = MemoryBudget.available(self.device, self._spec.device_share)
        clip = replace(clip, text=replace(clip.text, memory=memory))
        self._load_seconds = perf_counter() - began
        return clip

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
        arithmetic = f"{features} features, {self._spec.threads} threads{self.clip.arithmetic_suffix}"
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
            seconds=self._load_seconds,
            device_kind=self.device_name,
            software=software(),
            made_with=f"{made_with()}, {gpu}",
        )

    def computing(self, precision: StagePrecision) -> AbstractContextManager[None]:
        """Return a context in which a stage's precision is in force."""
        return computing(precision, self.clip.device)

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
