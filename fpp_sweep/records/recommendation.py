"""The answer of a sweep: one champion against zero-shot and its own method from words, by a rule that is fixed before.

The champion is chosen on the images before those that judge it. It is recommended if it gains on both references in
some objective, if a loss beyond the margin to zero-shot is ruled out in every objective, and if no baseline is shown
to beat it. As it must beat every reference, its gains are corrected for the objectives only (an intersection-union
test). Other baselines are judged by the same rule: zero-shot is the default unless one of them passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fpp_sweep.records.front import Front, is_less_accurate, keeps_constraints, usual_order
from fpp_sweep.records.measurements import has_images_of_search, has_seeds_of_search
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.spec.names import label_of
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.paired import (
    Difference,
    SplitStatistics,
    adjust_p_values,
    difference,
    seed_variances,
    why_never_tested,
    why_not_paired,
)

# Largest loss to zero-shot that a recommended setting may have; `search.margin` overrides. Half a point of a
# calibration error could not be decided: with 5 x 1,000 images and 3 seeds, a difference in ECE is known to 0.7 points
# (benchmarks/RESULTS.md, Answer).
PERCENT_MARGIN = 1.0  # points of a metric in percent
FRACTION_MARGIN = 0.01  # for a metric on the scale from 0 to 1
NLL_MARGIN = 0.02  # nats
SMALLEST_MARGIN = 1e-6  # losses are measured in margins, and a margin may be 0

DifferenceTable = Mapping[tuple[str, str, str], Difference]  # by record, baseline and metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A recommended trial, or else a baseline to use, and the differences that this rests on."""

    metrics: tuple[str, ...] = ()  # objectives that have a valid test, in their order
    untested: tuple[str, ...] = ()  # objectives that have none
    champion: str | None = None  # the trial that is judged
    finalists: tuple[str, ...] = ()  # all trials with results on the split, the champion first
    references: tuple[str, ...] = ()  # baselines that the champion must beat, zero-shot first
    baselines: tuple[str, ...] = ()
    split: str = ""
    images: Mapping[str, int] = field(default_factory=dict)  # by dataset
    seeds: int = 0  # number of the champion's seeds
    differences: DifferenceTable = field(default_factory=dict)
    recommended: str | None = None  # name of a trial
    best_baseline: str | None = None  # the one to use where no trial is recommended
    reason: str = ""  # one clause: why no trial is recommended

    def difference(self, finalist: str, baseline: str, metric: str) -> Difference | None:
        return self.differences.get((finalist, baseline, metric))

    def beats(self, name: str) -> dict[str, list[str]]:
        """Return the baselines that a finalist is shown to beat, by metric."""
        beaten: dict[str, list[str]] = {}
        for (finalist, baseline, metric), paired in self.differences.items():
            if finalist == name and paired.mark == "+":
                beaten.setdefault(metric, []).append(baseline)
        return beaten

    def decisive_difference(self) -> Difference | None:
        """Return the champion's clearest gain over the reference that it beats least; None without a test."""
        clearest = []
        for reference in self.references:
            tested = [self.difference(self.finalists[0], reference, metric) for metric in self.metrics]
            varied = [paired for paired in tested if paired is not None and paired.standard_error > 0]
            if varied:
                clearest.append(max(varied, key=lambda paired: paired.gain / paired.standard_error))
        return min(clearest, key=lambda paired: paired.gain / paired.standard_error, default=None)

    @property
    def design(self) -> str:
        """Seeds and images in words: `3 seeds and 5 x 200 test images`."""
        if not self.images:
            return ""
        sizes = sorted(set(self.images.values()))
        images = f"{len(self.images)} x {sizes[0]} {self.split} images"
        if len(sizes) > 1:
            images = f"{len(self.images)} datasets of {sizes[0]} to {sizes[-1]} {self.split} images"
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{seeds} and {images}"


# --- the rule --------------------------------------------------------------------------------------


def margin_of(metric: str, margins: Mapping[str, float]) -> float:
    """Return the largest loss to zero-shot in a metric that a recommended setting may have."""
    parts = catalogue.parts_of(metric)
    for name in (metric, parts.of_average, parts.stem):
        if name in margins:
            return margins[name]
    if parts.stem.startswith("nll"):
        return NLL_MARGIN
    return PERCENT_MARGIN if is_in_percent(metric) else FRACTION_MARGIN


def is_in_percent(metric: str) -> bool:
    return BLOCKWISE_METRICS[catalogue.parts_of(metric).stem].scale != 1


