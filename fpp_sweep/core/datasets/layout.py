"""A row of the table of datasets, and the interface of its layout of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fpp_sweep.core.datasets.base import SPLITS, Group, ImageSource


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Listing:
    """One split as a layout lists it, in the order of its file or folders."""

    classes: tuple[str, ...]
    ids: Sequence[str]
    labels: Sequence[int]
    source: ImageSource

    @classmethod
    def of_classes(cls, classes: tuple[str, ...], images: Iterable[Sequence[str]], source: ImageSource) -> Listing:
        """The listing of images that are given class by class; within a class, by name."""
        pairs = [(image, label) for label, of_class in enumerate(images) for image in sorted(of_class)]
        return cls(
            classes=classes, ids=[image for image, _ in pairs], labels=[label for _, label in pairs], source=source
        )


class Layout(Protocol):
    """How files on disk say which images there are and what they show."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that this layout can have; `read` finds out which exist."""
        return SPLITS

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

    @property
    def below_root(self) -> bool:
        """Whether the files are below the data root; a user's are where the file says, embedded datasets have none."""
        return self.group not in ("tiny", "custom")
