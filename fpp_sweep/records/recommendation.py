"""The recommendation of a sweep: the finalists, the split that they are judged on, and the reasons against each.

The rule by which differences to the baselines decide is `statistics.verdicts.BaselineComparison.qualifies`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fpp_sweep.records import pareto
from fpp_sweep.records.constraints import keeps_constraints, split_of_metric
from fpp_sweep.records.front import Front, is_less_accurate, usual_order, values_on
from fpp_sweep.records.luck import has_images_of_search, has_seeds_of_search
from fpp_sweep.records.measurements import resampled_metrics
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective, goals_of, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.names import label_of
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.paired import (
    Difference,
    SplitStatistics,
    corrected_differences,
    why_never_tested,
    why_not_paired,
)
from fpp_sweep.statistics.verdicts import Answer, BaselineComparison, Recommendation, best_baseline, why_none_qualifies

# reasons for which a finalist is not recommended, whatever its differences to baselines are
TOO_FEW_SEEDS = "too few seeds"
SAME_SEEDS = "chosen with these seeds"
BROKEN_CONSTRAINT = "breaks a constraint"
BELOW_FLOOR = "below the floor of accuracy"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _JudgedFinalists:
    """The finalists of a sweep on the split that they are judged on, and the baselines that they are compared with."""

    info: SweepInfo
    front: Front
    splits: Mapping[str, SplitStatistics]
    split: str
    finalists: Sequence[str]  # names, in the order of trade-off
    baselines: Sequence[TrialRecord]  # baselines with statistics on the split
    comparison: BaselineComparison

    @property
    def samples(self) -> SplitSamples:
        return self.splits[self.split].samples


def answer_of(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> Answer:
    """Return the recommendation with all differences between finalists and baselines, in the objectives."""
    if front.evaluate_only:
        return Answer(reason="search.evaluate_only chooses no trial")
    split = _verdict_split(info, splits, front)
    if split is None:
        return _answer_without_finalists(info, front)
    tested_metrics, untested_metrics = split_by_testable(info.objectives)
    judged = _judged_finalists(info, front, splits, split, tested_metrics)
    left_out = _left_out(judged)
    recommendation = _recommendation(judged, left_out)
    finalists = judged.finalists
    judged_names = finalists
    if recommendation.trial is not None:
        judged_names = [recommendation.trial]
    return Answer(
        metrics=tuple(tested_metrics),
        untested=tuple(untested_metrics),
        finalists=tuple(finalists),
        baselines=tuple(judged.comparison.baselines),
        split=split,
        images=judged.samples.images,
        seeds=_max_seeds(judged.samples, judged_names),
        seeds_unknown=all(left_out.get(name) == TOO_FEW_SEEDS for name in finalists),
        differences=judged.comparison.differences,
        recommended=recommendation.trial,
        best_baseline=recommendation.best_baseline,
        reason=recommendation.reason,
    )


def _judged_finalists(
    info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics], split: str, metrics: Sequence[str]
) -> _JudgedFinalists:
    statistics = splits[split]
    finalists = _finalists_on(info, front, statistics.samples)
    baselines = [baseline for baseline in front.baselines if baseline.name in statistics.samples.records]
    reference = main_reference(baselines)
    comparison = BaselineComparison(
        differences=_differences(statistics, finalists, names_of(baselines), metrics),
        baselines=names_of(baselines),
        reference=reference.name if reference else "",
        metrics=metrics,
        margins=info.margins,
    )
    return _JudgedFinalists(
        info=info,
        front=front,
        splits=splits,
        split=split,
        finalists=finalists,
        baselines=baselines,
        comparison=comparison,
    )


def _recommendation(judged: _JudgedFinalists, left_out: Mapping[str, str]) -> Recommendation:
    """Recommend a finalist; without a finalist that qualifies, name the best baseline and give the reason."""
    reason = _obstacle(judged)
    if not reason and set(judged.finalists) == left_out.keys():
        reason = _why_all_left_out(left_out, judged.split)
    if not reason:
        recommendation = _recommended_finalist(judged, left_out)
        if recommendation.trial is not None:
            return recommendation
        reason = recommendation.reason
    if _missing_baselines(judged):
        return Recommendation(reason=reason)  # another baseline may be the best one
    name = _best_baseline(judged.info, judged.baselines, judged.split)
    return Recommendation(best_baseline=name, reason=reason)


def _left_out(judged: _JudgedFinalists) -> dict[str, str]:
    """Return the finalists that cannot be recommended whatever their differences to baselines are, with the reasons."""
    trials = {trial.name: trial for trial in judged.front.trials}
    reasons = {}
    for name in judged.finalists:
        if not judged.splits[judged.split].has_known_seed_variance(name, judged.comparison.metrics):
            reasons[name] = TOO_FEW_SEEDS
        elif has_seeds_of_search(judged.info, judged.splits, judged.split, trials[name]):
            reasons[name] = SAME_SEEDS
        elif not keeps_constraints(judged.info, trials[name], judged.split, judged.front.baselines):
            reasons[name] = BROKEN_CONSTRAINT
        # with accuracy among the metrics the margin limits its loss
        elif catalogue.ACCURACY not in judged.comparison.metrics and _is_below_floor(judged, trials[name]):
            reasons[name] = BELOW_FLOOR
    return reasons


def _is_below_floor(judged: _JudgedFinalists, trial: TrialRecord) -> bool:
    """Return True for a trial that is less accurate than the main reference by more than the floor."""
    reference = main_reference(judged.baselines)
    if reference is None:
        return False
    return is_less_accurate(trial, reference, judged.split, judged.front.floor)


def _why_all_left_out(left_out: Mapping[str, str], split: str) -> str:
    """Return the sentence on finalists all of which are left out."""
    sentences = {
        TOO_FEW_SEEDS: "the finalists have too few seeds: one may be a lucky one",
        SAME_SEEDS: "the finalists were chosen with these seeds, so a gain may be luck with them",
        BROKEN_CONSTRAINT: f"no finalist keeps all constraints on the {split} images",
        BELOW_FLOOR: f"every finalist is {BELOW_FLOOR}",
    }
    reasons = set(left_out.values())
    if len(reasons) == 1:
        return sentences[reasons.pop()]
    return f"no finalist may be recommended: {_left_out_text(left_out)}"


def _left_out_text(left_out: Mapping[str, str]) -> str:
    return " and ".join(f"{name} ({reason})" for name, reason in left_out.items())


def _recommended_finalist(judged: _JudgedFinalists, left_out: Mapping[str, str]) -> Recommendation:
    """Return the recommendation among the finalists that are not left out, of which there is at least one."""
    eligible = []
    qualifying = []
    for name in judged.finalists:
        if name in left_out:
            continue
        eligible.append(name)
        if judged.comparison.qualifies(name):
            qualifying.append(name)
    if qualifying:
        name = _best_of(judged, qualifying)
        return Recommendation(trial=name, reason=judged.comparison.why_recommended(name))
    reason = why_none_qualifies(eligible, judged.comparison)
    if left_out:
        reason = f"{reason}, apart from {_left_out_text(left_out)}"
    return Recommendation(reason=reason)


def _best_of(judged: _JudgedFinalists, finalists: Sequence[str]) -> str:
    """Return the first finalist, in the given order of trade-off, that no other one dominates on the judged images.

    The order of trade-off rests on the images of the search.
    """
    trials = [trial for trial in judged.front.trials if trial.name in finalists]
    points = _complete_points(judged.info, trials, judged.split)
    goals = goals_of(judged.info.objectives)
    undominated = []
    for name in finalists:
        is_dominated = False
        for other in points.values():
            if name in points and pareto.dominates(other, points[name], goals):
                is_dominated = True
        if not is_dominated:
            undominated.append(name)
    return undominated[0]


def _complete_points(info: SweepInfo, records: Sequence[TrialRecord], split: str) -> dict[str, list[float]]:
    """Return the values of all objectives on a split, by name, of the records that have all of them."""
    points = {}
    for record in records:
        values = []
        for metric in metrics_of(info.objectives):
            values += values_on(record, split_of_metric(info, record, metric, split), [metric])
        if not any(math.isnan(value) for value in values):
            points[record.name] = values
    return points


def _verdict_split(info: SweepInfo, splits: Mapping[str, SplitStatistics], front: Front) -> str | None:
    """Return the split that finalists are judged on: test, else that of the final stage, else that of the search.

    A split counts once a trial has results on it. A search on the test split is judged on the final stage. The search
    split comes last, and counts only after the sweep: before, the final stage and the test split may follow.
    """
    for split in [*_later_splits(info), info.search_split]:
        if split not in splits:
            continue
        if split == info.search_split and info.state != "finished":
            continue
        candidates = set(names_of(_judged_trials(info, front, split)))
        if candidates & splits[split].samples.records.keys():
            return split
    return None


def names_of(records: Sequence[TrialRecord]) -> list[str]:
    return [record.name for record in records]


def _finalists_on(info: SweepInfo, front: Front, samples: SplitSamples) -> list[str]:
    """Return the names of the trials that are judged on a split, in the order of trade-off."""
    candidates = _judged_trials(info, front, samples.split)
    return [name for name in names_of(front.by_trade_off(candidates)) if name in samples.records]


def _judged_trials(info: SweepInfo, front: Front, split: str) -> Sequence[TrialRecord]:
    """Return the trials that are finalists if they have results on a split."""
    if split == info.search_split:
        return front.members
    return front.trials  # only finalists have results on the other splits


def _obstacle(judged: _JudgedFinalists) -> str:
    """Return why no finalist can be recommended whatever the differences are; empty if nothing prevents it."""
    if judged.info.state != "finished":
        return "the sweep has not finished"
    missing_baselines = _why_baselines_are_missing(judged)
    if missing_baselines:
        return missing_baselines
    if judged.comparison.why_impossible:
        return judged.comparison.why_impossible
    same_images = _why_not_fresh_images(judged)
    if same_images:
        return same_images
    return _why_untested(judged)


def _why_baselines_are_missing(judged: _JudgedFinalists) -> str:
    """Return a reason if a baseline that may be better has no results on the split; else an empty text.

    The main reference counts even if it failed, others only if they have results of the search.
    """
    missing = _missing_baselines(judged)
    labels = [baseline.label for baseline in judged.front.baselines]
    compared = [label_of(name) for name in judged.comparison.baselines]
    reference = reference_label([*judged.info.requested_baselines, *labels])
    if reference and reference not in [*compared, *missing]:
        missing.insert(0, reference)
    if not missing:
        return ""
    have = "has" if len(missing) == 1 else "have"
    return f"{' and '.join(missing)} {have} no usable results on the {judged.split} images"


def _missing_baselines(judged: _JudgedFinalists) -> list[str]:
    """Return the labels of the sweep's own baselines that have results of the search, and none on the split."""
    missing = []
    for baseline in judged.front.own_baselines:
        if baseline.name not in judged.comparison.baselines:
            missing.append(baseline.label)
    return missing


