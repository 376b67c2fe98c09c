"""One trial on one machine: prompts, features and adaptation for every dataset, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from time import perf_counter
from typing import Literal

from fpp_sweep.config import TrialConfig, ViewConfig
from fpp_sweep.core.datasets import Dataset
from fpp_sweep.core.images.chunks import Skipped
from fpp_sweep.core.images.features import FeatureCache, Features
from fpp_sweep.core.metrics import Metrics, Predictions, score
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt
from fpp_sweep.errors import InputError
from fpp_sweep.progress import Bar
from fpp_sweep.trial.running import evaluate, make_adapter, make_prompt, views_for
from fpp_sweep.trial.tasks import EvalTask, PretrainTask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetResult:
    """What a trial found on one dataset."""

    classes: tuple[str, ...]
    prompt: Prompt
    predictions: Predictions
    metrics: Metrics
    skipped: tuple[Skipped, ...]  # images that could not be read
    seconds: Mapping[str, float]  # by stage; a prompt or features that were at hand cost 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialResult:
    """A trial's results by dataset."""

    config: TrialConfig
    split: str
    seed: int
    datasets: Mapping[str, DatasetResult]

    def average(self, names: Sequence[str]) -> Metrics:
        """The unweighted mean over these datasets, as the papers print it; `samples` is the total."""
        return mean_metrics([self.datasets[name].metrics for name in names])


def mean_metrics(rows: Sequence[Metrics]) -> Metrics:
    names = [item.name for item in fields(Metrics) if item.name != "samples"]
    means = {name: sum(getattr(row, name) for row in rows) / len(rows) for name in names}
    return Metrics(samples=sum(row.samples for row in rows), **means)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """A model, its cache, and what has been made with them so far, so that trials share it."""

    clip: Clip
    cache: FeatureCache
    on_bad_image: Literal["fail", "skip"] = "fail"
    workers: int = 0
    show: bool = True  # progress
    _prompts: dict[str, Prompt] = field(default_factory=dict)

    def run(self, config: TrialConfig, datasets: Sequence[Dataset], seed: int) -> TrialResult:
        """Pretrain where the config says so, adapt, predict and score."""
        results = {dataset.name: self._run(config, dataset, seed) for dataset in datasets}
        return TrialResult(config=config, split=datasets[0].split, seed=seed, datasets=results)

    def _run(self, config: TrialConfig, dataset: Dataset, seed: int) -> DatasetResult:
        clock = [perf_counter()]
        prompt = self._prompt(config, dataset, seed)
        clock.append(perf_counter())
        features = self._features(dataset, views_for(config, dataset.group), seed)
        if not len(features):
            reason = features.skipped[0].reason
            raise InputError(f"{dataset.name}: none of its {len(dataset)} images can be read, such as {reason}")
        clock.append(perf_counter())
        task = EvalTask(config=config, dataset=dataset.name, split=dataset.split, seed=seed, start=0, stop=len(dataset))
        with self._bar(f"{dataset.name}: {config.method}", len(features), "images") as bar:
            adapter = make_adapter(self.clip, config, dataset, prompt)
            predictions = evaluate(self.clip, task, dataset, features, adapter, bar.advance)
        clock.append(perf_counter())
        seconds = [stop - start for start, stop in pairwise(clock)]
        return DatasetResult(
            classes=dataset.classes,
            prompt=prompt,
            predictions=predictions,
            metrics=score(predictions),
            skipped=features.skipped,
            seconds=dict(zip(("prompt", "features", "adapt"), seconds, strict=True)),
        )

    def _prompt(self, config: TrialConfig, dataset: Dataset, seed: int) -> Prompt:
        task = PretrainTask(config=config, dataset=dataset.name, seed=seed)
        if task.key() not in self._prompts:
            steps = config.fpp.steps if config.prompt == "fpp" else 0
            with self._bar(f"{dataset.name}: pretraining", steps, "steps") as bar:
                self._prompts[task.key()] = make_prompt(self.clip, task, dataset, lambda: bar.advance(1))
        return self._prompts[task.key()]

    def _features(self, dataset: Dataset, views: ViewConfig, seed: int) -> Features:
        with self._bar(f"{dataset.name}: features", len(dataset), "images") as bar:
            return self.cache.features(
                self.clip, dataset, views, seed, on_bad_image=self.on_bad_image, workers=self.workers, progress=bar
            )

    def _bar(self, label: str, total: int, unit: str) -> Bar:
        return Bar(label, total, unit, shown=self.show)
