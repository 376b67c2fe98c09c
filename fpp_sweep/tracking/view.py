"""What MLflow's page shows of a sweep at first: its trials, the columns that matter, and the objectives as a scatter.

MLflow keeps a saved view as a tag of the experiment, in the words of its page's own state, lists it by its name below
`Views`, and opens it by the tag's key in the address.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fpp_sweep.records.front import metrics_shown, splits_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.tracking.desired import NAME_LIMIT, SWEEP_TAG, milliseconds, safe_name, shortened, sweep_id

TAG = "mlflow.sharedViewState."
FRONT = "Front"  # the section of charts with the objectives
LIMIT = 5000  # of an experiment's tag, in the oldest MLflow that is used


def view_key(info: SweepInfo) -> str:
    return hashlib.sha256(sweep_id(info).encode()).hexdigest()[:16]


def view(info: SweepInfo, records: Sequence[TrialRecord]) -> str:
    """As MLflow's page reads it; settings are left out where they are too many."""
    settings = list(dict.fromkeys(key for record in records for key in record.params))
    known = {"name": shortened(info.name, NAME_LIMIT), "createdAt": milliseconds(info.created)}
    while len(text := json.dumps(known | {"state": json.dumps(_state(info, records, settings))})) > LIMIT:
        settings.pop()
    return text


def _state(info: SweepInfo, records: Sequence[TrialRecord], settings: Sequence[str]) -> dict[str, Any]:
    shown = metrics_shown(info.objectives)
    others = [f"{split}/{metric}" for split in splits_of(info, records)[1:] for metric in shown]
    # sections of charts: bars of each metric by dataset, of other splits, and of what has no section
    folded = [*shown, *splits_of(info, records)[1:], "Model metrics"]
    metrics, first = [safe_name(metric) for metric in (*shown, *others)], info.objectives[0]
    columns = [f"metrics.`{metric}`" for metric in metrics] + [f"params.`{safe_name(key)}`" for key in settings]
    return {
        "searchFilter": f"tags.`{SWEEP_TAG}` = '{sweep_id(info)}' and tags.kind != 'sweep'",
        "orderByKey": f"metrics.`{safe_name(first.metric)}`",
        "orderByAsc": first.goal == "min",
        "selectedColumns": [*columns, "tags.`front_support`", "tags.`state`"],
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": _charts(metrics[: len(info.objectives)]),
        "compareRunSections": [_section(name, shown=name == FRONT) for name in (FRONT, *folded)],
        "isAccordionReordered": True,
    }


def _charts(objectives: Sequence[str]) -> list[dict[str, Any]]:
    """Every two objectives as a scatter."""
    pairs = [(one, other) for place, one in enumerate(objectives) for other in objectives[place + 1 :]]
    return [
        {
            "type": "SCATTER",
            "uuid": f"{one} {other}",
            "xaxis": {"key": one, "type": "METRIC"},
            "yaxis": {"key": other, "type": "METRIC"},
            "runsCountToCompare": 500,
            "metricSectionId": FRONT,
            "deleted": False,
            "isGenerated": False,
        }
        for one, other in pairs
    ]


def _section(name: str, *, shown: bool) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": shown, "isReordered": False, "deleted": False, "isGenerated": False}