def _why_not_fresh_images(judged: _JudgedFinalists) -> str:
    """Return a reason if the split may have images by which the search chose its finalists; else an empty text."""
    if has_images_of_search(judged.info, judged.splits, judged.split):
        return "the finalists were chosen on these images, so a gain may be luck with them"
    search_split = judged.info.search_split
    if search_split not in judged.splits:
        return f"it is unknown on which images of {search_split} the finalists were chosen: no block statistics"
    return ""


def _why_untested(judged: _JudgedFinalists) -> str:
    """Return a reason if no finalist can be tested against the main reference in some metric; else an empty text."""
    comparison = judged.comparison
    reference = comparison.reference
    for metric in comparison.metrics:
        if all((name, reference, metric) not in comparison.differences for name in judged.finalists):
            where = f" in {metric}" if comparison.differences else ""
            problem = why_not_paired(judged.samples, judged.finalists[0], reference, metric)
            return f"no difference{where} can be tested ({problem})"
    return ""


def _answer_without_finalists(info: SweepInfo, front: Front) -> Answer:
    """Return the answer if no trial has results that finalists are judged by."""
    has_later_results = any(_has_later_results(info, trial) for trial in front.trials)
    will_go_on = info.state == "running" or (bool(front.trials) and info.state != "finished")
    if will_go_on and not has_later_results:
        return Answer(reason="no finalist has been judged yet")  # a sweep may have no final stage
    reason = "no trial is complete"
    if front.trials:
        reason = "the trials have no usable block statistics"
    elif front.infeasible:
        reason = "no trial keeps all constraints"
    for split in ("test", FINAL, info.search_split):
        if any(split not in baseline.results for baseline in front.own_baselines):
            continue  # another baseline may be the best one
        name = _best_baseline(info, front.baselines, split)
        if name is not None:
            return Answer(best_baseline=name, reason=reason)
    return Answer(reason=reason)


