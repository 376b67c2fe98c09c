"""The choice of finalists after the search, and of the champion that runs on the test split."""

from __future__ import annotations

from collections.abc import Sequence

from fpp_sweep.records.answer import MAX_COMPARED
from fpp_sweep.records.folder import SweepFolder
from fpp_sweep.records.front import Front, keeps_constraints
from fpp_sweep.records.measurements import measure
from fpp_sweep.records.recommendation import chances, split_by_testable
from fpp_sweep.records.records import FINAL, TrialRecord


def choose_finalists(folder: SweepFolder, front: Front, count: int) -> list[TrialRecord]:
    """Return the trials that run in the final stage, at most `count`: members of the front and its closest rivals.

    Front members with a mark (the knee, the best in an objective) come first. Then the order is by the chance of a
    recommendation (see `chances`), then front members before rivals, then by trade-off.

    Trials with the settings of a baseline are left out, because the baseline runs anyway. Of trials with equal settings
    or equal results the first one is chosen.
    """
    candidates = front.by_trade_off(_candidates(front))
    by_name = chances_on(folder, front, candidates, front.search_split)

    def rank(record: TrialRecord) -> tuple[bool, tuple[float, float], bool]:
        """Return a sort key: the smallest key comes first, trials with equal keys stay in the order of trade-off."""
        has_no_mark = not front.marks.get(record.name)
        return (has_no_mark, by_name[record.name], record not in front.members)

    return _first_by_results(sorted(candidates, key=rank), front.search_split)[:count]


def _candidates(front: Front) -> list[TrialRecord]:
    """Return the feasible trials nearest to the front."""
    baseline_keys = {baseline.key for baseline in front.baselines}
    candidates = []
    for record in first_by_settings(front.nearest(MAX_COMPARED)):
        if record.feasible and record.key not in baseline_keys:
            candidates.append(record)
    return candidates


def _first_by_results(records: Sequence[TrialRecord], split: str) -> list[TrialRecord]:
    """Return the records without those that repeat the numbers of an earlier one on every dataset: copies of it."""
    first: dict[str, TrialRecord] = {}
    for record in records:
        first.setdefault(repr(record.results[split].datasets), record)
    return list(first.values())


def first_by_settings(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the records without those that repeat the settings of an earlier one."""
    first: dict[str, TrialRecord] = {}
    for record in records:
        first.setdefault(record.key, record)
    return list(first.values())


def choose_champion(folder: SweepFolder, front: Front, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the finalist that runs on the test split, alone, by its chance of a recommendation in the final stage.

    Finalists that break a constraint with fresh seeds and images are left out if others keep all. A finalist whose
    seeds disagree comes late, even if its mean is the best: its standard error is large.
    """
    info = folder.info()
    feasible = [record for record in finalists if keeps_constraints(info, record, FINAL, front.baselines)]
    candidates = feasible or finalists
    by_name = chances_on(folder, front, candidates, FINAL)
    return sorted(candidates, key=lambda record: by_name[record.name])[:1]


def chances_on(
    folder: SweepFolder, front: Front, trials: Sequence[TrialRecord], split: str
) -> dict[str, tuple[float, float]]:
    """Return the chance of a recommendation by trial, from their results on a split: see `chances`."""
    metrics, _ = split_by_testable(front.objectives)
    samples = measure(folder, [*front.baselines, *trials], split, metrics).samples
    return chances(samples, trials, front.baselines, metrics, folder.info().margins)
