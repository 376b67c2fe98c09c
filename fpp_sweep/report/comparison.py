"""Numbers of a comparison of records, of one sweep or of several, paired on the images that all of them have seen."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from fpp_sweep.records import pareto
from fpp_sweep.records.answer import SweepStatistics, statistics_of
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import metrics_shown
from fpp_sweep.records.measurements import chosen_by, is_deterministic, maps_of, resampled_metrics, tables_of
from fpp_sweep.records.records import ENDED, SplitResult, SweepInfo, TrialRecord, mean_of_shared
from fpp_sweep.space.objectives import goals_of, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.errors import InputError
from fpp_sweep.spec.specs import DatasetSeed
from fpp_sweep.statistics.block_stats import BlockStats, StatsBySeed, seeds_of
from fpp_sweep.statistics.bootstrap import NO_MAP, SplitSamples, StatsByMap, image_digests, sample_record
from fpp_sweep.statistics.paired import Difference, SeedVariances, SplitStatistics, adjust_p_values

TEST = "test"

Key = tuple[str, str, str]  # two labels and a metric, such as ece or ece/digits


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSweep:
    """A sweep as its folder has it."""

    label: str
    folder: SweepFolder
    info: SweepInfo
    records: Sequence[TrialRecord]
    statistics: SweepStatistics

    @classmethod
    def of(cls, label: str, folder: SweepFolder) -> LoadedSweep:
        info, records = folder.info(), folder.trials()
        return cls(label, folder, info, records, statistics_of(folder, info, records))

    @property
    def trials(self) -> list[TrialRecord]:
        """The trials that have ended."""
        return [record for record in self.records if record.kind == "trial" and record.state in ENDED]

    @property
    def search_seconds(self) -> float:
        """Seconds that workers spent on the search, attempts without a result included."""
        seconds = []
        for record in self.records:
            if record.kind == "trial":
                seconds.append(record.seconds_without_result)
                if self.info.search_split in record.results:
                    seconds.append(record.results[self.info.search_split].worker_seconds)
        return math.fsum(seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A record of a comparison under its label: trial-0003, tpt, or far/trial-0003."""

    label: str
    record: TrialRecord
    sweep: LoadedSweep

    @property
    def marks(self) -> Sequence[str]:
        """The marks in its sweep, such as `knee`."""
        return self.sweep.statistics.front.marks.get(self.record.name, [])

    @property
    def identity(self) -> tuple[str, str]:
        """A value that a record has in several sweeps if its settings and its model are the same."""
        return self.record.key, self.sweep.info.model_digest

    def tables(self, split: str, metrics: Sequence[str] = ()) -> StatsByMap:
        """Return its block statistics, also those after the post-hoc maps of some metrics."""
        try:
            tables = tables_of(self.sweep.folder, self.record, split, maps_of(metrics))
        except ValueError as error:
            raise InputError(f"{self.label}: block statistics of split {split}: {error}; run it again") from None
        if not tables:
            raise InputError(f"{self.label} has no block statistics on {split}: nothing can be paired")
        return tables

    def result_on(self, split: str, datasets: Collection[str]) -> SplitResult:
        """Return its result on some datasets."""
        result = self.record.results[split]
        of_datasets = {dataset: result.datasets[dataset] for dataset in datasets}
        average = mean_of_shared(list(of_datasets.values()))
        return replace(result, average=average, datasets=of_datasets, deviation={}, by_seed={})

    def chosen_by(self, split: str) -> str:
        """Return by what the search chose the trial, so that its values on the split may be luck; empty: nothing."""
        info, statistics = self.sweep.info, self.sweep.statistics
        if self.record.kind != "trial" or info.evaluate_only or len(statistics.front.finished) < 2:
            return ""
        return chosen_by(info, statistics.splits, split, self.record)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Records against each other, on the images that all of them have seen."""

    split: str
    entries: Sequence[Entry]
    images: Mapping[str, int]  # by dataset
    results: Mapping[str, SplitResult]  # by label, on the shared images
    metrics: Sequence[str]  # without names of datasets
    statistics: SplitStatistics  # on the shared images, by label; with the sweeps' variances of seeds
    differences: Mapping[Key, Difference]
    from_answer: frozenset[Key]  # differences that a sweep's answer has: corrected within its family
    left_out: Sequence[str]  # datasets that some record was not measured on, or on other images

    @property
    def pairs(self) -> list[tuple[Entry, Entry]]:
        return pairs_of(self.entries)

    @property
    def sweeps(self) -> list[LoadedSweep]:
        return sweeps_of(self.entries)


def compare(entries: Sequence[Entry], split: str | None = None) -> Comparison:
    """Compare records; on the test split if all were run there, unless a split is given."""
    split = _split_to_compare(entries, split)
    shown = metrics_shown(entries[0].sweep.info)
    tables = {entry.label: entry.tables(split, shown) for entry in entries}
    digests = shared_images({label: by_map[NO_MAP] for label, by_map in tables.items()}, split)
    results = {entry.label: entry.result_on(split, digests) for entry in entries}
    metrics = _shared_metrics(shown, results)
    averages = resampled_metrics(metrics)
    records = {}
    for entry in entries:
        by_map = {posthoc: _on(digests, table) for posthoc, table in tables[entry.label].items()}
        deterministic = is_deterministic(entry.record, seeds_of(by_map[NO_MAP]))
        records[entry.label] = sample_record(entry.label, by_map, split, averages, deterministic=deterministic)
    of_first = _on(digests, tables[entries[0].label][NO_MAP])
    images = {dataset: stats.total for (dataset, _), stats in of_first.items()}
    samples = SplitSamples(split, images, records, digests)
    by_dataset = [f"{metric}/{dataset}" for metric in averages for dataset in samples.images]
    variances = _seed_variances(split, [*averages, *by_dataset], entries)
    statistics = SplitStatistics(samples, variances=variances)
    pairs = [(first.label, second.label) for first, second in pairs_of(entries)]
    of_answers = _differences_of_answers(entries, samples)  # these keep the families of their answers
    differences = dict(of_answers)
    for family in (averages, by_dataset):
        differences |= _corrected(statistics.differences(pairs, family), of_answers)
    measured = {dataset for by_map in tables.values() for dataset, _ in by_map[NO_MAP]}
    return Comparison(
        split=split,
        entries=entries,
        images=images,
        results=results,
        metrics=metrics,
        statistics=statistics,
        differences=differences,
        from_answer=frozenset(of_answers),
        left_out=sorted(measured - images.keys()),
    )


def _corrected(family: Sequence[Difference], of_answers: Collection[Key]) -> dict[Key, Difference]:
    """Return the differences of a family that no answer has, with Holm's correction over these."""
    others = []
    for difference in family:
        if _key_of(difference) not in of_answers:
            others.append(difference)
    return {_key_of(difference): difference for difference in adjust_p_values(others)}