def _has_later_results(info: SweepInfo, trial: TrialRecord) -> bool:
    return any(split in trial.results for split in _later_splits(info))


def _later_splits(info: SweepInfo) -> list[str]:
    """Return the splits on which finalists run after the search, the last one first."""
    return [split for split in ("test", FINAL) if split != info.search_split]


# --- differences and baselines ------------------------------------------------------------------------


def split_by_testable(objectives: Sequence[Objective]) -> tuple[list[str], list[str]]:
    """Return the metrics of the objectives whose differences can be tested, and of those that cannot be resampled."""
    tested = []
    untested = []
    for metric in metrics_of(objectives):
        if resampled_metrics([metric]) and not why_never_tested(metric):
            tested.append(metric)
        else:
            untested.append(metric)
    return tested, untested


def _differences(
    statistics: SplitStatistics, trials: Sequence[str], baselines: Sequence[str], metrics: Sequence[str]
) -> dict[tuple[str, str, str], Difference]:
    """Return the differences of all trials from all baselines, by trial, baseline and metric."""
    pairs = []
    for trial in trials:
        for baseline in baselines:
            pairs.append((trial, baseline))
    measured = [metric for metric in metrics if metric in statistics.seeds]  # these images may lack a dataset
    differences = {}
    for difference in corrected_differences(statistics.samples, pairs, measured, statistics.seeds):
        differences[difference.first, difference.second, difference.metric] = difference
    return differences


