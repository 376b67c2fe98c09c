"""The answer of a sweep: one champion against zero-shot and its own method from words, by a rule that is fixed before.

The champion is chosen on the images before those that judge it. It is recommended if it gains on both references in
some objective, if a loss beyond the margin to zero-shot is ruled out in every objective, and if no baseline is shown
to beat it. As it must beat every reference, its gains are corrected for the objectives only (an intersection-union
test). Other baselines are judged by the same rule: zero-shot is the default unless one of them passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fpp_sweep.records.front import Front, usual_order
from fpp_sweep.records.measurements import chosen_by
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord, label_of
from fpp_sweep.space.objectives import Objective, metrics_of
from fpp_sweep.spec import catalogue
from fpp_sweep.statistics.block_stats import BLOCKWISE_METRICS
from fpp_sweep.statistics.bootstrap import SplitSamples
from fpp_sweep.statistics.paired import Difference, SplitStatistics, adjust_p_values, why_never_tested

# Largest loss to zero-shot that a recommended setting may have; `search.margin` overrides. Half a point of a
# calibration error could not be decided: with 5 x 1,000 images and 3 seeds, a difference in ECE is known to 0.7 points
# (benchmarks/RESULTS.md, Answer).
PERCENT_MARGIN = 1.0  # points of a metric in percent
FRACTION_MARGIN = 0.01  # for a metric on the scale from 0 to 1
NLL_MARGIN = 0.02  # nats
SMALLEST_MARGIN = 1e-6  # losses are measured in margins, and a margin may be 0

Differences = Mapping[tuple[str, str], Difference]  # a record's differences to the baselines, by baseline and metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """A recommended trial, or else a baseline to use, and the differences that this rests on."""

    metrics: tuple[str, ...] = ()  # objectives that have a valid test, in their order
    untested: tuple[str, ...] = ()  # objectives that have none
    champion: str = ""  # the trial that is judged
    references: tuple[str, ...] = ()  # baselines that the champion must beat, zero-shot first
    baselines: tuple[str, ...] = ()
    split: str = ""
    images: Mapping[str, int] = field(default_factory=dict)  # by dataset
    seeds: int = 0  # number of the champion's seeds
    differences: Differences = field(default_factory=dict)  # the champion's
    recommended: str | None = None  # name of a trial
    best_baseline: str | None = None  # the one to use where no trial is recommended
    reason: str = ""  # one clause: why no trial is recommended

    def decisive_difference(self) -> Difference | None:
        """Return the champion's clearest gain over the reference that it beats least; None without a test."""
        clearest = []
        for reference in self.references:
            tested = [paired for (baseline, _), paired in self.differences.items() if baseline == reference]
            varied = [paired for paired in tested if paired.standard_error > 0]
            if varied:
                clearest.append(max(varied, key=lambda paired: paired.clarity))
        return min(clearest, key=lambda paired: paired.clarity, default=None)

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


