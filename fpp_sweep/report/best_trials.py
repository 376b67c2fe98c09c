"""The best trials of compared sweeps against each other: their tests, and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fpp_sweep.records.luck import has_images_of_search, has_seeds_of_search
from fpp_sweep.report.answer_section import SIGNIFICANT, difference_cell
from fpp_sweep.report.comparison import BestTrialsTest, SweepComparison
from fpp_sweep.report.formatting import format_bounds, format_p_value
from fpp_sweep.report.table import Cell, Row, Table, cells_of, columns_of
from fpp_sweep.spec.messages import plural
from fpp_sweep.statistics.paired import Difference, paired_over


def best_trials_verdict(comparison: SweepComparison) -> str:
    """Return which of the sweeps' best trials are better than another sweep's, and which tests may show luck only."""
    if not comparison.tests:
        return "No difference between the sweeps' best trials was tested."
    verdicts = []
    n_without_verdict = 0
    causes: dict[str, None] = {}
    for test in comparison.tests:
        if not test.difference.mark:
            continue
        causes_of_test = _causes_of_luck(comparison, test)
        if causes_of_test:
            n_without_verdict += 1
            causes.update(dict.fromkeys(causes_of_test))
        else:
            verdicts.append(_verdict_of(test.difference))
    sentences = []
    if verdicts:
        sentences.append(f"{'; '.join(verdicts)}.")
    if n_without_verdict:
        differences = plural(n_without_verdict, "significant difference")
        sentences.append(f"No verdict on {differences}, which may be luck: the trials {' and '.join(causes)}.")
    return " ".join(sentences) or "No difference between the sweeps' best trials is significant."


def _verdict_of(difference: Difference) -> str:
    better, worse = difference.first, difference.second
    if difference.mark == "-":
        better, worse = worse, better
    return f"{better} is better than {worse} in {difference.metric}"


def _causes_of_luck(comparison: SweepComparison, test: BestTrialsTest) -> list[str]:
    """Return why a significant difference may come from lucky images or seeds; an empty list if not."""
    causes = []
    if _were_chosen_by_images(comparison, test.split):
        causes.append(f"were chosen by these {test.split} images")
    elif _were_chosen_by_seeds(comparison, test):
        causes.append("were chosen with these seeds")
    statistics = comparison.statistics.splits[test.split]
    for name in (test.difference.first, test.difference.second):
        if not statistics.has_known_seed_variance(name, [test.difference.metric]):
            return [*causes, "have too few seeds"]
    return causes


def _were_chosen_by_images(comparison: SweepComparison, split: str) -> bool:
    """Return True if the best of several trials were chosen by their values on a split's images."""
    return _was_any_chosen(comparison) and has_images_of_search(comparison.info, comparison.statistics.splits, split)


def _were_chosen_by_seeds(comparison: SweepComparison, test: BestTrialsTest) -> bool:
    """Return True if one of two best trials has prompts of the seeds that chose it."""
    if not _was_any_chosen(comparison):
        return False
    splits = comparison.statistics.splits
    for trial in comparison.statistics.front.finished:
        is_compared = trial.name in (test.difference.first, test.difference.second)
        if is_compared and has_seeds_of_search(comparison.info, splits, test.split, trial):
            return True
    return False


def _was_any_chosen(comparison: SweepComparison) -> bool:
    """Return True if a sweep had several trials to choose its best from."""
    return any(len(sweep.front.finished) > 1 for sweep in comparison.sweeps)


def best_trials_table(comparison: SweepComparison) -> Table:
    """Return first minus second of each pair of best trials."""
    columns = columns_of(["best in", "first", "second", "on", "metric"], is_text=True)
    columns += columns_of(["difference", "p"])
    rows = []
    for test in comparison.tests:
        difference = test.difference
        cells = cells_of([", ".join(test.marks), difference.first, difference.second, test.split, difference.metric])
        value = difference_cell(difference.metric, difference)
        cells.append(replace(value, interval=format_bounds(difference.metric, difference)))
        cells.append(Cell(format_p_value(difference.adjusted_p)))
        rows.append(Row(cells))
    return Table(columns=columns, rows=rows, notes=list(_notes_on_tests(comparison)))


def _notes_on_tests(comparison: SweepComparison) -> Iterator[str]:
    if not comparison.tests:
        yield (
            "none: a test takes two different best trials, enough shared images, and an objective that can be resampled"
        )
        return
    yield (
        f"first minus second; p two-sided, after Holm's correction over these {len(comparison.tests)} tests; "
        f"{SIGNIFICANT} below 0.05"
    )
    for split in sorted({test.split for test in comparison.tests}):
        yield f"on {split} {paired_over(comparison.statistics.splits[split].samples)}"
        if _were_chosen_by_images(comparison, split):
            yield f"on {split} they were chosen by these images: optimistic"
