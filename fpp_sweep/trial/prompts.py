"""Prompts of a trial: opened from words or a file and checked to fit, or pretrained by FPP; and classifiers of texts.

Pretraining is a pure function of its task, the model and the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from fpp_sweep.core.compute import torch_generator
from fpp_sweep.core.datasets import Dataset, imagenet_classes
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt, open_prompt
from fpp_sweep.core.text.texts import Texts, class_texts, ensemble_features, gaussian_texts
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.trial.templates import texts_by_class


def fitting_texts(clip: Clip, classes: Sequence[str], context_tokens: int, after: str = "") -> Texts:
    """Return the texts of a dataset's classes, checked to fit the model with a context of that length.

    `after` are a prompt's words between context and class name.
    """
    texts = class_texts(clip.text, clip.tokenizer, classes, after=after)
    texts.require_room(context_tokens, classes)
    return texts


def prompt_model(clip: Clip, prompt: Prompt, dataset: Dataset) -> TextModel:
    """Return the classifier of a dataset's classes for contexts as long as a prompt's."""
    texts = fitting_texts(clip, dataset.classes, len(prompt.context), prompt.after)
    return TextModel(texts=texts, logit_scale=clip.logit_scale)


def ensemble_model(clip: Clip, templates: str, dataset: Dataset) -> TextModel:
    """Return the classifier of a dataset's classes by an ensemble of templates."""
    of_classes = texts_by_class(templates, dataset.name, dataset.classes)
    ensemble = ensemble_features(clip.text, clip.tokenizer, of_classes)
    texts = fitting_texts(clip, dataset.classes, 0)
    return TextModel(texts=texts, logit_scale=clip.logit_scale, ensemble=ensemble)


def open_fitting_prompt(clip: Clip, name: str, datasets: Iterable[Sequence[str]]) -> Prompt:
    """Open a prompt; raise InputError unless the prompt and all class names fit the model."""
    prompt = open_prompt(clip, name)
    for classes in datasets:
        fitting_texts(clip, classes, len(prompt.context), prompt.after)
    return prompt


def _ignore_step() -> None:
    """Do nothing after a step of pretraining."""


def make_prompt(clip: Clip, task: PretrainTask, dataset: Dataset, on_step: Callable[[], None] = _ignore_step) -> Prompt:
    """Compute a PretrainTask; `on_step` is called after each step."""
    config = task.config
    if config.prompt != "fpp":
        return open_prompt(clip, config.prompt)
    began = perf_counter()
    anchor = open_prompt(clip, config.anchor_prompt)
    fpp = config.fpp.scaled(clip.embedding_scale)
    texts = _pretraining_texts(clip, task, dataset, anchor)
    stream = (task.seed, "fpp", task.dataset)
    learned = pretrain(
        texts,
        anchor.context,
        fpp,
        flatness_weight=flatness_weight(config, dataset, len(texts)),
        start=draw_start(anchor.context, fpp, torch_generator(*stream, "start")),
        noise=draw_noise(texts, len(anchor.context), fpp, torch_generator(*stream, "noise")),
        gate=task.gate,
        on_step=on_step,
    )
    final_losses = [0.0, 0.0]
    if fpp.steps:
        final_losses = learned.losses[-1].tolist()
    origin = {
        "words": config.anchor_prompt,
        "seed": str(task.seed),
        "dataset": task.dataset,
        "final_alignment_loss": f"{final_losses[0]:.6f}",
        "final_flatness_loss": f"{final_losses[1]:.6f}",
        "seconds": f"{perf_counter() - began:.2f}",
    }
    if learned.drift is not None:
        origin["drift"] = str(learned.drift)
    return Prompt(context=learned.context, origin=origin, after=anchor.after)


def _pretraining_texts(clip: Clip, task: PretrainTask, dataset: Dataset, anchor: Prompt) -> Texts:
    """Return the class texts that FPP learns from."""
    source = task.config.fpp.class_source
    if source == "gaussian":
        generator = torch_generator(task.seed, "fpp", task.dataset, "classes")
        return gaussian_texts(clip.text, clip.tokenizer, len(dataset.classes), generator)
    names = list(imagenet_classes().values()) if source == "imagenet" else dataset.classes
    return fitting_texts(clip, names, len(anchor.context), anchor.after)


def flatness_weight(config: TrialConfig, dataset: Dataset, source_classes: int) -> float:
    """Return lambda: fixed on ImageNet's shifts unless the config says otherwise, else gamma1 + gamma2 / K."""
    fpp = config.fpp
    if dataset.group == "shifts" and fpp.lambda_shifts is not None:
        return fpp.lambda_shifts
    if fpp.lambda_classes == "dataset":
        return fpp.flatness_weight(len(dataset.classes))
    return fpp.flatness_weight(source_classes)
