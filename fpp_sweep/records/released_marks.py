"""Marks in tables: trials with settings of a released program, and how its authors chose these settings."""

from __future__ import annotations

from collections.abc import Iterable

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.released import HowChosen, released_settings_in_use

MARKS: dict[HowChosen, str] = {"not said": "†", "tuned on test": "‡", "ours": "§"}  # `fixed` has no mark
MEANINGS: dict[HowChosen, str] = {
    "not said": "as released; how they were chosen is not said",
    "tuned on test": "as released; tuned on the test images",
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
