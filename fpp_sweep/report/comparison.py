"""Numbers of a comparison of sweeps on the images that they share.

Every record is measured again on what all of them have in common: datasets, the first images of each in the fair
order, and seeds. The union of the sweeps is then a sweep like any other, with a front and intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, values_of
from fpp_sweep.records.records import SweepInfo, TrialRecord
from fpp_sweep.report.evidence import Evidence, evidence_of
from fpp_sweep.report.shared_images import (
    LoadedSweep,
    SharedImages,
    differing_inputs,
    partly_shared,
    restrict_to_common,
    shared_images,
)
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.messages import plural
from fpp_sweep.statistics.block_stats import ADDITIVE, Common
from fpp_sweep.statistics.bootstrap import Interval, holm, needed
from fpp_sweep.trial.evidence import SplitEvidence, of_split


@dataclass(frozen=True, slots=True, eq=False)
class ComparedSweep:
    """A sweep of a comparison, measured on the images that all of them share."""

    sweep: LoadedSweep
    front: Front
    evidence: Evidence
    seconds: Sequence[float]  # workers were held so long until each trial of the front had ended

    @property
    def label(self) -> str:
        return self.sweep.label


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The best trials of two sweeps against each other, in one metric."""

    marks: Sequence[str]  # what both are in their sweeps: best accuracy, knee, ...
    names: tuple[str, str]
    split: str
    metric: str
    difference: Interval  # first minus second
    p_value: float  # corrected


@dataclass(frozen=True, slots=True, eq=False)
class SweepComparison:
    """Sweeps beside each other."""

    info: SweepInfo  # of the union, as if it were a sweep
    front: Front
    evidence: Evidence
    sweeps: Sequence[ComparedSweep]
    common: Common
    tests: Sequence[PairedTest]
    notes: Sequence[str]  # what is left out or differs, and why


def compare_sweeps(folders: Mapping[str, SweepFolder]) -> SweepComparison:
    """Compare sweeps, given by label, on the images that they share; all are judged by the first one's objectives."""
    loaded = [LoadedSweep.of(label, folder) for label, folder in folders.items()]
    shared = shared_images(loaded)
    objectives, objective_notes = _comparable_objectives(shared)
    notes = [f"{note}: left out" for note in shared.excluded]
    notes += [*partly_shared(shared), *differing_inputs(shared), *objective_notes]
    restricted = {}
    for sweep in shared.sweeps:
        restricted[sweep.label] = _restrict_sweep(sweep, shared, objectives)
        notes += _lost_trials(sweep, restricted[sweep.label], shared.split)
    records, paths = _labelled_records(shared.sweeps, restricted)
    info, front = _union(shared, objectives, records)
    evidence = evidence_of(paths.__getitem__, info, front, shared.common)
    positions = None if evidence.region is None else evidence.region[0]
    compared = []
    for sweep in shared.sweeps:
        sweep_front = front_of(info, records[sweep.label])
        sweep_evidence = evidence_of(paths.__getitem__, info, sweep_front, shared.common, positions)
        seconds = [sweep.seconds_until(trial.finished or 0.0) for trial in sweep_front.trials]
        compared.append(ComparedSweep(sweep, sweep_front, sweep_evidence, seconds))
    return SweepComparison(
        info=info,
        front=front,
        evidence=evidence,
        sweeps=compared,
        common=shared.images,
        tests=_test_best_trials(compared, info, paths, shared.common),
        notes=notes,
    )


def _union(
    shared: SharedImages, objectives: Sequence[Objective], records: Mapping[str, Sequence[TrialRecord]]
) -> tuple[SweepInfo, Front]:
    """Return the union of the sweeps as if it were one sweep, and its front."""
    everything: list[TrialRecord] = []
    for of_sweep in records.values():
        everything += of_sweep
    first = shared.sweeps[0].info
    tags = {key: value for key, value in first.tags.items() if not key.startswith("confirmed")}  # of one sweep only
    info = replace(
        first,
        name=", ".join(records),
        objectives=tuple(objectives),
        search_split=shared.split,
        tags=tags,
        reference=hypervolume_corner(objectives, everything),
    )
    return info, front_of(info, everything)


def _comparable_objectives(shared: SharedImages) -> tuple[list[Objective], list[str]]:
    """Return the first sweep's objectives that can be measured on the shared images, and notes on the others."""
    first = shared.sweeps[0].info
    notes = []
    objectives = []
    for objective in first.objectives:
        reason = _not_comparable(objective.metric, shared)
        if reason:
            notes.append(f"{objective.metric} cannot be compared: {reason}")
        else:
            objectives.append(objective)
    if not objectives:
        raise InputError("; ".join(notes))
    for sweep in shared.sweeps:
        if sweep.info.goals != first.goals:
            notes.append(f"{sweep.label} searched {sweep.info.goals}; all are judged by {first.goals}")
    return objectives, notes


def _not_comparable(metric: str, shared: SharedImages) -> str:
    """Return the reason for which a metric cannot be measured on the shared images; empty if it can."""
    stem, _, dataset = metric.partition("/")
    if dataset and dataset not in shared.images.datasets:
        return f"{dataset} is not shared"
    if stem in ADDITIVE:
        return ""
    is_cut = False
    is_whole = True
    for sweep in shared.sweeps:
        images = sweep.images(shared.split) or shared.images
        for name, count in shared.images.images.items():
            is_cut = is_cut or images.images[name] > count
        is_whole = is_whole and images.images == shared.images.images and images.seeds == shared.images.seeds
    if is_cut or not (is_whole or catalogue.metric(stem).of_dataset):
        return "it cannot be computed on a part of the images"
    return ""


