"""Validation of the prompts and class names of a run on a worker's model, before the first trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fpp_sweep.core.models.clip import Clip
from fpp_sweep.core.prompt import open_prompt
from fpp_sweep.core.text.texts import require_room
from fpp_sweep.spec.config import is_file_name, is_template_file
from fpp_sweep.spec.errors import ChangedDataError
from fpp_sweep.spec.specs import DatasetInfo, TextSource, Validation
from fpp_sweep.trial.prompts import open_fitting_prompt
from fpp_sweep.trial.templates import file_digest, texts_by_class


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
