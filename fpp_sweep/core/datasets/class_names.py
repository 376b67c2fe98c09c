"""From what files call a class to what a prompt says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fpp_sweep.errors import InputError, unknown

# A user's own words: all of them by label, or some by the name that files use.
Renaming: TypeAlias = tuple[str, ...] | Mapping[str, str]


def spoken(name: str) -> str:
    """As every released repository reads a name.

    >>> spoken("maine_coon")
    'maine coon'
    """
    return " ".join(name.replace("_", " ").split())


def rename(names: Sequence[str], renaming: Renaming) -> tuple[str, ...]:
    """Class names by label, in the user's words where there are any.

    >>> rename(["n01", "maine_coon"], {"n01": "tench"})
    ('tench', 'maine coon')
    """
    if isinstance(renaming, Mapping):
        for name in renaming:
            if name not in names:
                raise unknown("class in `classes`", name, names)
        return tuple(renaming.get(name, spoken(name)) for name in names)
    if renaming and len(renaming) != len(names):
        raise InputError(f"`classes` lists {len(renaming)} names, but there are {len(names)} classes")
    return renaming or tuple(map(spoken, names))
