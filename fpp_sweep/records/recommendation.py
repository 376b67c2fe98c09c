"""The recommendation of a sweep: the split and the finalists that are judged, and what stands against each of them.

The rule by which differences to the baselines decide is `statistics.verdicts.recommend`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fpp_sweep.records.constraints import keeps_constraints
from fpp_sweep.records.front import Front, usual_order, values_on
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
    why_bad_coverage,
    why_not_paired,
)
from fpp_sweep.statistics.verdicts import Answer, BaselineComparison, Recommendation, best_baseline, recommend


def answer_of(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> Answer:
    """Return the recommendation with all differences between finalists and baselines, in the objectives."""
    if front.evaluate_only:
        return Answer(reason="search.evaluate_only chooses no trial")
    split = _verdict_split(info, splits, front)
    if split is None:
        return _answer_without_finalists(info, front)
    statistics = splits[split]
    tested_metrics, untested_metrics = split_by_testable(info.objectives)
    finalists = _finalists_on(info, front, statistics.samples)
    baselines = [baseline for baseline in front.baselines if baseline.name in statistics.samples.records]
    comparison = _compare_with_baselines(info, statistics, finalists, baselines, tested_metrics)
    candidates = _candidates(info, front, splits, split, finalists, tested_metrics)
    obstacle = _obstacle(info, splits, split, comparison, candidates)
    obstacle = obstacle or _missing_reference(front, baselines, split)
    if obstacle:
        recommendation = Recommendation(reason=obstacle)
    else:
        recommendation = recommend(candidates.eligible, comparison)
    if recommendation.name is None:
        recommendation = _recommended_baseline(info, baselines, split, recommendation.reason)
    return Answer(
        metrics=tuple(tested_metrics),
        untested=tuple(untested_metrics),
        finalists=tuple(finalists),
        baselines=tuple(comparison.baselines),
        split=split,
        images=statistics.samples.images,
        seeds=_max_seeds(statistics.samples, finalists),
        seeds_unknown=bool(finalists) and not candidates.with_known_seeds,
        differences=comparison.differences,
        recommended=recommendation.name,
        recommended_kind=recommendation.kind,
        reason=recommendation.reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """The finalists that are judged on a split, by name, and those of them that a condition leaves."""

    finalists: Sequence[str]
    with_known_seeds: Sequence[str]  # finalists of which it is known how much seeds change them
    with_other_seeds: Sequence[str]  # the same, without those that were chosen with these pretraining seeds
    eligible: Sequence[str]  # the same, without those that break a constraint


def _candidates(
    info: SweepInfo,
    front: Front,
    splits: Mapping[str, SplitStatistics],
    split: str,
    finalists: Sequence[str],
    metrics: Sequence[str],
) -> _Candidates:
    with_known_seeds = _with_known_seed_variance(splits[split], finalists, metrics)
    with_other_seeds = _with_other_seeds(info, front, splits, split, with_known_seeds)
    return _Candidates(
        finalists=finalists,
        with_known_seeds=with_known_seeds,
        with_other_seeds=with_other_seeds,
        eligible=_keeping_constraints(info, front, with_other_seeds, split),
    )


def _verdict_split(info: SweepInfo, splits: Mapping[str, SplitStatistics], front: Front) -> str | None:
    """Return the split that finalists are judged on: test, else that of the final stage, else that of the search.

    A split counts once a trial has results on it. A search on the test split is judged on the final stage. The search
    split comes last, and counts only after the sweep: before, the final stage and the test split may follow.
    """
    trials = set(names_of(front.trials))
    for split in [*_later_stages(info), info.search_split]:
        if split not in splits:
            continue
        if split == info.search_split and info.state != "finished":
            continue
        names = set(splits[split].samples.records)
        if names & trials:
            return split
    return None


def names_of(records: Sequence[TrialRecord]) -> list[str]:
    return [record.name for record in records]


def _finalists_on(info: SweepInfo, front: Front, samples: SplitSamples) -> list[str]:
    """Return the names of the trials that are judged on a split, in the order of trade-off."""
    candidates = front.trials  # only finalists have results on the other splits
    if samples.split == info.search_split:
        candidates = front.members
    return [name for name in names_of(front.by_trade_off(candidates)) if name in samples.records]


def _obstacle(
    info: SweepInfo,
    splits: Mapping[str, SplitStatistics],
    split: str,
    comparison: BaselineComparison,
    candidates: _Candidates,
) -> str:
    """Return why no finalist can be recommended whatever the differences are; empty if nothing prevents it."""
    if info.state != "finished":
        return "the sweep has not finished"
    if not candidates.finalists or not comparison.baselines:
        return ""  # `recommend` has a reason
    if _has_images_of_search(info, splits, split):
        return "the finalists were chosen on these images, so a gain may be luck with them"
    if comparison.metrics and not comparison.differences:
        samples = splits[split].samples
        problem = why_not_paired(samples, candidates.finalists[0], comparison.baselines[0], comparison.metrics[0])
        return f"no difference can be tested ({problem})"
    if not candidates.with_known_seeds:
        return "the finalists have too few seeds: one may be a lucky one"
    if not candidates.with_other_seeds:
        return "the finalists were chosen with these seeds, so a gain may be luck with them"
    if not candidates.eligible:
        return f"no finalist keeps all constraints on the {split} images"
    return ""


def _has_images_of_search(info: SweepInfo, splits: Mapping[str, SplitStatistics], split: str) -> bool:
    """Return True if a split has the images by which the search chose its finalists.

    The final stage has them if there are no fresh images, and the test split may be the same images under another name.
    The best of many trials is lucky with these images.
    """
    if split == info.search_split:
        return True
    if info.search_split not in splits:
        return False
    return splits[split].samples.digests == splits[info.search_split].samples.digests


def _keeping_constraints(info: SweepInfo, front: Front, finalists: Sequence[str], split: str) -> list[str]:
    """Return the finalists whose results on a split keep all constraints."""
    records = {trial.name: trial for trial in front.trials}
    return [name for name in finalists if keeps_constraints(info, records[name], split, front.baselines)]


def _answer_without_finalists(info: SweepInfo, front: Front) -> Answer:
    """Return the answer if no trial has results that finalists are judged by."""
    has_later_results = any(_has_later_results(info, trial) for trial in front.trials)
    will_go_on = info.state == "running" or (bool(front.trials) and info.state != "finished")
    if will_go_on and not has_later_results:
        return Answer(reason="the final stage has not run yet")
    reason = "no trial is complete"
    if front.trials:
        reason = "the trials have no usable block statistics"
    elif front.infeasible:
        reason = "no trial keeps all constraints"
    for split in ("test", FINAL, info.search_split):
        recommendation = _recommended_baseline(info, front.baselines, split, reason)
        if recommendation.name is not None:
            return Answer(recommended=recommendation.name, recommended_kind=recommendation.kind, reason=reason)
    return Answer(reason=reason)


def _has_later_results(info: SweepInfo, trial: TrialRecord) -> bool:
    return any(split in trial.results for split in _later_stages(info))


def _later_stages(info: SweepInfo) -> list[str]:
    """Return the splits on which finalists run after the search, the last one first."""
    return [split for split in ("test", FINAL) if split != info.search_split]


def _with_known_seed_variance(
    statistics: SplitStatistics, finalists: Sequence[str], metrics: Sequence[str]
) -> list[str]:
    """Return the finalists whose variance over pretraining seeds is known in every metric.

    A finalist of one seed needs seeds that change nothing: other records do not tell how lucky that seed is.
    """
    known = []
    for name in finalists:
        record = statistics.samples.records[name]
        has_seeds = record.deterministic or len(record.seeds) > 1
        if has_seeds and all(statistics.seeds[metric].is_known_of(record) for metric in metrics):
            known.append(name)
    return known


def _with_other_seeds(
    info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics], split: str, finalists: Sequence[str]
) -> list[str]:
    """Return the finalists whose prompts were pretrained with other seeds than those that chose them, or not at all.

    Without a final stage, the front runs on the test split with the seeds of the search. The best of many trials is
    lucky with its prompts. A seed that draws views only is another one for other images.
    """
    trials = {trial.name: trial for trial in front.trials}
    others = []
    for name in finalists:
        seeds = set(splits[split].samples.records[name].seeds)
        shares_seeds = bool(seeds & _seeds_of_search(info, splits, name))
        if not (trials[name].has_fpp_prompt and shares_seeds):
            others.append(name)
    return others


def _seeds_of_search(info: SweepInfo, splits: Mapping[str, SplitStatistics], name: str) -> set[int]:
    """Return the seeds that a trial had in the search."""
    if info.search_split in splits:
        samples = splits[info.search_split].samples
        if name in samples.records:
            return set(samples.records[name].seeds)
    return set(info.seeds)


def _missing_reference(front: Front, baselines: Sequence[TrialRecord], split: str) -> str:
    """Return the obstacle that the main reference has no results on a split; empty if it has, or if there is none."""
    reference = main_reference(front.baselines)
    if reference is None or reference.name in names_of(baselines):
        return ""
    return f"{label_of(reference.name)} has no usable results on the {split} images"


def split_by_testable(objectives: Sequence[Objective]) -> tuple[list[str], list[str]]:
    """Return the metrics of the objectives whose differences can be tested, and of those that cannot be resampled."""
    tested = []
    untested = []
    for metric in metrics_of(objectives):
        if resampled_metrics([metric]) and not why_bad_coverage(metric):
            tested.append(metric)
        else:
            untested.append(metric)
    return tested, untested


def _compare_with_baselines(
    info: SweepInfo,
    statistics: SplitStatistics,
    finalists: Sequence[str],
    baselines: Sequence[TrialRecord],
    metrics: Sequence[str],
) -> BaselineComparison:
    return BaselineComparison(
        differences=_differences(statistics, finalists, names_of(baselines), metrics),
        baselines=names_of(baselines),
        references=names_of(references_of(baselines)),
        metrics=metrics,
        margins=info.space.get("search", {}).get("margin", {}),
    )


def _differences(
    statistics: SplitStatistics, trials: Sequence[str], baselines: Sequence[str], metrics: Sequence[str]
) -> dict[tuple[str, str, str], Difference]:
    """Return the differences of all trials from all baselines, by trial, baseline and metric."""
    if not metrics:
        return {}
    pairs = []
    for trial in trials:
        for baseline in baselines:
            pairs.append((trial, baseline))
    differences = {}
    for difference in corrected_differences(statistics.samples, pairs, metrics, statistics.seeds):
        differences[difference.first, difference.second, difference.metric] = difference
    return differences


def _max_seeds(samples: SplitSamples, names: Sequence[str]) -> int:
    counts = [len(samples.records[name].seeds) for name in names]
    return max(counts, default=0)


def references_of(baselines: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the baselines of which a recommended trial must beat one, in the usual order."""
    by_label = {baseline.label: baseline for baseline in baselines}
    return [by_label[label] for label in reference_labels(by_label)]


