"""The constraints of a sweep, judged by the results of any split.

The search judges its own split when a trial ends (`TrialRecord.constraints`). A trial that keeps a constraint there by
luck may break it on the images of the final stage or of the test split.
"""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.front import metric_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Constraint
from fpp_sweep.spec.validation import as_list, as_mapping


def keeps_constraints(info: SweepInfo, record: TrialRecord, split: str, baselines: Sequence[TrialRecord]) -> bool:
    """Return True unless a record's results on a split break a constraint."""
    for fields in as_list(info.space.get("constraints", [])):
        constraint = Constraint.recorded(as_mapping(fields))
        if _is_broken(info, constraint, record, split, baselines):
            return False
    return True


def _is_broken(
    info: SweepInfo, constraint: Constraint, record: TrialRecord, split: str, baselines: Sequence[TrialRecord]
) -> bool:
    """Return True if a constraint is broken. A constraint whose numbers are missing on the split is not broken."""
    measured_split = split_of_metric(info, record, constraint.metric, split)
    value = metric_of(record.results.get(measured_split), constraint.metric)
    if value is None:
        return False
    baseline_value = None
    if constraint.baseline is not None:
        for baseline in baselines:
            if baseline.label == constraint.baseline:
                baseline_value = metric_of(baseline.results.get(measured_split), constraint.metric)
        if baseline_value is None:
            return False
    return constraint.violation(value, baseline_value) > 0


def split_of_metric(info: SweepInfo, record: TrialRecord, metric: str, split: str) -> str:
    """Return the search split for a cost, and the given split for any other metric.

    Later stages have other numbers of seeds and images, which change the costs.
    """
    searched = record.results.get(info.search_split)
    if searched is not None and searched.cost(metric) is not None:
        return info.search_split
    return split