def _restrict_sweep(
    sweep: LoadedSweep, shared: SharedImages, objectives: Sequence[Objective]
) -> list[TrialRecord | None]:
    """Return the complete records of a sweep on the shared images; None for those that lack some."""
    restricted = []
    for record in sweep.complete:
        restricted.append(restrict_to_common(record, sweep.folder.artifacts(record.name), shared.common, objectives))
    return restricted


def _lost_trials(sweep: LoadedSweep, restricted: Sequence[TrialRecord | None], split: str) -> Iterator[str]:
    """Yield how many trials cannot be paired or break a constraint; raise an error if none is left."""
    n_trials = 0
    n_lost = 0
    n_infeasible = 0
    for record, on_shared in zip(sweep.complete, restricted, strict=True):
        if record.kind == "trial":
            n_trials += 1
            n_lost += on_shared is None
        n_infeasible += on_shared is not None and not on_shared.feasible
    if n_lost == n_trials:
        raise InputError(f"{sweep.label} has no finished trial with sums of its predictions on {split}")
    if n_lost:
        yield f"{sweep.label}: {plural(n_lost, 'trial')} without these images: left out"
    if n_infeasible:
        yield f"{sweep.label}: {plural(n_infeasible, 'trial')} not on the front, for constraints of that sweep"


def _labelled_records(
    sweeps: Sequence[LoadedSweep], restricted: Mapping[str, Sequence[TrialRecord | None]]
) -> tuple[dict[str, list[TrialRecord]], dict[str, Path]]:
    """Return the records by sweep, under names that tell the sweep, and the path of each name's artifacts.

    A baseline that is the same in several sweeps is listed once, under its plain name.
    """
    first_baselines: dict[str, object] = {}  # name -> key, model and values of the first sweep's
    records: dict[str, list[TrialRecord]] = {sweep.label: [] for sweep in sweeps}
    paths: dict[str, Path] = {}
    for sweep in sweeps:
        for record in restricted[sweep.label]:
            if record is None:
                continue
            name = f"{sweep.label}/{record.label}"
            if record.kind == "baseline":
                values = [round(value, 6) for value in values_of(record)]
                identity = record.key, sweep.info.tags.get("model_digest"), values
                is_same = first_baselines.setdefault(record.name, identity) == identity
                name = record.name if is_same else f"baseline-{name}"
            if name not in paths:
                paths[name] = sweep.folder.artifacts(record.name)
                records[sweep.label].append(replace(record, name=name))
    return records, paths


def hypervolume_corner(objectives: Sequence[Objective], records: Sequence[TrialRecord]) -> list[float]:
    """Return the reference point: what an objective names, else the worst value of the baselines, else of all trials."""
    points = [values_of(record) for record in records if record.kind == "baseline"]
    if not points:
        points = [values_of(record) for record in records]
    corner = []
    for index, objective in enumerate(objectives):
        worst = min if objective.goal == "max" else max
        value = worst(point[index] for point in points)
        corner.append(value if objective.reference is None else objective.reference)
    return corner


def _test_best_trials(
    sweeps: Sequence[ComparedSweep], info: SweepInfo, paths: Mapping[str, Path], common: Mapping[str, Common]
) -> list[PairedTest]:
    """Test the best trials of each two sweeps, on images that they were not chosen by if both were run on such."""
    champions = {}
    for sweep in sweeps:
        for member in sweep.front.members:
            if sweep.front.marks[member.name]:
                champions[member.name] = member
    stems = [objective.metric.partition("/")[0] for objective in info.objectives]
    evidence = {}
    for split in reversed(list(common)):
        evidence[split] = of_split(
            paths.__getitem__, list(champions.values()), split, tuple(needed(stems)), common[split]
        )
    tests = []
    for first, second in combinations(sweeps, 2):
        for names, marks in _pairs_of_champions(first.front, second.front).items():
            for objective in info.objectives:
                test = _test_pair(evidence, names, marks, objective.metric)
                if test is not None:
                    tests.append(test)
    corrected = holm([test.p_value for test in tests])
    return [replace(test, p_value=p_value) for test, p_value in zip(tests, corrected, strict=True)]


def _pairs_of_champions(first: Front, second: Front) -> dict[tuple[str, str], list[str]]:
    """Return the pairs of members that hold the same mark in two fronts, with these marks."""
    first_holders = {mark: member.name for member in first.members for mark in first.marks[member.name]}
    second_holders = {mark: member.name for member in second.members for mark in second.marks[member.name]}
    pairs: dict[tuple[str, str], list[str]] = {}
    for mark, name in first_holders.items():
        if mark in second_holders:
            pairs.setdefault((name, second_holders[mark]), []).append(mark)
    return pairs


def _test_pair(
    evidence: Mapping[str, SplitEvidence | None], names: tuple[str, str], marks: Sequence[str], metric: str
) -> PairedTest | None:
    """Return the test on the first split on which both can be paired; its p-value is not corrected yet."""
    for split, split_evidence in evidence.items():
        if split_evidence is not None:
            difference = split_evidence.difference(*names, metric)
            if difference is not None:
                return PairedTest(marks, names, split, metric, difference, difference.p)
    return None
