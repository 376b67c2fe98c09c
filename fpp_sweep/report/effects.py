"""Effects of the searched settings on each objective, from a model of the finished trials (statistics/surface.py).

Few trials far below zero-shot would decide the model alone and hide what the settings do elsewhere. Their values are
moved into the range of the other trials' values: the model then has both the fall and the rest
(benchmarks/RESULTS.md of commit 2c67a4f7).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpp_sweep.records.front import Front, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.texts import choice_texts, is_number, search_range, values_by_setting, varies
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.messages import plural
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.surface import Dimension, Surface

MIN_TRIALS = 30  # fewer say too little about effects of two settings or more
MIN_ABOVE_FLOOR = 10  # fewer have no range that values could be moved into
MAX_SETTINGS = 30  # settings of the model: its time and memory grow fast with their number
MAX_TRIALS = 150  # trials used of a larger sweep, chosen at random: the time grows with the cube of their number
N_CURVE, N_MAP = 21, 15  # points along an axis
N_MAPPED = 3  # settings that have maps, the most important ones
SPREAD = (0.025, 0.975)  # quantiles of a share
Z = 1.96  # standard deviations of a 95 % interval


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """An objective over one setting, as the mean over all values of the others, with its 95 % interval."""

    positions: Numbers  # on the setting's axis: the value, its logarithm, or the number of a choice in words
    mean: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class EffectMap:
    """An objective over two settings; `nan` where it is not known to be better or worse than the mean of all."""

    keys: tuple[str, str]
    xs: Numbers
    ys: Numbers
    mean: Numbers  # (ys, xs)
    center: float  # the mean of all


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Effects of the settings on one metric."""

    metric: str
    shares: Mapping[str, float] = field(default_factory=dict)  # medians by setting, the largest first
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # 95 % intervals of the shares
    curves: Mapping[str, Curve] = field(default_factory=dict)
    maps: Sequence[EffectMap] = ()
    skipped: str = ""  # the reason why there are no effects


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """A setting of the model: the trials' values, and how they stand on the setting's axis."""

    key: str
    dimension: Dimension
    values: Numbers  # by trial, as the dimension has them
    low: float = 0.0  # the ends of the axis of a range
    high: float = 1.0
    choice_positions: Sequence[float] = ()  # position of each choice on the axis

    @classmethod
    def of(cls, info: SweepInfo, key: str, settings: Sequence[Any], of_all_trials: Sequence[Any]) -> _Column:
        """Return a column of some trials' values; charts have an axis for the values of all trials.

        Numbers that the space lists are choices: of 0, 0.15 and 15 the mean is over the three, not over 0 to 15.
        """
        present = [setting for setting in of_all_trials if setting is not None]
        if all(is_number(setting) for setting in present):
            if _are_values_listed(info, key):
                return cls._of_listed_numbers(key, settings, of_all_trials)
            return cls._of_range(info, key, settings)
        names = sorted(set(choice_texts(of_all_trials)))
        indices = [float(names.index(text)) for text in choice_texts(settings)]
        return cls(key, Dimension(len(names)), np.array(indices), choice_positions=range(len(names)))

    @classmethod
    def _of_listed_numbers(
        cls, key: str, settings: Sequence[float | None], of_all_trials: Sequence[float | None]
    ) -> _Column:
        """Return choices that are numbers; of a trial that lacks the setting, or has none, the choice stands below."""
        numbers = sorted({setting for setting in of_all_trials if setting is not None})
        choices: list[float | None] = [*numbers]
        positions = [*numbers]
        if None in of_all_trials:
            choices.insert(0, None)
            positions.insert(0, position_of_not_set(numbers[0], numbers[-1]))
        indices = [float(choices.index(setting)) for setting in settings]
        return cls(key, Dimension(len(choices)), np.array(indices), choice_positions=positions)

    @classmethod
    def _of_range(cls, info: SweepInfo, key: str, settings: Sequence[float | None]) -> _Column:
        """Return a range, widened to points outside it; a trial without the setting stands in the middle."""
        searched = search_range(info, key)
        positions = np.array([math.nan if setting is None else setting for setting in settings], float)
        ends = [end for end in (searched.get("low"), searched.get("high")) if end is not None]
        limits = np.array([*ends, np.nanmin(positions), np.nanmax(positions)], float)
        if searched.get("log") and limits.min() > 0:
            positions, limits = np.log10(positions), np.log10(limits)
        low, high = float(limits.min()), float(limits.max())
        shares = np.full(len(positions), math.nan)
        if high > low:  # else all trials that have the setting have the same value
            shares = (positions - low) / (high - low)
        return cls(key, Dimension(), np.where(np.isnan(shares), 0.5, shares), low, high)

    def grid(self, count: int) -> Numbers:
        """Return values of the dimension along its axis."""
        if self.dimension.choices:
            return self.dimension.values()
        return np.linspace(0, 1, count)

    def positions(self, grid: Numbers) -> Numbers:
        if self.dimension.choices:
            positions = [self.choice_positions[int(choice)] for choice in grid]
            return np.array(positions, float)
        return self.low + grid * (self.high - self.low)


