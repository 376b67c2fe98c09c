"""Tasks: the work of a trial, cut into pieces that workers compute. They are plain values that need no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, ViewConfig

BATCH = 64  # samples whose views are in memory at a time; shards are cut between batches, so no cut changes a bit
SHARD = 1024  # samples of a shard by default: minutes on a CPU, seconds on a GPU
PASSES_OF_TPT = 3  # a text passes the text tower forward, back and forward again in TPT with one step
SLOTS_SELECTED = 3  # slots of DynaPrompt's buffer that are tuned for each sample, about


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainTask:
    """Learning the prompt that a (config, dataset, seed) starts from; all shards and methods share the prompt."""

    config: TrialConfig
    dataset: str
    seed: int
    gate: float | None = None  # the pretraining ends early if its drift is larger; see core.fpp

    @property
    def prompt_seed(self) -> int:
        """The seed that the prompt is pretrained with."""
        return self.seed

    @property
    def needs(self) -> tuple[Task, ...]:
        """Tasks whose results this task starts from."""
        return ()

    @property
    def title(self) -> str:
        return f"{self.dataset}, pretraining, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """Adapting to the samples start..stop of a dataset, in the order of its stream, and predicting them."""

    config: TrialConfig
    dataset: str
    split: str
    seed: int
    start: int
    stop: int
    columns: tuple[str, ...] = ()  # optional columns of the predictions
    pretraining_seed: int | None = None  # if it differs from the seed, which then draws the views only
    gate: float | None = None  # gate of its pretraining

    @property
    def prompt_seed(self) -> int:
        """The seed that the prompt is pretrained with."""
        if self.pretraining_seed is None:
            return self.seed
        return self.pretraining_seed

    @property
    def pretrain(self) -> PretrainTask | None:
        """The task that learns its prompt, if the prompt is pretrained."""
        if not self.config.pretrains:
            return None
        return PretrainTask(config=self.config, dataset=self.dataset, seed=self.prompt_seed, gate=self.gate)

    @property
    def previous(self) -> EvalTask | None:
        """The shard before, if the method is stateful: its state is this shard's start."""
        if self.start == 0 or not catalogue.method(self.config.method).stateful:
            return None
        return replace(self, start=max(0, self.start - SHARD), stop=self.start)

    @property
    def needs(self) -> tuple[Task, ...]:
        """Tasks whose results this task starts from."""
        return tuple(task for task in (self.pretrain, self.previous) if task is not None)

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.split} samples {self.start}..{self.stop}, seed {self.prompt_seed}"

    def shards(self, count: int | None = None) -> list[EvalTask]:
        """Cut the samples into `count` contiguous shards of whole batches, by default into shards of a fixed size.

        The shards of a stateful method form a chain, which must have the same boundaries wherever it runs.

        >>> task = EvalTask(config=TrialConfig(), dataset="dtd", split="test", seed=0, start=0, stop=300)
        >>> [(shard.start, shard.stop) for shard in task.shards(3)], len(task.shards()), len(task.shards(100))
        ([(0, 64), (64, 192), (192, 300)], 1, 5)
        """
        if catalogue.method(self.config.method).stateful:
            boundaries = list(range(self.start, self.stop, SHARD))
        else:
            boundaries = self._even_boundaries(count)
        inside = {boundary for boundary in boundaries if self.start < boundary < self.stop}
        boundaries = sorted({self.start, *inside, self.stop})
        return [replace(self, start=start, stop=stop) for start, stop in pairwise(boundaries)]

    def _even_boundaries(self, count: int | None) -> list[int]:
        """Return the samples at which shards of nearly equal numbers of batches begin and end."""
        first = self.start // BATCH
        batches = math.ceil(self.stop / BATCH) - first
        if count is None:
            shards = math.ceil((self.stop - self.start) / SHARD)
        else:
            shards = min(count, batches)
        return [BATCH * (first + batches * index // shards) for index in range(shards + 1)]


Task = PretrainTask | EvalTask


def views_for(config: TrialConfig, group: str) -> ViewConfig:
    """Return the view settings of a config's method on datasets of a group.

    A method that looks at fewer views, or at other views than the config says, gets its own settings here. Keys of
    cached features contain the settings, so each protocol has its own features. `views.augmix` on or off overrides
    AugMix of a method's protocol.
    """
    row = catalogue.method(config.method)
    views = config.views
    if row.views is not None:
        views = replace(views, count=row.views)
    kind = row.views_on(group)
    if kind == "plain":
        return replace(views, count=1)
    if views.augmix != "auto":
        return views
    if kind == "crops":
        return replace(views, augmix="off")
    if kind == "augmix":
        return replace(views, augmix="on")
    return views


def cost(task: Task, classes: int) -> float:
    """Return about how many texts go through the text tower: a trial requests its largest tasks first."""
    if isinstance(task, PretrainTask):
        fpp = task.config.fpp
        return fpp.steps * (2 + fpp.draws) * classes
    texts_per_sample = 1.0
    if catalogue.method(task.config.method).learns:
        texts_per_sample += 2 * effort(task.config)
    return (task.stop - task.start) * texts_per_sample * classes


def effort(config: TrialConfig) -> float:
    """Return about how much work adapting to a sample is, in steps of TPT.

    With a buffer, all slots pass the text tower once; the selected slots then pass it as often as the prompt of TPT.
    """
    if "adapt.slots" in catalogue.method(config.method).reads:
        passes = config.adapt.slots + PASSES_OF_TPT * SLOTS_SELECTED
        return passes / PASSES_OF_TPT
    return max(1, config.adapt.steps)
