"""Sweeps beside each other on the images that they share, and trials of one sweep against each other: the numbers.

Every record is measured again on what all have in common: datasets, the first images of each in the fair order, seeds.
The union of the sweeps is then a sweep like any other, with a front, intervals and support.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from pathlib import Path

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metrics_shown, splits_of, values_of
from fpp_sweep.records.records import SplitResult, SweepInfo, TrialRecord
from fpp_sweep.report.evidence import Evidence, evidence_of
from fpp_sweep.space.objectives import Objective
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError, unknown
from fpp_sweep.spec.messages import plural
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS, metric_value
from fpp_sweep.statistics.old_bootstrap import Common, Interval, holm, needed
from fpp_sweep.trial.artifacts import read_sums
from fpp_sweep.trial.evidence import SplitEvidence, of_split
from fpp_sweep.trial.trial import mean, measured

TEST = "test"


@dataclass(frozen=True, slots=True)
class Given:
    """A sweep as it stands in its folder."""

    label: str
    folder: SweepFolder
    info: SweepInfo
    records: Sequence[TrialRecord]

    @property
    def complete(self) -> list[TrialRecord]:
        return [record for record in self.records if record.state == "complete"]

    def images(self, split: str) -> Common | None:
        """What the first record that has sums was measured on."""
        tables = (read_sums(self.folder.artifacts(one.name), split) for one in self.complete if split in one.results)
        return next((Common.of(table) for table in tables if table), None)

    def spent(self, time: float) -> float:
        """Seconds that workers were held for what its search had ended until then, also for trials that lost a race."""
        trials = [one for one in self.records if one.kind == "trial" and (one.finished or math.inf) <= time]
        results = (one.results[self.info.search_split] for one in trials if self.info.search_split in one.results)
        return math.fsum([*(one.held for one in trials), *(result.device_seconds for result in results)])


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A sweep among others, on what all share."""

    given: Given
    front: Front
    evidence: Evidence
    spent: Sequence[float]  # when each trial of the front had ended

    @property
    def label(self) -> str:
        return self.given.label


@dataclass(frozen=True, slots=True)
class Test:
    """The best of two sweeps at something, against each other."""

    marks: Sequence[str]  # best accuracy, knee, ...
    names: tuple[str, str]
    split: str
    metric: str
    gap: Interval  # first minus second
    p: float  # corrected


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Sweeps beside each other."""

    info: SweepInfo  # of the union, as if it were a sweep
    front: Front
    evidence: Evidence
    sides: Sequence[Side]
    common: Common
    tests: Sequence[Test]
    notes: Sequence[str]  # what cannot be compared, and why


def on_common(
    record: TrialRecord, path: Path, common: Mapping[str, Common], goals: Sequence[Objective]
) -> TrialRecord | None:
    """A record with its numbers on what is common, by split; None where it lacks some of the first split's."""
    results = {split: result for split, one in common.items() if (result := _on_split(record, path, split, one))}
    if next(iter(common)) not in results:
        return None
    values = [measured(results[next(iter(common))], objective.metric) for objective in goals]
    return replace(record, results=results, values=values)


def _on_split(record: TrialRecord, path: Path, split: str, common: Common) -> SplitResult | None:
    """Of a part of a dataset's images only what follows from sums is known."""
    result = record.results.get(split)
    table = read_sums(path, split) if result else {}
    datasets: dict[str, list[Mapping[str, float]]] = {}
    for (dataset, seed), one in common.taken(table).items():
        assert result is not None
        known = result.by_seed.get(str(seed), result.datasets)[dataset]
        whole = one.total == table[dataset, seed].total
        datasets.setdefault(dataset, []).append(
            known if whole else {name: metric_value(name, one) for name in BLOCKWISE_METRICS}
        )
    if result is None or not datasets:
        return None
    means = {dataset: mean(numbers) for dataset, numbers in datasets.items()}
    names = [name for name in next(iter(means.values())) if all(name in numbers for numbers in means.values())]
    average = mean([{name: numbers[name] for name in names} for numbers in means.values()])
    return replace(result, average=average, datasets=means, deviation={}, by_seed={})


# --- sweeps -------------------------------------------------------------------------------------------


