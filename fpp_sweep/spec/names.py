"""Names of records and folders: a baseline is named `baseline-tpt`, and tables show its label `tpt`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fpp_sweep.spec.errors import InputError

BASELINE_PREFIX = "baseline-"
MAX_NAME = 100  # characters; a file's name may have 255 bytes, and those of records have further words
FILE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")  # names a sweep's folder or a record


def label_of(name: str) -> str:
    """Return a record's name as tables show it.

    >>> label_of("baseline-tpt"), label_of("trial-0002")
    ('tpt', 'trial-0002')
    """
    return name.removeprefix(BASELINE_PREFIX)


def listed_names(texts: Iterable[str]) -> list[str]:
    """Return the names of datasets in lists with commas; the path of a folder (`NAME=FOLDER`) can have none.

    >>> listed_names(["dtd, pets", "mine=photos,other=more"])
    ['dtd', 'pets', 'mine=photos', 'other=more']
    """
    names = []
    for text in texts:
        for word in text.split(","):
            if word.strip():
                names.append(word.strip())
    return names


def require_folder_name(name: str) -> None:
    """Raise InputError unless the value of --name can name a folder."""
    if not FILE_NAME.fullmatch(name):
        wanted = "begin with a letter or digit, and use letters, digits, dots, dashes and underscores only"
        raise InputError(f"--name {name!r}: names a folder; {wanted}, at most {MAX_NAME}")
