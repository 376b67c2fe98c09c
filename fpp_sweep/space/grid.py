"""Grids: blocks of settings whose values are combined, and choices that are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fpp_sweep.config import TrialConfig
from fpp_sweep.errors import InputError
from fpp_sweep.space.params import Param
from fpp_sweep.space.rules import Rule, list_of, listed, mapping, under
from fpp_sweep.space.settings import setting, settings

Block = Mapping[str, tuple[Any, ...]]  # values by key; by several (`a, b`) that move together, tuples of values

MOST_POINTS = 2_000  # every one is resolved and checked when the space is made


def check_grid(grid: Any, start: TrialConfig) -> tuple[Block, ...]:
    """The blocks, each a list of values for each key."""
    blocks: list[Block] = []
    for index, values in enumerate(listed(grid)):
        with under(str(index)):
            blocks.append(_check_block(mapping(values)))
            check_size(sum(math.prod(map(len, block.values())) for block in blocks), "a sampler")
            for point in block_points(blocks[-1]):
                _check_point(point, blocks[-1], start)
    return tuple(blocks)


def check_size(points: int, instead: str) -> None:
    if points > MOST_POINTS:
        raise InputError(f"makes a grid of more than {MOST_POINTS} points; use {instead}")


def _check_block(block: Mapping[str, Any]) -> Block:
    checked: dict[str, tuple[Any, ...]] = {}
    seen: set[str] = set()
    for names, values in block.items():
        with under(names):
            keys = split_keys(names)
            for key in keys:
                if key in seen:
                    raise InputError(f"{key} comes twice in this block")
                seen.add(key)
            checked[", ".join(keys)] = _check_axis(keys, values if isinstance(values, list | tuple) else [values])
    if not checked:
        raise InputError("is an empty block")
    return checked


def _check_axis(keys: Sequence[str], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of a key, or tuples of values of keys that move together."""

    def together(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, list | tuple) else [value] * len(keys)
        if len(values) != len(keys):
            raise InputError(f"must be one value, or {len(keys)}: one for each key")
        return tuple(map(setting, keys, values))

    rule = settings(keys[0]) if len(keys) == 1 else list_of(Rule(together, dict), least=1)
    checked: tuple[Any, ...] = rule.check(values)
    return checked


def _check_point(point: Mapping[str, Any], block: Block, start: TrialConfig) -> None:
    """An error is of the first value that cannot be by itself, else of the block."""
    try:
        start.replace(point)
    except InputError:
        for names, values in block.items():
            for index, value in enumerate(values):
                with under(f"{names}.{index}"):
                    start.replace(next(block_points({names: (value,)})))
        raise


def split_keys(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def block_points(block: Block) -> Iterator[dict[str, Any]]:
    """A block's cartesian product."""
    for combination in itertools.product(*block.values()):
        point: dict[str, Any] = {}
        for names, value in zip(block, combination, strict=True):
            keys = split_keys(names)
            point |= zip(keys, value if len(keys) > 1 else (value,), strict=True)
        yield point


def combinations(params: Sequence[Param], values: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """All values of choices, parents first; a parameter that does not exist somewhere is not varied there."""
    values = dict(values or {})
    if not params:
        yield values
    elif not params[0].exists(values):
        yield from combinations(params[1:], values)
    else:
        for choice in params[0].choices:
            yield from combinations(params[1:], {**values, params[0].key: choice})