def compare_sweeps(folders: Mapping[str, SweepFolder]) -> Comparison:
    """The union of sweeps, by label; the first one's objectives are what all are judged by."""
    sweeps = [Given(label, folder, folder.info(), folder.trials()) for label, folder in folders.items()]
    splits = dict.fromkeys([*(sweep.info.search_split for sweep in sweeps), TEST])
    found = {split: _shared(sweeps, split) for split in splits}
    split = max(found, key=lambda name: len(found[name][0]))
    kept, shared, notes = found[split]
    if shared is None or len(kept) < 2:
        raise InputError(f"nothing to compare: {'; '.join(notes)}; give sweeps on the same images")
    common = {split: shared}  # the best may have been run on another split, too
    common |= {name: one for name, (also, one, _) in found.items() if name != split and also == kept and one}
    goals, dropped = _objectives(kept, shared, split)
    notes = [*(f"{note}: left out" for note in notes), *_left_over(kept, shared, split), *dropped]
    cut = {sweep.label: [on_common(one, sweep.folder.artifacts(one.name), common, goals) for one in sweep.complete]
           for sweep in kept}  # fmt: skip
    notes += [note for sweep in kept if (note := _lost(sweep, cut[sweep.label], split))]
    for sweep in kept:
        if broken := sum(one is not None and not one.feasible for one in cut[sweep.label]):
            notes.append(f"{sweep.label}: {plural(broken, 'trial')} not on the front, for constraints of that sweep")
    paths, named = _named(kept, cut)
    everything = [record for records in named.values() for record in records]
    info = replace(kept[0].info, name=", ".join(named), objectives=goals, search_split=split)
    info = replace(info, reference=_corner(goals, everything))
    front = front_of(info, everything)
    evidence = evidence_of(paths.__getitem__, info, front, common)
    places = None if evidence.region is None else evidence.region[0]
    sides = []
    for sweep in kept:
        own = front_of(info, named[sweep.label])
        spent = [sweep.spent(trial.finished or 0.0) for trial in own.trials]
        sides.append(Side(sweep, own, evidence_of(paths.__getitem__, info, own, common, places), spent))
    return Comparison(info, front, evidence, sides, shared, list(_tests(sides, info, paths, common)), notes)


def _shared(sweeps: Sequence[Given], split: str) -> tuple[list[Given], Common | None, list[str]]:
    """The sweeps that share images of a split, what all of them share, and why others are not among them."""
    kept: list[Given] = []
    common: Common | None = None
    out = []
    for sweep in sweeps:
        own = sweep.images(split)
        both = own if common is None or own is None else common.shared(own)
        if both is None:
            out.append(f"{sweep.label} has no sums of predictions on {split}")
        elif both.datasets and both.seeds:
            common = both
            kept.append(sweep)
        else:
            what = "seed" if both.datasets else "image"
            out.append(f"{sweep.label} shares no {what} of {split} with {', '.join(one.label for one in kept)}")
    return kept, common, out


def _left_over(sweeps: Sequence[Given], common: Common, split: str) -> Iterator[str]:
    """What the sweeps have and do not share, and what is the same by its names only."""
    for sweep in sweeps:
        own = sweep.images(split) or common
        if lacking := [name for name in own.images if name not in common.images]:
            yield f"{sweep.label}: {', '.join(lacking)} of {split} cannot be paired; left out of every number here"
        if cut := [f"{count} of {own.images[name]} of {name}" for name, count in common.images.items()
                   if count < own.images[name]]:  # fmt: skip
            yield f"{sweep.label}: compared on the images of {split} that all have seen, {', '.join(cut)}"
        if own.seeds != common.seeds:
            yield f"{sweep.label}: compared on seeds {common.seeds} of {own.seeds}".replace(",)", ")")
        if sweep.info.search_split != split:
            yield f"{sweep.label} searched {sweep.info.search_split}: what of it was run on {split}, too, is compared"
    yield from _differing(sweeps, common, split)


