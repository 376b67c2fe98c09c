"""Marks in tables for trials whose settings are those of a released program, by how these were chosen."""

from __future__ import annotations

from collections.abc import Iterable

from fpp_sweep.records.records import TrialRecord
from fpp_sweep.spec.released import Chosen, settings_in_use

MARKS: dict[Chosen, str] = {"not said": "†", "tuned on test": "‡", "unpublished": "§"}  # `fixed` has no mark
MEANINGS: dict[Chosen, str] = {
    "not said": "as released; how they were chosen is not said",
    "tuned on test": "as released; tuned on the test images",
    "unpublished": "ours; none are released for these datasets",
}


def released_mark(record: TrialRecord) -> str:
    """Return the marks of a record; empty if none of its settings needs one."""
    in_use = settings_in_use(record.config, _datasets_of(record))
    return "".join(mark for chosen, mark in MARKS.items() if chosen in in_use)


def released_notes(records: Iterable[TrialRecord]) -> list[str]:
    """Return a note for each mark in a table of these records: what it means, and for which settings."""
    settings: dict[Chosen, dict[str, None]] = {}  # such as `tda adapt.cache_alpha`, in order
    for record in records:
        for chosen, keys in settings_in_use(record.config, _datasets_of(record)).items():
            for key in keys:
                settings.setdefault(chosen, {})[f"{record.config['method']} {key}"] = None
    notes = []
    for chosen, mark in MARKS.items():
        if chosen in settings:
            notes.append(f"{mark} {MEANINGS[chosen]}: {', '.join(settings[chosen])}")
    return notes


def _datasets_of(record: TrialRecord) -> set[str]:
    datasets: set[str] = set()
    for result in record.results.values():
        datasets.update(result.datasets)
    return datasets
