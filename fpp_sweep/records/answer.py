"""The answer of a sweep, from its folder: intervals, support, differences to the baselines, and the recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, format_setting, front_of, metric_of, metrics_shown
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.front_support import FrontSupport, front_support
from fpp_sweep.statistics.paired import Interval, SeedVariances, compare, metric_interval, seed_variances
from fpp_sweep.statistics.verdicts import Answer, best_baseline, recommend

MAX_COMPARED = 200  # trials nearest to the front that get intervals and support: seconds, and some 30 MB


@dataclass(frozen=True, slots=True, eq=False)
class SplitStatistics:
    """Intervals of the records of one split."""

    samples: SplitSamples
    seeds: Mapping[str, SeedVariances] = field(default_factory=dict)  # by metric

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
    notes: Sequence[str] = ()  # files that were ignored, and why

    def interval(self, record: TrialRecord, split: str, metric: str) -> Interval | str:
        if split not in self.splits:
            return "no interval: no block statistics of these images"
        return self.splits[split].interval(record.name, metric)


def statistics_of(folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord]) -> SweepStatistics:
    """Compute a sweep's statistics from the records and the block statistics in its folder."""
    front = front_of(info, records)
    metrics = resampled_metrics(metrics_shown(info.objectives))
    notes: list[str] = []
    splits = {}
    for split in splits_with_results(info, front):
        if split == info.search_split:
            measured = [*front.layers(MAX_COMPARED), *front.baselines]
        else:
            measured = front.compared
        measurements = measure(folder, measured, split, metrics)
        notes.extend(measurements.notes)
        if measurements.samples.records:
            names = _with_datasets(metrics, measurements.samples)
            variances = seed_variances(measurements.samples, names)
            splits[split] = SplitStatistics(measurements.samples, variances)
    return SweepStatistics(
        front=front,
        splits=splits,
        support=_support(info, front, splits),
        answer=_answer(info, front, splits),
        notes=notes,
    )


def splits_with_results(info: SweepInfo, front: Front) -> list[str]:
    """Return the search split, then the final stage and the test split if any record has results there."""
    present = {split for record in front.compared for split in record.results}
    return [info.search_split, *sorted(present - {info.search_split})]


def _with_datasets(metrics: Sequence[str], samples: SplitSamples) -> list[str]:
    """Return metrics as averages and by dataset: `ece`, `ece/dtd`."""
    names = []
    for metric in metrics:
        names.append(metric)
        names.extend(f"{metric}/{dataset}" for dataset in samples.images)
    return names


# --- support ----------------------------------------------------------------------------------------


