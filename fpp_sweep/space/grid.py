"""Grids: blocks of settings whose values are combined, or all combinations of the parameters' choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fpp_sweep.space.params import Param
from fpp_sweep.space.settings import check_choices, check_setting, require_setting, value_for_each_key
from fpp_sweep.spec.config import TrialConfig
from fpp_sweep.spec.validation import as_list, as_mapping, at_key, require, require_distinct

# the values of each key; keys that move together are one entry `a, b`, whose values are tuples
Block = Mapping[str, tuple[Any, ...]]

MAX_POINTS = 2_000  # all are checked when the space is read, which takes a second for this number


def check_grid(grid: Any, start: TrialConfig) -> tuple[Block, ...]:
    """Return the blocks of a grid, each a list of values for each key."""
    blocks: list[Block] = []
    points = 0
    for index, values in enumerate(as_list(grid)):
        with at_key(str(index)):
            block = _check_block(as_mapping(values))
            points += math.prod(len(choices) for choices in block.values())
            check_size(points, "a sampler")
            for point in block_points(block):
                start.replace(point)
        blocks.append(block)
    return tuple(blocks)


def check_size(points: int, alternative: str) -> None:
    """Raise InputError if a grid is too large to be checked."""
    require(points <= MAX_POINTS, f"makes a grid of more than {MAX_POINTS} points; use {alternative}")


def _check_block(block: Mapping[str, Any]) -> Block:
    checked: dict[str, tuple[Any, ...]] = {}
    used: set[str] = set()
    for names, values in block.items():
        if not isinstance(values, list | tuple):
            values = [values]
        with at_key(names):
            keys = split_keys(names)
            for key in keys:
                require_setting(key)
                require(key not in used, f"{key} comes twice in this block; take one out")
                used.add(key)
            if len(keys) == 1:
                choices = check_choices(keys[0], values)
            else:
                choices = _check_linked_choices(keys, values)
            checked[", ".join(keys)] = choices
    require(checked, "is empty; give a setting with its values")
    return checked


def _check_linked_choices(keys: Sequence[str], values: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    """Return the values of keys that move together, as tuples with a value for each key."""
    checked = []
    for index, value in enumerate(values):
        with at_key(str(index)):
            settings = []
            for key, setting in zip(keys, value_for_each_key(keys, value), strict=True):
                settings.append(check_setting(key, setting))
            checked.append(tuple(settings))
    require(checked, "must have at least 1 entry (none)")
    require_distinct(checked)
    return tuple(checked)


def split_keys(names: str) -> list[str]:
    """Return the keys of a block's line, `a` or `a, b`."""
    return [name.strip() for name in names.split(",")]


def block_points(block: Block) -> Iterator[dict[str, Any]]:
    """Yield all combinations of a block's values."""
    for combination in itertools.product(*block.values()):
        point: dict[str, Any] = {}
        for names, value in zip(block, combination, strict=True):
            keys = split_keys(names)
            if len(keys) == 1:
                point[keys[0]] = value
            else:
                point.update(zip(keys, value, strict=True))
        yield point


def combinations(params: Sequence[Param], values: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the choices of `params`, each added to `values`.

    Parents stand before their children in `params`; a parameter that does not exist in a combination is left out.
    """
    values = dict(values or {})
    if not params:
        yield values
        return
    first = params[0]
    rest = params[1:]
    if not first.exists(values):
        yield from combinations(rest, values)
        return
    for choice in first.choices:
        yield from combinations(rest, {**values, first.key: choice})
