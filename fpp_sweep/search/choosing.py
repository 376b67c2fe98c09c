"""The choice of finalists after the search, and of those that run on the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpp_sweep.records.answer import MAX_COMPARED, references_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.records import FINAL, TrialRecord
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.front_support import FrontSupport, front_support
from fpp_sweep.statistics.paired import difference, seed_variances
from fpp_sweep.statistics.verdicts import margin_of

MAX_TESTED = 3  # finalists on the test split: with more of them, Holm's correction would hide more differences
UNLIKELY = "unlikely"


def choose_finalists(folder: SweepFolder, front: Front, count: int) -> list[TrialRecord]:
    """Return the trials that run in the final stage, at most `count`: of the front and its closest rivals.

    Front members with a mark (the knee, the best in an objective) come first. Other members, and rivals behind the
    front with a support that is not `unlikely`, are sorted by what a recommendation needs: no loss against zero-shot
    beyond the margin, then the evidence for a gain, then support and trade-off.

    Trials with the settings of a baseline are left out, because the baseline runs anyway. Trials below the floor of
    accuracy are left out if there are other candidates.
    """
    baseline_keys = {baseline.key for baseline in front.baselines}
    candidates = []
    for record in front.layers(MAX_COMPARED):
        if record.feasible and record.key not in baseline_keys:
            candidates.append(record)
    above_floor = [record for record in candidates if not front.is_below_floor(record)]
    if above_floor:
        candidates = above_floor
    support_by_name = support_of(folder, front, candidates, front.search_split).trials
    outlooks = outlooks_of(folder, front, candidates, front.search_split)
    ranked: list[tuple[tuple[bool, float, float, bool, float, int], TrialRecord]] = []
    for position, record in enumerate(front.by_trade_off(candidates)):
        on_front = record in front.members
        support = support_by_name.get(record.name)
        if not on_front and (support is None or support.word == UNLIKELY):
            continue
        has_mark = bool(front.marks.get(record.name))
        outlook = outlooks.get(record.name, Outlook())
        share = 0.0
        if support is not None:
            share = support.share
        sort_key = (not has_mark, outlook.shortfall, -outlook.evidence, not on_front, -share, position)
        ranked.append((sort_key, record))
    ranked.sort(key=lambda row: row[0])
    return [record for _, record in ranked[:count]]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The distance of a trial from a recommendation, by its differences to the reference on a split."""

    shortfall: float = 0.0  # margins that the bound of its worst loss lies beyond the margin; 0 if within
    evidence: float = 0.0  # its largest gain, in standard errors


def choose_tested(folder: SweepFolder, front: Front, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the finalists that go to the test split, at most MAX_TESTED.

    A finalist is left out if another finalist is clearly ahead. The others are sorted by what a recommendation needs:
    first that no loss against zero-shot beyond the margin is possible, then the evidence for a gain. A trial whose
    seeds disagree has neither, however good its mean. Without a baseline, those most often on the front come first.
    """
    support_by_name = support_of(folder, front, finalists, FINAL).trials
    outlooks = outlooks_of(folder, front, finalists, FINAL)
    ranked = []
    for position, record in enumerate(finalists):
        support = support_by_name.get(record.name)
        share = 0.0
        if support is not None:
            share = support.share
            if support.word == UNLIKELY:
                continue
        outlook = outlooks.get(record.name, Outlook())
        ranked.append((outlook.shortfall, -outlook.evidence, -share, position, record))
    ranked.sort(key=lambda row: row[:4])
    return [row[-1] for row in ranked[:MAX_TESTED]]


def reference_of(baselines: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the baseline that finalists are measured against in the final stage: zero-shot, else the first one."""
    references = references_of(baselines)
    if not references:
        return None
    return references[0]


def outlooks_of(folder: SweepFolder, front: Front, trials: Sequence[TrialRecord], split: str) -> dict[str, Outlook]:
    """Return the outlooks of the trials that can be paired with the reference on a split."""
    reference = reference_of(front.baselines)
    if reference is None:
        return {}
    metrics = resampled_metrics(metrics_of(front.objectives))
    margins = folder.info().space.get("search", {}).get("margin", {})
    samples = measure(folder, [reference, *trials], split, metrics).samples
    variances = seed_variances(samples, metrics)
    outlooks: dict[str, Outlook] = {}
    for record in trials:
        for metric in metrics:
            paired = difference(samples, record.name, reference.name, metric, variances[metric])
            if paired is None or paired.standard_error == 0:
                continue
            outlook = outlooks.get(record.name, Outlook())
            shortfall = -paired.least_gain / margin_of(metric, margins) - 1
            evidence = paired.gain / paired.standard_error
            outlooks[record.name] = Outlook(max(outlook.shortfall, shortfall), max(outlook.evidence, evidence))
    return outlooks


def support_of(folder: SweepFolder, front: Front, records: Sequence[TrialRecord], split: str) -> FrontSupport:
    """Return each trial's support for the front of these trials, measured on one split; empty if it is unknown."""
    metrics = metrics_of(front.objectives)
    metrics_without_datasets = {catalogue.parts_of(metric).of_average for metric in metrics}
    if len(resampled_metrics(metrics)) < len(metrics_without_datasets):
        return FrontSupport()  # any trial may be on the front by an objective that cannot be resampled
    samples = measure(folder, records, split, metrics).samples
    names = [record.name for record in records]
    return front_support(samples, names, metrics, seed_variances(samples, metrics))
