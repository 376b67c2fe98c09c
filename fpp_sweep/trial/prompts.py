"""Prompts of a trial: opened from words or a file and checked to fit, or pretrained by FPP; and classifiers of texts.

Pretraining is a pure function of its task, the model and the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter

from fpp_sweep.core.compute import torch_generator
from fpp_sweep.core.datasets import Dataset, imagenet_classes
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt, open_prompt
from fpp_sweep.core.text.texts import Texts, class_texts, ensemble_features, gaussian_texts, require_room
from fpp_sweep.spec.config import TrialConfig, is_file_name, is_template_file
from fpp_sweep.spec.errors import ChangedDataError
from fpp_sweep.spec.specs import DatasetInfo, TextSource, Validation
from fpp_sweep.spec.tasks import PretrainTask
from fpp_sweep.trial.templates import file_digest, texts_by_class


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


def make_prompt(
    clip: Clip,
    task: PretrainTask,
    dataset: Dataset,
    on_step: Callable[[], None] = _ignore_step,
    cuda_graphs: bool = False,
) -> Prompt:
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
        cuda_graphs=cuda_graphs,
    )
    final_losses = learned.losses[-1].tolist() if fpp.steps else [0.0, 0.0]
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


def validate(clip: Clip, prompts: Iterable[TextSource], datasets: Sequence[DatasetInfo]) -> Validation:
    """Raise InputError for texts that do not fit the model or the classes."""
    class_names = [dataset.classes for dataset in datasets]
    words: set[str] = set().union(*class_names)
    digests = {}
    for source in prompts:
        if source.templates:
            words |= _fitting_texts(clip, source.templates, datasets)
            if is_template_file(source.templates):
                digests[source.templates] = file_digest(source.templates)
            continue
        prompt = open_fitting_prompt(clip, source.prompt, class_names)
        if is_file_name(source.prompt):
            digests[source.prompt] = prompt.digest
        else:
            words.add(source.prompt)
    return Validation(notes=_untrained_note(clip, sorted(words)), prompts=digests)


def require_unchanged_files(clip: Clip, files: Mapping[str, str]) -> None:
    """Raise ChangedDataError unless files of prompts and templates, by name, still have these digests."""
    for file, digest in files.items():
        if is_template_file(file):
            found = file_digest(file)
        else:
            found = open_prompt(clip, file).digest
        if found != digest:
            problem = f"{file}: is not the file that the run began with"
            raise ChangedDataError(f"{problem}; restore it, or begin another run")


def _fitting_texts(clip: Clip, templates: str, datasets: Sequence[DatasetInfo]) -> set[str]:
    """Return the distinct texts of all classes; raise InputError if one is too long for the model."""
    distinct: set[str] = set()
    for dataset in datasets:
        for texts in texts_by_class(templates, dataset.name, dataset.classes):
            distinct.update(texts)
    for text in distinct:
        require_room(clip.text, clip.tokenizer.encode(text), text)
    return distinct


def _untrained_note(clip: Clip, texts: Sequence[str]) -> tuple[str, ...]:
    """Return a note on prompts and class names that the model's training data did not contain, if there are any."""
    untrained = [text for text in texts if clip.has_untrained_words(text)]
    if not untrained:
        return ()
    never_seen = f"words that model {clip.name} never saw"
    if len(untrained) == 1:
        return (f"{untrained[0]!r} has {never_seen}",)
    return (f"{len(untrained)} prompts or class names, such as {untrained[0]!r}, have {never_seen}",)
