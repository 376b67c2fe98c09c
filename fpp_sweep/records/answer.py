"""The statistics of a sweep, from its folder: intervals, support, differences to the baselines, and the answer.

`statistics_of` computes everything.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metrics_shown, splits_of, values_of, values_on
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.recommendation import answer_of, names_of
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.records.skipped_images import skipped_notes
from fpp_sweep.records.texts import setting_text
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.spec.names import label_of
from fpp_sweep.statistics.attainment import Attainment, attainment
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.front_support import FrontSupport, front_support
from fpp_sweep.statistics.paired import NO_VARIANCE, Interval, SeedVariances, SplitStatistics, seed_variances
from fpp_sweep.statistics.verdicts import Answer

MAX_COMPARED = 200  # trials nearest to the front that get intervals and support: takes seconds and some 30 MB


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
    names_of_compared = {record.name for record in front.compared}
    behind = [record for record in front.nearest(MAX_COMPARED) if record.name not in names_of_compared]
    for split in splits_of(info, front.compared):
        rivals = []
        if split == info.search_split:  # all trials have results; support needs those behind the front, too
            rivals = behind
        measurements = measure(
            folder, front.compared, split, metrics, rivals=rivals, objectives=metrics_of(info.objectives)
        )
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
        answer=answer_of(info, front, splits),
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
    """Return the support of each trial on the search split; of finalists the weaker one of search and final stage.

    In the final stage a finalist is compared with the other finalists only.
    """
    searched = splits.get(info.search_split)
    if searched is None:
        return FrontSupport()
    metrics = metrics_of(info.objectives)
    values = {trial.name: values_of(trial) for trial in front.trials}
    support = front_support(searched.samples, values, metrics, searched.seeds)
    if FINAL not in splits:
        return support
    final = splits[FINAL]
    final_values = {}
    for trial in front.trials:
        if trial.name in final.samples.records:
            final_values[trial.name] = values_on(trial, FINAL, metrics)
    support_by_name = dict(support.trials)
    for name, of_final_stage in front_support(final.samples, final_values, metrics, final.seeds).trials.items():
        support_by_name[name] = of_final_stage.weaker(support.trials.get(name))
    return FrontSupport(support_by_name)


def _seed_variances_for_search(
    searched: Mapping[str, SeedVariances], final: Mapping[str, SeedVariances]
) -> dict[str, SeedVariances]:
    """Return the seed variances of the search split, by metric.

    A metric whose variance is not known from the search gets the pooled variance of the final stage, if that has more
    degrees of freedom. Records that no seed of the search changes keep a variance of zero.
    """
    by_metric = dict(searched)
    for metric, variances in searched.items():
        if variances.is_known or metric not in final:
            continue
        if final[metric].pooled.degrees_of_freedom <= variances.pooled.degrees_of_freedom:
            continue
        unvaried = {name: variance for name, variance in variances.by_record.items() if variance == NO_VARIANCE}
        by_metric[metric] = SeedVariances(final[metric].pooled, unvaried)
    return by_metric


def attainment_of(info: SweepInfo, statistics: SweepStatistics) -> Attainment | None:
    """Return how far the fronts of the resamples reach on the search split.

    Return None unless there are two objectives, both of which can be resampled.
    """
    if info.search_split not in statistics.splits:
        return None
    searched = statistics.splits[info.search_split]
    names = names_of(statistics.front.trials)
    return attainment(searched.samples, names, metrics_of(info.objectives), searched.seeds)


# --- the answer in words ----------------------------------------------------------------------------


def sentence_of(statistics: SweepStatistics) -> str:
    """Return the answer of a sweep as one sentence, for reports and the terminal."""
    answer = statistics.answer
    design = ""
    if answer.design:
        design = f" ({answer.design})"
    if answer.best_baseline is not None:
        best = f"the best baseline in {statistics.front.objectives[0].metric} is {label_of(answer.best_baseline)}"
        return f"No trial is recommended, because {answer.reason}; {best}{design}."
    if answer.recommended is None:
        return f"Nothing is recommended: {answer.reason}{design}."
    settings = ""
    for trial in statistics.front.trials:
        if trial.name == answer.recommended:
            settings = settings_of(trial)
    untested = ""
    if answer.untested:
        untested = f"; not tested: {' and '.join(answer.untested)}"
    return f"Recommended: {answer.recommended} with {settings}: {answer.reason}{untested}{design}."


def settings_of(record: TrialRecord) -> str:
    """Return a trial's searched settings in a few words.

    >>> settings_of(TrialRecord(name="trial-0001", kind="trial", state="complete", params={"fpp.gamma1": 4.3}))
    'gamma1 4.3'
    >>> settings_of(TrialRecord(name="trial-0001", kind="trial", state="complete"))
    'the settings of its config'
    """
    words = []
    for key, value in record.params.items():
        words.append(f"{key.rpartition('.')[2]} {setting_text(key, value, 3)}")
    return ", ".join(words) or "the settings of its config"