def position_of_not_set(low: float, high: float) -> float:
    """Return where trials that lack a setting stand on its axis: below those that have a number."""
    return low - (high - low or 1.0) / 6


def _are_values_listed(info: SweepInfo, key: str) -> bool:
    """Return True for a setting whose values the space lists, as choices or in a grid."""
    return "choices" in search_range(info, key) or bool(info.space.get("grid"))


def compute_effects(info: SweepInfo, front: Front) -> list[Effects]:
    """Return the effects on each objective, from finished trials."""
    trials = _some_of(front.finished)
    are_below_floor = below_floor(front, trials)
    columns = []
    settings_of_all = values_by_setting(front.finished)
    for key, settings in values_by_setting(trials).items():
        if varies(settings):
            columns.append(_Column.of(info, key, settings, settings_of_all[key]))
    effects = []
    for index, objective in enumerate(info.objectives):
        values = np.array([values_of(trial)[index] for trial in trials], float)
        reason = _reason_to_skip(objective.metric, columns, values)
        if reason:
            effects.append(Effects(objective.metric, skipped=reason))
        else:
            effects.append(_effects(objective.metric, columns, moved_into_range(values, are_below_floor)))
    return effects


def below_floor(front: Front, records: Sequence[TrialRecord]) -> NDArray[np.bool_]:
    """Return for each record whether it is below the floor of accuracy."""
    return np.array([front.is_below_floor(record) for record in records], bool)


def moved_into_range(values: Numbers, are_below_floor: NDArray[np.bool_]) -> Numbers:
    """Return the values, those of trials below the floor of accuracy moved into the range of the others."""
    others = values[~are_below_floor]
    if len(others) < MIN_ABOVE_FLOOR:
        return values
    return np.where(are_below_floor, np.clip(values, others.min(), others.max()), values)


def moved_values_note(front: Front) -> str:
    """Return a sentence on the trials whose values the model does not have as they are; empty if there are none."""
    n_above_floor = len(front.finished) - front.n_below_floor
    if not front.n_below_floor or n_above_floor < MIN_ABOVE_FLOOR:
        return ""
    return (
        f"For the model, values of {plural(front.n_below_floor, 'trial')} more than {front.floor:g} points below "
        f"{catalogue.ZERO_SHOT} are moved into the range of the other trials' values, or they would hide all other "
        "effects."
    )


def _some_of(trials: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    if len(trials) <= MAX_TRIALS:
        return trials
    chosen = np.random.default_rng(0).choice(len(trials), MAX_TRIALS, replace=False)
    return [trials[index] for index in sorted(chosen)]


def _reason_to_skip(metric: str, columns: Sequence[_Column], values: Numbers) -> str:
    if len(values) < MIN_TRIALS:
        return f"{plural(len(values), 'finished trial')}; effects need {MIN_TRIALS}"
    if len(columns) > MAX_SETTINGS:
        return f"{len(columns)} settings; effects are computed of {MAX_SETTINGS} at most"
    if len(columns) < 2:
        return "fewer than two settings took more than one value"
    if len(set(values.tolist())) == 1:
        return f"all trials have the same {metric}"
    return ""


def _effects(metric: str, columns: Sequence[_Column], values: Numbers) -> Effects:
    points = np.stack([column.values for column in columns], axis=1)
    surface = Surface([column.dimension for column in columns], points, values)
    draws = surface.variance_shares()
    medians = np.median(draws, axis=0)
    lows, highs = np.quantile(draws, SPREAD, axis=0)
    shares, spread, curves = {}, {}, {}
    order = np.argsort(-medians, kind="stable")
    for index in order:
        key = columns[index].key
        shares[key] = float(medians[index])
        spread[key] = float(lows[index]), float(highs[index])
        curves[key] = _curve(surface, index, columns[index])
    mean_of_all = surface.at(np.full((1, len(columns)), math.nan)).mean.item()
    maps = []
    for first, second in combinations(order[:N_MAPPED], 2):
        maps.append(_map(surface, (first, second), (columns[first], columns[second]), mean_of_all))
    return Effects(metric, shares, spread, curves, maps)


def _curve(surface: Surface, index: int, column: _Column) -> Curve:
    grid = column.grid(N_CURVE)
    estimate = surface.at(surface.locations_of({index: grid}))
    width = Z * estimate.deviation
    return Curve(column.positions(grid), estimate.mean, estimate.mean - width, estimate.mean + width)


def _map(surface: Surface, indices: tuple[int, int], columns: tuple[_Column, _Column], mean_of_all: float) -> EffectMap:
    (first, second), (x, y) = indices, columns
    x_grid, y_grid = x.grid(N_MAP), y.grid(N_MAP)
    y_cells, x_cells = np.meshgrid(y_grid, x_grid, indexing="ij")
    estimate = surface.at(surface.locations_of({first: x_cells.ravel(), second: y_cells.ravel()}))
    is_known = np.abs(estimate.mean - mean_of_all) > Z * estimate.deviation
    mean = np.where(is_known, estimate.mean, math.nan).reshape(len(y_grid), len(x_grid))
    return EffectMap((x.key, y.key), x.positions(x_grid), y.positions(y_grid), mean, mean_of_all)
