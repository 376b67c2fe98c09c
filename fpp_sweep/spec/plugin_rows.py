"""Checks of what a plugin says of its methods, penalties, metrics and samplers when it registers them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, get_args

from fpp_sweep.spec import catalogue
from fpp_sweep.spec.catalogue import Goal
from fpp_sweep.spec.config import settings
from fpp_sweep.spec.errors import InputError, unknown

MAX_DECIMALS = 10  # digits after the point in a table
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # a part of file names, of words with / and @, and of lists


def check_name(name: Any) -> None:
    """Raise InputError unless a row can have this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "must begin with a letter or _, and have letters, digits, _ and - only, at most 64"
        raise InputError(f"name {wanted} ({name!r})")


def check_views(views: Any) -> None:
    """Raise InputError unless a method can use this number of views; None stands for all."""
    if views is not None and not (_is_whole_number(views) and views >= 1):
        raise InputError(f"views must be a whole number >= 1, or None for all ({views!r})")


def check_reads(reads: Any) -> None:
    """Raise InputError unless each word is a setting or the beginning of one."""
    _require_list("reads", reads)
    for word in reads:
        if not word or not any(setting.startswith(word) for setting in settings()):
            raise InputError(unknown("setting", word, settings()).problem, "reads")


def check_weight(key: str, weight: Any) -> None:
    """Raise InputError unless a penalty can have this weight."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight):
        raise InputError(f"{key} must be a finite number ({weight!r})")


def check_metric_name(name: str) -> None:
    """Raise InputError if another column of the table of all trials has this name."""
    if name in catalogue.COLUMNS_OF_TRIALS or name in settings():
        raise InputError(f"name {name!r} is that of a column of each sweep's table; choose another")


def check_metric(goal: Any, heading: Any, decimals: Any, columns: Any) -> None:
    """Raise InputError unless tables can show a metric with this goal, heading and number of decimals."""
    if goal not in get_args(Goal):
        raise InputError(f"goal must be one of {', '.join(get_args(Goal))} ({goal!r})")
    if heading is not None and not (isinstance(heading, str) and heading.strip() and heading.isprintable()):
        raise InputError(f"heading must be text in one line ({heading!r})")
    if not _is_whole_number(decimals) or not 0 <= decimals <= MAX_DECIMALS:
        raise InputError(f"decimals must be a whole number from 0 to {MAX_DECIMALS} ({decimals!r})")
    _require_list("columns", columns)
    for column in columns:
        if column not in catalogue.COLUMNS:
            raise unknown("column", column, catalogue.COLUMNS)


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_list(key: str, words: Any) -> None:
    is_list = isinstance(words, Sequence) and not isinstance(words, str)
    if not is_list or not all(isinstance(word, str) for word in words):
        raise InputError(f"{key} must be a list of words ({words!r})")
