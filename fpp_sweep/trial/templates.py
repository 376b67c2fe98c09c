"""Templates: several texts for each class, which classify images as an ensemble, without a prompt.

A template is a text with `{}` for the class name. A user's JSON file has a list of templates, or an object with a list
of texts for each class, such as descriptions by a language model. Messages show nothing of a file that is wrong: the
settings of another person may name any file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fpp_sweep.core.datasets.imagenet import templates as open_clip_templates
from fpp_sweep.spec.config import is_template_file
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.files import read_at_most, user_path
from fpp_sweep.spec.messages import warn_once
from fpp_sweep.spec.released import FALLBACK_TEMPLATES, released_templates, resolved_templates

MAX_BYTES = 2**26  # 50 long descriptions of each of a thousand classes have 10 MB


def texts_by_class(templates: str, dataset: str, classes: Sequence[str]) -> list[list[str]]:
    """Return the texts of each class for a value of `adapt.templates`: a list's name, `released` or a file.

    Underscores in class names become spaces.
    """
    names = [name.replace("_", " ") for name in classes]
    if is_template_file(templates):
        content = _read_template_file(user_path(templates))
        if isinstance(content, dict):
            return _select_texts(content, templates, dataset, names)
        return _fill_in_names(content, names)
    if templates == "released" and dataset not in released_templates():
        warn_once(f"{dataset}: no templates are released for this dataset; uses those of {FALLBACK_TEMPLATES}")
    resolved = resolved_templates(templates, dataset)
    if isinstance(resolved, str):  # the name of a list
        resolved = open_clip_templates(resolved)
    return _fill_in_names(resolved, names)


def file_digest(path: str) -> str:
    """Return a hash of the contents of a template file: 16 hexadecimal digits."""
    return hashlib.sha256(_read(user_path(path))).hexdigest()[:16]


def _fill_in_names(templates: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Return for each class the templates with its name."""
    by_class = []
    for name in names:
        by_class.append([template.replace("{}", name) for template in templates])
    return by_class


def _select_texts(content: dict[str, Any], path: str, dataset: str, names: Sequence[str]) -> list[list[str]]:
    """Return the texts that a file has for each class; raise InputError if a class of the dataset has none."""
    texts_by_name = {key.replace("_", " "): texts for key, texts in content.items()}
    by_class = []
    for name in names:
        if name not in texts_by_name:
            raise InputError(f"{path}: has no texts for class {name!r} of {dataset}; add them")
        texts = _require_texts(texts_by_name[name], f"{path}: class {name!r}")
        by_class.append([text.replace("{}", name) for text in texts])
    return by_class


def _read_template_file(path: Path) -> dict[str, Any] | list[str]:
    """Return a file's list of templates, or its object with lists of texts by class."""
    read = _read(path)
    try:
        content = json.loads(read.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, type(error).__name__) from None
    if isinstance(content, dict):
        return content
    templates = _require_texts(content, str(path))
    for number, template in enumerate(templates, start=1):
        count = template.count("{}")
        if count != 1:
            raise InputError(f"{path}: a template needs {{}} once, for the class name (entry {number} has {count})")
    return templates


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
