"""Time of a whole trial with pretraining and TPT on one dataset: `python -m experiments.embedded_trial.trial`.

Both sides start from cached image features, which do not depend on the trial. (The released code draws views and
computes features again in every trial; benchmarks.features measures that cost.) Both sides pretrain with equal noise.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Ratio, check_equal, finish, parse, require_open_clip, rounds
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.compute.random_streams import torch_generator
from fpp_sweep.core.datasets import Dataset
from fpp_sweep.core.fpp import draw_noise, draw_start
from fpp_sweep.core.images.features import Features
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.spec.config import TrialConfig, preset
from fpp_sweep.spec.keys import TaskKeys
from fpp_sweep.spec.specs import WorkerSpec
from fpp_sweep.tiny.model import load as load_weights
from fpp_sweep.trial.local_runner import LocalExecutor
from fpp_sweep.trial.plan import Plan
from fpp_sweep.trial.prompts import class_texts, flatness_weight
from fpp_sweep.trial.trial import run_trial
from fpp_sweep.trial.worker import Worker
from tests.reference import naive

SEED = 0
SPLIT = "test"
TOLERANCE = 1e-3  # for probabilities after a pretraining, in which rounding errors grow from step to step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One trial that the engine and the naive reference can both run."""

    worker: Worker
    plan: Plan
    weights: Mapping[str, Tensor]
    config: TrialConfig
    dataset: Dataset
    features: Features

    @property
    def clip(self) -> Clip:
        return self.worker.clip

    def by_engine(self) -> tuple[Tensor, Tensor]:
        """Return confidences and predicted classes, computed as every command computes them."""
        executor = LocalExecutor(self.worker, TaskKeys(self.worker.model_info(), self.plan.datasets_by_key()))
        _, (result,) = run_trial(self.plan, self.config, SPLIT, executor)
        predictions = result.predictions
        return torch.as_tensor(predictions.confidence), torch.as_tensor(predictions.predicted)

    def by_naive(self) -> tuple[Tensor, Tensor]:
        """Return confidences and predicted classes, computed by the naive reference one image at a time."""
        text = naive.NaiveText(self.weights, self.clip.text.heads, quick_gelu=self.clip.text.activation == "quick_gelu")
        ids = self._token_ids()
        context = self._naive_prompt(text, ids)
        adapt = self.config.adapt.scaled(self.clip.embedding_scale)
        rows = [
            naive.adapt_one(
                text,
                ids,
                context,
                views.to(self.clip.device),
                logit_scale=self.clip.logit_scale,
                steps=adapt.steps,
                lr=adapt.lr,
                weight_decay=adapt.weight_decay,
                selection=adapt.view_fraction,
            ).probabilities
            for views in self.features.of(self.features.sample_indices)
        ]
        confidence, predicted = torch.stack(rows).max(dim=-1)
        return confidence.cpu(), predicted.cpu()

    def _naive_prompt(self, text: naive.NaiveText, ids: Tensor) -> Tensor:
        config = self.config.fpp.scaled(self.clip.embedding_scale)
        anchor = open_prompt(self.clip, self.config.anchor_prompt).context
        texts = class_texts(self.clip, self.dataset.classes, len(anchor))
        names = (SEED, "fpp", self.dataset.name)  # of the random streams that the engine uses
        draws = draw_noise(texts, len(anchor), config, torch_generator(*names, "noise"))
        learned = naive.pretrain(
            text,
            ids,
            anchor,
            draw_start(anchor, config, torch_generator(*names, "start")),
            [
                naive.Noise(context=noise.context[:, 0], sos=noise.sos[:, 0], suffix=noise.suffix[:, 0])
                for noise in itertools.islice(draws, config.steps)
            ],
            weight=flatness_weight(self.config, self.dataset, len(texts)),
            context_std=1.0,  # the draws already have their final scale
            class_std=1.0,
            lr=config.lr,
            final_lr=config.final_lr,
            weight_decay=config.weight_decay,
        )
        return learned.context

    def _token_ids(self) -> Tensor:
        tokenizer = self.clip.tokenizer
        ids = torch.zeros(len(self.dataset.classes), self.clip.text.positions, dtype=torch.long)
        for row, name in zip(ids, self.dataset.classes, strict=True):
            tokens = tokenizer.encode(f"{self.config.anchor_prompt} {name.replace('_', ' ')}.")
            row[: len(tokens) + 2] = torch.tensor([tokenizer.sos, *tokens, tokenizer.eot])
        return ids.to(self.clip.device)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("experiments.embedded_trial.trial", __doc__ or "", _options, argv)
    require_open_clip()
    with tempfile.TemporaryDirectory() as folder:
        trial = prepare_trial(args, Path(folder))
        (confidence, predicted), (expected, classes) = trial.by_engine(), trial.by_naive()
        check_equal(confidence, expected, "confidences", TOLERANCE)
        if not torch.equal(predicted, classes):
            raise AssertionError("the two sides predict different classes")
        works = {"naive": (trial.by_naive, 1), "engine": (trial.by_engine, 1)}
        spent = rounds(works, args.repeats, args.device)
    ratio = Ratio.of(spent["naive"], spent["engine"])
    facts = {
        "dataset": trial.dataset.name,
        "K": len(trial.dataset.classes),
        "images": len(trial.features),
        "steps": trial.config.fpp.steps,
    }
    notes = ["Ratios are naive / engine: median (lowest..highest) over rounds, wall, and CPU seconds."]
    finish(args, [{**facts, "trial": ratio.wall, "trial, CPU": ratio.cpu}], {**facts, **spent}, notes)


def _options(options: Parser) -> None:
    options.add_argument("--dataset", default="digits", metavar="NAME", help="an embedded dataset")
    options.add_argument("--images", type=int, default=100, metavar="N")


def prepare_trial(args: Any, folder: Path) -> Trial:
    """Return a trial of the embedded model with cached features; open_clip, which loads slowly, is loaded here."""
    config = preset("tiny").replace({"prompt": "fpp"})
    if args.quick:
        config = config.replace({"fpp.steps": 10, "views.count": 16})
    count = 6 if args.quick else args.images
    spec = WorkerSpec(model="tiny", device=args.device, limit=count, cache=str(folder), threads=torch.get_num_threads())
    worker = Worker(spec)
    dataset = worker.datasets.open(args.dataset, SPLIT)
    model, _ = load_weights()
    weights = {name: value.float().to(args.device) for name, value in model.state_dict().items()}
    return Trial(
        worker=worker,
        plan=Plan(datasets={SPLIT: tuple(worker.describe([args.dataset], SPLIT))}, seeds=(SEED,)),
        weights={name: value for name, value in weights.items() if not name.startswith("visual.")},
        config=config,
        dataset=dataset,
        features=worker.cache.features(worker.clip, dataset, config.views, SEED),
    )


if __name__ == "__main__":
    run(main)
