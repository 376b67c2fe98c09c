"""Differences between a precision and float64: `python -m benchmarks.precision --device cuda`.

Each stage runs in each precision of the device, with all other stages in float64; then the whole trial runs in that
precision. Every number is a difference from the whole trial in float64 on the same views and noise. The embedded model
shows changes of real accuracy and ECE. The tower of ViT-B-16's shape has random weights, few classes and few images, so
that only its changes of probabilities are meaningful.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from benchmarks.harness import check_equal, finish, parse, require_open_clip
from fpp_sweep.cli.command import Parser, run
from fpp_sweep.core.compute.precision import computing, require_precision_support
from fpp_sweep.core.compute.random_streams import torch_generator
from fpp_sweep.core.datasets import Dataset, open_dataset
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.images.device_views import ViewRenderer
from fpp_sweep.core.images.reading import Reader, UnreadableImage
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.methods.tpt import Tpt
from fpp_sweep.core.metrics import Predictions, accuracy, expected_calibration_error
from fpp_sweep.core.models.clip import Clip, Preprocess
from fpp_sweep.core.models.loading import load
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.core.text.tower import TextTower
from fpp_sweep.spec.config import TrialConfig, preset
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import StagePrecision
from fpp_sweep.trial.prompts import class_texts

STAGES = ("image tower", "pretraining", "selection", "adaptation", "prediction", "zero-shot")
WHOLE = "whole trial"
VIEWS = 8  # views of an image for the tower of ViT-B-16's shape
YARDSTICK: StagePrecision = "float32"  # computing in it leaves float64 tensors unrounded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A model on a device, unchanged and in float64, with the config and the images of a trial."""

    title: str
    clip: Clip
    exact: Clip
    config: TrialConfig
    classes: tuple[str, ...]
    pixels: list[Tensor]  # for each image (V, 3, size, size)
    labels: Any


class TptOnFixedViews(Tpt):
    """TPT on fixed views instead of selected ones."""

    fixed_views: Tensor

    def select_views(self, model: TextModel, features: Tensor, views: Tensor) -> Tensor:
        return self.fixed_views


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial with a precision for each stage; None means float64."""

    case: Case
    stages: dict[str, StagePrecision | None]

    def clip(self, stage: str) -> Clip:
        return self.case.exact if self.stages[stage] is None else self.case.clip

    def computing(self, stage: str) -> Any:
        return computing(self.stages[stage] or YARDSTICK, self.case.clip.device)

    def like(self, stage: str, values: Tensor) -> Tensor:
        return values.double() if self.stages[stage] is None else values.float()

    def model(self, stage: str) -> TextModel:
        clip = self.clip(stage)
        anchor = open_prompt(self.case.clip, self.case.config.anchor_prompt)
        texts = class_texts(clip, self.case.classes, len(anchor.context), anchor.after)
        return TextModel(texts=texts, logit_scale=clip.logit_scale)

    def features(self) -> Tensor:
        with self.computing("image tower"):
            clip = self.clip("image tower")
            parts = [clip.image_features(self.like("image tower", pixels)) for pixels in self.case.pixels]
        return torch.stack(parts)

    def prompt(self) -> Tensor:
        config = self.case.config.fpp.scaled(self.case.clip.embedding_scale)
        texts = self.model("pretraining").texts
        anchor = open_prompt(self.case.clip, self.case.config.anchor_prompt).context
        start = draw_start(anchor, config, torch_generator("precision", "start"))
        noise = draw_noise(texts, len(anchor), config, torch_generator("precision", "noise"))
        with self.computing("pretraining"):
            learned = pretrain(
                texts,
                self.like("pretraining", anchor),
                config,
                flatness_weight=config.flatness_weight(len(texts)),
                start=self.like("pretraining", start),
                noise=noise,
            )
        return learned.context

    @torch.no_grad()
    def probabilities(self, views: Tensor, prompt: Tensor) -> Tensor:
        """Return TPT's probabilities from that prompt."""
        adapt = self.case.config.adapt.scaled(self.case.clip.embedding_scale)
        with self.computing("selection"):
            model = self.model("selection")
            features = model.features(self.like("selection", prompt))
            selected = Tpt(adapt=adapt).select_views(model, features, self.like("selection", views))
        with self.computing("adaptation"):
            model = self.model("adaptation")
            method = TptOnFixedViews(adapt=adapt)
            object.__setattr__(method, "fixed_views", self.like("adaptation", self._unrounded(selected, views)))
            state = method.start(model, self.like("adaptation", prompt), len(views))
            contexts = method.adapt_contexts(model, state, self.like("adaptation", views))
        with self.computing("prediction"):
            model = self.model("prediction")
            logits = method.classify(model, self.like("prediction", contexts), self.like("prediction", views))
        return self._stored(logits, "prediction")

    def _unrounded(self, selected: Tensor, views: Tensor) -> Tensor:
        """Return the selected views with their original numbers, without the rounding of the selection."""
        distances = torch.cdist(selected.double(), views.double())
        return views.gather(1, distances.argmin(-1)[..., None].expand(-1, -1, views.shape[-1]))

    @torch.no_grad()
    def zero_shot(self, views: Tensor) -> Tensor:
        with self.computing("zero-shot"):
            model = self.model("zero-shot")
            anchor = open_prompt(self.case.clip, self.case.config.anchor_prompt).context
            features = model.features(self.like("zero-shot", anchor))
            logits = model.logits(self.like("zero-shot", views[:, :1]), features)[:, 0]
        return self._stored(logits, "zero-shot")

    def _stored(self, logits: Tensor, stage: str) -> Tensor:
        """Return probabilities as a trial stores them: in half precision where a stage computes in it."""
        probabilities = logits.softmax(-1)
        if self.stages[stage] == "fp16":
            probabilities = probabilities.half()
        return probabilities.double().cpu()