def _differing(sweeps: Sequence[Given], common: Common, split: str) -> Iterator[str]:
    """Datasets with other labels or files than the first sweep's, where both have seen as many of its images."""
    searched = [(sweep, (sweep.images(split) or common).images) for sweep in sweeps if sweep.info.search_split == split]
    for sweep, images in searched[1:]:
        first, known = searched[0]
        alike = [name for name in common.images if images[name] == known[name]]
        for one, other, what in (
            (sweep.info.datasets, first.info.datasets, "labels or views"),
            (sweep.info.images, first.info.images, "image files (size or time)"),
        ):
            if names := [name for name in alike if one.get(name) != other.get(name)]:
                yield f"{sweep.label}: {what} of {', '.join(names)} differ from {first.label}'s; paired by their names"


def _objectives(sweeps: Sequence[Given], common: Common, split: str) -> tuple[tuple[Objective, ...], list[str]]:
    """Those of the first that can be measured on what is shared, and what is to be said of that."""
    first, everybody = sweeps[0].info, [sweep.images(split) or common for sweep in sweeps]
    cut = any(own.images[name] > count for own in everybody for name, count in common.images.items())
    whole = all(own.images == common.images and own.seeds == common.seeds for own in everybody)
    reasons = {}
    for metric in (objective.metric for objective in first.objectives):
        stem, _, dataset = metric.partition("/")
        if dataset and dataset not in common.datasets:
            reasons[metric] = f"{dataset} is not shared"
        elif stem not in BLOCKWISE_METRICS and (cut or not (whole or catalogue.metric(stem).of_dataset)):
            reasons[metric] = "it does not follow from a part of the images"
    told = [f"{metric} cannot be compared: {why}" for metric, why in reasons.items()]
    goals = tuple(objective for objective in first.objectives if objective.metric not in reasons)
    if not goals:
        raise InputError("; ".join(told))
    told += [f"{sweep.label} searched {sweep.info.goals}; all are judged by {first.goals}"
             for sweep in sweeps if sweep.info.goals != first.goals]  # fmt: skip
    return goals, told


def _lost(sweep: Given, cut: Sequence[TrialRecord | None], split: str) -> str | None:
    """What is to be said of trials that cannot be paired; not all may be such."""
    trials = [made for record, made in zip(sweep.complete, cut, strict=True) if record.kind == "trial"]
    if trials.count(None) == len(trials):
        raise InputError(f"{sweep.label} has no finished trial with sums of its predictions on {split}")
    return f"{sweep.label}: {plural(trials.count(None), 'trial')} without these images: left out" * (None in trials)


def _named(
    sweeps: Sequence[Given], cut: Mapping[str, Sequence[TrialRecord | None]]
) -> tuple[dict[str, Path], dict[str, list[TrialRecord]]]:
    """Records under names that tell their sweep, and where their files are; what all have the same is there once."""
    first: dict[str, object] = {}  # of each baseline: what tells whether another is the same
    paths: dict[str, Path] = {}
    named: dict[str, list[TrialRecord]] = {sweep.label: [] for sweep in sweeps}
    for sweep in sweeps:
        for one in (one for one in cut[sweep.label] if one is not None):
            facts = one.key, sweep.info.model_digest, [round(value, 6) for value in values_of(one)]
            own = one.kind == "trial" or first.setdefault(one.name, facts) != facts
            name = "baseline-" * (one.kind == "baseline") + f"{sweep.label}/" * own + one.label
            if name not in paths:
                paths[name] = sweep.folder.artifacts(one.name)
                named[sweep.label].append(replace(one, name=name))
    return paths, named


def _corner(goals: Sequence[Objective], records: Sequence[TrialRecord]) -> list[float]:
    """What hypervolume is measured from: what objectives name, else the worst of the baselines, else of all trials."""
    values = [values_of(record) for record in records if record.kind == "baseline"] or list(map(values_of, records))
    worst = [(min if objective.goal == "max" else max)(column)
             for objective, column in zip(goals, zip(*values, strict=True), strict=True)]  # fmt: skip
    return [worst[place] if goal.reference is None else goal.reference for place, goal in enumerate(goals)]


