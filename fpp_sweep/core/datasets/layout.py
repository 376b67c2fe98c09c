"""The interface of a layout of files, the row that describes a dataset, and class names as prompts use them."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from fpp_sweep.core.datasets.dataset import SPLITS, Group, ImageSource
from fpp_sweep.spec.errors import InputError, unknown

INVISIBLE = frozenset({"Cc", "Cf", "Mn", "Me", "Zl", "Zp", "Zs"})  # Unicode's categories without a shape

# A user's own class names: all of them by label, or some by their names in files
Renaming: TypeAlias = tuple[str, ...] | Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """One split as a layout lists it, in the order of its file or folders."""

    classes: tuple[str, ...]
    ids: Sequence[str]
    labels: Sequence[int]
    source: ImageSource

    @classmethod
    def by_class(
        cls, classes: tuple[str, ...], images_by_class: Iterable[Sequence[str]], source: ImageSource
    ) -> Listing:
        """List the images of one class after the other; within a class, sort them by name."""
        ids: list[str] = []
        labels: list[int] = []
        for label, images in enumerate(images_by_class):
            ids.extend(sorted(images))
            labels.extend([label] * len(images))
        return cls(classes=classes, ids=ids, labels=labels, source=source)


class Layout(Protocol):
    """A convention by which files on disk say which images exist and what they show."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that this layout can have; `read` finds out which exist."""
        return SPLITS

    def read(self, root: Path, split: str) -> Listing:
        """List a split whose images all exist; raise InputError for what is missing."""

    def ignored_files(self, root: Path, split: str) -> Sequence[str]:
        """Return the files beside the images of a split that are not images by their suffix; a list names none."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """The description of a dataset: a row of the catalogue, or an entry of a user's own file."""

    layout: Layout
    group: Group
    augmix: bool = True  # the published protocol uses AugMix here
    flip: bool = True  # False where a mirror image shows another class
    aliases: tuple[str, ...] = ()
    test_size: int | None = None  # as published

    @property
    def below_root(self) -> bool:
        """True if the files are below the data root; a user's path is in his file, embedded datasets have no files."""
        return self.group not in ("tiny", "custom")


def as_words(name: str) -> str:
    """Replace underscores by spaces, as all released repositories do.

    >>> as_words("maine_coon")
    'maine coon'
    """
    return " ".join(name.replace("_", " ").split())


def rename(names: Sequence[str], renaming: Renaming) -> tuple[str, ...]:
    """Return class names by label: the user's where there is one, else those of the files.

    >>> rename(["n01", "maine_coon"], {"n01": "tench"})
    ('tench', 'maine coon')
    """
    if isinstance(renaming, Mapping):
        for name in renaming:
            if name not in names:
                raise unknown("class in `classes`", name, names)
        renamed = tuple(renaming.get(name, as_words(name)) for name in names)
    elif renaming and len(renaming) != len(names):
        raise InputError(f"`classes` lists {len(renaming)} names, but there are {len(names)} classes")
    else:
        renamed = renaming or tuple(as_words(name) for name in names)
    for name, words in zip(names, renamed, strict=True):
        if not _has_visible_character(html.unescape(words)):  # tokenizers read &nbsp; as a space
            raise InputError(f"class {name!r}: its name is empty in prompts; rename it, or name it in `classes`")
    return renamed


def _has_visible_character(text: str) -> bool:
    """Return False for a text of underscores, spaces, marks and control or format characters only."""
    return any(unicodedata.category(character) not in INVISIBLE for character in as_words(text))
