"""The statistics of a sweep, from its folder: intervals, support, differences to the baselines, and the answer.

`statistics_of` computes everything. The rule of the recommendation is `statistics.verdicts.recommend`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import (
    Front,
    format_setting,
    front_of,
    metric_of,
    metrics_shown,
    splits_of,
    usual_order,
    values_of,
)
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.records.skipped_images import skipped_notes
from fpp_sweep.space.objectives import goals_of, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.messages import plural
from fpp_sweep.spec.names import label_of
from fpp_sweep.statistics.attainment import Attainment, attainment
from fpp_sweep.statistics.block_stats import Numbers
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.front_support import FrontSupport, front_support
from fpp_sweep.statistics.paired import Difference, Interval, SeedVariances, compare, metric_interval, seed_variances
from fpp_sweep.statistics.verdicts import Answer, BaselineComparison, Recommendation, best_baseline, recommend

MAX_COMPARED = 200  # trials nearest to the front that get intervals and support: takes seconds and some 30 MB


@dataclass(frozen=True, slots=True, eq=False)
class SplitStatistics:
    """Resampled metrics of one split's records, and the variances of their seeds: the input of intervals."""

    samples: SplitSamples
    seeds: Mapping[str, SeedVariances] = field(default_factory=dict)  # variances of seeds, by metric

    def interval(self, name: str, metric: str) -> Interval | str:
        """Return a record's interval, or the reason for which it has none."""
        return metric_interval(self.samples, name, metric, self.seeds.get(metric))


@dataclass(frozen=True, slots=True, eq=False)
class SweepStatistics:
    """Everything that is computed from a sweep's block statistics."""

    front: Front
    splits: Mapping[str, SplitStatistics]
    support: FrontSupport
    answer: Answer
    notes: Sequence[str] = ()  # images that were left out and files that were ignored, and why

    def interval(self, record: TrialRecord, split: str, metric: str) -> Interval | str:
        """Return a record's interval on a split, or the reason for which it has none."""
        if split not in self.splits:
            return "no interval: no block statistics of these images"
        return self.splits[split].interval(record.name, metric)

    def for_tables(self) -> SweepStatistics:
        """Return what tables need: the records and samples of all other trials take tens of MB."""
        names = {record.name for record in self.front.compared} | set(self.answer.finalists)
        front = replace(
            self.front, trials=_named(self.front.trials, names), infeasible=_named(self.front.infeasible, names)
        )
        splits = {}
        for split, statistics in self.splits.items():
            records = {name: samples for name, samples in statistics.samples.records.items() if name in names}
            splits[split] = replace(statistics, samples=replace(statistics.samples, records=records))
        return replace(self, front=front, splits=splits)


def _named(records: Sequence[TrialRecord], names: Container[str]) -> tuple[TrialRecord, ...]:
    return tuple(record for record in records if record.name in names)


def statistics_of(folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord]) -> SweepStatistics:
    """Compute a sweep's statistics from the records and the block statistics in its folder."""
    front = front_of(info, records)
    metrics = resampled_metrics(metrics_shown(info))
    notes = skipped_notes(folder, records)
    samples = {}
    for split in splits_of(info, front.compared):
        if split == info.search_split:  # all trials have results; support needs those behind the front, too
            measured = [*front.nearest(MAX_COMPARED), *front.baselines]
        else:
            measured = front.compared
        measurements = measure(folder, measured, split, metrics)
        notes.extend(measurements.notes)
        samples[split] = measurements.samples
    return statistics_of_samples(info, front, samples, notes)


def statistics_of_samples(
    info: SweepInfo, front: Front, samples: Mapping[str, SplitSamples], notes: Sequence[str] = ()
) -> SweepStatistics:
    """Compute the statistics of a front from its records' samples by split, such as samples on shared images only."""
    metrics = resampled_metrics(metrics_shown(info))
    splits = {}
    for split, split_samples in samples.items():
        if split_samples.records:
            variances = seed_variances(split_samples, _with_datasets(metrics, list(split_samples.images)))
            splits[split] = SplitStatistics(split_samples, variances)
    if info.search_split in splits and FINAL in splits:
        searched = splits[info.search_split]
        variances = _seed_variances_for_search(searched.seeds, splits[FINAL].seeds)
        splits[info.search_split] = replace(searched, seeds=variances)
    return SweepStatistics(
        front=front,
        splits=splits,
        support=_support(info, front, splits),
        answer=_answer(info, front, splits),
        notes=notes,
    )


def _with_datasets(metrics: Sequence[str], datasets: Sequence[str]) -> list[str]:
    """Return metrics as averages and by dataset: `ece`, `ece/dtd`."""
    names = []
    for metric in metrics:
        names.append(metric)
        names.extend(f"{metric}/{dataset}" for dataset in datasets)
    return names


# --- support ----------------------------------------------------------------------------------------