def main(argv: Sequence[str] | None = None) -> None:
    args = parse("benchmarks.precision", __doc__ or "", _options, argv)
    require_open_clip()
    rows, raw = [], {}
    for case in cases(args):
        print(f"{case.title}: {len(case.pixels)} images, K = {len(case.classes)}", flush=True)
        exact = Trial(case=case, stages=dict.fromkeys((*STAGES, WHOLE)))
        views, prompt = exact.features(), exact.prompt()
        expected_by_name = {"TPT": exact.probabilities(views, prompt), "zero-shot": exact.zero_shot(views)}
        for name, expected in expected_by_name.items():
            rows.append(row(case, "float64", WHOLE, name, expected, expected))
        for precision in supported_precisions(args.device):
            for stage in (*STAGES, WHOLE):
                stages = {name: precision if stage in (name, WHOLE) else None for name in STAGES}
                trial = Trial(case=case, stages=stages)
                for name, probabilities in recompute(trial, stage, views, prompt).items():
                    expected = expected_by_name[name]
                    if (precision, stage, name) == ("float32", WHOLE, "zero-shot"):
                        check_equal(probabilities, expected, f"{case.title}, zero-shot in float32 and in float64", 1e-3)
                    rows.append(row(case, precision, stage, name, probabilities, expected))
                    raw[f"{case.title}, {precision}, {stage}, {name}"] = rows[-1]
                    print("   ", *rows[-1].values(), flush=True)
    finish(
        args,
        rows,
        raw,
        [f"Precisions of {args.device}: {', '.join(supported_precisions(args.device))}; the yardstick is float64."],
    )


def _options(options: Parser) -> None:
    options.add_argument("--images", type=int, default=200, metavar="N", help="images of each embedded dataset")
    options.add_argument(
        "--vit-images", type=int, default=8, metavar="N", help="images for the tower of ViT-B-16's shape"
    )


def supported_precisions(device: str) -> list[StagePrecision]:
    """Return the precisions that a device supports."""
    supported: list[StagePrecision] = []
    for precision in get_args(StagePrecision):
        with suppress(InputError):
            require_precision_support(precision, device)
            supported.append(precision)
    return supported


