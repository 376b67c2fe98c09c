"""What a dataset is before it is opened: a row of the table, and how its files are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fpp_sweep.core.datasets.base import Group, ImageSource


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """One split as a layout found it, in no particular order."""

    classes: tuple[str, ...]
    ids: Sequence[str]
    labels: Sequence[int]
    source: ImageSource


class Layout(Protocol):
    """How files on disk say which images there are and what they show."""

    @property
    def below_root(self) -> bool:
        """Whether files lie below the data root, not in folders of their own or nowhere."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that this layout can have; which are there is for `read` to find out."""

    def read(self, root: Path, split: str) -> Listing:
        """A split, every image known to exist; InputError says what is missing, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One row of the table, or of a user's own file."""

    layout: Layout
    group: Group
    augmix: bool = True  # whether the published protocol uses AugMix here
    flip: bool = True  # False where a mirror image is another class
    aliases: tuple[str, ...] = ()
    test_size: int | None = None  # as published
