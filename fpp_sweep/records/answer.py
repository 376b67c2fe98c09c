"""The statistics of a sweep, from its folder: intervals, support, differences to the baselines, and the answer.

`statistics_of` computes everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, front_of, metrics_shown, splits_of, values_on
from fpp_sweep.records.measurements import measure, resampled_metrics
from fpp_sweep.records.recommendation import Answer, answer_of, is_in_percent, names_of, testable_metrics, words_for
from fpp_sweep.records.records import FINAL, SweepInfo, TrialRecord
from fpp_sweep.records.texts import setting_text
from fpp_sweep.space.objectives import metrics_of
from fpp_sweep.spec.config import EMBEDDED_LIMIT
from fpp_sweep.spec.messages import command_line, plural
from fpp_sweep.spec.validation import as_mapping
from fpp_sweep.statistics.front_support import Region, front_region, front_support, support_word
from fpp_sweep.statistics.paired import POWER, Difference, Interval, SplitStatistics, detectable

MORE_IMAGES = 4  # times the images that the next step adds to: they halve the uncertainty over images
MAX_COMPARED = 200  # trials nearest to the front that get intervals and support: takes seconds and some 30 MB


@dataclass(frozen=True, slots=True, eq=False)
class SweepStatistics:
    """Everything that is computed from a sweep's block statistics."""

    front: Front
    splits: Mapping[str, SplitStatistics]
    support: Mapping[str, str]  # likely, uncertain or unlikely, by trial
    answer: Answer
    next_step: str = ""  # in words, with the command
    notes: Sequence[str] = ()  # images that were left out and files that were ignored, and why

    def interval(self, record: TrialRecord, split: str, metric: str) -> Interval | None:
        """Return a record's interval on a split; None if it has none."""
        return self.splits[split].interval(record.name, metric) if split in self.splits else None


def statistics_of(folder: SweepFolder, info: SweepInfo, records: Sequence[TrialRecord]) -> SweepStatistics:
    """Compute a sweep's statistics from the records and the block statistics in its folder."""
    front = front_of(info, records)
    metrics = resampled_metrics(metrics_shown(info))
    samples = {}
    names_of_compared = {record.name for record in front.compared}
    behind = [record for record in front.nearest(MAX_COMPARED) if record.name not in names_of_compared]
    for split in splits_of(info, front.compared):
        compared = front.compared
        if split == info.search_split:  # all trials have results; support needs those behind the front, too
            compared = [*front.compared, *behind]
        samples[split] = measure(folder, compared, split, metrics)
    finalists = [trial.name for trial in front.trials if FINAL in trial.results]
    splits = {}
    for split, of_split in samples.items():
        if of_split.records:
            others = [other for other in samples.values() if other is not of_split]
            splits[split] = SplitStatistics(of_split, others, finalists)
    answer = answer_of(front, splits)
    return SweepStatistics(
        front=front,
        splits=splits,
        support=_support(front, splits),
        answer=answer,
        next_step=next_step(front, answer),
        notes=[note for of_split in samples.values() for note in of_split.notes],
    )


# --- support ----------------------------------------------------------------------------------------


def _support(front: Front, splits: Mapping[str, SplitStatistics]) -> dict[str, str]:
    """Return the support of each trial on the search split; of finalists the weaker one of search and final stage.

    In the final stage a finalist is compared with the other finalists only.
    """
    metrics = metrics_of(front.objectives)
    shares: dict[str, float] = {}
    for split in (front.info.search_split, FINAL):
        if split in splits:
            values = {trial.name: values_on(trial, split, metrics) for trial in front.trials}
            for name, share in front_support(splits[split], values, metrics).items():
                shares[name] = min(share, shares.get(name, share))
    return {name: support_word(share) for name, share in shares.items()}


def region_of(statistics: SweepStatistics) -> Region | None:
    """Return the region of the front on the search split; None unless two objectives can be resampled."""
    front = statistics.front
    if front.info.search_split not in statistics.splits:
        return None
    searched = statistics.splits[front.info.search_split]
    return front_region(searched, names_of(front.trials), metrics_of(front.objectives))


# --- the answer in words ----------------------------------------------------------------------------


def sentence_of(statistics: SweepStatistics) -> str:
    """Return what to use and why, in a few sentences: for the terminal, the page and files."""
    answer = statistics.answer
    if answer.recommended is not None:
        return _recommending_sentence(answer, statistics.front)
    use = "Nothing can be recommended"
    if answer.best_baseline is not None:
        use = f"Use {words_for(answer.best_baseline)}"
    reason = answer.reason
    if answer.design:
        reason += f" (on {answer.design})"
    sentences = [f"{use}: {reason}."]
    paired = answer.decisive_difference()
    if paired is not None:
        sentences.append(_measured_words(answer, paired))
    return " ".join([*sentences, statistics.next_step]).strip()


def _recommending_sentence(answer: Answer, front: Front) -> str:
    settings = ""
    for trial in front.trials:
        if trial.name == answer.recommended:
            settings = settings_of(trial)
    clauses = [_clause(answer, reference) for reference in reversed(answer.references)]
    if answer.untested:
        clauses.append(f"not tested: {' and '.join(answer.untested)}")
    return f"Use {answer.recommended} ({settings}): {'; '.join(clauses)}, on {answer.design}."