def _max_seeds(samples: SplitSamples, names: Sequence[str]) -> int:
    counts = [len(samples.records[name].seeds) for name in names]
    return max(counts, default=0)


def main_reference(baselines: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the baseline that a recommended trial must beat: see `reference_label`."""
    by_label = {baseline.label: baseline for baseline in baselines}
    return by_label.get(reference_label(by_label))


def reference_label(labels: Iterable[str]) -> str:
    """Return zero-shot if it is among the baselines, else TPT, else the first in the usual order; empty without any.

    >>> reference_label(["ctpt", "tpt", "zero_shot"]), reference_label(["otpt", "ctpt"]), reference_label([])
    ('zero_shot', 'ctpt', '')
    """
    ordered = sorted(labels, key=usual_order)
    for label in (catalogue.ZERO_SHOT, catalogue.TPT, *ordered):
        if label in ordered:
            return label
    return ""


def _best_baseline(info: SweepInfo, baselines: Sequence[TrialRecord], split: str) -> str | None:
    """Return the best of the baselines that keep all constraints and have all objectives on a split, if any does."""
    eligible = [baseline for baseline in baselines if keeps_constraints(info, baseline, split, baselines)]
    points = _complete_points(info, eligible, split)
    return best_baseline(points, goals_of(info.objectives))