def main_reference(baselines: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the baseline whose loss to a finalist is limited by the margin: the first reference, usually zero-shot."""
    references = references_of(baselines)
    if not references:
        return None
    return references[0]


def reference_labels(labels: Iterable[str]) -> list[str]:
    """Return the references among baselines, in the usual order: zero-shot and TPT, else the first baseline.

    >>> reference_labels(["ctpt", "tpt", "zero_shot"]), reference_labels(["otpt", "ctpt"])
    (['zero_shot', 'tpt'], ['ctpt'])
    """
    ordered = sorted(labels, key=usual_order)
    references = [label for label in ordered if label in (catalogue.ZERO_SHOT, catalogue.TPT)]
    return references or ordered[:1]


def _recommended_baseline(info: SweepInfo, baselines: Sequence[TrialRecord], split: str, reason: str) -> Recommendation:
    """Recommend the best of the baselines that keep all constraints and have all objectives on a split, if any does."""
    points = {}
    for baseline in baselines:
        if not keeps_constraints(info, baseline, split, baselines):
            continue
        values = values_on(baseline, split, metrics_of(info.objectives))
        if not any(math.isnan(value) for value in values):
            points[baseline.name] = values
    name = best_baseline(points, goals_of(info.objectives))
    if name is None:
        return Recommendation(reason=reason)
    return Recommendation(name=name, kind="baseline", reason=reason)
