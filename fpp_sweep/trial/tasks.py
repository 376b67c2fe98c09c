"""A trial's units of work as plain values: what is to be done, cut where it may be cut, named by its content.

Nothing heavy is loaded for them, so that whoever hands out work needs no model and no torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from fpp_sweep.config import TrialConfig

BATCH = 64  # samples whose views are in memory at a time; every cut is at a multiple, so that no cut changes a bit


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainTask:
    """Make the prompt that a (config, dataset, seed) starts from; one for all shards and methods that share it."""

    config: TrialConfig
    dataset: str
    seed: int

    def key(self) -> str:
        """Equal for tasks with equal prompts: what follows the prompt does not matter."""
        config = self.config
        if config.prompt != "fpp":
            return _name("prompt", config.prompt)
        return _name("fpp", config.init, asdict(config.fpp), self.dataset, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """Adapt to and predict the samples start..stop of a dataset."""

    config: TrialConfig
    dataset: str
    split: str
    seed: int
    start: int
    stop: int

    @property
    def pretrain(self) -> PretrainTask:
        """What makes the prompt that this starts from."""
        return PretrainTask(config=self.config, dataset=self.dataset, seed=self.seed)

    def key(self) -> str:
        """Equal for tasks with equal predictions: settings that the method does not read do not matter."""
        config = self.config
        adapt, views = asdict(config.adapt), asdict(config.views)
        if config.method == "zero_shot":  # looks at the plain view only, and learns nothing
            adapt, views = {}, {"count": 1}
        cut = (self.dataset, self.split, self.seed, self.start, self.stop)
        return _name("eval", self.pretrain.key(), config.method, adapt, views, *cut)


def split(task: EvalTask, shards: int) -> list[EvalTask]:
    """The same work in contiguous pieces of whole batches, whose numbers of batches differ by one at most.

    >>> task = EvalTask(config=TrialConfig(), dataset="dtd", split="test", seed=0, start=0, stop=300)
    >>> [(part.start, part.stop) for part in split(task, 3)]
    [(0, 64), (64, 192), (192, 300)]
    """
    first, last = task.start // BATCH, -(-task.stop // BATCH)
    cuts = [BATCH * (first + (last - first) * shard // shards) for shard in range(shards + 1)]
    edges = [min(max(cut, task.start), task.stop) for cut in cuts]
    return [replace(task, start=a, stop=b) for a, b in pairwise(edges) if b > a]


def _name(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
