"""Prompts of a trial: opened from words or a file and checked to fit, or pretrained by FPP; and classifiers of texts.

Pretraining is a pure function of its task, the model and the data.

Templates are several texts for each class, which classify images as an ensemble, without a prompt. A template is a text
with `{}` for the class name. A user's JSON file has a list of templates, or an object with a list of texts for each
class, such as descriptions by a language model. Messages show nothing of a file that is wrong: the settings of another
person may name any file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.core.compute import torch_generator
from fpp_sweep.core.datasets import Dataset, imagenet_classes
from fpp_sweep.core.datasets.catalogue import templates as open_clip_templates
from fpp_sweep.core.fpp import draw_noise, draw_start, pretrain
from fpp_sweep.core.methods import TextModel
from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import Prompt, open_prompt
from fpp_sweep.core.text.texts import Texts, class_texts, ensemble_features, gaussian_texts, require_room
from fpp_sweep.spec.config import TrialConfig, is_file_name, is_template_file
from fpp_sweep.spec.errors import ChangedDataError, InputError
from fpp_sweep.spec.files import read_at_most, user_path
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.spec.released import FALLBACK_TEMPLATES, released_templates, resolved_templates
from fpp_sweep.spec.specs import DatasetInfo, TextSource, Validation
from fpp_sweep.spec.tasks import PretrainTask


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


def make_prompt(
    clip: Clip,
    task: PretrainTask,
    dataset: Dataset,
    on_step: Callable[[], None] = lambda: None,
    cuda_graphs: bool = False,
) -> Prompt:
    """Compute a PretrainTask; `on_step` is called after each step."""
    config = task.config
    if config.prompt != "fpp":
        return open_prompt(clip, config.prompt)
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
    origin = {"words": config.anchor_prompt, "seed": str(task.seed), "dataset": task.dataset}
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
        prompt = open_prompt(clip, source.prompt)
        for classes in class_names:
            fitting_texts(clip, classes, len(prompt.context), prompt.after)
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


MAX_BYTES = 2**26  # 50 long descriptions of each of a thousand classes have 10 MB


def texts_by_class(templates: str, dataset: str, classes: Sequence[str]) -> list[list[str]]:
    """Return the texts of each class for a value of `adapt.templates`: a list's name, `released` or a file.

    Underscores in class names become spaces.
    """
    names = [name.replace("_", " ") for name in classes]
    if is_template_file(templates):
        texts_of_names = _read_template_file(user_path(templates), dataset, names)
    else:
        if templates == "released" and dataset not in released_templates():
            warn_once(f"{dataset}: no templates are released for this dataset; uses those of {FALLBACK_TEMPLATES}")
        resolved = resolved_templates(templates, dataset)
        if isinstance(resolved, str):  # the name of a list
            resolved = open_clip_templates(resolved)
        texts_of_names = [resolved] * len(names)
    by_class = []
    for name, texts in zip(names, texts_of_names, strict=True):
        by_class.append([text.replace("{}", name) for text in texts])
    return by_class


def file_digest(path: str) -> str:
    """Return a hash of the contents of a template file: 16 hexadecimal digits."""
    return hashlib.sha256(_read(user_path(path))).hexdigest()[:16]


def _read_template_file(path: Path, dataset: str, names: Sequence[str]) -> list[list[str]]:
    """Return the texts of each class of a dataset: a file's list of templates, or those that it has for the class."""
    read = _read(path)
    try:
        content = json.loads(read.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, type(error).__name__) from None
    if isinstance(content, dict):
        texts_by_name = {key.replace("_", " "): texts for key, texts in content.items()}
        for name in names:
            if name not in texts_by_name:
                raise InputError(f"{path}: has no texts for class {name!r} of {dataset}; add them")
        return [_require_texts(texts_by_name[name], f"{path}: class {name!r}") for name in names]
    templates = _require_texts(content, str(path))
    for number, template in enumerate(templates, start=1):
        count = template.count("{}")
        if count != 1:
            raise InputError(f"{path}: a template needs {{}} once, for the class name (entry {number} has {count})")
    return [templates] * len(names)


def _read(path: Path) -> bytes:
    """Return a file's content; raise InputError if it cannot be read, is too large, or is a pipe."""
    try:
        return read_at_most(path, MAX_BYTES)
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from error


def _unreadable(path: Path, reason: object) -> InputError:
    return InputError(f"{path}: not a readable JSON file ({reason}); correct it, or name another", "adapt.templates")


def _require_texts(value: Any, where: str) -> list[str]:
    """Return a list of texts; raise InputError for anything else."""
    if not isinstance(value, list) or not value:
        raise InputError(f'{where}: must be a list of texts, such as ["a photo of a {{}}."]')
    for number, text in enumerate(value, start=1):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{where}: entry {number} is empty or not a text; take it out")
    return value
