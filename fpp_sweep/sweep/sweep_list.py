"""The sweeps of a folder as a table: state, progress, and the front in brief."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fpp_sweep.cli.terminal import terminal_width
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.records.state import state_text, time_since_change
from fpp_sweep.records.texts import format_values
from fpp_sweep.report.table import Table, to_text
from fpp_sweep.spec.errors import InputError, problem_of_system
from fpp_sweep.spec.messages import plural

HEADINGS = ("sweep", "state", "trials", "front", "changed")


def sweep_table(folders: Sequence[Path]) -> str:
    """Return a row for each sweep; the row of one whose records cannot be read says why."""
    rows = []
    for path in folders:
        folder = SweepFolder(path)
        changed = time_since_change(folder)
        try:
            cells = _sweep_cells(folder)
        except InputError as error:
            cells = ["unreadable", "", str(error)]
        except OSError as error:
            cells = ["unreadable", "", problem_of_system(error)]
        rows.append([path.name, *cells, changed])
    return to_text(Table.of_strings(HEADINGS, rows, text_columns=range(len(HEADINGS))), terminal_width())


def _sweep_cells(folder: SweepFolder) -> list[str]:
    info, records = folder.info(), folder.trials()
    return [state_text(folder, info), _progress(info, records), _front_in_brief(front_of(info, records))]


def _progress(info: SweepInfo, records: Sequence[TrialRecord]) -> str:
    """Return such as `12/16, 1 failed`."""
    total = info.search_settings.get("trials")
    states = Counter(record.state for record in records if record.kind == "trial")
    progress = str(states["complete"])
    if total:
        progress += f"/{total}"
    for state in ("failed", "stopped", "collapsed"):
        if states[state]:
            progress += f", {states[state]} {state}"
    return progress


def _front_in_brief(front: Front) -> str:
    """Return the number of the front's members, and the values of its knee."""
    text = plural(len(front.members), "trial")
    for member in front.members:
        if "knee" in front.marks[member.name]:
            text += f", knee {format_values(front.objectives, values_of(member))}"
    return text
