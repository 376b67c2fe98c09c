"""The choice of finalists after the search, and of those that run on the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpp_sweep.records.answer import MAX_COMPARED
from fpp_sweep.records.constraints import keeps_constraints
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, values_of
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.recommendation import main_reference, split_by_testable
from fpp_sweep.records.records import FINAL, TrialRecord
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.front_support import Support, front_support
from fpp_sweep.statistics.paired import Difference, difference, seed_variances
from fpp_sweep.statistics.verdicts import margin_of

MAX_ON_TEST_SPLIT = 3  # finalists: with more of them, Holm's correction would hide more differences
SMALLEST_MARGIN = 1e-6  # losses are measured in margins, and a margin may be 0
UNKNOWN_SUPPORT = Support("uncertain", share=0.0)


def choose_finalists(folder: SweepFolder, front: Front, count: int) -> list[TrialRecord]:
    """Return the trials that run in the final stage, at most `count`: members of the front and its closest rivals.

    Front members with a mark (the knee, the best in an objective) come first. Then the order is by the chance of a
    recommendation: the least excess loss against zero-shot, then the largest t statistic of a gain, then front members
    before rivals, then support and trade-off. Rivals whose support is unlikely or unknown are left out.

    Trials with the settings of a baseline are left out, because the baseline runs anyway. Of trials with equal settings
    the first one is chosen. Trials below the floor of accuracy are left out if there are other candidates.
    """
    candidates = _candidates(front)
    supports = supports_of(folder, front, candidates, front.search_split)
    comparisons = compare_with_main_reference(folder, front, candidates, front.search_split)
    contenders = []
    for record in front.by_trade_off(candidates):
        support = supports.get(record.name)
        may_be_on_front = support is not None and support.word != "unlikely"
        if record in front.members or may_be_on_front:
            contenders.append(record)

    def rank(record: TrialRecord) -> tuple[bool, float, float, bool, float]:
        """Return a sort key: the smallest key comes first, trials with equal keys stay in the order of trade-off."""
        has_mark = bool(front.marks.get(record.name))
        comparison = comparisons.get(record.name, ReferenceComparison())
        support = supports.get(record.name, UNKNOWN_SUPPORT)
        is_rival = record not in front.members
        return (not has_mark, comparison.excess_loss, -comparison.largest_t, is_rival, -support.share)

    return sorted(contenders, key=rank)[:count]


def _candidates(front: Front) -> list[TrialRecord]:
    """Return the feasible trials nearest to the front, or only those above the floor of accuracy if there are any."""
    baseline_keys = {baseline.key for baseline in front.baselines}
    candidates = []
    above_floor = []
    for record in first_by_settings(front.nearest(MAX_COMPARED)):
        if record.feasible and record.key not in baseline_keys:
            candidates.append(record)
            if not front.is_below_floor(record):
                above_floor.append(record)
    return above_floor or candidates


def first_by_settings(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the records without those that repeat the settings of an earlier one."""
    first: dict[str, TrialRecord] = {}
    for record in records:
        first.setdefault(record.key, record)
    return list(first.values())


def choose_for_test_split(folder: SweepFolder, front: Front, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the finalists that run on the test split, at most MAX_ON_TEST_SPLIT.

    Finalists that break a constraint with fresh seeds and images are left out if others keep all. A finalist is left
    out, too, if another one is clearly ahead. The others are sorted by the chance of a recommendation: the least excess
    loss against zero-shot, then the largest t statistic of a gain, then support. A finalist whose seeds disagree comes
    late, even if its mean is the best: its standard error is large. Without a baseline, support alone decides.
    """
    info = folder.info()
    feasible = []
    for record in finalists:
        if keeps_constraints(info, record, FINAL, front.baselines):
            feasible.append(record)
    candidates = feasible or finalists
    supports = supports_of(folder, front, candidates, FINAL)
    comparisons = compare_with_main_reference(folder, front, candidates, FINAL)
    contenders = []
    for record in candidates:
        if supports.get(record.name, UNKNOWN_SUPPORT).word != "unlikely":
            contenders.append(record)

    def rank(record: TrialRecord) -> tuple[float, float, float]:
        """Return a sort key: the smallest key comes first, finalists with equal keys stay in the given order."""
        comparison = comparisons.get(record.name, ReferenceComparison())
        support = supports.get(record.name, UNKNOWN_SUPPORT)
        return (comparison.excess_loss, -comparison.largest_t, -support.share)

    return sorted(contenders, key=rank)[:MAX_ON_TEST_SPLIT]


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """A trial's paired differences to the main reference on a split, each reduced to its extreme over metrics."""

    excess_loss: float = 0.0  # largest loss beyond the margin that is not ruled out, in units of the margin; 0: none
    largest_t: float = 0.0  # gain / standard error in the metric with the clearest gain; 0 if there is no gain


def compare_with_main_reference(
    folder: SweepFolder, front: Front, trials: Sequence[TrialRecord], split: str
) -> dict[str, ReferenceComparison]:
    """Return comparisons by trial name, for the trials that can be paired with the main reference on a split."""
    reference = main_reference(front.baselines)
    if reference is None:
        return {}
    metrics, _ = split_by_testable(front.objectives)
    margins = folder.info().margins
    samples = measure(folder, [reference, *trials], split, metrics).samples
    comparisons = {}
    for name, differences in _differences_by_trial(samples, trials, reference, metrics).items():
        excess_losses = [0.0]
        t_statistics = [0.0]
        for paired in differences:
            margin = max(margin_of(paired.metric, margins), SMALLEST_MARGIN)
            loss_in_margins = -paired.gain_lower_bound / margin
            excess_losses.append(loss_in_margins - 1)
            t_statistics.append(paired.gain / paired.standard_error)
        comparisons[name] = ReferenceComparison(max(excess_losses), max(t_statistics))
    return comparisons


def _differences_by_trial(
    samples: SplitSamples, trials: Sequence[TrialRecord], reference: TrialRecord, metrics: Sequence[str]
) -> dict[str, list[Difference]]:
    """Return the differences to the reference in all metrics, by trial; without those of identical results."""
    variances = seed_variances(samples, metrics)
    differences: dict[str, list[Difference]] = {}
    for record in trials:
        for metric in metrics:
            paired = difference(samples, record.name, reference.name, metric, variances[metric])
            if paired is not None and paired.standard_error > 0:
                differences.setdefault(record.name, []).append(paired)
    return differences


def supports_of(folder: SweepFolder, front: Front, records: Sequence[TrialRecord], split: str) -> dict[str, Support]:
    """Return the support of trials for the front of `records` on a split, by trial name.

    Empty if an objective cannot be resampled: by that objective, any trial may be on the front.
    """
    metrics = metrics_of(front.objectives)
    names_without_dataset = {catalogue.parts_of(metric).of_average for metric in metrics}
    if set(resampled_metrics(metrics)) != names_without_dataset:
        return {}
    samples = measure(folder, records, split, metrics).samples
    values = {record.name: values_of(record) for record in records}
    return dict(front_support(samples, values, metrics, seed_variances(samples, metrics)).trials)
