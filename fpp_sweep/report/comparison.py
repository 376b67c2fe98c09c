"""Numbers of a comparison of sweeps on the images that they share.

Every record is measured again on what all sweeps have in common: datasets, and the first images of each in the fair
order. The union of the sweeps is then a sweep like any other, with a front, intervals and support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from fpp_sweep.records import pareto
from fpp_sweep.records.answer import MAX_COMPARED, SweepStatistics, attainment_of, statistics_of_samples
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metrics_shown, values_of
from fpp_sweep.records.measurements import is_deterministic, resampled_metrics
from fpp_sweep.records.records import SweepInfo, TrialRecord, baseline_name
from fpp_sweep.report.shared_images import (
    LoadedSweep,
    MeasuredImages,
    SharedSplit,
    differing_inputs,
    partly_shared,
    restrict_record,
    shared_split,
)
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import plural
from fpp_sweep.statistics.attainment import Attainment
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, seeds_of
from fpp_sweep.statistics.bootstrap import SplitSamples, sample_split
from fpp_sweep.statistics.paired import Difference, adjust_p_values, difference


@dataclass(frozen=True, slots=True, eq=False)
class ComparedSweep:
    """A sweep of a comparison, measured on the images that all of them share."""

    loaded: LoadedSweep
    front: Front
    attainment: Attainment | None
    seconds: Sequence[float]  # worker seconds until each trial of the front had ended

    @property
    def label(self) -> str:
        return self.loaded.label

    @property
    def volumes(self) -> list[float]:
        """The hypervolume after each trial of the front."""
        return [volume for _, volume in self.front.hypervolume]


@dataclass(frozen=True, slots=True)
class BestTrialsTest:
    """The best trials of two sweeps against each other, in one metric."""

    marks: Sequence[str]  # marks that both have in their sweeps: best accuracy, knee, ...
    split: str
    difference: Difference  # first minus second


@dataclass(frozen=True, slots=True, eq=False)
class SweepComparison:
    """Sweeps beside each other."""

    info: SweepInfo  # description of the union, as if it were a sweep
    statistics: SweepStatistics  # statistics of the union
    sweeps: Sequence[ComparedSweep]
    images: MeasuredImages
    tests: Sequence[BestTrialsTest]
    notes: Sequence[str]  # sentences: this is left out or differs, and why


def compare_sweeps(folders: Mapping[str, SweepFolder]) -> SweepComparison:
    """Compare sweeps, given by label, on the images that they share; all are judged by the first one's objectives."""
    shared = shared_split([LoadedSweep.of(label, folder) for label, folder in folders.items()])
    objectives, objective_notes = _comparable_objectives(shared)
    notes = [*shared.excluded, *partly_shared(shared), *differing_inputs(shared), *objective_notes]
    restricted = {}
    for sweep in shared.sweeps:
        restricted[sweep.label] = _restrict_sweep(sweep, shared, objectives)
        _require_trials(sweep, restricted[sweep.label], shared.split)
        notes += _notes_on_left_out_trials(sweep, restricted[sweep.label])
    records, paths = _labelled_records(shared.sweeps, restricted)
    info, front = _union(shared, objectives, records)
    samples = _sample_union(info, front, records, shared, paths)
    statistics = statistics_of_samples(info, front, samples)
    union_attainment = attainment_of(info, statistics)
    compared = []
    for sweep in shared.sweeps:
        sweep_front = front_of(info, records[sweep.label])
        sweep_attainment = None
        if union_attainment is not None:
            sweep_statistics = replace(statistics, front=sweep_front)
            sweep_attainment = attainment_of(info, sweep_statistics, union_attainment.positions)
        seconds = [sweep.seconds_until(trial.finished or 0.0) for trial in sweep_front.trials]
        compared.append(ComparedSweep(sweep, sweep_front, sweep_attainment, seconds))
    return SweepComparison(
        info=info,
        statistics=statistics,
        sweeps=compared,
        images=shared.images,
        tests=_test_best_trials(compared, info, samples),
        notes=notes,
    )


# --- objectives and records ---------------------------------------------------------------------------