def cases(args: Any) -> Iterator[Case]:
    clip = load("tiny", args.device)
    config = preset("tiny").replace({"fpp.steps": 5} if args.quick else {})
    for name in ("scenes",) if args.quick else ("scenes", "digits", "letters"):
        dataset = open_dataset(name, "test").head(8 if args.quick else args.images)
        pixels = render_views(clip, dataset, config)
        title = f"tiny, {name}"
        yield Case(title=title, clip=clip, exact=in_float64(clip), config=config, classes=dataset.classes,
                   pixels=pixels, labels=dataset.labels)  # fmt: skip
    if args.quick:
        return
    clip = vit_b_16(args.device)
    config = TrialConfig().replace({"fpp.steps": 20, "views.count": VIEWS, "adapt.view_fraction": 0.5})
    dataset = open_dataset("scenes", "test").head(args.vit_images)
    pixels = render_views(clip, dataset, config)
    yield Case(title="ViT-B-16, random weights", clip=clip, exact=in_float64(clip), config=config,
               classes=dataset.classes, pixels=pixels, labels=dataset.labels)  # fmt: skip


def render_views(clip: Clip, dataset: Dataset, config: TrialConfig) -> list[Tensor]:
    """Return the views of each image as inputs of the tower."""
    reader = Reader.of(dataset, config.views, clip.preprocess, 0)
    renderer = ViewRenderer(clip.preprocess, clip.device)
    size = clip.preprocess.size
    pixels_of_images = []
    for index in range(len(dataset)):
        pixels = torch.zeros(1, config.views.count, 3, size, size, device=clip.device)
        views = reader[index]
        assert not isinstance(views, UnreadableImage), "rendered images can be read"
        renderer.fill(pixels, {0: views})
        pixels_of_images.append(pixels[0])
    return pixels_of_images


def vit_b_16(device: str) -> Clip:
    """Return open_clip's ViT-B-16 with its initial weights and CLIP's temperature."""
    from open_clip import get_model_config
    from open_clip.model import CLIP

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CLIP(**get_model_config("ViT-B-16")).eval().requires_grad_(False)
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("visual.")}
    text = TextTower.from_state(state, heads=8, activation="gelu").to(device)
    return replace(
        load("tiny", device),  # its tokenizer is CLIP's
        visual=model.visual.to(device),
        text=text,
        logit_scale=100.0,
        preprocess=Preprocess(size=224),
        embedding_scale=1.0,
    )


def in_float64(clip: Clip) -> Clip:
    """Return the model in float64."""
    return replace(clip, visual=copy.deepcopy(clip.visual).double(), text=clip.text.to(torch.float64))


def recompute(trial: Trial, stage: str, views: Tensor, prompt: Tensor) -> dict[str, Tensor]:
    """Return the probabilities that depend on a stage, computed with that stage in the trial's precision."""
    if stage in ("image tower", WHOLE):
        views = trial.features().double()
    if stage in ("pretraining", WHOLE):
        prompt = trial.prompt().double()
    probabilities = {}
    if stage != "zero-shot":
        probabilities["TPT"] = trial.probabilities(views, prompt)
    if stage in ("image tower", "zero-shot", WHOLE):
        probabilities["zero-shot"] = trial.zero_shot(views)
    return probabilities


def row(
    case: Case, precision: str, stage: str, name: str, probabilities: Tensor, expected: Tensor
) -> dict[str, object]:
    change = (probabilities - expected).abs()
    n_changed = int((probabilities.argmax(-1) != expected.argmax(-1)).sum())
    ids = [str(index) for index in range(len(probabilities))]
    predictions = Predictions.of(ids, case.labels, probabilities.float().numpy(), {})
    return {
        "model and data": case.title,
        "precision": precision,
        "stage": stage,
        "of": name,
        "largest change": f"{change.max():.1e}",
        "median": f"{change.amax(-1).median():.1e}",
        "predictions changed": f"{n_changed} of {len(probabilities)}",
        "accuracy": f"{accuracy(predictions):.2f}",
        "ECE": f"{expected_calibration_error(predictions):.3f}",
    }


if __name__ == "__main__":
    run(main)