def _tests(
    sides: Sequence[Side], info: SweepInfo, paths: Mapping[str, Path], common: Mapping[str, Common]
) -> Iterator[Test]:
    """The champions of each two sweeps, on images that they were not chosen by where both were run on such."""
    marked = [{mark: member for member in side.front.members for mark in side.front.marks[member.name]}
              for side in sides]  # fmt: skip
    champions = list({member.name: member for each in marked for member in each.values()}.values())
    metrics = tuple(needed(objective.metric.partition("/")[0] for objective in info.objectives))
    found = {
        split: of_split(paths.__getitem__, champions, split, metrics, common[split]) for split in reversed(list(common))
    }
    made: list[Test] = []
    for one, other in combinations(marked, 2):
        marks: dict[tuple[str, str], list[str]] = {}
        for mark in (mark for mark in one if mark in other):
            marks.setdefault((one[mark].name, other[mark].name), []).append(mark)
        for names, both in marks.items():
            for metric in (objective.metric for objective in info.objectives):
                gaps = {split: each.difference(*names, metric) for split, each in found.items() if each}
                made += [Test(both, names, split, metric, gap, gap.p) for split, gap in gaps.items() if gap][:1]
    for test, p in zip(made, holm([test.p for test in made]), strict=True):
        yield replace(test, p=p)


# --- trials of one sweep ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Trials:
    """Trials and baselines of a sweep against each other."""

    split: str
    chosen: bool  # by these images
    results: Mapping[str, SplitResult]  # by label, on the images that all have seen
    metrics: Sequence[str]
    evidence: SplitEvidence
    ps: Mapping[tuple[str, str, str], float]  # corrected, by both labels and the metric, such as ece or ece/digits


def compare_trials(folder: SweepFolder, names: Sequence[str], split: str | None = None) -> Trials:
    """These records against each other: on the test split where all were run there, unless another is asked for."""
    info = folder.info()
    records = list({record.name: record for record in (_complete(folder, name) for name in names)}.values())
    if len(records) < 2:
        raise InputError(f"{names[0]} alone: give two or more trials or baselines, or another sweep")
    everywhere = [one for one in splits_of(info, records) if all(one in record.results for record in records)]
    if split is not None and split not in everywhere:
        raise InputError(f"not all were run on {split}; all were on {' and '.join(everywhere)}", "--split")
    split = split or (TEST if TEST in everywhere else info.search_split)
    seen = {record.label: Common.of(read_sums(folder.artifacts(record.name), split)) for record in records}
    if lacking := [label for label, each in seen.items() if not each.datasets]:
        raise InputError(f"{lacking[0]} has no sums of its predictions on {split}: nothing can be paired")
    common = reduce(Common.shared, seen.values())
    cut = [on_common(record, folder.artifacts(record.name), {split: common}, ()) for record in records]
    results = {record.label: record.results[split] for record in cut if record is not None}
    stems = dict.fromkeys(metric.partition("/")[0] for metric in metrics_shown(info.objectives))
    metrics = [name for name in stems if all(name in result.average for result in results.values())]
    evidence = of_split(folder.artifacts, records, split, tuple(needed(metrics)), common)
    if evidence is None or len(results) < len(records):
        raise InputError(f"{', '.join(seen)} share no image of {split}")
    evidence = replace(evidence, places={record.label: evidence.places[record.name] for record in records})
    return Trials(split, split == info.search_split, results, metrics, evidence, _corrected(evidence, metrics))


def _complete(folder: SweepFolder, name: str) -> TrialRecord:
    """A record by its name, a baseline's also without the prefix."""
    names = [file.stem for file in folder.trial_files()]
    full = name if name in names else f"baseline-{name}"
    if full not in names:
        raise unknown(f"trial of {folder.path.name}", name, names)
    record = folder.trial(full)
    if record.state != "complete":
        raise InputError(f"{name} is {record.state}: only what is complete is compared")
    return record


def _corrected(evidence: SplitEvidence, metrics: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """The averages are one family of tests, the datasets another."""
    found: dict[tuple[str, str, str], float] = {}
    for family in (metrics, [f"{metric}/{dataset}" for metric in metrics for dataset in evidence.datasets]):
        keys = [(*pair, metric) for metric in family for pair in combinations(evidence.places, 2)]
        ps = {key: gap.p for key in keys if (gap := evidence.difference(*key)) is not None}
        found |= dict(zip(ps, holm(list(ps.values())), strict=True))
    return found