def main_reference(baselines: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the baseline that costs nothing, or stands for it: see `reference_label`."""
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


def references_of(record: TrialRecord, baselines: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the baselines that a record must beat: zero-shot, and the same method from words."""
    main = main_reference(baselines)
    references = [] if main is None else [main]
    for baseline in baselines:
        is_from_words = not baseline.has_fpp_prompt and not baseline.is_imported
        is_same_method = baseline.config.get("method") == record.config.get("method")
        if is_from_words and is_same_method and baseline.name != record.name and baseline not in references:
            references.append(baseline)
    return references


def primary_families(
    differences: Sequence[Difference], references: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str, str], Difference]:
    """Correct differences by Holm: those to each reference of a record as a family, all others as another.

    `references` has the references of each record. All of them must be beaten, which needs no correction over them.
    """
    families: dict[str, list[Difference]] = {}
    for paired in differences:
        reference = paired.second if paired.second in references.get(paired.first, ()) else ""
        families.setdefault(reference, []).append(paired)
    corrected = [paired for family in families.values() for paired in adjust_p_values(family)]
    return {(paired.first, paired.second, paired.metric): paired for paired in corrected}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule by which trials and baselines are judged, on the differences of a split."""

    differences: DifferenceTable
    metrics: Sequence[str]
    margins: Mapping[str, float]  # largest loss to the main reference by metric, where it is not the default

    def why_not(self, name: str, references: Sequence[str]) -> str:
        """Return why a record is not to be used, as a clause; empty if it passes. The main reference comes first."""
        losses = self._possible_losses(name, references[0])
        if losses:
            return f"may lose to {words_for(references[0])} more than {' and '.join(losses)}"
        for (first, second, metric), paired in self.differences.items():
            if first == name and paired.mark == "-":
                return f"is worse than {words_for(second)} in {metric}"
        for reference in references:
            if not any(self._mark(name, reference, metric) == "+" for metric in self.metrics):
                return f"is not shown to be better than {words_for(reference)}"
        return ""

    def _possible_losses(self, name: str, reference: str) -> list[str]:
        """Return the margins that a loss is not shown to keep, in words; without a test nothing is shown."""
        losses = []
        for metric in self.metrics:
            margin = margin_of(metric, self.margins)
            paired = self.differences.get((name, reference, metric))
            if paired is None or not paired.excludes_loss_beyond(margin):
                losses.append(f"{amount(margin, metric)} of {metric}")
        return losses

    def _mark(self, name: str, baseline: str, metric: str) -> str:
        paired = self.differences.get((name, baseline, metric))
        return "" if paired is None else paired.mark


def amount(value: float, metric: str) -> str:
    """Return an amount of a metric in words, with points for percent.

    >>> amount(1.0, "accuracy"), amount(2.5, "ece"), amount(0.02, "nll")
    ('1 point', '2.5 points', '0.02')
    """
    if not is_in_percent(metric):
        return f"{value:g}"
    return f"{value:g} point" if value == 1 else f"{value:g} points"


def words_for(baseline: str) -> str:
    """Return a baseline's name in a sentence.

    >>> words_for("baseline-zero_shot"), words_for("baseline-tpt"), words_for("baseline-fpp_code")
    ('zero_shot', 'tpt from words', 'fpp_code')
    """
    label = label_of(baseline)
    is_method_from_words = label in catalogue.COMPARED and label != catalogue.ZERO_SHOT
    return f"{label} from words" if is_method_from_words else label


# --- the champion ----------------------------------------------------------------------------------


def chances(
    samples: SplitSamples,
    trials: Sequence[TrialRecord],
    baselines: Sequence[TrialRecord],
    metrics: Sequence[str],
    margins: Mapping[str, float],
) -> dict[str, tuple[float, float]]:
    """Return the chance of a recommendation, by trial: the smallest pair comes first.

    It is the largest loss to the main reference that is not ruled out, in margins beyond the first, then the smallest
    t statistic, over the references, of the clearest gain over each, negated.
    """
    measured = [baseline for baseline in baselines if baseline.name in samples.records]
    seeds = seed_variances(samples, metrics, typical=names_of(trials))
    by_name = {}
    for trial in trials:
        excess_loss = 0.0
        clearest_gains = []
        for position, reference in enumerate(references_of(trial, measured)):
            clearest_gain = 0.0
            for metric in metrics:
                paired = difference(samples, trial.name, reference.name, metric, seeds[metric])
                if paired is None or paired.standard_error == 0:
                    continue
                clearest_gain = max(clearest_gain, paired.gain / paired.standard_error)
                if position == 0:
                    margin = max(margin_of(metric, margins), SMALLEST_MARGIN)
                    excess_loss = max(excess_loss, -paired.gain_lower_bound / margin - 1)
            clearest_gains.append(clearest_gain)
        by_name[trial.name] = (excess_loss, -min(clearest_gains, default=0.0))
    return by_name


def split_by_testable(objectives: Sequence[Objective]) -> tuple[list[str], list[str]]:
    """Return the metrics of the objectives whose differences can be tested, and of those that cannot be resampled."""
    tested = []
    untested = []
    for metric in metrics_of(objectives):
        if why_never_tested(metric):
            untested.append(metric)
        else:
            tested.append(metric)
    return tested, untested


def names_of(records: Sequence[TrialRecord]) -> list[str]:
    return [record.name for record in records]


# --- the answer ------------------------------------------------------------------------------------


def answer_of(info: SweepInfo, front: Front, splits: Mapping[str, SplitStatistics]) -> Answer:
    """Return what to use, with the differences of the champion and of other finalists to all baselines."""
    if front.evaluate_only:
        return Answer(reason="search.evaluate_only chooses no trial")
    judgement = _Judgement(info, front, splits)
    for split in [*_later_splits(info), info.search_split]:
        finalists = judgement.finalists_on(split)
        is_too_early = split == info.search_split and info.state != "finished"  # later splits may follow
        if finalists and not is_too_early:
            return judgement.answer(split, finalists)
    return Answer(best_baseline=judgement.default_baseline(), reason=_why_no_finalist(info, front))


def _why_no_finalist(info: SweepInfo, front: Front) -> str:
    """Return why no trial has results that a champion is judged by, as a clause."""
    later = _later_splits(info)
    has_later_results = any(split in trial.results for trial in front.trials for split in later)
    will_go_on = info.state == "running" or (bool(front.trials) and info.state != "finished")
    if will_go_on and not has_later_results:
        return "no trial has been judged yet"  # a sweep may have no final stage
    if front.trials:
        return "the trials have no usable block statistics"
    return front.why_empty


def _later_splits(info: SweepInfo) -> list[str]:
    """Return the splits on which finalists run after the search, the last one first."""
    return [split for split in ("test", FINAL) if split != info.search_split]


@dataclass(frozen=True, slots=True)
class _Judgement:
    """A sweep's front with its statistics by split, to be judged."""

    info: SweepInfo
    front: Front
    splits: Mapping[str, SplitStatistics]

    @property
    def _metrics(self) -> list[str]:
        return split_by_testable(self.info.objectives)[0]

    def finalists_on(self, split: str) -> list[TrialRecord]:
        """Return the trials that may be judged on a split, the best trade-off of the search first."""
        if split not in self.splits:
            return []
        trials: Sequence[TrialRecord] = self.front.trials  # only finalists have results on later splits
        if split == self.info.search_split:
            trials = self.front.members
        measured = self.splits[split].samples.records
        return [trial for trial in self.front.by_trade_off(trials) if trial.name in measured]

    def answer(self, split: str, finalists: Sequence[TrialRecord]) -> Answer:
        statistics = self.splits[split]
        finalists = self._champion_first(split, finalists)
        champion = finalists[0]
        baselines = self._baselines_on(split)
        references = names_of(references_of(champion, baselines))
        pairs = [(finalist.name, baseline.name) for finalist in finalists for baseline in baselines]
        differences = self._differences(split, pairs, {champion.name: references})
        reason = self._obstacle(split, champion, references)
        if not reason:
            reason = Rule(differences=differences, metrics=self._metrics, margins=self.info.margins).why_not(
                champion.name, references
            )
            if reason:
                reason = f"the champion {champion.name} {reason}"
        return Answer(
            metrics=tuple(self._metrics),
            untested=tuple(split_by_testable(self.info.objectives)[1]),
            champion=champion.name,
            finalists=tuple(names_of(finalists)),
            references=tuple(references),
            baselines=tuple(names_of(baselines)),
            split=split,
            images=statistics.samples.images,
            seeds=len(statistics.samples.records[champion.name].seeds),
            differences=differences,
            recommended=None if reason else champion.name,
            best_baseline=self.default_baseline() if reason else None,
            reason=reason,
        )

    def _champion_first(self, split: str, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Sort finalists by their chance of a recommendation on the images before those of the split.

        Those that cannot be recommended, because of their seeds, come last.
        """
        earlier = self.info.search_split
        if split == "test" and FINAL in self.splits:
            earlier = FINAL
        by_name: Mapping[str, tuple[float, float]] = {}
        if earlier in self.splits:
            samples = self.splits[earlier].samples
            measured = [trial for trial in finalists if trial.name in samples.records]
            by_name = chances(samples, measured, self.front.baselines, self._metrics, self.info.margins)

        def rank(trial: TrialRecord) -> tuple[bool, bool, tuple[float, float]]:
            has_no_chance = bool(self._why_luck(split, trial))
            return has_no_chance, trial.name not in by_name, by_name.get(trial.name, (0.0, 0.0))

        return sorted(finalists, key=rank)

    def _baselines_on(self, split: str) -> list[TrialRecord]:
        measured = self.splits[split].samples.records
        return [baseline for baseline in self.front.baselines if baseline.name in measured]

    def _differences(
        self, split: str, pairs: Sequence[tuple[str, str]], references: Mapping[str, Sequence[str]]
    ) -> DifferenceTable:
        """Return the differences of pairs in all metrics that can be tested, corrected by their families."""
        statistics = self.splits[split]
        differences = []
        for first, second in pairs:
            for metric in self._metrics:
                if metric in statistics.seeds:  # these images may lack a dataset
                    paired = difference(statistics.samples, first, second, metric, statistics.seeds[metric])
                    if paired is not None:
                        differences.append(paired)
        return primary_families(differences, references)

    def _obstacle(self, split: str, champion: TrialRecord, references: Sequence[str]) -> str:
        """Return why the champion cannot be recommended whatever the differences are; empty if nothing prevents it."""
        if self.info.state != "finished":
            return "the sweep has not finished"
        missing = self._missing_baselines(split)
        if missing:
            return f"{' and '.join(missing)} {plural_verb(missing)} no usable results on the {split} images"
        if not references:
            return "there are no baselines to compare with"
        if not self._metrics:
            return "no objective has a valid test"
        if has_images_of_search(self.info, self.splits, split):
            return f"{champion.name} was chosen on these images, so a gain may be luck with them"
        if self.info.search_split not in self.splits:
            return f"{champion.name} was chosen on images of {self.info.search_split} that have no block statistics"
        untested = self._why_untested(split, champion, references[0])
        return untested or self._why_luck(split, champion) or self._why_unfit(split, champion, references[0])

    def _why_luck(self, split: str, trial: TrialRecord) -> str:
        """Return why a trial's results on a split may be luck of its seeds; empty if not."""
        if not self.splits[split].has_known_seed_variance(trial.name, self._metrics):
            return f"{trial.name} ran with too few seeds: one may be a lucky one"
        if has_seeds_of_search(self.info, self.splits, split, trial):
            return f"{trial.name} was chosen with these seeds, so a gain may be luck with them"
        return ""

    def _why_unfit(self, split: str, trial: TrialRecord, reference: str) -> str:
        """Return which condition a trial breaks on a split; empty for none."""
        if not keeps_constraints(self.info, trial, split, self.front.baselines):
            return f"{trial.name} breaks a constraint on the {split} images"
        for baseline in self.front.baselines:  # with accuracy among the metrics the margin limits its loss
            is_reference = baseline.name == reference and catalogue.ACCURACY not in self._metrics
            if is_reference and is_less_accurate(trial, baseline, split, self.front.floor):
                return f"{trial.name} is below the floor of accuracy"
        return ""

    def _why_untested(self, split: str, trial: TrialRecord, reference: str) -> str:
        """Return which metric has no test of a trial against the main reference; empty for none."""
        for metric in self._metrics:
            problem = why_not_paired(self.splits[split].samples, trial.name, reference, metric)
            if problem:
                return f"no difference in {metric} can be tested ({problem})"
        return ""

    def _missing_baselines(self, split: str) -> list[str]:
        """Return the labels of the sweep's own baselines that may be better and have no results on the split.

        The main reference counts even if it failed, others only if they have results of the search.
        """
        compared = self._baselines_on(split)
        missing = [baseline.label for baseline in self.front.own_baselines if baseline not in compared]
        labels = [baseline.label for baseline in self.front.baselines]
        main = reference_label([*self.info.requested_baselines, *labels])
        if main and main not in [*missing, *(baseline.label for baseline in compared)]:
            missing.insert(0, main)
        return missing

    def default_baseline(self) -> str | None:
        """Return the baseline to use without a trial: zero-shot, unless another one passes the rule of trials."""
        for split in [*_later_splits(self.info), self.info.search_split]:
            if split not in self.splits:
                continue
            baselines = self._baselines_on(split)
            main = main_reference(self.front.baselines)
            if main is None or main not in baselines:
                continue
            usable = [baseline for baseline in baselines if keeps_constraints(self.info, baseline, split, baselines)]
            for baseline in [*self._passing(split, baselines), main, *usable]:
                if baseline in usable:
                    return baseline.name
        main = main_reference(self.front.baselines)  # without statistics
        return None if main is None else main.name

    def _passing(self, split: str, baselines: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the baselines that pass the rule of trials, none of which another baseline is shown to beat."""
        references = {}
        for baseline in baselines[1:]:
            references[baseline.name] = names_of(references_of(baseline, baselines))
        pairs = [(name, baseline.name) for name in references for baseline in baselines if baseline.name != name]
        rule = Rule(
            differences=self._differences(split, pairs, references), metrics=self._metrics, margins=self.info.margins
        )
        passing = []
        for baseline in baselines[1:]:
            is_known = self.splits[split].has_known_seed_variance(baseline.name, self._metrics)
            if is_known and not rule.why_not(baseline.name, references[baseline.name]):
                passing.append(baseline)
        return passing


def plural_verb(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