def references_of(record: TrialRecord, baselines: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the baselines that a record must beat: the main reference, and the same method from words.

    The main reference is the first of the baselines in their usual order: zero-shot, or what stands for it.
    """
    references = list(baselines[:1])
    for baseline in baselines[1:]:
        is_from_words = not baseline.has_fpp_prompt and not baseline.is_imported
        is_same_method = baseline.config.get("method") == record.config.get("method")
        if is_from_words and is_same_method and baseline.name != record.name:
            references.append(baseline)
    return references


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


def chances(front: Front, samples: SplitSamples, trials: Sequence[TrialRecord]) -> dict[str, tuple[float, float]]:
    """Return the chance of a recommendation, by trial: the smallest pair comes first.

    It is the largest loss to the main reference that is not ruled out, in margins beyond the first, then the smallest
    t statistic, over the references, of the clearest gain over each, negated.
    """
    measured = [baseline for baseline in front.baselines if baseline.name in samples.records]
    metrics = testable_metrics(front.objectives)
    statistics = SplitStatistics(samples, typical=names_of(trials))
    by_name = {}
    for trial in trials:
        if trial.name not in samples.records:  # nothing is known of it
            by_name[trial.name] = (math.inf, 0.0)
            continue
        excess_loss = 0.0
        clearest_gains = []
        for position, reference in enumerate(references_of(trial, measured)):
            tested = statistics.differences([(trial.name, reference.name)], metrics)
            clearest_gains.append(max([0.0, *(paired.clarity for paired in tested)]))
            for paired in tested if position == 0 else ():
                margin = max(margin_of(paired.metric, front.info.margins), SMALLEST_MARGIN)
                excess_loss = max(excess_loss, -paired.gain_lower_bound / margin - 1)
        by_name[trial.name] = (excess_loss, -min(clearest_gains, default=0.0))
    return by_name


def testable_metrics(objectives: Sequence[Objective]) -> list[str]:
    """Return the metrics of the objectives whose differences can be tested."""
    return [metric for metric in metrics_of(objectives) if not why_never_tested(metric)]


def names_of(records: Sequence[TrialRecord]) -> list[str]:
    return [record.name for record in records]


# --- the answer ------------------------------------------------------------------------------------


def answer_of(front: Front, splits: Mapping[str, SplitStatistics]) -> Answer:
    """Return what to use, with the differences of the champion to all baselines."""
    if front.evaluate_only:
        return Answer(reason="search.evaluate_only chooses no trial")
    info = front.info
    judges = [_Judge(front, splits, split) for split in _last_split_first(info) if split in splits]
    default = _default_baseline(judges, front)
    for judge in judges:
        champion = judge.champion()
        is_too_early = judge.split == info.search_split and info.state != "finished"  # later splits may follow
        if champion is not None and not is_too_early:
            return judge.answer(champion, default)
    return Answer(best_baseline=default, reason=_why_no_champion(front))


def _default_baseline(judges: Sequence[_Judge], front: Front) -> str | None:
    """Return the baseline to use without a trial, by the last split that has a usable one."""
    for judge in judges:
        baseline = judge.usable_baseline()
        if baseline is not None:
            return baseline
    return front.baselines[0].name if front.baselines else None


def _why_no_champion(front: Front) -> str:
    """Return why no trial has results that a champion is judged by, as a clause."""
    info = front.info
    later = _last_split_first(info)[:-1]
    has_later_results = any(split in trial.results for trial in front.trials for split in later)
    will_go_on = info.state == "running" or (bool(front.trials) and info.state != "finished")
    if will_go_on and not has_later_results:
        return "no trial has been judged yet"  # a sweep may have no final stage
    if front.trials:
        return "the trials have no usable block statistics"
    return front.why_empty


def _last_split_first(info: SweepInfo) -> list[str]:
    """Return the splits that trials run on, the last one first; the search is the first."""
    return [*(split for split in ("test", FINAL) if split != info.search_split), info.search_split]


@dataclass(frozen=True, slots=True)
class _Judge:
    """The rule by which trials and baselines are judged, on the results of one split."""

    front: Front
    splits: Mapping[str, SplitStatistics]
    split: str

    @property
    def info(self) -> SweepInfo:
        return self.front.info

    @property
    def statistics(self) -> SplitStatistics:
        return self.splits[self.split]

    @property
    def metrics(self) -> list[str]:
        return testable_metrics(self.info.objectives)

    @property
    def baselines(self) -> list[TrialRecord]:
        return self.measured(self.front.baselines)

    @property
    def chosen_on(self) -> str:
        """The split whose images choose the champion."""
        return FINAL if self.split == "test" and FINAL in self.splits else self.info.search_split

    def measured(self, records: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the records with statistics of the split."""
        return [record for record in records if record.name in self.statistics.samples.records]

    def champion(self) -> TrialRecord | None:
        """Return the trial to judge, by its chance on the images before; None if no trial may be judged."""
        trials: Sequence[TrialRecord] = self.front.trials  # only finalists have results on later splits
        if self.split == self.info.search_split:
            trials = self.front.members
        in_order = self.front.by_trade_off(self.measured(trials))
        by_name: Mapping[str, tuple[float, float]] = {}
        if self.chosen_on in self.splits:
            by_name = chances(self.front, self.splits[self.chosen_on].samples, in_order)
        return min(in_order, key=lambda trial: by_name.get(trial.name, (math.inf, 0.0)), default=None)

    def answer(self, champion: TrialRecord, default: str | None) -> Answer:
        """Return the answer on the split; `default` is the baseline to use where no trial is recommended."""
        references = names_of(references_of(champion, self.baselines))
        differences = self.compare({champion.name: references})[champion.name]
        reason = next(self.problems(champion, references, differences), "")
        return Answer(
            metrics=tuple(self.metrics),
            untested=tuple(metric for metric in metrics_of(self.info.objectives) if metric not in self.metrics),
            champion=champion.name,
            references=tuple(references),
            baselines=tuple(names_of(self.baselines)),
            split=self.split,
            images=self.statistics.samples.images,
            seeds=len(self.statistics.samples.records[champion.name].seeds),
            differences=differences,
            recommended=None if reason else champion.name,
            best_baseline=default if reason else None,
            reason=reason,
        )

    def compare(self, references: Mapping[str, Sequence[str]]) -> dict[str, dict[tuple[str, str], Difference]]:
        """Return the differences of records to all baselines, corrected by Holm; `references` has those of each record.

        Those to each reference of a record are a family, all others another: all references must be beaten, which
        needs no correction over them.
        """
        baselines = names_of(self.baselines)
        pairs = [(name, baseline) for name in references for baseline in baselines if baseline != name]
        families: dict[str, list[Difference]] = {}
        for paired in self.statistics.differences(pairs, self.metrics):
            family = paired.second if paired.second in references[paired.first] else ""
            families.setdefault(family, []).append(paired)
        corrected: dict[str, dict[tuple[str, str], Difference]] = {name: {} for name in references}
        for members in families.values():
            for paired in adjust_p_values(members):
                corrected[paired.first][paired.second, paired.metric] = paired
        return corrected

    def problems(self, trial: TrialRecord, references: Sequence[str], differences: Differences) -> Iterator[str]:
        """Yield why a trial is not recommended, as clauses; who reads the first one ends the checks there."""
        name = trial.name
        if self.info.state != "finished":
            yield "the sweep has not finished"
        missing = self.missing_baselines()
        if missing:
            verb = "has" if len(missing) == 1 else "have"
            yield f"{' and '.join(missing)} {verb} no usable results on the {self.split} images"
        if not references:
            yield "there are no baselines to compare with"
        if not self.metrics:
            yield "no objective has a valid test"
        if self.info.search_split not in self.splits:
            yield f"{name} was chosen on images of {self.info.search_split} that have no block statistics"
        luck = chosen_by(self.info, self.splits, self.split, trial)
        if luck:
            yield f"{name} was chosen by these {luck}, so a gain may be luck with them"
        for metric in self.metrics:
            problem = self.statistics.why_no_difference(name, references[0], metric)
            if problem:
                yield f"no difference in {metric} can be tested ({problem})"
        if not self.statistics.has_known_seed_variance(name, self.metrics):
            yield f"{name} ran with too few seeds: one may be a lucky one"
        if not self.front.keeps_constraints(trial, self.split):
            yield f"{name} breaks a constraint on the {self.split} images"
        where = "in the final stage" if self.chosen_on == FINAL else f"on the {self.chosen_on} images"
        for shortcoming in self.shortcomings(references, differences):
            yield f"the champion {name}, chosen by its gain {where}, {shortcoming}"

    def shortcomings(self, references: Sequence[str], differences: Differences) -> Iterator[str]:
        """Yield why the differences of a record keep it from being used; the main reference is the first."""
        losses = []
        for metric in self.metrics:
            margin = margin_of(metric, self.info.margins)
            paired = differences.get((references[0], metric))
            if paired is None or not paired.excludes_loss_beyond(margin):  # without a test nothing is shown
                losses.append(f"{amount(margin, metric)} of {metric}")
        if losses:
            yield f"may lose to {words_for(references[0])} more than {' and '.join(losses)}"
        beaten = set()
        for (baseline, metric), paired in differences.items():
            if paired.mark == "-":
                yield f"is worse than {words_for(baseline)} in {metric}"
            elif paired.mark == "+":
                beaten.add(baseline)
        for reference in references:
            if reference not in beaten:
                yield f"is not shown to be better than {words_for(reference)}"

    def missing_baselines(self) -> list[str]:
        """Return the labels of the sweep's own baselines that may be better and have no results on the split.

        The main reference counts even if it failed, others only if they have results of the search.
        """
        labels = {*self.info.requested_baselines, *(baseline.label for baseline in self.front.baselines)}
        wanted = [*sorted(labels, key=usual_order)[:1], *(baseline.label for baseline in self.front.own_baselines)]
        missing = dict.fromkeys(wanted)
        for baseline in self.baselines:
            missing.pop(baseline.label, None)
        return list(missing)

    def usable_baseline(self) -> str | None:
        """Return the baseline to use without a trial; None without results of the main reference.

        It is the main reference, unless another one passes the rule of trials. It keeps the constraints.
        """
        baselines = self.baselines
        if not baselines or baselines[0] is not self.front.baselines[0]:
            return None
        references = {baseline.name: names_of(references_of(baseline, baselines)) for baseline in baselines[1:]}
        corrected = self.compare(references)
        passing = []
        for baseline in baselines[1:]:
            is_known = self.statistics.has_known_seed_variance(baseline.name, self.metrics)
            if is_known and not next(self.shortcomings(references[baseline.name], corrected[baseline.name]), ""):
                passing.append(baseline)
        for baseline in (*passing, *baselines):
            if self.front.keeps_constraints(baseline, self.split):
                return baseline.name
        return None
