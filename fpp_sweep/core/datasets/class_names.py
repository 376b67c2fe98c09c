"""From the names of classes in files to those in prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fpp_sweep.spec.errors import InputError, unknown

# A user's own class names: all of them by label, or some by their names in files
Renaming: TypeAlias = tuple[str, ...] | Mapping[str, str]


def as_words(name: str) -> str:
    """Underscores become spaces, as in every released repository.

    >>> as_words("maine_coon")
    'maine coon'
    """
    return " ".join(name.replace("_", " ").split())


def rename(names: Sequence[str], renaming: Renaming) -> tuple[str, ...]:
    """Class names by label: the user's where given, else those of the files.

    >>> rename(["n01", "maine_coon"], {"n01": "tench"})
    ('tench', 'maine coon')
    """
    if isinstance(renaming, Mapping):
        for name in renaming:
            if name not in names:
                raise unknown("class in `classes`", name, names)
        return tuple(renaming.get(name, as_words(name)) for name in names)
    if renaming and len(renaming) != len(names):
        raise InputError(f"`classes` lists {len(renaming)} names, but there are {len(names)} classes")
    return renaming or tuple(map(as_words, names))
