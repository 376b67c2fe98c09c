"""Tasks: what a trial has to compute, cut where it may be cut, as plain values.

Whoever hands out tasks needs no model and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import TrialConfig, ViewConfig
from fpp_sweep.spec.errors import InputError

BATCH = 64  # samples whose views are in memory at a time; every cut is at a multiple, so that no cut changes a bit
SHARD = 1024  # samples of a shard unless the space says otherwise: minutes on a CPU, seconds on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainTask:
    """Make the prompt that a (config, dataset, seed) starts from; one for all shards and methods that share it."""

    config: TrialConfig
    dataset: str
    seed: int

    @property
    def prompt_seed(self) -> int:
        """The seed that the prompt is pretrained with."""
        return self.seed

    @property
    def needs(self) -> tuple[Task, ...]:
        """Tasks whose results it starts from."""
        return ()

    @property
    def title(self) -> str:
        return f"{self.dataset}, pretraining, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """Adapt to and predict the samples start..stop of a dataset, as its stream brings them."""

    config: TrialConfig
    dataset: str
    split: str
    seed: int
    start: int
    stop: int
    columns: tuple[str, ...] = ()  # optional columns of the predictions that somebody asks for
    pretraining_seed: int | None = None  # where it differs from the seed, which then draws the views only

    @property
    def prompt_seed(self) -> int:
        """The seed that the prompt is pretrained with."""
        return self.seed if self.pretraining_seed is None else self.pretraining_seed

    @property
    def pretrain(self) -> PretrainTask | None:
        """What makes the prompt that it starts from, where that is pretrained."""
        if self.config.prompt != "fpp":
            return None
        return PretrainTask(config=self.config, dataset=self.dataset, seed=self.prompt_seed)

    @property
    def previous(self) -> EvalTask | None:
        """The shard before, from whose state a stateful method goes on."""
        if not self.start or not catalogue.method(self.config.method).stateful:
            return None
        return replace(self, start=max(0, self.start - SHARD), stop=self.start)

    @property
    def needs(self) -> tuple[Task, ...]:
        """Tasks whose results it starts from."""
        return tuple(task for task in (self.pretrain, self.previous) if task is not None)

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.split} samples {self.start}..{self.stop}, seed {self.prompt_seed}"

    def shards(self, count: int | None = None, edges: Sequence[int] = ()) -> list[EvalTask]:
        """The same work in so many contiguous shards of whole batches, else in shards of a fixed size.

        They are cut at `edges`, too, which should lie between two batches.

        A stateful method's shards form a chain, whose cuts must be the same wherever it runs.

        >>> task = EvalTask(config=TrialConfig(), dataset="dtd", split="test", seed=0, start=0, stop=300)
        >>> [(shard.start, shard.stop) for shard in task.shards(3)], len(task.shards()), len(task.shards(100))
        ([(0, 64), (64, 192), (192, 300)], 1, 5)
        >>> [(shard.start, shard.stop) for shard in task.shards(edges=[64, 128])]
        [(0, 64), (64, 128), (128, 300)]
        """
        first, last = self.start // BATCH, -(-self.stop // BATCH)
        if catalogue.method(self.config.method).stateful:
            if count is not None:
                raise InputError(f"work.shards={count}: method {self.config.method} is stateful, its stream is not cut")
            cuts = [*range(self.start, self.stop, SHARD), self.stop]
        else:
            parts = min(count, last - first) if count else -(-(self.stop - self.start) // SHARD)
            cuts = [*(BATCH * (first + (last - first) * part // parts) for part in range(parts + 1)), *edges]
        ends = sorted({min(max(cut, self.start), self.stop) for cut in cuts})
        return [replace(self, start=start, stop=stop) for start, stop in pairwise(ends)]


Task = PretrainTask | EvalTask


def views_for(config: TrialConfig) -> ViewConfig:
    """The views that a config's method looks at."""
    views = catalogue.method(config.method).views
    return config.views if views is None else replace(config.views, count=views)


def cost(task: Task, classes: int) -> float:
    """Texts that go through the tower, roughly: what orders tasks by size."""
    if isinstance(task, PretrainTask):
        return task.config.fpp.steps * (2 + task.config.fpp.draws) * classes
    learns = catalogue.method(task.config.method).learns
    return (task.stop - task.start) * (1 + 2 * effort(task.config) * learns) * classes


def effort(config: TrialConfig) -> float:
    """Of adapting to a sample, in steps of TPT, roughly.

    Where there is a buffer, all its slots go through the tower, and about three are selected and go back and again.
    """
    if "adapt.slots" in catalogue.method(config.method).reads:
        return (config.adapt.slots + 9) / 3
    return max(1, config.adapt.steps)
