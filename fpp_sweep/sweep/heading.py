"""The announcement of a sweep, printed before anything slow is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.report.text import labelled_lines
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec.errors import escaped
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.progress import Screen, duration
from fpp_sweep.spec.validation import as_mapping

SUBJECT_COLUMNS = 10


def print_heading(folder: SweepFolder, space: Mapping[str, Any], objectives: Sequence[Objective], split: str) -> None:
    """Print the announcement on stderr."""
    screen = Screen(sys.stderr)
    screen.draw(heading(folder, space, objectives, split, width=screen.columns()))


def heading(
    folder: SweepFolder, space: Mapping[str, Any], objectives: Sequence[Objective], split: str, *, width: int
) -> list[str]:
    """Return lines that begin with their subject, wrapped to a number of columns.

    `space` has plain values, as it is recorded.
    """
    work, search = as_mapping(space.get("work", {})), as_mapping(space.get("search", {}))
    goals = " and ".join(f"{objective.metric} ({objective.goal})" for objective in objectives)
    datasets = ", ".join(work.get("datasets", ())) or work.get("dataset_file", "")
    purpose = "evaluates" if search.get("evaluate_only") else "searches"
    rows = {
        "sweep": folder.path.name,
        "question": " ".join(str(space.get("question", "")).split()),
        purpose: f"{goals} on {split}",
        "work": f"{work.get('model', '')} on {datasets}",
        "budget": ", ".join(_budgets(search)),
        "then": _final_stage(search, split),
        "folder": str(folder.path),
        "page": (folder.report / "sweep.html").as_uri(),
    }
    lines = []
    for subject, text in rows.items():
        if text:
            lines += labelled_lines(subject, escaped(text), width, indent=SUBJECT_COLUMNS)
    return lines


def _budgets(search: Mapping[str, Any]) -> list[str]:
    budgets = []
    if search.get("trials"):
        budgets.append(plural(search["trials"], "trial"))
    if search.get("wall_clock"):
        budgets.append(f"{duration(search['wall_clock'])} of wall clock")
    if search.get("gpu_hours"):
        budgets.append(f"{search['gpu_hours']} GPU-hours")
    return budgets


def _final_stage(search: Mapping[str, Any], split: str) -> str:
    """Return what runs after the search; empty if nothing does."""
    finalists = as_mapping(search.get("finalists", {}))
    if search.get("evaluate_only"):
        return ""
    seeds = finalists.get("seeds", 1)
    if seeds == 1:
        return "" if split == "test" else "the front on test"
    text = f"up to {plural(finalists.get('count', 0), 'finalist')} with {seeds} seeds each"
    if split != "test":
        text += ", the best of them on test"
    if search.get("wall_clock") or search.get("gpu_hours"):
        text += "; beyond the budget of time"  # it ends the search only
    return text
