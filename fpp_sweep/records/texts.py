"""Values and settings of records, and their text and marks in tables, on pages and on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeGuard

from fpp_sweep.records.front import metric_of
from fpp_sweep.records.records import Question, SplitResult, SweepInfo, TrialRecord, space_changes
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.config import setting
from fpp_sweep.spec.released import HowChosen, released_settings_in_use

VARIANCES = ("fpp.context_var", "fpp.class_var")  # shown as spaces have them, as multiples of the published values


def format_metric(metric: str, value: float | None) -> str:
    """Return a metric's value with the decimals that the papers print.

    >>> format_metric("ece", 3.14159), format_metric("nll", 0.5)
    ('3.14', '0.5000')
    """
    if value is None:
        return ""
    return format(value, metric_format(metric))


def metric_format(metric: str) -> str:
    """Return the format of a metric's values, for code that formats thousands of them.

    >>> metric_format("ece"), metric_format("nll@isotonic/dtd")
    ('.2f', '.4f')
    """
    row = catalogue.METRICS.get(catalogue.parts_of(metric).stem)
    if row is None:  # the metric of a plugin that is not loaded
        return ".2f"
    return f".{row.decimals}f"


def format_result(metric: str, result: SplitResult | None) -> str:
    """Return a metric of a trial's result as `format_metric` does; empty without a result."""
    return format_metric(metric, metric_of(result, metric))


def format_values(objectives: Sequence[Objective], values: Sequence[float]) -> str:
    """Return the values of all objectives as text: `accuracy 71.00, ece 4.00`."""
    texts = []
    for metric, value in zip(metrics_of(objectives), values, strict=True):
        texts.append(f"{metric} {format_metric(metric, value)}")
    return ", ".join(texts)


def question_texts(info: SweepInfo) -> list[str]:
    """Return a text for each space that was asked after the first one: the time, and the keys in which it differs."""
    texts = []
    asked = [*info.earlier, Question(asked=info.asked or info.created, space=info.space)]
    for before, after in pairwise(asked):
        texts.append(f"{format_time(after.asked)}: {', '.join(space_changes(before.space, after.space))}")
    return texts


def format_time(seconds: float) -> str:
    """Return a time in seconds since 1970 as a date.

    >>> format_time(1_795_000_000)
    '2026-11-18 11:06 UTC'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_setting(value: Any, digits: int = 6) -> str:
    """Return a setting's value as short text on one line.

    >>> format_setting(0.1 + 0.2), format_setting(True), format_setting(None), format_setting("a photo of a")
    ('0.3', 'true', 'none', 'a photo of a')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    text = " ".join(str(value).split())
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair, which UTF-8 lacks


def setting_text(key: str, value: Any, digits: int = 6) -> str:
    """Return a setting's value as `format_setting` does, but a variance as a multiple of the published one.

    >>> setting_text("fpp.context_var", 0.00005), setting_text("fpp.gamma1", 4.3)
    ('x0.01', '4.3')
    """
    if key in VARIANCES and is_number(value):
        return f"x{value / setting(key).default:.{digits}g}"
    return format_setting(value, digits)


def format_range(searched: Any, key: str = "") -> str:
    """Return the range or the choices of a setting as text; those of a variance as multiples, if its key is passed.

    >>> format_range({"low": 1, "high": 5, "log": True}), format_range({"choices": ["a", True]})
    ('1 to 5, log', 'a, true')
    >>> format_range({"low": 0.02, "high": 0.04}, "fpp.class_var")
    'x1 to x2'
    """
    choices = searched
    if isinstance(searched, Mapping):
        if "low" in searched:
            text = f"{setting_text(key, searched['low'])} to {setting_text(key, searched['high'])}"
            if searched.get("log"):
                text += ", log"
            return text
        choices = searched.get("choices", searched)
    if isinstance(choices, list | tuple):
        return ", ".join(setting_text(key, choice) for choice in choices)
    return setting_text(key, choices)


def choice_texts(settings: Sequence[Any]) -> list[str]:
    """Return the texts of a setting's values; None, the value of trials that lack it, is `not set`."""
    texts = []
    for value in settings:
        if value is None:
            texts.append("not set")
        else:
            texts.append(format_setting(value))
    return texts


def values_by_setting(records: Sequence[TrialRecord]) -> dict[str, list[Any]]:
    """Return each searched setting's values by record; None where a condition leaves the setting out."""
    values: dict[str, list[Any]] = {}
    for record in records:
        for key in record.params:
            values.setdefault(key, [])
    for key, column in values.items():
        for record in records:
            column.append(record.params.get(key))
    return values


def varies(values: Sequence[Any]) -> bool:
    texts = {format_setting(value) for value in values}
    return len(texts) > 1


def search_range(info: SweepInfo, key: str) -> Mapping[str, Any]:
    """Return what the space says of a setting: low, high, log, ..., or choices; empty if it does not search it."""
    params = info.space.get("params")
    if not isinstance(params, Mapping):
        return {}
    setting = params.get(key)
    if not isinstance(setting, Mapping):
        return {}
    return setting


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


MARKS: dict[HowChosen, str] = {"not said": "†", "ours": "§"}  # `fixed` has no mark
MEANINGS: dict[HowChosen, str] = {
    "not said": "as released; how they were chosen is not said",
    "ours": "ours, not the authors'",
}


def released_mark(record: TrialRecord) -> str:
    """Return the marks of a record; empty if none of its settings needs one."""
    keys_by_choice = _released_keys(record)
    return "".join(mark for chosen, mark in MARKS.items() if chosen in keys_by_choice)


def released_notes(records: Iterable[TrialRecord]) -> list[str]:
    """Return a note for each mark in a table of these records, with its meaning and the settings that have it."""
    settings_by_choice: dict[HowChosen, list[str]] = {}  # each setting with its method: `tda adapt.cache_alpha`
    for record in records:
        for chosen, keys in _released_keys(record).items():
            settings = settings_by_choice.setdefault(chosen, [])
            for key in keys:
                setting = f"{record.config['method']} {key}"
                if setting not in settings:
                    settings.append(setting)
    notes = []
    for chosen, mark in MARKS.items():
        if chosen in settings_by_choice:
            notes.append(f"{mark} {MEANINGS[chosen]}: {', '.join(settings_by_choice[chosen])}")
    return notes


def _released_keys(record: TrialRecord) -> dict[HowChosen, list[str]]:
    """Return the settings that a record leaves at released values, for the datasets that it has results of."""
    datasets: set[str] = set()
    for result in record.results.values():
        datasets.update(result.datasets)
    return released_settings_in_use(record.config, datasets)
