"""Grids: blocks of settings whose values are combined, or all combinations of the parameters' choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fpp_sweep.space.params import Param
from fpp_sweep.space.rules import Rule, as_list, as_mapping, expect, list_of, under
from fpp_sweep.space.settings import check_setting, check_trial, settings_rule
from fpp_sweep.spec.config import TrialConfig

Block = Mapping[str, tuple[Any, ...]]  # values by key; by several (`a, b`) that move together, tuples of values

MOST_POINTS = 2_000  # all are checked when the space is read, which takes a second for so many


def check_grid(grid: Any, start: TrialConfig) -> tuple[Block, ...]:
    """The blocks, each a list of values for each key."""
    blocks: list[Block] = []
    for index, values in enumerate(as_list(grid)):
        with under(str(index)):
            blocks.append(_check_block(as_mapping(values)))
            check_size(sum(math.prod(map(len, block.values())) for block in blocks), "a sampler")
            parts = _parts(blocks[-1])
            for point in block_points(blocks[-1]):
                check_trial(start, point, parts)
    return tuple(blocks)


def check_size(points: int, instead: str) -> None:
    expect(points <= MOST_POINTS, f"makes a grid of more than {MOST_POINTS} points; use {instead}")


def _check_block(block: Mapping[str, Any]) -> Block:
    checked: dict[str, tuple[Any, ...]] = {}
    seen: set[str] = set()
    for names, values in block.items():
        with under(names):
            keys = split_keys(names)
            for key in keys:
                expect(key not in seen, f"{key} comes twice in this block")
                seen.add(key)
            checked[", ".join(keys)] = _check_axis(keys, values if isinstance(values, list | tuple) else [values])
    expect(checked, "is an empty block")
    return checked


def _check_axis(keys: Sequence[str], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values of a key, or tuples of values of keys that move together."""

    def together(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, list | tuple) else [value] * len(keys)
        expect(len(values) == len(keys), f"must be one value, or {len(keys)}: one for each key")
        return tuple(map(check_setting, keys, values))

    rule = settings_rule(keys[0]) if len(keys) == 1 else list_of(Rule(together, dict), least=1)
    checked: tuple[Any, ...] = rule.check(values)
    return checked


def _parts(block: Block) -> dict[str, dict[str, Any]]:
    """For each value of the block, by its dotted key there: a point that has only that."""
    axes = ((names, index, value) for names, values in block.items() for index, value in enumerate(values))
    return {f"{names}.{index}": next(block_points({names: (value,)})) for names, index, value in axes}


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
    """All combinations of choices, parents first; a parameter is left out where its `when` does not hold."""
    values = dict(values or {})
    if not params:
        yield values
    elif not params[0].exists(values):
        yield from combinations(params[1:], values)
    else:
        for choice in params[0].choices:
            yield from combinations(params[1:], {**values, params[0].key: choice})