def _support(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> FrontSupport:
    """Return the support of trials on the search split, and of finalists on that of the final stage."""
    searched = splits.get(info.search_split)
    if searched is None:
        return FrontSupport()
    metrics = [objective.metric for objective in info.objectives]
    seeds = searched.seeds
    if FINAL in splits:
        seeds = _known_seed_variances(searched.seeds, splits[FINAL].seeds)
    names = [trial.name for trial in front.trials]
    support = dict(front_support(searched.samples, names, metrics, seeds).trials)
    if FINAL in splits:
        final = splits[FINAL]
        finalists = [trial.name for trial in front.trials if trial.name in final.samples.records]
        support.update(front_support(final.samples, finalists, metrics, final.seeds).trials)
    return FrontSupport(support)


def _known_seed_variances(
    searched: Mapping[str, SeedVariances], final: Mapping[str, SeedVariances]
) -> dict[str, SeedVariances]:
    """Return the seed variances of the search split; where it has one seed, the pooled ones of the final stage."""
    known = {}
    for metric, variances in searched.items():
        known[metric] = variances
        if variances.pooled.degrees_of_freedom == 0 and metric in final:
            known[metric] = SeedVariances(final[metric].pooled, {})
    return known


# --- the recommendation -----------------------------------------------------------------------------


def verdict_split(info: SweepInfo, splits: Mapping[str, SplitStatistics], front: Front) -> str | None:
    """Return the split that finalists are judged on: test, else that of the final stage; None before either has run."""
    trials = {trial.name for trial in front.trials}
    for split in ("test", FINAL, info.search_split):
        if split not in splits or (split == info.search_split and info.state == "running"):
            continue
        names = set(splits[split].samples.records)
        if names & trials:
            return split
    return None


def _answer(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> Answer:
    split = verdict_split(info, splits, front)
    if split is None:
        return Answer(reason="the final stage has not run yet")
    samples = splits[split].samples
    objectives = [objective.metric for objective in info.objectives]
    tested = [metric for metric in objectives if resampled_metrics([metric])]
    shown = front.members if split == info.search_split else front.trials
    finalists = [trial for trial in front.by_trade_off(shown) if trial.name in samples.records]
    baselines = [baseline for baseline in front.baselines if baseline.name in samples.records]
    differences = []
    if tested:
        pairs = [(trial.name, baseline.name) for trial in finalists for baseline in baselines]
        differences = compare(samples, pairs, tested)
    if tested and finalists and baselines and not differences:
        return Answer(reason=f"{min(samples.images.values())} images of a dataset are too few for any test")
    names = [trial.name for trial in finalists]
    recommended, reason = recommend(
        differences,
        names,
        [baseline.name for baseline in baselines],
        tested,
        info.space.get("search", {}).get("margin", {}),
        references=[baseline.name for baseline in references_of(baselines)],
    )
    kind: Any = "trial" if recommended else None
    if recommended is None and baselines:
        kind = "baseline"
        recommended = _best_baseline(info, baselines, split)
    return Answer(
        metrics=tuple(tested),
        untested=tuple(metric for metric in objectives if metric not in tested),
        finalists=tuple(names),
        baselines=tuple(baseline.name for baseline in baselines),
        split=split,
        images=samples.images,
        seeds=max((len(samples.records[name].seeds) for name in names), default=0),
        differences={(found.first, found.second, found.metric): found for found in differences},
        recommended=recommended,
        recommended_kind=kind if recommended else None,
        reason=reason,
    )


def references_of(baselines: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the baselines that a recommended setting is held against: zero-shot and TPT, else the first one."""
    references = [
        baseline for baseline in baselines if baseline.label in (catalogue.PLAIN, catalogue.DEFAULT)
    ]  # in the usual order: zero-shot first
    return references or list(baselines[:1])


def _best_baseline(info: SweepInfo, baselines: Sequence[TrialRecord], split: str) -> str | None:
    points = {}
    for baseline in baselines:
        values = [metric_of(baseline.results.get(split), objective.metric) for objective in info.objectives]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            points[baseline.name] = known
    return best_baseline(points, [objective.goal for objective in info.objectives])


def sentence_of(info: SweepInfo, statistics: SweepStatistics) -> str:
    """Return one sentence that answers the space's question."""
    answer = statistics.answer
    design = f" ({answer.design})" if answer.design else ""
    if answer.recommended is None:
        return f"Nothing is recommended: {answer.reason}{design}."
    if answer.recommended_kind == "baseline":
        baseline = answer.recommended.removeprefix("baseline-")
        return f"No trial is recommended, {baseline} is the best baseline: {answer.reason}{design}."
    records = {trial.name: trial for trial in statistics.front.trials}
    settings = settings_of(records[answer.recommended])
    return f"Recommended: {answer.recommended} with {settings}: {answer.reason}{design}."


def settings_of(record: TrialRecord) -> str:
    """Return a trial's searched settings in a few words.

    >>> settings_of(TrialRecord(name="trial-0001", kind="trial", state="complete", params={"fpp.gamma1": 4.3}))
    'gamma1 4.3'
    """
    words = []
    for key, value in record.params.items():
        words.append(f"{key.rpartition('.')[2]} {format_setting(value, 3)}")
    return ", ".join(words) or "the settings of its config"
