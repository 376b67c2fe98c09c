"""The value of `--model` and its parts.

`tiny` is the embedded model. Every other model is one of open_clip's architectures with published weights or a file:

    NAME[+gelu|+quickgelu]/TAG     ViT-B-16/openai
    NAME[+gelu|+quickgelu]:PATH    ViT-B-16:/models/ViT-B-16.pt

A misspelt name is refused without importing open_clip, which takes ten seconds.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpp_sweep.spec.errors import InputError, similar_names, unknown

if TYPE_CHECKING:
    from fpp_sweep.core.text.tower import Activation

EMBEDDED = "tiny"
ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "quickgelu": "quick_gelu"}  # by the user's word


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The parts of a model's name; weights are a tag or a path, except for the embedded model."""

    name: str
    activation: Activation | None = None
    tag: str | None = None
    path: Path | None = None


def parse(spec: str) -> ModelSpec:
    """Split a model's name; its architecture is checked, its tag or file is not.

    >>> parse("ViT-B-16+quickgelu:weights/b16.safetensors")
    ModelSpec(name='ViT-B-16', activation='quick_gelu', tag=None, path=PosixPath('weights/b16.safetensors'))
    """
    architecture, separator, rest = _split_at_first(spec, "/:")
    name, plus, activation = architecture.partition("+")
    if spec == EMBEDDED:
        return ModelSpec(name=EMBEDDED)
    if name == EMBEDDED:
        raise InputError(f"model {spec!r}: {EMBEDDED!r} is embedded and takes nothing after its name")
    if not name:
        raise InputError(f"model {spec!r} names no architecture; write NAME:PATH, such as ViT-B-16:{rest}")
    if name not in names():
        valid_names = [EMBEDDED, *names()]
        if similar_names(spec, valid_names, {}):  # such as ViT-B/16, as papers write it
            raise unknown("model", spec, valid_names)
        raise unknown("model", name, valid_names)
    if plus and activation not in ACTIVATIONS:
        raise InputError(f"model {spec!r}: {unknown('activation', activation, ACTIVATIONS)}")
    if not rest:
        raise InputError(f"model {spec!r} has no weights: add /TAG ({_tag_hint(name)}) or :PATH of a checkpoint")
    if separator == "/":
        return ModelSpec(name=name, activation=ACTIVATIONS.get(activation), tag=rest)
    return ModelSpec(name=name, activation=ACTIVATIONS.get(activation), path=Path(rest))


def require_model(spec: str) -> None:
    """Raise InputError if a model's name is wrong or its file is missing; no weights and no library are loaded.

    A tag after a slash and the content of a file are checked when the model is loaded.
    """
    path = parse(spec).path
    if path is not None and not path.expanduser().is_file():
        raise InputError(f"model {spec!r}: {path} is not a file; give the path of a checkpoint")


def _split_at_first(text: str, separators: str) -> tuple[str, str, str]:
    """Split a text at the first of some separators; without one, the last two parts are empty."""
    for index, character in enumerate(text):
        if character in separators:
            return text[:index], character, text[index + 1 :]
    return text, "", ""


def _tag_hint(name: str) -> str:
    known_tags = tags(name)
    if known_tags:
        return f"such as /{known_tags[0]}"
    return "open_clip knows none for it"


def names() -> list[str]:
    """Return open_clip's architectures, from the names of its files unless it is imported already."""
    open_clip = sys.modules.get("open_clip")
    if open_clip is not None:
        return list(open_clip.list_models())
    package = importlib.util.find_spec("open_clip")
    if package is None:
        return []
    architectures: list[str] = []
    for folder in package.submodule_search_locations or ():
        architectures += [path.stem for path in Path(folder).glob("model_configs/*.json")]
    return sorted(architectures)


def tags(name: str) -> list[str]:
    """Return the tags of an architecture's published weights."""
    from open_clip.pretrained import list_pretrained_tags_by_model  # start-up time: open_clip takes ten seconds

    return list(list_pretrained_tags_by_model(name))