def _key_of(difference: Difference) -> Key:
    return difference.first, difference.second, difference.metric


def pairs_of(entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Return the pairs to test: all of one sweep; of several sweeps the trials that hold the same mark in two."""
    pairs = list(combinations(entries, 2))
    if len(sweeps_of(entries)) == 1:
        return pairs
    return [(first, second) for first, second in pairs if _are_rivals(first, second)]


def _are_rivals(first: Entry, second: Entry) -> bool:
    is_same = first.identity == second.identity and first.record.values == second.record.values
    if first.sweep is second.sweep or is_same:
        return False
    return not set(first.marks).isdisjoint(second.marks)


def sweeps_of(entries: Sequence[Entry]) -> list[LoadedSweep]:
    return list({entry.sweep.label: entry.sweep for entry in entries}.values())


def _split_to_compare(entries: Sequence[Entry], split: str | None) -> str:
    shared = set.intersection(*[set(entry.record.results) for entry in entries])
    candidates = [split]
    if split is None:
        candidates = [TEST, *(entry.sweep.info.search_split for entry in entries)]
    for candidate in candidates:
        if candidate in shared:
            return candidate
    common = "no split has all of them"
    if shared:
        common = f"all were on {' and '.join(sorted(shared))}"
    raise InputError(f"not all were run on {split or TEST}; {common}", "--split")


def _shared_metrics(shown: Sequence[str], results: Mapping[str, SplitResult]) -> list[str]:
    """Return the shown metrics, without dataset names, that all results have."""
    stems = dict.fromkeys(catalogue.parts_of(metric).of_average for metric in shown)
    return [stem for stem in stems if all(stem in result.average for result in results.values())]


# --- entries ------------------------------------------------------------------------------------------


def entries_of(sweeps: Sequence[Path], names: Sequence[str]) -> list[Entry]:
    """Return named records of one sweep, or the best trials of several with their baselines."""
    folders = [SweepFolder.open(sweep) for sweep in sweeps]
    if names:
        return trial_entries(folders[0], names)
    return sweep_entries(folders)


def trial_entries(folder: SweepFolder, names: Sequence[str]) -> list[Entry]:
    """Return records of a sweep, each once, trials before baselines: differences are trial minus baseline."""
    records = {}
    for name in names:
        record = folder.known_trial(name)
        if record.state != "complete":
            raise InputError(f"{name} is {record.state}: only complete trials can be compared")
        records[record.name] = record
    if len(records) < 2:
        raise InputError(f"{names[0]} alone: give two or more trials or baselines, or another sweep")
    sweep = LoadedSweep.of(folder.path.name, folder)
    in_order = sorted(records.values(), key=lambda record: record.kind == "baseline")
    return [Entry(record.label, record, sweep) for record in in_order]


def sweep_entries(folders: Sequence[SweepFolder]) -> list[Entry]:
    """Return the marked trials of each sweep's front, then the baselines; one that several sweeps have only once."""
    trials = []
    baselines: dict[tuple[str, str, str], Entry] = {}
    for label, folder in labelled(folders).items():
        sweep = LoadedSweep.of(label, folder)
        front = sweep.statistics.front
        marked = [member for member in front.members if front.marks[member.name]]
        if not marked:
            raise InputError(f"{label}: {front.why_empty}")
        trials += [Entry(f"{label}/{member.label}", member, sweep) for member in marked]
        for baseline in front.baselines:
            entry = Entry(f"{label}/{baseline.label}", baseline, sweep)
            baselines.setdefault((baseline.name, *entry.identity), entry)
    return [*trials, *baselines.values()]


def labelled(folders: Sequence[SweepFolder]) -> dict[str, SweepFolder]:
    """Return sweeps by name, or by path where two have one name."""
    names = [folder.path.resolve().name for folder in folders]
    by_label: dict[str, SweepFolder] = {}
    for folder, name in zip(folders, names, strict=True):
        label = name if names.count(name) == 1 else str(folder.path.resolve())
        if label in by_label:
            raise InputError(f"{label}: is given twice; give different sweeps")
        by_label[label] = folder
    return by_label


# --- shared images ------------------------------------------------------------------------------------


def shared_images(tables: Mapping[str, StatsBySeed], split: str) -> dict[str, bytes]:
    """Return the digests of the images by dataset, of datasets that all records were measured on with equal images."""
    shared: dict[str, bytes] | None = None
    for table in tables.values():
        digests = image_digests(table) or {}
        shared = digests if shared is None else dict(shared.items() & digests.items())
    if not shared:
        raise InputError(f"{', '.join(tables)} share no images of {split}; compare records of the same images")
    return dict(sorted(shared.items()))


def _on(datasets: Collection[str], table: StatsBySeed) -> dict[DatasetSeed, BlockStats]:
    """Return the statistics of some datasets."""
    return {key: stats for key, stats in table.items() if key[0] in datasets}


# --- samples and tests --------------------------------------------------------------------------------


def _seed_variances(split: str, metrics: Sequence[str], entries: Sequence[Entry]) -> dict[str, SeedVariances]:
    """Return the sweeps' variances of seeds by label, so that a number has the same interval here as in `show`."""
    variances = {}
    for metric in metrics:
        pooled = []
        by_label = {}
        for entry in entries:
            if split in entry.sweep.statistics.splits:
                of_sweep = entry.sweep.statistics.splits[split].seeds(metric)
                pooled.append(of_sweep.pooled)
                if entry.record.name in of_sweep.by_record:
                    by_label[entry.label] = of_sweep.by_record[entry.record.name]
        if pooled:
            surest = max(pooled, key=lambda variance: variance.degrees_of_freedom)
            variances[metric] = SeedVariances(surest, by_label)
    return variances


def _differences_of_answers(entries: Sequence[Entry], samples: SplitSamples) -> dict[Key, Difference]:
    """Return the differences that a sweep's answer has on the same images: one verdict for a pair everywhere."""
    differences = {}
    for first, second in pairs_of(entries):
        answer = first.sweep.statistics.answer
        is_same_work = answer.split == samples.split and dict(answer.images) == dict(samples.images)
        if first.sweep is second.sweep and first.record.name == answer.champion and is_same_work:
            for (baseline, metric), difference in answer.differences.items():
                if baseline == second.record.name:
                    differences[first.label, second.label, metric] = difference
    return differences


# --- fronts of sweeps ---------------------------------------------------------------------------------


def front_hypervolumes(comparison: Comparison) -> dict[str, float]:
    """Return the hypervolume of each sweep's front on the shared images, by the first sweep's objectives.

    The corner is an objective's own reference, else the worst baseline, else the worst compared trial. Return nothing
    if an objective cannot be measured on the shared images. Front members that lack some of these images do not count.
    """
    objectives = comparison.sweeps[0].info.objectives
    metrics, goals = metrics_of(objectives), goals_of(objectives)
    points = {entry.label: _values(comparison.results[entry.label], metrics) for entry in comparison.entries}
    if not all(math.isfinite(value) for values in points.values() for value in values):
        return {}
    baselines = [points[entry.label] for entry in comparison.entries if entry.record.kind == "baseline"]
    corner = pareto.worst(baselines or list(points.values()), goals)
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            corner[index] = objective.reference
    volumes = {}
    for sweep in comparison.sweeps:
        volumes[sweep.label] = pareto.hypervolume(_front_values(comparison, sweep, metrics), goals, corner)
    return volumes


def _front_values(comparison: Comparison, sweep: LoadedSweep, metrics: Sequence[str]) -> list[list[float]]:
    """Return the values of a sweep's front members that have seen the shared images."""
    values = []
    for member in sweep.statistics.front.members:
        entry = Entry(member.name, member, sweep)
        try:
            digests = image_digests(entry.tables(comparison.split)[NO_MAP]) or {}
        except InputError:  # it has not run on this split
            continue
        if comparison.statistics.samples.digests.items() <= digests.items():
            values.append(_values(entry.result_on(comparison.split, comparison.images), metrics))
    return values


def _values(result: SplitResult, metrics: Sequence[str]) -> list[float]:
    """Return metrics on the shared images; NaN for a cost, and for what is not measured on them."""
    values = []
    for metric in metrics:
        parts = catalogue.parts_of(metric)
        measured = result.average
        if parts.dataset:
            measured = result.datasets.get(parts.dataset, {})
        values.append(measured.get(parts.of_average, math.nan))
    return values