def _support(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> FrontSupport:
    """Return the support of each trial on the search split; that of finalists on the split of the final stage.

    The support of a finalist is for the front of the finalists, that of another trial for the front of all trials.
    """
    searched = splits.get(info.search_split)
    if searched is None:
        return FrontSupport()
    metrics = metrics_of(info.objectives)
    values = {trial.name: values_of(trial) for trial in front.trials}
    if FINAL not in splits:
        return front_support(searched.samples, values, metrics, searched.seeds)
    final = splits[FINAL]
    support_by_name = dict(front_support(searched.samples, values, metrics, searched.seeds).trials)
    final_values = {}
    for trial in front.trials:
        if trial.name in final.samples.records:
            final_values[trial.name] = _values_on(trial, FINAL, metrics)
    support_by_name.update(front_support(final.samples, final_values, metrics, final.seeds).trials)
    return FrontSupport(support_by_name)


def _values_on(record: TrialRecord, split: str, metrics: Sequence[str]) -> list[float]:
    """Return a record's values on a split; NaN, which is no better and no worse than any value, if one is missing."""
    values = []
    for metric in metrics:
        value = metric_of(record.results.get(split), metric)
        values.append(math.nan if value is None else value)
    return values


def _seed_variances_for_search(
    searched: Mapping[str, SeedVariances], final: Mapping[str, SeedVariances]
) -> dict[str, SeedVariances]:
    """Return the seed variances of the search split; where it has one seed, the pooled ones of the final stage."""
    by_metric = {}
    for metric, variances in searched.items():
        by_metric[metric] = variances
        if not variances.is_known and metric in final:
            by_metric[metric] = SeedVariances(final[metric].pooled, {})
    return by_metric


def attainment_of(info: SweepInfo, statistics: SweepStatistics, positions: Numbers | None = None) -> Attainment | None:
    """Return how far the fronts of the resamples reach on the search split.

    Return None unless there are two objectives, both of which can be resampled. `positions` are values of the first
    objective at which the second is evaluated; by default they span the front.
    """
    if info.search_split not in statistics.splits:
        return None
    searched = statistics.splits[info.search_split]
    names = _names_of(statistics.front.trials)
    return attainment(searched.samples, names, metrics_of(info.objectives), searched.seeds, positions)


def _names_of(records: Sequence[TrialRecord]) -> list[str]:
    return [record.name for record in records]


# --- the recommendation -----------------------------------------------------------------------------


def _verdict_split(info: SweepInfo, splits: Mapping[str, SplitStatistics], front: Front) -> str | None:
    """Return the split that finalists are judged on: test, else that of the final stage, else that of the search.

    A split counts once a trial has results on it. A search on the test split is judged on the final stage, whose seeds
    and images had no part in the choice. The search split comes last, and counts only after the sweep: while the sweep
    runs, the final stage and the test split may follow.
    """
    trials = set(_names_of(front.trials))
    for split in [*_later_stages(info), info.search_split]:
        if split not in splits:
            continue
        if split == info.search_split and info.state == "running":
            continue
        names = set(splits[split].samples.records)
        if names & trials:
            return split
    return None


def _answer(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> Answer:
    """Return the recommendation with all differences between finalists and baselines, in the objectives."""
    if front.evaluate_only:
        return Answer(reason="search.evaluate_only chooses no trial")
    split = _verdict_split(info, splits, front)
    if split is None:
        return _answer_without_finalists(info, front)
    samples = splits[split].samples
    tested_metrics, untested_metrics = _tested_metrics(info)
    finalists = _finalists_on(info, front, samples)
    baselines = [baseline for baseline in front.baselines if baseline.name in samples.records]
    comparison = BaselineComparison(
        differences=_differences(samples, finalists, _names_of(baselines), tested_metrics),
        baselines=_names_of(baselines),
        references=_names_of(references_of(baselines)),
        metrics=tested_metrics,
        margins=info.space.get("search", {}).get("margin", {}),
    )
    eligible = _with_known_seed_variance(splits[split], finalists, tested_metrics)
    obstacle = _obstacle(samples, finalists, eligible, comparison)
    if obstacle:
        recommendation = Recommendation(reason=obstacle)
    else:
        recommendation = recommend(eligible, comparison)
    if recommendation.name is None:
        recommendation = _recommended_baseline(info, baselines, split, recommendation.reason)
    return Answer(
        metrics=tuple(tested_metrics),
        untested=tuple(untested_metrics),
        finalists=tuple(finalists),
        baselines=tuple(comparison.baselines),
        split=split,
        images=samples.images,
        seeds=_max_seeds(samples, finalists),
        seeds_unknown=bool(finalists) and not eligible,
        differences=comparison.differences,
        recommended=recommendation.name,
        recommended_kind=recommendation.kind,
        reason=recommendation.reason,
    )


def _finalists_on(info: SweepInfo, front: Front, samples: SplitSamples) -> list[str]:
    """Return the names of the trials that are judged on a split, in the order of trade-off."""
    candidates = front.trials  # only finalists have results on the other splits
    if samples.split == info.search_split:
        candidates = front.members
    return [name for name in _names_of(front.by_trade_off(candidates)) if name in samples.records]


def _obstacle(
    samples: SplitSamples, finalists: Sequence[str], eligible: Sequence[str], comparison: BaselineComparison
) -> str:
    """Return why no finalist can be recommended whatever the differences are; empty if nothing prevents it."""
    if not finalists or not comparison.baselines:
        return ""
    if comparison.metrics and not comparison.differences:
        return f"a dataset of {plural(min(samples.images.values()), 'image')} is too small for any test"
    if not eligible:
        return "each finalist has one seed, which may be a lucky one"
    return ""


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
    """Return the finalists whose variance over pretraining seeds is known in every metric."""
    known = []
    for name in finalists:
        record = statistics.samples.records[name]
        if all(statistics.seeds[metric].is_known_of(record) for metric in metrics):
            known.append(name)
    return known


def _tested_metrics(info: SweepInfo) -> tuple[list[str], list[str]]:
    """Return the objectives whose differences can be tested, and those that cannot be resampled."""
    tested = []
    untested = []
    for metric in metrics_of(info.objectives):
        if resampled_metrics([metric]):
            tested.append(metric)
        else:
            untested.append(metric)
    return tested, untested


def _differences(
    samples: SplitSamples, trials: Sequence[str], baselines: Sequence[str], metrics: Sequence[str]
) -> dict[tuple[str, str, str], Difference]:
    """Return the differences of all trials from all baselines, by trial, baseline and metric."""
    if not metrics:
        return {}
    pairs = []
    for trial in trials:
        for baseline in baselines:
            pairs.append((trial, baseline))
    differences = {}
    for difference in compare(samples, pairs, metrics):
        differences[difference.first, difference.second, difference.metric] = difference
    return differences


def _max_seeds(samples: SplitSamples, names: Sequence[str]) -> int:
    counts = [len(samples.records[name].seeds) for name in names]
    return max(counts, default=0)


def references_of(baselines: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the baselines of which a recommended trial must beat one, in the usual order."""
    by_label = {baseline.label: baseline for baseline in baselines}
    return [by_label[label] for label in reference_labels(by_label)]


def reference_labels(labels: Iterable[str]) -> list[str]:
    """Return the references among baselines, in the usual order: zero-shot and TPT, else the first baseline.

    >>> reference_labels(["ctpt", "tpt", "zero_shot"]), reference_labels(["otpt", "ctpt"])
    (['zero_shot', 'tpt'], ['ctpt'])
    """
    ordered = sorted(labels, key=usual_order)
    references = [label for label in ordered if label in (catalogue.PLAIN, catalogue.DEFAULT)]
    return references or ordered[:1]


def _recommended_baseline(info: SweepInfo, baselines: Sequence[TrialRecord], split: str, reason: str) -> Recommendation:
    """Recommend the best baseline of those that have a value for every objective on a split, if there is one."""
    points = {}
    for baseline in baselines:
        values = _values_on(baseline, split, metrics_of(info.objectives))
        if not any(math.isnan(value) for value in values):
            points[baseline.name] = values
    name = best_baseline(points, goals_of(info.objectives))
    if name is None:
        return Recommendation(reason=reason)
    return Recommendation(name=name, kind="baseline", reason=reason)


def sentence_of(statistics: SweepStatistics) -> str:
    """Return the answer of a sweep as one sentence, for reports and the terminal."""
    answer = statistics.answer
    design = ""
    if answer.design:
        design = f" ({answer.design})"
    if answer.recommended is None:
        return f"Nothing is recommended: {answer.reason}{design}."
    if answer.recommended_kind == "baseline":
        baseline = label_of(answer.recommended)
        return f"No trial is recommended, because {answer.reason}; the best baseline is {baseline}{design}."
    settings = ""
    for trial in statistics.front.trials:
        if trial.name == answer.recommended:
            settings = settings_of(trial)
    return f"Recommended: {answer.recommended} with {settings}: {answer.reason}{design}."


def settings_of(record: TrialRecord) -> str:
    """Return a trial's searched settings in a few words.

    >>> settings_of(TrialRecord(name="trial-0001", kind="trial", state="complete", params={"fpp.gamma1": 4.3}))
    'gamma1 4.3'
    >>> settings_of(TrialRecord(name="trial-0001", kind="trial", state="complete"))
    'the settings of its config'
    """
    words = []
    for key, value in record.params.items():
        words.append(f"{key.rpartition('.')[2]} {format_setting(value, 3)}")
    return ", ".join(words) or "the settings of its config"