def _comparable_objectives(shared: SharedSplit) -> tuple[list[Objective], list[str]]:
    """Return the first sweep's objectives that can be measured on the shared images, and notes on the others."""
    first = shared.sweeps[0].info
    notes = []
    objectives = []
    for objective in first.objectives:
        reason = _why_not_comparable(objective.metric, shared)
        if reason:
            notes.append(f"{objective.metric} cannot be compared: {reason}")
        else:
            objectives.append(objective)
            parts = catalogue.parts_of(objective.metric)
            if parts.stem not in BLOCKWISE_METRICS:
                notes.append(f"{objective.metric} is not tested: it cannot be computed from block statistics")
            elif parts.posthoc:
                notes.append(f"{objective.metric} is not tested: the statistics of maps are not compared")
    if not objectives:
        raise InputError("; ".join(notes))
    judged_by = replace(first, objectives=tuple(objectives)).goals
    for sweep in shared.sweeps:
        if sweep.info.goals != first.goals:
            notes.append(f"{sweep.label} searched {sweep.info.goals}; all are judged by {judged_by}")
    return objectives, notes


def _why_not_comparable(metric: str, shared: SharedSplit) -> str:
    """Return the reason for which a metric cannot be measured on the shared images; empty if it can."""
    stem, _, dataset = metric.partition("/")
    if dataset and dataset not in shared.images.datasets:
        return f"{dataset} is not shared"
    if stem in BLOCKWISE_METRICS and not BLOCKWISE_METRICS[stem].linearised:
        return ""
    counts = shared.images.counts
    for sweep in shared.sweeps:
        own_counts = shared.images_of(sweep).counts
        for name, count in counts.items():
            if own_counts[name] > count:
                return "it cannot be computed on a part of the images"
        has_same_work = own_counts == counts and len(sweep.info.seeds) == len(shared.sweeps[0].info.seeds)
        if not has_same_work and not catalogue.metric(stem).of_dataset:
            return "it depends on datasets and seeds that are not shared"
    return ""


