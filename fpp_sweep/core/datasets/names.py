"""Names of datasets: ours, the paper's abbreviation, the official code's id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from fpp_sweep.core.datasets.layout import Spec
from fpp_sweep.core.datasets.table import DATASETS, GROUPS
from fpp_sweep.spec.errors import InputError, unknown


def expand(names: str | Iterable[str], custom: Iterable[str] = ()) -> list[str]:
    """Datasets by name, alias, group or comma list; each once, in the order given.

    `all` and `custom` include the user's own.

    >>> expand(["FLW,pets", "Flower102", "natural_shifts"])
    ['flowers102', 'pets', 'imagenet_a', 'imagenet_v2', 'imagenet_r', 'imagenet_sketch']
    """
    custom = tuple(custom)
    groups = GROUPS | {"all": GROUPS["all"] + custom, "custom": custom}
    words = [word.strip() for text in ([names] if isinstance(names, str) else names) for word in text.split(",")]
    expanded = [name for word in words if word for name in _datasets_called(word, groups, custom)]
    if not expanded:
        raise InputError(f"no dataset is named; known: {', '.join([*groups, *DATASETS])}")
    return list(dict.fromkeys(expanded))


def resolve(name: str, custom: Mapping[str, Spec]) -> tuple[str, Spec]:
    """One dataset's own name and its row."""
    names = expand(name, custom)
    if len(names) > 1:
        raise InputError(f"{name!r} means {len(names)} datasets, expected one")
    return names[0], custom.get(names[0]) or DATASETS[names[0]]


def is_taken(name: str) -> bool:
    """Whether a name means something already, so that a user's dataset cannot have it."""
    return _plain(name) in {*_by_plain_name(), *map(_plain, GROUPS), "custom"}


def _datasets_called(word: str, groups: Mapping[str, tuple[str, ...]], custom: tuple[str, ...]) -> tuple[str, ...]:
    if word in custom:
        return (word,)
    plain = _plain(word)
    for group, members in groups.items():
        if plain == _plain(group):
            return members
    if plain in _by_plain_name():
        return (_by_plain_name()[plain],)
    raise unknown("dataset", word, [*groups, *DATASETS, *custom])


@cache
def _by_plain_name() -> dict[str, str]:
    names = ((alias, name) for name, spec in DATASETS.items() for alias in (name, *spec.aliases))
    return {_plain(alias): name for alias, name in names}


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