def _clause(answer: Answer, reference: str) -> str:
    """Return in words how the champion compares with a reference: shown gains first, then bounds of the rest."""
    gains, rest = [], []
    for metric in answer.metrics:
        paired = answer.differences.get((reference, metric))
        if paired is None:
            rest.append(f"no verdict in {metric}")
        elif paired.mark == "+":
            gains.append(f"{_gain_words(paired)} than {words_for(reference)}")
        else:
            bound = max(abs(paired.low), abs(paired.high))
            rest.append(f"{metric} equal within {_number(bound, metric)} (95 %)")
    return ", ".join([*gains, *rest])


def _gain_words(paired: Difference, half_width: str = "") -> str:
    """Return a difference in words, such as `1.1 points less ece`; a loss of accuracy is less of it, too."""
    words = [_number(abs(paired.debiased), paired.metric) + half_width]
    if is_in_percent(paired.metric):
        words.append("points")
    words.append("more" if paired.debiased > 0 else "less")
    return " ".join([*words, paired.metric])


def _number(value: float, metric: str) -> str:
    if is_in_percent(metric):
        return f"{value:.1f}"
    return f"{value:.3f}"


def _measured_words(answer: Answer, paired: Difference) -> str:
    """Return what the sweep measured where its champion is nearest to a gain, and what it could have shown."""
    measured = _gain_words(paired, f" ± {_number(paired.half_width, paired.metric)}")
    shown = _number(detectable(paired, len(answer.metrics)), paired.metric)
    against = words_for(paired.second)
    return f"{paired.first} has {measured} than {against}; this sweep could show {shown} ({100 * POWER:g} % power)."


# --- the next step ----------------------------------------------------------------------------------


def next_step(front: Front, answer: Answer) -> str:
    """Return in words the command that may change the answer; empty if a trial is recommended or the sweep runs."""
    info = front.info
    if answer.recommended is not None or info.evaluate_only or info.state == "running":
        return ""
    if info.state != "finished":
        return f"To go on: {_resume_command(info)}."
    if as_mapping(info.search_settings.get("finalists", {})).get("seeds") == 1:
        return f"To judge it with fresh seeds: {_resume_command(info, ['search.finalists.seeds=3'])}."
    if not front.baselines or not testable_metrics(front.objectives):  # no sweep of this space can show a gain
        return ""
    images = _images_to_add(info, answer)
    finer = _finer_step(front, answer, images)
    if finer:
        return finer
    if images:
        command = _resume_command(info, [f"search.finalists.images={images}"])
        return f"To test it: {command}{_minutes(front, MORE_IMAGES)}."
    limits = [(key, info.search_settings.get(key)) for key in ("trials", "wall_clock")]
    larger = [f"search.{key}={2 * limit:g}" for key, limit in limits if limit]
    if info.search_settings.get("sampler") == "grid" or not larger:
        return ""
    return f"To search on: {_resume_command(info, larger)}."


def _finer_step(front: Front, answer: Answer, images: int) -> str:
    """Return the command that shows a smaller difference: with more images, and more seeds where they matter more."""
    paired = answer.decisive_difference()
    if paired is None:
        return ""
    assignments = []
    of_images = paired.standard_error**2 - paired.seed_variance
    of_seeds = paired.seed_variance
    work = 1
    if images:
        assignments.append(f"search.finalists.images={images}")
        of_images /= MORE_IMAGES
        work *= MORE_IMAGES
    if of_seeds > of_images:
        assignments.append(f"search.finalists.seeds={2 * answer.seeds}")
        of_seeds /= 2
        work *= 2
    if not assignments:
        return ""
    finer = replace(paired, standard_error=math.sqrt(of_images + of_seeds))
    shown = _number(detectable(finer, len(answer.metrics)), paired.metric)
    return f"To show {shown}: {_resume_command(front.info, assignments)}{_minutes(front, work)}."


def _images_to_add(info: SweepInfo, answer: Answer) -> int:
    """Return four times the images of a dataset that the answer rests on; 0 if the datasets may have no more."""
    finalists = as_mapping(info.search_settings.get("finalists", {}))
    most = max(info.work_settings.get("limit") or EMBEDDED_LIMIT, finalists.get("images") or 0)
    if set(answer.images.values()) != {most}:
        return 0
    return MORE_IMAGES * most


def _resume_command(info: SweepInfo, assignments: Sequence[str] = ()) -> str:
    words = ["--resume", info.name, *info.plugin_words]
    if info.address:
        words += ["--address", info.address]
    if assignments:
        words += ["--set", *assignments]
    return f"`{command_line('tune', words)}`"


def _minutes(front: Front, factor: float) -> str:
    """Return in words the time of so many times the work after the search, at the sweep's own speed."""
    records = [*front.finished, *front.baselines]
    all_seconds = sum(record.worker_seconds for record in records)
    later_seconds = 0.0
    for record in records:
        for split, result in record.results.items():
            if split != front.info.search_split:
                later_seconds += result.worker_seconds
    if not front.info.spent or not later_seconds:
        return ""
    minutes = round(factor * later_seconds * front.info.spent / all_seconds / 60)
    return f", about {plural(max(1, minutes), 'minute')}"


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