def _restrict_sweep(sweep: LoadedSweep, shared: SharedSplit, objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Return the complete records of a sweep on the shared images, without records that lack some of these."""
    restricted = []
    for record in sweep.complete:
        artifacts = sweep.folder.artifacts(record.name)
        on_shared = restrict_record(record, artifacts, shared.by_split, objectives)
        if on_shared is not None:
            restricted.append(on_shared)
    return restricted


def _require_trials(sweep: LoadedSweep, restricted: Sequence[TrialRecord], split: str) -> None:
    """Raise InputError if a sweep has no finished trial, or none on the shared images."""
    if not _trials_among(sweep.complete):
        raise InputError(f"{sweep.label} has no finished trial")
    if not _trials_among(restricted):
        raise InputError(f"{sweep.label} has no finished trial with block statistics of its predictions on {split}")


def _notes_on_left_out_trials(sweep: LoadedSweep, restricted: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield how many trials cannot be paired, and how many are not on the front as they break a constraint."""
    trials = _trials_among(sweep.complete)
    n_unpaired = len(trials) - len(_trials_among(restricted))
    n_infeasible = len([trial for trial in trials if not trial.feasible])
    if n_unpaired:
        yield f"{sweep.label}: {plural(n_unpaired, 'trial')} without these images: left out"
    if n_infeasible:
        yield f"{sweep.label}: {plural(n_infeasible, 'trial')} not on the front, for constraints of that sweep"


def _trials_among(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [record for record in records if record.kind == "trial"]


def _labelled_records(
    sweeps: Sequence[LoadedSweep], restricted: Mapping[str, Sequence[TrialRecord]]
) -> tuple[dict[str, list[TrialRecord]], dict[str, Path]]:
    """Return the records by sweep, under names that tell the sweep, and the path of each name's artifacts.

    A baseline that is the same in several sweeps has its plain name in each of them.
    """
    first_baselines: dict[str, object] = {}  # name -> identity and model of the first sweep's
    records: dict[str, list[TrialRecord]] = {}
    paths: dict[str, Path] = {}
    for sweep in sweeps:
        records[sweep.label] = []
        for record in restricted[sweep.label]:
            name = f"{sweep.label}/{record.label}"
            if record.kind == "baseline":
                identity = identity_of(record), sweep.info.model_digest
                is_same = first_baselines.setdefault(record.name, identity) == identity
                name = record.name if is_same else baseline_name(name)
            paths.setdefault(name, sweep.folder.artifacts(record.name))
            records[sweep.label].append(replace(record, name=name))
    return records, paths


# --- the union ----------------------------------------------------------------------------------------


def _union(
    shared: SharedSplit, objectives: Sequence[Objective], records: Mapping[str, Sequence[TrialRecord]]
) -> tuple[SweepInfo, Front]:
    """Return the union of the sweeps as if it were one sweep, and its front."""
    by_identity: dict[object, TrialRecord] = {}
    for records_of_sweep in records.values():
        for record in records_of_sweep:
            by_identity.setdefault(identity_of(record), record)
    distinct = list(by_identity.values())
    info = replace(
        shared.sweeps[0].info,
        name=", ".join(records),
        objectives=tuple(objectives),
        search_split=shared.split,
        reference=hypervolume_corner(objectives, distinct),
    )
    return info, front_of(info, distinct)


def identity_of(record: TrialRecord) -> object:
    """Return a value that records share if they have the same config and the same values: the union lists one."""
    return record.kind, record.key, tuple(round(value, 6) for value in values_of(record))


def hypervolume_corner(objectives: Sequence[Objective], records: Sequence[TrialRecord]) -> list[float]:
    """Return the reference point: an objective's own reference, else the worst baseline, else the worst trial."""
    baselines = [record for record in records if record.kind == "baseline"]
    points = [values_of(record) for record in baselines or records]
    corner = pareto.worst(points, [objective.goal for objective in objectives])
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            corner[index] = objective.reference
    return corner


def _sample_union(
    info: SweepInfo,
    front: Front,
    records: Mapping[str, Sequence[TrialRecord]],
    shared: SharedSplit,
    paths: Mapping[str, Path],
) -> dict[str, SplitSamples]:
    """Resample the records of the union on the shared images; of many trials those nearest to the front.

    A record that several sweeps have is resampled under each of its names.
    """
    nearest = [*front.nearest(MAX_COMPARED), *front.baselines]
    identities = {identity_of(record) for record in nearest}
    sampled: dict[str, TrialRecord] = {}
    for records_of_sweep in records.values():
        for record in records_of_sweep:
            if identity_of(record) in identities:
                sampled[record.name] = record
    metrics = resampled_metrics(metrics_shown(info))
    samples = {}
    for split, images in shared.by_split.items():
        tables = {}
        deterministic = []
        for record in sampled.values():
            if split in record.results:
                tables[record.name] = images.read(paths[record.name], split)
                if is_deterministic(record, seeds_of(tables[record.name])):
                    deterministic.append(record.name)
        samples[split] = sample_split(split, tables, metrics, deterministic)
    return samples


# --- tests of the best trials -------------------------------------------------------------------------


def _test_best_trials(
    sweeps: Sequence[ComparedSweep], info: SweepInfo, samples: Mapping[str, SplitSamples]
) -> list[BestTrialsTest]:
    """Test the best trials of each two sweeps, on images that they were not chosen by if both were run on such.

    All these tests are one family of Holm's correction.
    """
    metrics = [metric for metric in metrics_of(info.objectives) if resampled_metrics([metric])]
    tests = []
    for first, second in combinations(sweeps, 2):
        for (first_name, second_name), marks in _pairs_of_best(first.front, second.front).items():
            for metric in metrics:
                test = _test_pair(samples, first_name, second_name, metric, marks)
                if test is not None:
                    tests.append(test)
    corrected = adjust_p_values([test.difference for test in tests])
    return [replace(test, difference=adjusted) for test, adjusted in zip(tests, corrected, strict=True)]


def _pairs_of_best(first: Front, second: Front) -> dict[tuple[str, str], list[str]]:
    """Return the pairs of different members that hold the same mark in two fronts, with these marks."""
    pairs: dict[tuple[str, str], list[str]] = {}
    identities = {member.name: identity_of(member) for member in (*first.members, *second.members)}
    for first_name, first_marks in first.marks.items():
        for second_name, second_marks in second.marks.items():
            shared_marks = [mark for mark in first_marks if mark in second_marks]
            if shared_marks and identities[first_name] != identities[second_name]:
                pairs[first_name, second_name] = shared_marks
    return pairs


def _test_pair(
    samples: Mapping[str, SplitSamples], first: str, second: str, metric: str, marks: Sequence[str]
) -> BestTrialsTest | None:
    """Return the test on the last split, test if the sweeps share it, on which both can be paired."""
    for split in reversed(list(samples)):
        result = difference(samples[split], first, second, metric)
        if result is not None:
            return BestTrialsTest(marks, split, result)
    return None
